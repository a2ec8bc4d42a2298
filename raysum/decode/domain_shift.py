"""Warnings if a cluster is unlike the training data of a model, or a summary unlike its other summaries.

For sources, the pieces of the vocabulary are compared: it has few, long, common pieces for the words of its own domain,
and many short, rare or unknown ones for those of another domain or language. This needs no model. For summaries, their
support and the entropy of the attention to paragraphs are compared. The reference ranges come from the valid split when
a training ends, or when a run is evaluated on it. With the factbook's ranges, no cluster of its test split gets a
warning, and all of 32 other texts do: reviews, README files, news, Russian, Chinese, German, source code.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raysum.config.decoding import DecodeConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row, title_of
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.checksums import check_sealed, damaged, sealed
from raysum.runtime.progress import say
from raysum.runtime.storage import read_json, write_json
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.tokenizer import Tokenizer

SPLIT = "valid"
_MOST, FEWEST = 1000, 20  # clusters for a reference range: more change nothing, fewer are too few
_TAIL = 0.005  # share of clusters outside of the range on each side
# Share of the range by which a value may exceed it, more for a range of few clusters. In 60 draws of 20 clusters of
# the factbook, nine in ten ranges then warn of at most 2 % of its test split; with 0.1 alone 21 %.
_MARGIN, _MARGIN_OF_FEW = 0.1, 8

_SOURCES = "the sources are unlike what the model was trained on"
_READING = "the model does not attend to these paragraphs as it does to those that it was trained on"
_SUPPORT = "the summary rests on its sources less than is usual for this model"
_EMPTY = "no summary: the model ended at once"
_UNSUPPORTED = "almost nothing of the summary is in the paragraphs that it cites"
_LEAST_SUPPORT = 20  # a lower support always warns; summaries of another cluster have about 2


def _logit(share: float) -> float:
    """Return the log odds, so that values near 0 or 1 can be far outside of a range."""
    return math.log(max(share, 1e-6) / max(1 - share, 1e-6))


class Signal(NamedTuple):
    """A figure with its warning, text and format.

    ``least``: by how much it may always exceed its range. ``more_is_fine``: only low values warn. ``scale``: the scale
    of comparison.
    """

    warning: str
    text: str
    form: str
    least: float
    more_is_fine: bool = False
    scale: Callable[[float], float] = float


SIGNALS = {
    "letters": Signal(_SOURCES, "{} letters a piece", ".2f", 0.05),
    "starts": Signal(_SOURCES, "{} words a piece", ".2f", 0.01),
    "unknown": Signal(_SOURCES, "{} of pieces unknown", ".1%", 0.005),
    "rank": Signal(_SOURCES, "{} as mean log rank of pieces", ".2f", 0.05),
    "title": Signal(_SOURCES, "{} of the title's pieces in them", ".0%", 0.05, more_is_fine=True),
    "entropy": Signal(_READING, "its entropy is {} of the highest", ".1%", 0.1, scale=_logit),
    "support": Signal(_SUPPORT, "support {}", ".0f", 5, more_is_fine=True),
}
_READ = "paragraphs"  # the number that the model read; entropies of few and many paragraphs are not comparable


@dataclass(frozen=True)
class ReferenceRange:
    """The lower and upper end of each figure's range, from ``examples`` examples."""

    examples: int
    ends: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, table: Sequence[Mapping[str, float]]) -> "ReferenceRange":
        """Return the ranges in ``table``, the figures of each example, without figures that fewer than 20 have."""
        columns = {name: [row[name] for row in table if name in row] for name in (*SIGNALS, _READ)}
        ends = {
            name: np.quantile(column, [_TAIL, 1 - _TAIL]).round(6).tolist()
            for name, column in columns.items()
            if len(column) >= FEWEST
        }
        return cls(len(table), ends)

    @classmethod
    def read(cls, values: Any) -> "ReferenceRange":
        """Return the ranges of ``to_dict``; former versions have fewer. Raises KeyError, TypeError or ValueError."""
        ends = {str(name): (float(low), float(high)) for name, (low, high) in values["usual"].items()}
        examples = int(values["examples"])
        if examples < 1 or not all(-math.inf < low <= high < math.inf for low, high in ends.values()):
            raise ValueError("no range of a number of examples")
        return cls(examples, ends)

    def to_dict(self) -> dict[str, Any]:
        return {"examples": self.examples, "usual": dict(self.ends)}

    def unlike(self, figures: Mapping[str, float]) -> Iterable[tuple[str, str]]:
        """Yield the warning and its details for each figure outside of its range."""
        few, many = self.ends.get(_READ, (0, math.inf))
        for name, value in figures.items():
            if name not in self.ends or name not in SIGNALS:
                continue
            if name == "entropy" and not few <= figures[_READ] <= many:
                continue
            signal, ends = SIGNALS[name], self.ends[name]
            scaled, low, high = map(signal.scale, (value, *ends))
            slack = signal.least + (_MARGIN + _MARGIN_OF_FEW / self.examples) * (high - low)
            if scaled < low - slack or (scaled > high + slack and not signal.more_is_fine):
                text, *usual = (format(number, signal.form) for number in (value, *ends))
                yield signal.warning, f"{signal.text.format(text)} (usual: {' to '.join(usual)})"


