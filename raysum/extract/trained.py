"""A trained run as an extractive system: its order is that of its sentence scores."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from raysum.config.sections import LoadConfig
from raysum.extract.systems import Extractive, SourceTexts, Taken
from raysum.prepare.ranking import best_first
from raysum.runs.folder import Run
from raysum.systems import part


class TrainedExtractive(Extractive):
    """The model of a run that extracts."""

    reads_sentences = True
    redundancy = 1.0  # as in the papers: similar sentences are allowed

    def __init__(self, run: Run, config: LoadConfig, device: str | None = None):
        self.name, self.how = run.name, "sentences of the highest scores first"
        self.scorer = part("raysum.sentence_scorers", run.config.model.SCORER)(run, config, device)

    def row(self, cluster: Mapping[str, Any]) -> Any:
        return self.scorer.row(cluster)

    def relevance(self, source: SourceTexts) -> np.ndarray:
        scores = self.scorer.scores(source.row)
        return scores / max(float(scores.max()), 1e-9)

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        return best_first(self.scorer.scores(source.row)).tolist()
