"""What a model reads of a dataset row: its paragraphs, edges and target, cut to their limits. numpy only."""

from collections.abc import Sequence

import numpy as np

from raysum.config.sections import SourceConfig
from raysum.data.vocabulary import EOS, PARAGRAPH_END, TITLE_END

Arrays = dict[str, np.ndarray]


def cut_source(
    ids: np.ndarray, offsets: np.ndarray, source: SourceConfig, joined: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The part of an example that a model reads: ids [S'] and the tokens [P'] of its paragraphs, none of them empty.

    ``ids`` [S] and ``offsets`` [M + 1] are the dataset's. The best paragraphs come first, so the last ones are lost.
    ``joined``: as hiersumm feeds its flat Transformer, <P> ends each paragraph but the last, and EOS what is left after
    the cut. Such a mark belongs to the paragraph that it ends, and ``max_tokens`` counts it.
    """
    full = np.diff(offsets[: source.max_paragraphs + 1])
    lengths = np.minimum(full, source.paragraph_tokens)
    if not joined:
        lengths = _within(lengths, source.max_tokens)
    position = np.arange(int(full.sum())) - np.repeat(np.cumsum(full) - full, full)
    kept, lengths = ids[: len(position)][position < np.repeat(lengths, full)], lengths[lengths > 0]
    return _join(kept, lengths, source.max_tokens) if joined else (kept, lengths)


def _join(ids: np.ndarray, lengths: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Paragraphs with their marks, ``most`` tokens of them (but at least one token and EOS)."""
    marked = np.insert(ids, np.cumsum(lengths)[:-1], PARAGRAPH_END)
    marks = np.arange(len(lengths)) < len(lengths) - 1
    lengths = _within(lengths + marks, None if most is None else max(most - 1, 1))
    lengths = lengths[lengths > 0]
    lengths[-1] += 1
    return np.append(marked[: lengths.sum() - 1], np.array(EOS, ids.dtype)), lengths


def _within(lengths: np.ndarray, most: int | None) -> np.ndarray:
    """``lengths`` of which the last are cut or 0, so that they sum to at most ``most``."""
    return lengths if most is None else np.clip(most - (np.cumsum(lengths) - lengths), 0, lengths)


def cut_graph(row: Arrays, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The edges of a row between the first ``count`` of its paragraphs that are not empty: rows, columns, values.

    Their numbers are those of the paragraphs in what ``cut_source`` gives.
    """
    sizes = np.diff(row["paragraph_offsets"])
    place = np.where(sizes > 0, np.cumsum(sizes > 0) - 1, count)  # beyond all that is read: an empty one
    first, second = place[row["graph_row"]], place[row["graph_col"]]
    kept = (first < count) & (second < count)
    return first[kept], second[kept], row["graph_value"][kept]


def split_title(paragraphs: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The title with its mark <T>, which opens paragraph 0, and the paragraphs without it.

    The mark alone stands for a title that is not there, and for a paragraph that is nothing but the title.
    """
    first, *rest = paragraphs
    mark, ends = np.array([TITLE_END], first.dtype), np.flatnonzero(first == TITLE_END)
    start = int(ends[0]) + 1 if len(ends) else 0
    return first[:start] if start else mark, [first[start:] if start < len(first) else mark, *rest]


def cut_target(ids: np.ndarray, tokens: int) -> np.ndarray:
    """At most ``tokens`` of BOS ... EOS; a target that was cut still ends with its EOS."""
    return ids if len(ids) <= tokens else np.append(ids[: tokens - 1], ids[-1])
