"""Rows of summarizing models: paragraphs with title and edges, and the target, truncated to the limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysum.config.decoding import SourceConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.stream.collators.base import Arrays, Kind, long, padded, room
from raysum.systems import Spec
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens, marks_of

if TYPE_CHECKING:
    from raysum.models.batch import Batch

_GRAPH: dict[str, type] = {"graph_row": np.int16, "graph_col": np.int16, "graph_value": np.float32}


@dataclass(frozen=True)
class Summarization(Kind):
    """The dataset kind of summarization. Cost: source and target tokens; weight: target tokens except the start.

    The model reads paragraphs separately, or ``joined`` to one sequence, with ``marks`` at their ends (see
    ``cut_source``). With ``graph``, it also reads the edges between them. ``global_ids`` are those of W layers.
    """

    draws_references = True

    joined: bool = False
    graph: bool = False
    marks: SpecialTokens = PUBLISHED
    global_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, spec: Spec) -> "Summarization":
        return cls(spec.joins_paragraphs, spec.needs_graph, marks_of(spec), spec.global_ids)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("ids", "title_tokens", "paragraph_offsets", "target_ids", *(_GRAPH if self.graph else ()))

    def check(self, dataset: Dataset) -> None:
        if self.graph and dataset.recipe.graph == "none":
            raise UserError(
                f"{dataset.place} holds no graph between paragraphs, which this model needs; "
                "prepare it with --graph similarity or --graph discourse"
            )

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Return costs and weights; if paragraphs are cut, costs are upper bounds, because ``lengths`` are totals."""
        tokens, paragraphs, target = lengths.astype(np.int64).T
        paragraphs = np.minimum(paragraphs, source.max_paragraphs)
        marks = self.marks
        if self.joined:
            tokens = np.minimum(tokens, paragraphs * source.paragraph_tokens)
            tokens += (paragraphs - 1) * len(marks.paragraph_end)
            around = len(marks.prefix) + len(marks.joined_end)
            tokens += around
        else:
            around = marks.around
            tokens = np.minimum(tokens + paragraphs * around, paragraphs * max(source.paragraph_tokens, around + 1))
        tokens = np.minimum(tokens, max(source.max_tokens, around + 1) if source.max_tokens else tokens)
        target = np.minimum(target, source.target_tokens)
        return tokens + target, np.maximum(target - 1, 0)

    def cut(self, row: Row, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        return cut_source(row, source, self.joined, self.marks)

    def pack(self, rows: list[Row], source: SourceConfig) -> Arrays:
        """Return ``ids`` [S], ``lengths`` [P], ``counts`` and ``titles`` [B] as in a Source; flat ``target`` and
        ``target_lengths`` [B]. With a graph also ``edges`` [B], the number of edges of each example, and flat columns.
        """
        ids, lengths = zip(*(self.cut(row, source) for row in rows), strict=True)
        targets = [cut_target(row["target_ids"], source.target_tokens) for row in rows]
        titles = [self._title(row["title_tokens"], int(sizes[0])) for row, sizes in zip(rows, lengths, strict=True)]
        arrays = {
            "ids": np.concatenate(ids, dtype=np.int32),
            "lengths": np.concatenate(lengths, dtype=np.int32),
            "counts": np.array([len(sizes) for sizes in lengths], np.int32),
            "titles": np.array(titles, np.int32),
            "target": np.concatenate(targets, dtype=np.int32),
            "target_lengths": np.array([len(target) for target in targets], np.int32),
        }
        if self.graph:
            edges = [cut_graph(row, len(sizes)) for row, sizes in zip(rows, lengths, strict=True)]
            arrays["edges"] = np.array([len(columns[0]) for columns in edges], np.int32)
            for number, (name, dtype) in enumerate(_GRAPH.items()):
                arrays[name] = np.concatenate([columns[number] for columns in edges], dtype=dtype)
        return arrays

    def _title(self, tokens: int, first: int) -> int:
        """Return the length of a title of ``tokens`` with its prefix; the first paragraph has ``first`` tokens."""
        closing = 0 if self.joined else len(self.marks.suffix)
        return min(len(self.marks.prefix) + tokens, first - closing) if tokens else 0

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["ids"]), len(arrays["target"]) - len(arrays["target_lengths"])

    def padding(self, arrays: Arrays) -> int:
        """Return the padding of the targets; paragraphs are packed."""
        return room(arrays["target_lengths"])

    def collate(self, arrays: Arrays) -> "Batch":
        import torch

        from raysum.models.batch import Batch, Source, predicted_tokens

        counts = arrays["counts"]
        graph = None
        if self.graph:
            examples = np.repeat(np.arange(len(counts)), arrays["edges"])
            dense = np.zeros((len(counts), counts.max(), counts.max()), np.float32)
            dense[examples, arrays["graph_row"], arrays["graph_col"]] = arrays["graph_value"]
            graph = torch.from_numpy(dense)
        target = long(padded(arrays["target"], arrays["target_lengths"], self.marks.pad))
        ids, lengths, titles = (long(arrays[name]) for name in ("ids", "lengths", "titles"))
        source = Source(ids, lengths, long(counts), graph, titles)
        source.count_globals(self.global_ids)
        return Batch(source, target, predicted_tokens(target, self.marks.pad))


