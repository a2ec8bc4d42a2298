"""The rows of datasets: the columns by dataset kind, and those that define lengths and fingerprints.

Shapes: M paragraphs of a row, S tokens of all paragraphs, D width of a model.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens


class Row(TypedDict, total=False):
    """One prepared example, with the requested columns. Lists of numbers are numpy arrays."""

    id: str
    title: str
    # [S] the selected paragraphs, best rank first; the first one begins with the title and its mark. In rows of kind
    # extraction and pretraining, each paragraph is a sentence, in document order, and there is no title.
    ids: np.ndarray
    title_tokens: int  # length of the title and its mark at the beginning of ``ids``
    paragraph_offsets: np.ndarray  # [M + 1]
    sentence_offsets: np.ndarray  # the starts of the sentences, and the end of the last
    document: np.ndarray  # [M] index of the document
    paragraph: np.ndarray  # [M] index of the paragraph in its document
    char_start: np.ndarray  # [M] span in the raw text of the document
    char_end: np.ndarray
    text: list[str]  # [M] raw text of the paragraphs
    source: list[str]  # name of each document
    rank_score: np.ndarray  # [M]
    target_ids: np.ndarray  # from the start to the end mark; empty without a summary
    summary: str
    other_target_ids: np.ndarray  # those of further references, concatenated
    other_target_offsets: np.ndarray  # their starts, and the end of the last; empty if there is none
    other_summaries: list[str]
    extra: str  # JSON of the other fields of the raw cluster that the recipe keeps, or ""
    graph_row: np.ndarray  # edges between paragraphs
    graph_col: np.ndarray
    graph_value: np.ndarray
    labels: np.ndarray  # [M] 1 for the sentences nearest to the summary; extraction only


_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int32(),
    list[str]: pa.list_(pa.string()),
    np.ndarray: pa.list_(pa.int32()),  # except the columns below
    **dict.fromkeys(("rank_score", "graph_value"), pa.list_(pa.float32())),
    **dict.fromkeys(("graph_row", "graph_col"), pa.list_(pa.int16())),
    "labels": pa.list_(pa.int8()),
}
_ALL = pa.schema([(name, _TYPES.get(name, _TYPES[kind])) for name, kind in Row.__annotations__.items()])


def _all_except(prefixes: str) -> pa.Schema:
    """Return all columns of a row, except names that begin with one of ``prefixes``."""
    return pa.schema([field for field in _ALL if not field.name.startswith(tuple(prefixes.split()))])


SCHEMAS = {  # by dataset kind
    "summarization": _all_except("labels"),
    "ranking": _all_except("labels graph"),
    "extraction": _all_except("graph rank sentence"),
    "pretraining": _all_except("graph rank sentence labels text source other extra"),
    # Examples of an attention predictor: paragraph embeddings [M * D], and attention [M] with sum 1.
    "alignment": pa.schema({"id": pa.string(), "embeddings": pa.list_(pa.float16()), "label": pa.list_(pa.float32())}),
}
# The columns that define the fingerprint of a dataset; a dataset kind has some of them.
FINGERPRINTED = ("id", "ids", "paragraph_offsets", "target_ids", "other_target_ids", "labels", "embeddings", "label")
OTHER_TARGETS = ("other_target_ids", "other_target_offsets")


def row_lengths(table: pa.Table) -> np.ndarray:
    """Return [rows, 3] int32: source tokens, paragraphs, target tokens (with start and end).

    Further columns have the lengths of further references, padded with 0. In rows of kind alignment, all are M.
    """
    names = ("label",) * 3 if "label" in table.column_names else ("ids", "paragraph_offsets", "target_ids")
    sizes = [pc.list_value_length(table[name]).to_numpy() - int(name == "paragraph_offsets") for name in names]
    others: list[np.ndarray] = []
    if "other_target_offsets" in table.column_names:
        others = [np.diff(row) for row in _column_values(table["other_target_offsets"].combine_chunks())]
    most = max(map(len, others), default=0)
    sizes += [*np.array([np.pad(row, (0, most - len(row))) for row in others]).T] if most else []
    return np.stack(sizes, 1).astype(np.int32)


def with_reference(row: Any, number: int) -> Any:
    """Return ``row`` with the target of its reference ``number``, counted from 0."""
    if not number:
        return row
    start, end = row["other_target_offsets"][number - 1 : number + 1]
    return row | {"target_ids": row["other_target_ids"][start:end]}


def references(row: Row) -> list[str]:
    """Return all reference summaries of a row; rows of old datasets have only one."""
    return [row["summary"], *row.get("other_summaries", [])]


def table_of(rows: Sequence[Any], kind: str) -> pa.Table:
    """Return the table of rows of one dataset kind, which have the same columns."""
    schema = pa.schema([field for field in SCHEMAS[kind] if field.name in rows[0]])
    return pa.Table.from_pylist(rows, schema=schema)


def table_rows(table: pa.Table) -> Iterator[Any]:
    """Yield the rows of a table: a ``Row`` each, unless the dataset kind is alignment."""
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
    """Return ``rows`` and ``columns`` (None: all) of row group ``number``.

    In a shard of format 1, the title ends at its mark, and the field ``facts`` replaces ``extra``.
    """
    stored = None if columns is None else [*columns, *(["facts"] if "extra" in columns else [])]
    table = shard.read_row_group(number, columns=stored)
    table = table if rows is None else table.take(pa.array(rows))
    if "facts" in table.column_names:
        texts = [f'{{"facts": {facts}}}' if facts else "" for facts in table["facts"].to_pylist()]
        table = table.drop_columns("facts").append_column("extra", pa.array(texts))
    names, needs_titles = table.column_names, columns is None or "title_tokens" in columns
    if needs_titles and "ids" in names and "title_tokens" not in names:
        lengths = [title_tokens(ids) for ids in _column_values(table["ids"].combine_chunks())]
        table = table.append_column("title_tokens", pa.array(lengths, pa.int32()))
    return table


def title_of(row: Row, marks: SpecialTokens) -> np.ndarray:
    """Return the ids of the title without its mark."""
    return row["ids"][: max(row["title_tokens"] - len(marks.title_end), 0)]


def title_tokens(ids: np.ndarray) -> int:
    """Return the number of tokens of the title and its mark <T> at the beginning of ``ids``; 0 without a title."""
    ends = np.flatnonzero(ids == PUBLISHED.title_end[0])
    return int(ends[0]) + 1 if len(ends) else 0
