"""Regression trees as plain arrays, which can be stored beside other weights and read without running foreign code.

T trees of N nodes at most, M sentences, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

_AT_ONCE = 512  # sentences, to bound the memory


@dataclass(frozen=True)
class Trees:
    """``feature``, ``left`` and ``right`` [T, N] int32, ``threshold`` and ``value`` [T, N] float64; ``base`` [1] is
    added to the sum of all trees' values. At a leaf, left and right are the node itself."""

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    base: np.ndarray

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray]) -> "Trees":
        """Raises ValueError where ``arrays`` are no trees: predicting from them would not end within the arrays."""
        trees = cls(**{field.name: arrays[field.name] for field in fields(cls)})
        count, nodes = trees.feature.shape
        if trees.base.shape != (1,) or any(getattr(trees, f.name).shape != (count, nodes) for f in fields(cls)[:-1]):
            raise ValueError("arrays of different sizes")
        for name, most in (("left", nodes), ("right", nodes)):
            if not ((getattr(trees, name) >= 0) & (getattr(trees, name) < most)).all():
                raise ValueError(f"{name} names a node that is not there")
        return trees

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[M, F] -> [M]"""
        pieces = [self._predict(features[start : start + _AT_ONCE]) for start in range(0, len(features), _AT_ONCE)]
        return np.concatenate([np.zeros(0), *pieces])

    def _predict(self, features: np.ndarray) -> np.ndarray:
        rows, trees = np.arange(len(features)), np.arange(len(self.feature))[:, None]
        node, before = np.zeros((len(self.feature), len(features)), np.int32), None  # [T, M]
        while before is None or (node != before).any():
            before = node
            small = features[rows, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(small, self.left[trees, node], self.right[trees, node])
        return self.base[0] + self.value[trees, node].sum(0)