@dataclass(frozen=True)
class Familiar:
    """The reference ranges of a model: of its sources, and of its summaries if some were decoded for it."""

    vocabulary: Tokenizer
    sources: ReferenceRange
    summaries: ReferenceRange | None = None
    decode: DecodeConfig = DecodeConfig()  # settings of these summaries

    @classmethod
    def read(cls, run: Run, vocabulary: Tokenizer) -> "Familiar | None":
        """Return the ranges of ``run``, or None without any. Raises UserError if the file is damaged."""
        file = _file(run)
        if not file.is_file():
            return None
        mend = f"remove it, and `raysum evaluate {run.place} --data DATA --split {SPLIT}` writes it again"
        try:
            values = check_sealed(read_json(file), file)
        except UserError as error:
            raise UserError(f"{str(error).partition(';')[0]}; {mend}") from None
        try:
            summaries = ReferenceRange.read(values["summaries"]) if values.get("summaries") else None
            return cls(vocabulary, ReferenceRange.read(values), summaries, run.decode)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise damaged(file, "contains no valid reference ranges", mend) from None

    def warnings(self, row: Row, summary: Mapping[str, float] | None = None) -> list[str]:
        """Return a sentence for each kind of difference of a cluster and, by its :func:`figures`, of its summary."""
        details: dict[str, list[str]] = {}
        unlike = [*self.sources.unlike(signals(row, self.vocabulary))]
        if summary and self.summaries:
            unlike += self.summaries.unlike(summary)
        for warning, detail in unlike:
            details.setdefault(warning, []).append(detail)
        return [f"{warning}: {', '.join(texts)}" for warning, texts in details.items()]


def learn(run: Run, dataset: Dataset, summaries: Sequence[Mapping[str, float]] = ()) -> None:
    """Write the reference ranges of ``run`` into its folder, from the valid split of its dataset.

    If that split is too small, the train split is added; if both are, nothing is written. ``summaries`` are the
    :func:`figures` of summaries of such clusters; fewer than 20 leave the range of summaries as it was. If the folder
    cannot be written, there is a message.
    """
    splits = [split for split in (SPLIT, "train") if split in dataset.splits]
    if SPLIT in splits and dataset.rows(SPLIT) >= FEWEST:
        splits = [SPLIT]
    if dataset.kind != "summarization" or sum(map(dataset.rows, splits)) < FEWEST:
        return
    vocabulary = load_tokenizer(dataset.vocabulary_path)
    rows = islice(chain.from_iterable(dataset.read(split, ["ids", "title_tokens"]) for split in splits), _MOST)
    values = ReferenceRange.of([signals(row, vocabulary) for row in rows]).to_dict()
    known = ReferenceRange.of(summaries) if len(summaries) >= FEWEST else None
    with suppress(UserError):  # a damaged file is replaced
        known = known or getattr(Familiar.read(run, vocabulary), "summaries", None)
    try:
        write_json(_file(run), sealed(values | ({"summaries": known.to_dict()} if known else {})))
    except OSError as error:
        say(f"cannot write {_file(run)} ({error.strerror}): summaries come without warnings of unlike sources")


def doubts(summary: str, support: float | None) -> list[str]:
    """Return the warnings of a ``summary`` and its ``support`` that need no reference range."""
    if not summary.strip():
        return [_EMPTY]
    return [f"{_UNSUPPORTED}: support {support:.0f} of 100"] if support is not None and support < _LEAST_SUPPORT else []


def signals(row: Row, vocabulary: Tokenizer) -> dict[str, float]:
    """Return the figures of a cluster's paragraphs and of its title, if it has one."""
    title, ids = title_of(row, vocabulary.marks), row["ids"][row["title_tokens"] :]
    letters, starts = vocabulary.shapes
    count = max(len(ids), 1)
    values = {
        "letters": float(letters[ids].sum() / count),
        "starts": float(starts[ids].sum() / count),
        "unknown": float((ids == vocabulary.marks.unknown).sum() / count),
        "rank": float(np.log(ids + 1.0).sum() / count),  # ids rise as pieces grow rarer
    }
    return values | ({"title": float(np.isin(title, ids).mean())} if len(title) else {})


def figures(support: float | None, attention: Sequence[float]) -> dict[str, float]:
    """Return the figures of a summary: its ``support``, the number of paragraphs that were read (with ``attention`` [M]
    above 0), and the entropy of their attention as a share of the highest possible.
    """
    shares = np.array([share for share in attention if share > 0])
    values = {_READ: float(len(shares))} | ({} if support is None else {"support": support})
    if len(shares) > 1:
        values["entropy"] = float(-(shares * np.log(shares)).sum() / np.log(len(shares)))
    return values


def _file(run: Run) -> Path:
    return run.path / "familiar.json"
