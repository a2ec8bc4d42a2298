"""Whether a cluster is like those that a model was trained on, and its summary like those that it wrote of them.

Of the sources the pieces tell: a vocabulary spells the words of its own domain in few, long, common pieces, and those
of another domain or language in many short, rare or unknown ones. That takes neither the model nor time. Of a summary
its support tells, and how evenly the model attended to the paragraphs. What is usual is learned of the valid split when
a training ends, or when a run is evaluated on it. On the factbook no cluster of the test split is called unlike, and
all of 32 texts are that were written elsewhere: reviews, README files, news, Russian, Chinese, German, source code.
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
_MOST, FEWEST = 1000, 20  # clusters learned of: more change nothing, fewer tell too little
_TAIL = 0.005  # of the clusters, on each side of what is usual
# Of what is usual, by which it may be exceeded; more where few clusters told. Of 60 draws
# of 20 clusters of the factbook nine in ten then call at most 2 % of its test split unlike, with 0.1 alone 21 %.
_MARGIN, _MARGIN_OF_FEW = 0.1, 8

_SOURCES = "the sources are unlike what the model was trained on"
_READING = "the model does not attend to these paragraphs as it does to those that it was trained on"
_SUPPORT = "the summary rests on its sources less than is usual for this model"
_EMPTY = "no summary: the model ended at once"
_UNSUPPORTED = "hardly anything of the summary stands in what it cites"
_LEAST_SUPPORT = 20  # below which that is told, whatever is usual; summaries of another cluster's sources have about 2


def _logit(share: float) -> float:
    """On this scale what is near 0 or 1 may still lie far outside of what is usual."""
    return math.log(max(share, 1e-6) / max(1 - share, 1e-6))


class Signal(NamedTuple):
    """A figure: the warning that it leads to, how it is told, by how much it may always exceed what is usual, whether
    more of it than usual is fine, and the scale on which it is compared."""

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
_READ = "paragraphs"  # how many were read: the entropies of few and of many do not compare


@dataclass(frozen=True)
class ReferenceRange:
    """The lower and the upper end of each figure, in so many ``examples``."""

    examples: int
    ends: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, table: Sequence[Mapping[str, float]]) -> "ReferenceRange":
        """Of the figures of each example; what fewer than 20 have is left out."""
        columns = {name: [row[name] for row in table if name in row] for name in (*SIGNALS, _READ)}
        ends = {
            name: np.quantile(column, [_TAIL, 1 - _TAIL]).round(6).tolist()
            for name, column in columns.items()
            if len(column) >= FEWEST
        }
        return cls(len(table), ends)

    @classmethod
    def read(cls, told: Any) -> "ReferenceRange":
        """What ``to_dict`` gave; former versions told of fewer signals. Raises ValueError and its like."""
        ends = {str(name): (float(low), float(high)) for name, (low, high) in told["usual"].items()}
        examples = int(told["examples"])
        if examples < 1 or not all(-math.inf < low <= high < math.inf for low, high in ends.values()):
            raise ValueError("no range of a number of examples")
        return cls(examples, ends)

    def to_dict(self) -> dict[str, Any]:
        return {"examples": self.examples, "usual": dict(self.ends)}

    def unlike(self, figures: Mapping[str, float]) -> Iterable[tuple[str, str]]:
        """Of each figure outside of what is usual: the warning and what to tell of it."""
        few, many = self.ends.get(_READ, (0, math.inf))
        for name, value in figures.items():
            if name not in self.ends or name not in SIGNALS:
                continue
            if name == "entropy" and not few <= figures[_READ] <= many:
                continue
            signal, ends = SIGNALS[name], self.ends[name]
            at, low, high = map(signal.scale, (value, *ends))
            slack = signal.least + (_MARGIN + _MARGIN_OF_FEW / self.examples) * (high - low)
            if at < low - slack or (at > high + slack and not signal.more_is_fine):
                told, *usual = (format(each, signal.form) for each in (value, *ends))
                yield signal.warning, f"{signal.text.format(told)} (usual: {' to '.join(usual)})"


@dataclass(frozen=True)
class Familiar:
    """What is usual for a model: of its sources, and of its summaries where some were decoded to learn it."""

    vocabulary: Tokenizer
    sources: ReferenceRange
    summaries: ReferenceRange | None = None
    decode: DecodeConfig = DecodeConfig()  # how these were written

    @classmethod
    def read(cls, run: Run, vocabulary: Tokenizer) -> "Familiar | None":
        """What ``run`` learned, None where it has not. Raises UserError where that was damaged."""
        file = _file(run)
        if not file.is_file():
            return None
        mend = f"remove it, and `raysum evaluate {run.place} --data DATA --split {SPLIT}` writes it again"
        try:
            told = check_sealed(read_json(file), file)
        except UserError as error:
            raise UserError(f"{str(error).partition(';')[0]}; {mend}") from None
        try:
            summaries = ReferenceRange.read(told["summaries"]) if told.get("summaries") else None
            return cls(vocabulary, ReferenceRange.read(told), summaries, run.decode)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise damaged(file, "does not tell what is usual", mend) from None

    def warnings(self, row: Row, summary: Mapping[str, float] | None = None) -> list[str]:
        """What of a cluster is unlike the training data, and of its summary, by its :func:`figures`: a sentence for
        each kind."""
        found: dict[str, list[str]] = {}
        unlike = [*self.sources.unlike(signals(row, self.vocabulary))]
        if summary and self.summaries:
            unlike += self.summaries.unlike(summary)
        for warning, told in unlike:
            found.setdefault(warning, []).append(told)
        return [f"{warning}: {', '.join(told)}" for warning, told in found.items()]


def learn(run: Run, dataset: Dataset, summaries: Sequence[Mapping[str, float]] = ()) -> None:
    """Write what is usual for ``run`` into its folder, from the valid split of the dataset that it was trained on (and
    the train split, where that is too small), and from the :func:`figures` of summaries of clusters in it; with too few
    of them, what was known of summaries stays.

    Nothing where even these are too few. An unwritable folder is said, not raised.
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
    with suppress(UserError):  # what is damaged is written anew
        known = known or getattr(Familiar.read(run, vocabulary), "summaries", None)
    try:
        write_json(_file(run), sealed(values | ({"summaries": known.to_dict()} if known else {})))
    except OSError as error:
        say(f"cannot write {_file(run)} ({error.strerror}): summaries come without warnings of unlike sources")


