"""The rows of a dataset, by its kind: their columns, what is counted of them, and what tells two datasets apart.

M paragraphs of a row, S their tokens, D the width of a model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens


class Row(TypedDict, total=False):
    """One example, prepared: those of its columns that were asked for. Numbers are numpy arrays."""

    id: str
    title: str
    # [S] kept paragraphs one after the other, best rank first; the title and its mark open the first. In rows of kind
    # extraction and pretraining each paragraph is a sentence, in the documents' order, and no title opens the first.
    ids: np.ndarray
    title_tokens: int  # of the title and its mark at the beginning of ``ids``
    paragraph_offsets: np.ndarray  # [M + 1]
    sentence_offsets: np.ndarray  # starts of the sentences, and the end
    document: np.ndarray  # [M] which document
    paragraph: np.ndarray  # [M] which paragraph of that document
    char_start: np.ndarray  # [M] span in that document's raw text
    char_end: np.ndarray
    text: list[str]  # [M] raw text of the paragraphs
    source: list[str]  # name of each document
    rank_score: np.ndarray  # [M]
    target_ids: np.ndarray  # start ... end, empty without summary
    summary: str
    other_target_ids: np.ndarray  # those of further references, one after the other
    other_target_offsets: np.ndarray  # their starts and the end, empty where there is none
    other_summaries: list[str]
    extra: str  # JSON of the raw cluster's other fields that the recipe keeps, or ""
    graph_row: np.ndarray  # edges between paragraphs
    graph_col: np.ndarray
    graph_value: np.ndarray
    labels: np.ndarray  # [M] 1 = one of the sentences that are nearest to the summary, extraction only


_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int32(),
    list[str]: pa.list_(pa.string()),
    np.ndarray: pa.list_(pa.int32()),  # but for these columns:
    **dict.fromkeys(("rank_score", "graph_value"), pa.list_(pa.float32())),
    **dict.fromkeys(("graph_row", "graph_col"), pa.list_(pa.int16())),
    "labels": pa.list_(pa.int8()),
}
_ALL = pa.schema([(name, _TYPES.get(name, _TYPES[kind])) for name, kind in Row.__annotations__.items()])


def _columns(unwanted: str) -> pa.Schema:
    """Those of a row without those whose names begin with one of ``unwanted``."""
    return pa.schema([field for field in _ALL if not field.name.startswith(tuple(unwanted.split()))])


@dataclass(frozen=True)
class Form:
    """What rows of one dataset kind look like.

    ``counted``: the list columns whose lengths, less a number, are those of a row. ``content``: what is fingerprinted.
    """

    schema: pa.Schema
    counted: tuple[tuple[str, int], tuple[str, int], tuple[str, int]]
    content: tuple[str, ...]

    def lengths(self, table: pa.Table) -> np.ndarray:
        """[rows, 3] int32: source tokens, paragraphs, target tokens (start and end counted).

        Where a row has several references there are more columns, for the targets of the others; 0 where it has fewer.
        """
        sizes = [pc.list_value_length(table[name]).to_numpy() - less for name, less in self.counted]
        others: list[np.ndarray] = []
        if "other_target_offsets" in table.column_names:
            others = [np.diff(row) for row in _column_values(table["other_target_offsets"].combine_chunks())]
        most = max(map(len, others), default=0)
        sizes += [*np.array([np.pad(row, (0, most - len(row))) for row in others]).T] if most else []
        return np.stack(sizes, 1).astype(np.int32)


_COUNTED = (("ids", 0), ("paragraph_offsets", 1), ("target_ids", 0))
_CONTENT = ("id", "ids", "paragraph_offsets", "target_ids", "other_target_ids")
FORMS = {
    "summarization": Form(_columns("labels"), _COUNTED, _CONTENT),
    "ranking": Form(_columns("labels graph"), _COUNTED, _CONTENT),
    "extraction": Form(_columns("graph rank sentence"), _COUNTED, (*_CONTENT, "labels")),
    "pretraining": Form(_columns("graph rank sentence labels text source other extra"), _COUNTED, _CONTENT),
    # What an attention predictor learns of: paragraph embeddings [M * D] and attention [M], which sums to one.
    "alignment": Form(
        pa.schema([("id", pa.string()), ("embeddings", pa.list_(pa.float16())), ("label", pa.list_(pa.float32()))]),
        (("label", 0),) * 3,
        ("id", "embeddings", "label"),
    ),
}


OTHER_TARGETS = ("other_target_ids", "other_target_offsets")


def with_reference(row: Any, number: int) -> Any:
    """``row`` with the target of its reference ``number``; the first has number 0."""
    if not number:
        return row
    start, end = row["other_target_offsets"][number - 1 : number + 1]
    return row | {"target_ids": row["other_target_ids"][start:end]}


def references(row: Row) -> list[str]:
    """All reference summaries of a row; datasets of before have one."""
    return [row["summary"], *row.get("other_summaries", [])]


def table_of(rows: Sequence[Any], kind: str) -> pa.Table:
    """A table of rows of one kind that have the same columns."""
    schema = pa.schema([field for field in FORMS[kind].schema if field.name in rows[0]])
    return pa.Table.from_pylist(rows, schema=schema)


def table_rows(table: pa.Table) -> Iterator[Any]:
    """The rows of a table, as ``Row`` where it is one for summarization."""
    columns = {name: _column_values(table.column(name).combine_chunks()) for name in table.column_names}
    for number in range(table.num_rows):
        yield {name: values[number] for name, values in columns.items()}


def _column_values(column: pa.Array) -> Sequence[Any]:
    if not pa.types.is_list(column.type) or pa.types.is_string(column.type.value_type):
        return column.to_pylist()
    values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    return [values[start:end] for start, end in zip(offsets, offsets[1:], strict=False)]


def read_group(
    shard: pq.ParquetFile, number: int, columns: Sequence[str] | None, rows: np.ndarray | None = None
) -> pa.Table:
    """``rows`` and ``columns`` (None: all) of row group ``number``; also of a shard of format 1, which lacks some.

    There titles were told by their mark alone, and the extra field was ``facts``.
    """
    former = None if columns is None else [*columns, *(["facts"] if "extra" in columns else [])]
    table = shard.read_row_group(number, columns=former)
    table = table if rows is None else table.take(pa.array(rows))
    if "facts" in table.column_names:
        texts = [f'{{"facts": {facts}}}' if facts else "" for facts in table["facts"].to_pylist()]
        table = table.drop_columns("facts").append_column("extra", pa.array(texts))
    names, wanted = table.column_names, columns is None or "title_tokens" in columns
    if wanted and "ids" in names and "title_tokens" not in names:
        found = [title_tokens(ids) for ids in _column_values(table["ids"].combine_chunks())]
        table = table.append_column("title_tokens", pa.array(found, pa.int32()))
    return table


def title_of(row: Row, marks: SpecialTokens) -> np.ndarray:
    """The ids of the title, without its mark."""
    return row["ids"][: max(row["title_tokens"] - len(marks.title_end), 0)]


def title_tokens(ids: np.ndarray) -> int:
    """Tokens of the title and its mark <T> at the beginning of ``ids``; 0 where there is none."""
    ends = np.flatnonzero(ids == PUBLISHED.title_end[0])
    return int(ends[0]) + 1 if len(ends) else 0
