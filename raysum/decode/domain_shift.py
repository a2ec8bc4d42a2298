"""Warnings if a cluster is unlike the training data of a model, or a summary unlike its other summaries.

For sources, the pieces of the vocabulary are compared: it has few, long, common pieces for the words of its own domain,
and many short, rare or unknown ones for those of another domain or language. This needs no model. For summaries, their
support and the entropy of the attention to paragraphs are compared. The reference ranges come from the valid split when
a training ends, or when a run is evaluated on it. With the factbook's ranges, no cluster of its test split gets a
warning, and all of 32 other texts do: reviews, README files, news, Russian, Chinese, German, source code.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, ValidationError, field_validator

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

_DECODED, _READ_FROM = 100, 1000  # clusters to decode, spread over this many from the first
_SHORTEST = 0.5  # seconds; less time decodes too few summaries

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


class ReferenceRange(BaseModel, frozen=True):
    """The lower and upper end of each figure's range, from ``examples`` examples; former versions have fewer."""

    examples: int = Field(gt=0)
    usual: dict[str, tuple[FiniteFloat, FiniteFloat]]

    @field_validator("usual")
    @classmethod
    def _check(cls, usual: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        if any(low > high for low, high in usual.values()):
            raise ValueError("no range")
        return usual

    @classmethod
    def of(cls, table: Sequence[Mapping[str, float]]) -> "ReferenceRange":
        """Return the ranges in ``table``, the figures of each example, without figures that fewer than 20 have."""
        columns = {name: [row[name] for row in table if name in row] for name in (*SIGNALS, _READ)}
        known = {name: column for name, column in columns.items() if len(column) >= FEWEST}
        ends = {name: np.quantile(column, [_TAIL, 1 - _TAIL]).round(6) for name, column in known.items()}
        return cls(examples=len(table), usual={name: (low, high) for name, (low, high) in ends.items()})

    def unlike(self, figures: Mapping[str, float]) -> Iterable[tuple[str, str]]:
        """Yield the warning and its details for each figure outside of its range."""
        few, many = self.usual.get(_READ, (0, math.inf))
        for name, value in figures.items():
            if name not in self.usual or name not in SIGNALS:
                continue
            if name == "entropy" and not few <= figures[_READ] <= many:
                continue
            signal, ends = SIGNALS[name], self.usual[name]
            scaled, low, high = map(signal.scale, (value, *ends))
            slack = signal.least + (_MARGIN + _MARGIN_OF_FEW / self.examples) * (high - low)
            if scaled < low - slack or (scaled > high + slack and not signal.more_is_fine):
                text, *usual = (format(number, signal.form) for number in (value, *ends))
                yield signal.warning, f"{signal.text.format(text)} (usual: {' to '.join(usual)})"


class _Stored(ReferenceRange):
    """The file of a run: the ranges of its sources, and of its summaries if some were decoded for it."""

    summaries: ReferenceRange | None = None


@dataclass(frozen=True)
class Familiar:
    """The reference ranges of a model: of its sources, and of its summaries."""

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
            stored = _Stored.model_validate(check_sealed(read_json(file), file))
        except UserError as error:
            raise UserError(f"{str(error).partition(';')[0]}; {mend}") from None
        except ValidationError:
            raise damaged(file, "contains no valid reference ranges", mend) from None
        return cls(vocabulary, stored, stored.summaries, run.decode)

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
    sources = ReferenceRange.of([signals(row, vocabulary) for row in rows])
    known = ReferenceRange.of(summaries) if len(summaries) >= FEWEST else None
    with suppress(UserError):  # a damaged file is replaced
        known = known or getattr(Familiar.read(run, vocabulary), "summaries", None)
    try:
        stored = _Stored(examples=sources.examples, usual=sources.usual, summaries=known)
        write_json(_file(run), sealed(stored.model_dump(exclude_none=True)))
    except OSError as error:
        say(f"cannot write {_file(run)} ({error.strerror}): summaries come without warnings of unlike sources")


def rehearse(run: Run, dataset: Dataset, seconds: float) -> None:
    """Decode up to 100 clusters of the valid split within ``seconds``, and learn their reference range.

    Does nothing if the time is too short for enough summaries, if the split is missing, or if the run lacks a model
    that its settings need.
    """
    if seconds < _SHORTEST or SPLIT not in dataset.splits:
        return
    from raysum.decode.summarizer import Summarizer  # loads torch, and imports this module

    rows = list(islice(dataset.read(SPLIT), _READ_FROM))
    rows = rows[:: max(1, len(rows) // _DECODED)][:_DECODED]
    values: list[dict[str, float]] = []
    with suppress(UserError):
        summarizer = Summarizer.load(run.path)
        end, size = time.monotonic() + seconds, 1
        while size and len(values) < len(rows):
            batch, began = rows[len(values) : len(values) + size], time.monotonic()
            made = summarizer.summarize_rows(batch, is_cancelled=lambda _: time.monotonic() > end)
            if (now := time.monotonic()) > end:  # these were cancelled
                break
            values += [figures(summary.support, summary.attention) for summary in made]
            possible = int((end - now) * len(batch) / (now - began))  # as fast as these
            size = min(possible, summarizer.settings.batch_examples)
    learn(run, dataset, values)


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