def doubts(summary: str, support: float | None) -> list[str]:
    """What is told of a ``summary`` and its ``support`` without knowing what is usual: a sentence, or none."""
    if not summary.strip():
        return [_EMPTY]
    return [f"{_UNSUPPORTED}: support {support:.0f} of 100"] if support is not None and support < _LEAST_SUPPORT else []


def signals(row: Row, vocabulary: Tokenizer) -> dict[str, float]:
    """The figures of a cluster's paragraphs, and how its title, if it has one, fits them."""
    title, ids = title_of(row, vocabulary.marks), row["ids"][row["title_tokens"] :]
    letters, starts = vocabulary.shapes
    count = max(len(ids), 1)
    found = {
        "letters": float(letters[ids].sum() / count),
        "starts": float(starts[ids].sum() / count),
        "unknown": float((ids == vocabulary.marks.unknown).sum() / count),
        "rank": float(np.log(ids + 1.0).sum() / count),  # ids rise as pieces grow rarer
    }
    return found | ({"title": float(np.isin(title, ids).mean())} if len(title) else {})


def figures(support: float | None, attention: Sequence[float]) -> dict[str, float]:
    """Of a summary: its ``support``, how many paragraphs were read (their share in its ``attention`` [M] is
    not 0), and the entropy of these shares, as a share of the highest that so many can have."""
    shares = np.array([share for share in attention if share > 0])
    found = {_READ: float(len(shares))} | ({} if support is None else {"support": support})
    if len(shares) > 1:
        found["entropy"] = float(-(shares * np.log(shares)).sum() / np.log(len(shares)))
    return found


def _file(run: Run) -> Path:
    return run.path / "familiar.json"
