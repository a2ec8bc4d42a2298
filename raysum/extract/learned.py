"""The extractor that is trained in a minute: a score for each sentence from its features, by regression trees."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from raysum.config.sections import LoadConfig
from raysum.data.recipe import read_recipe
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.extract.cues import cue_features, cues_of
from raysum.extract.features import features
from raysum.extract.trees import Trees
from raysum.prepare.row_builder import sentence_row
from raysum.runs.folder import Run
from raysum.runtime.checksums import damaged
from raysum.runtime.storage import load_tensors
from raysum.tokenizers.loading import load_tokenizer

TABLES = ("words", "names")


class FeatureScorer:
    """The scores of a trained extractor. Raises UserError if the checkpoint is missing."""

    def __init__(self, run: Run, config: LoadConfig, device: str | None = None):
        if config.dtype != LoadConfig.model_fields["dtype"].default:
            raise UserError(f"dtype={config.dtype} is for matrices, but {run.path} has trees: leave it out")
        weights = run.checkpoint(config.checkpoint).weights
        self.vocabulary, self.recipe = load_tokenizer(run.vocabulary), read_recipe(run.recipe, str(run.path))
        try:
            arrays = load_tensors(weights, "numpy")
            self._trees, self._tables = Trees.read(arrays), [arrays[name] for name in TABLES]
        except (KeyError, ValueError) as error:
            raise damaged(weights, f"holds no trained extractor ({error})") from None

    def row(self, cluster: Mapping[str, Any]) -> Row:
        """Return a raw cluster as a row of kind extraction, without labels. Raises Rejected if it has no sentence."""
        return sentence_row(cluster, self.recipe, self.vocabulary)

    def scores(self, row: Row) -> np.ndarray:
        """Return [M] estimates of the share of each sentence that a summary contains."""
        cues = cues_of(row, len(self._tables[0]))
        return self._trees.predict(np.concatenate([features(row), cue_features(cues, self._tables)], 1))
