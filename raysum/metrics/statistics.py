"""Figures with seeded bootstrap intervals: a mean, a ratio of sums, the difference between two systems.

The resamples depend on the number of examples alone, so equal lists give equal intervals anywhere.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from pandas import DataFrame

RESAMPLES = 1000  # as the papers' ROUGE script: -r 1000
CONFIDENCE = 0.95  # likewise: -c 95
_DRAWS_AT_ONCE = 1 << 22  # 32 MB of indices; what exceeds that is drawn in pieces


class Interval(NamedTuple):
    """``value`` of the data itself (no resampled one), and the bounds of its percentile interval."""

    value: float
    low: float
    high: float


def mean_interval(scores: ArrayLike) -> Interval:
    """Of the mean of per-example scores [n]. Raises ValueError where there are none."""
    values = np.asarray(scores, float)
    return ratio_interval(values, np.ones_like(values))


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike) -> Interval:
    """Of sum / sum over examples [n], such as a corpus F1 from counts; 0 where the denominators sum to 0.

    Raises ValueError where there are no examples, or not as many denominators as numerators.
    """
    pairs = np.stack([np.asarray(numerators, float), np.asarray(denominators, float)], axis=1)  # [n, 2]
    if not len(pairs):
        raise ValueError("no scores to take an interval of")
    generator = np.random.default_rng(0)
    piece = max(_DRAWS_AT_ONCE // len(pairs), 1)
    counts = [min(piece, RESAMPLES - start) for start in range(0, RESAMPLES, piece)]
    sums = [pairs[generator.integers(len(pairs), size=(count, len(pairs)))].sum(axis=1) for count in counts]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_ratio(np.concatenate(sums)), [tail, 1 - tail])
    return Interval(float(_ratio(pairs.sum(axis=0))), float(low), float(high))


def paired_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Of mean(first) - mean(second), where both systems were scored on the same examples [n] in the same order.

    An interval without 0 says that they differ. Raises ValueError where the lists differ in length or are empty.
    """
    scores, others = np.asarray(first, float), np.asarray(second, float)
    if len(scores) != len(others):
        raise ValueError(f"{len(scores)} scores cannot be paired with {len(others)}")
    return mean_interval(scores - others)


def _ratio(sums: np.ndarray) -> np.ndarray:
    """[..., 2] -> [...]"""
    return np.divide(sums[..., 0], sums[..., 1], out=np.zeros(sums.shape[:-1]), where=sums[..., 1] != 0)


@dataclass(frozen=True)
class Figure:
    """A figure of a system, and how it comes of the columns of its examples.

    The mean of the column of its name; or with ``above`` the sum of these columns; or with ``below`` 100 times the
    former sum by that one. ``label`` and ``digits`` after the point are for tables.
    """

    label: str
    digits: int
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


def figure_of(name: str, figure: Figure, scores: "DataFrame", sure: bool = True) -> dict[str, float]:
    """The value of a figure, of means and ratios if ``sure`` also its bounds; nothing where no example has it."""
    columns = {*figure.above, *figure.below} or {name}
    if not columns <= {*scores.columns} or not scores[[*columns]].notna().any(axis=None):
        return {}
    above, below = (scores[[*part]].fillna(0).to_numpy().sum(1) for part in (figure.above, figure.below))
    if figure.above and not figure.below:
        return {name: int(above.sum())}
    if not figure.above:
        above = scores[name].dropna().to_numpy()
        below = np.ones_like(above)
    interval = ratio_interval(above, below) if sure else [_ratio(np.stack([above, below], axis=1).sum(axis=0))]
    found = (100 if figure.below else 1) * np.array(interval)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found.tolist(), strict=False))
