"""What an extractor has learned, for people: its important features and cues, and whether it was worth training."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel, ValidationError

from raysum.extract.features import INPUTS
from raysum.extract.untrained import UntrainedComparison
from raysum.runs.folder import Run
from raysum.runtime.checksums import check_sealed, damaged, sealed
from raysum.runtime.storage import read_json, write_json

EXPLANATION = "explanation.json"


class Explanation(BaseModel):
    """``gains``: the share (0 to 1) of each feature in the total gain of the trees, highest first.

    ``word_cues``: the words, signs and pairs of them with the highest and lowest values: the mean target value of the
    training sentences with the cue, less that of all sentences. ``name_cues``: those in the names of the documents.
    """

    target: str
    gains: dict[str, float]
    word_cues: dict[str, float]
    name_cues: dict[str, float]
    comparison: UntrainedComparison | None = None

    def write(self, run: Run) -> None:
        write_json(run.path / EXPLANATION, sealed(self.model_dump()))


def explanation_of(run: Run) -> Explanation | None:
    """Return what training stored in ``run``; None for other and older runs. Raises UserError if it is damaged."""
    file = run.path / EXPLANATION
    if not file.is_file():
        return None
    try:
        return Explanation.model_validate(check_sealed(read_json(file), file, required=True))
    except ValidationError:
        fix = "remove it, so that reports are without it"
        raise damaged(file, "does not have the features of an extractor", fix) from None


def gain_shares(trees: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the share of each feature in the gain of all splits of ``trees`` (see ``compat.boosted_trees``).

    The gain of a split is the reduction of the squared error of the training sentences.
    """
    sums = defaultdict[str, float](float)
    for feature, gain in zip(trees["feature"].ravel(), trees["gain"].ravel(), strict=True):
        sums[INPUTS[feature]] += float(gain)
    total = sum(sums.values()) or 1.0
    return {name: sums[name] / total for name in sorted(sums, key=lambda name: -sums[name]) if sums[name]}
