"""The extractor that is trained in a minute: a score for each sentence from its features, by regression trees.

T trees of N nodes at most, M sentences, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from raysum.config.sections import LoadConfig
from raysum.data.recipe import read_recipe
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.extract.features import Cues, cue_features, cues_of, features
from raysum.prepare.row_builder import sentence_row
from raysum.runs.folder import Run
from raysum.runtime.checksums import damaged
from raysum.runtime.storage import load_tensors
from raysum.tokenizers.loading import load_tokenizer

TABLES = ("words", "names")


@dataclass(frozen=True)
class Trees:
    """Regression trees as plain arrays, which are stored beside other weights and read without running foreign code.

    ``feature``, ``left`` and ``right`` [T, N] int32, ``threshold`` and ``value`` [T, N] float64; ``base`` [1] is added
    to the sum of all trees' values. At a leaf, left and right are the node itself.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    base: np.ndarray

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray]) -> "Trees":
        """Return the trees of ``arrays``. Raises KeyError or ValueError if sizes differ or a node is not there."""
        trees = cls(**{field.name: arrays[field.name] for field in fields(cls)})
        of_nodes = (trees.threshold, trees.left, trees.right, trees.value)
        if trees.base.shape != (1,) or any(array.shape != trees.feature.shape for array in of_nodes):
            raise ValueError("arrays of different sizes")
        for name, nodes in (("left", trees.left), ("right", trees.right)):
            if ((nodes < 0) | (nodes >= nodes.shape[1])).any():
                raise ValueError(f"{name} names a node that is not there")
        return trees

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[M, F] -> [M]"""
        rows, trees = np.arange(len(features)), np.arange(len(self.feature))[:, None]
        node, before = np.zeros((len(self.feature), len(features)), np.int32), None  # [T, M]
        while before is None or (node != before).any():
            before = node
            small = features[rows, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(small, self.left[trees, node], self.right[trees, node])
        return self.base[0] + self.value[trees, node].sum(0)


@dataclass(frozen=True)
class Inputs:
    """``features`` [M, F] of the sentences of a cluster, and their cues."""

    features: np.ndarray
    cues: tuple[Cues, Cues]

    @classmethod
    def of(cls, row: Row, width: int) -> "Inputs":
        return cls(features(row), cues_of(row, width))

    def array(self, tables: Sequence[np.ndarray]) -> np.ndarray:
        """Return [M, F']: the features and those of the cues, whose values are in ``tables``."""
        return np.concatenate([self.features, cue_features(self.cues, tables)], 1)


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
        return self._trees.predict(Inputs.of(row, len(self._tables[0])).array(self._tables))
