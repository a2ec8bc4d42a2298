"""Whether a cluster is like those that a model was trained on, by the pieces that its text falls into.

A vocabulary spells the words of its own domain in few, long, common pieces, and those of another domain or language in
many short, rare or unknown ones. So only ids are looked at, which takes neither the model nor time. What is usual is
learned of the valid split when a training ends, or when a run is evaluated on it. Of 300 clusters of the factbook's
test split none is called unlike, and all of 18 texts are that were written elsewhere: reviews, README files, news,
Russian, Chinese, German, French, source code.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.data.vocabulary import Vocabulary
from raysum.models.special_ids import UNK
from raysum.run import Run
from raysum.runtime.checksums import check_sealed, damaged, sealed
from raysum.runtime.progress import say
from raysum.runtime.storage import read_json, write_json

_SPLIT = "valid"
_MOST, _FEWEST = 1000, 20  # clusters learned of: more change nothing, fewer tell too little
_TAIL = 0.005  # of the clusters, on each side of what is usual
# Of what is usual, by which it may be exceeded; more where few clusters told. Of 60 draws
# of 20 clusters of the factbook nine in ten then call at most 2 % of its test split unlike, with 0.1 alone 21 %.
_MARGIN, _MARGIN_OF_FEW = 0.1, 8


class Signal(NamedTuple):
    """A figure of a cluster: how it is told, and by how much it may always exceed what is usual."""

    text: str
    least: float


SIGNALS = {
    "letters": Signal("{:.2f} letters a piece", 0.05),
    "starts": Signal("{:.2f} words a piece", 0.01),
    "unknown": Signal("{:.1%} of pieces unknown", 0.005),
    "rank": Signal("{:.2f} as mean log rank of pieces", 0.05),
}


@dataclass(frozen=True)
class Familiar:
    """What is usual for a model: of each of ``SIGNALS`` the lower and the upper end, of ``examples`` clusters."""

    vocabulary: Vocabulary
    examples: int
    usual: dict[str, tuple[float, float]]

    @classmethod
    def read(cls, run: Run, vocabulary: Vocabulary) -> "Familiar | None":
        """What ``run`` learned, None where it has not. Raises UserError where that was damaged."""
        file = _file(run)
        if not file.is_file():
            return None
        told = check_sealed(read_json(file), file)
        try:
            usual = {name: (float(told["usual"][name][0]), float(told["usual"][name][1])) for name in SIGNALS}
            return cls(vocabulary, int(told["examples"]), usual)
        except (KeyError, TypeError, ValueError, IndexError):
            raise damaged(file, "does not tell what is usual") from None

    def warnings(self, row: Row) -> list[str]:
        """What of a cluster is unlike the training data: one sentence, or none."""
        found = []
        for name, value in signals(row, self.vocabulary).items():
            (low, high), signal = self.usual[name], SIGNALS[name]
            slack = signal.least + (_MARGIN + _MARGIN_OF_FEW / self.examples) * (high - low)
            if not low - slack <= value <= high + slack:
                told, *ends = (signal.text.format(each) for each in (value, low, high))
                found.append(f"{told} (there {ends[0].split()[0]} to {ends[1].split()[0]})")
        return [f"the sources are unlike what the model was trained on: {', '.join(found)}"] if found else []


def learn(run: Run, dataset: Dataset) -> None:
    """Write what is usual for ``run`` into its folder, from the valid split of the dataset that it was trained on.

    Nothing where that split is no such, or too small. An unwritable folder is said, not raised.
    """
    if _SPLIT not in dataset.splits or dataset.kind != "summarization" or dataset.rows(_SPLIT) < _FEWEST:
        return
    vocabulary = Vocabulary.load(dataset.vocabulary_path)
    rows = islice(dataset.read(_SPLIT, ["ids", "title_tokens"]), _MOST)
    table = [list(signals(row, vocabulary).values()) for row in rows]
    ends = np.quantile(table, [_TAIL, 1 - _TAIL], axis=0).T.round(6).tolist()
    try:
        values = {"examples": len(table), "usual": dict(zip(SIGNALS, ends, strict=True))}
        write_json(_file(run), sealed(values))
    except OSError as error:
        say(f"cannot write {_file(run)} ({error.strerror}): summaries come without warnings of unlike sources")


def signals(row: Row, vocabulary: Vocabulary) -> dict[str, float]:
    """The figures of a cluster, whose title is left out."""
    ids = row["ids"][row["title_tokens"] :]
    letters, starts = vocabulary.shapes
    count = max(len(ids), 1)
    return {
        "letters": float(letters[ids].sum() / count),
        "starts": float(starts[ids].sum() / count),
        "unknown": float((ids == UNK).sum() / count),
        "rank": float(np.log(ids + 1.0).sum() / count),  # ids rise as pieces grow rarer
    }


def _file(run: Run) -> Path:
    return run.path / "familiar.json"