def cut_source(
    row: Row, source: SourceConfig, joined: bool = False, marks: SpecialTokens = PUBLISHED
) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of a row that a model reads: ids [S'] and the lengths [P'] of its paragraphs, none of them empty.

    The best paragraphs are first, so truncation removes the last ones, but never the first token. The prefix and the
    suffix of ``marks`` enclose each paragraph and count for the limits.
    ``joined``: as in hiersumm's flat Transformer, ``paragraph_end`` (<P>) ends each paragraph except the last,
    ``joined_end`` (EOS) ends the truncated sequence, and the prefix begins it. These end marks belong to the preceding
    paragraph, and count only for ``max_tokens``.
    """
    full = np.diff(row["paragraph_offsets"][: source.max_paragraphs + 1])
    around = 0 if joined else marks.around
    lengths = np.minimum(full, max(source.paragraph_tokens - around, 1))
    if not joined:
        limit = None if source.max_tokens is None else max(source.max_tokens, around + 1)
        lengths = np.maximum(_limit_sum(lengths + around * (lengths > 0), limit) - around, 0)
    position = np.arange(int(full.sum())) - np.repeat(np.cumsum(full) - full, full)
    kept, lengths = row["ids"][: len(position)][position < np.repeat(lengths, full)], lengths[lengths > 0]
    if joined:
        return _join(kept, lengths, source.max_tokens, marks)
    return add_marks(kept, lengths, marks.prefix, marks.suffix), lengths + around


def add_marks(ids: np.ndarray, lengths: np.ndarray, before: Sequence[int], after: Sequence[int]) -> np.ndarray:
    """Return ``ids`` with marks before and after each of the parts of ``lengths`` [P]."""
    if not before and not after:
        return ids
    ends = np.cumsum(lengths)
    edges = np.stack([ends - lengths, ends], 1).ravel()
    edges = np.repeat(edges, np.tile([len(before), len(after)], len(lengths)))
    return np.insert(ids, edges, np.tile([*before, *after], len(lengths)))


def _join(
    ids: np.ndarray, lengths: np.ndarray, limit: int | None, marks: SpecialTokens
) -> tuple[np.ndarray, np.ndarray]:
    """Return joined paragraphs with their marks: at most ``limit`` tokens, but at least one between the outer marks."""
    opening, closing = (np.array(mark, ids.dtype) for mark in (marks.prefix, marks.joined_end))
    between = marks.paragraph_end
    marked, lengths = add_marks(ids, lengths, (), between), lengths + len(between)
    most = int(lengths.sum()) - len(between)  # the last paragraph ends with the closing mark
    most = most if limit is None else min(most, max(limit - len(opening) - len(closing), 1))
    lengths = _limit_sum(lengths, most)
    lengths = lengths[lengths > 0]
    ids = np.concatenate([opening, marked[: lengths.sum()], closing])
    lengths[0] += len(opening)
    lengths[-1] += len(closing)
    return ids, lengths


def _limit_sum(lengths: np.ndarray, limit: int | None) -> np.ndarray:
    """Return ``lengths`` with the last ones reduced, so that their sum is at most ``limit``."""
    return lengths if limit is None else np.clip(limit - (np.cumsum(lengths) - lengths), 0, lengths)


def cut_graph(row: Row, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges (rows, columns, values) between the first ``count`` paragraphs of ``cut_source``."""
    sizes = np.diff(row["paragraph_offsets"])
    index = np.where(sizes > 0, np.cumsum(sizes > 0) - 1, count)  # empty paragraphs are out of range
    first, second = index[row["graph_row"]], index[row["graph_col"]]
    kept = (first < count) & (second < count)
    return first[kept], second[kept], row["graph_value"][kept]


def cut_target(ids: np.ndarray, tokens: int) -> np.ndarray:
    """Return at most ``tokens`` of a target; a truncated one keeps its end mark."""
    return ids if len(ids) <= tokens else np.append(ids[: tokens - 1], ids[-1])
