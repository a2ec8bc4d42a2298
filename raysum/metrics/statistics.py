"""Figures with seeded bootstrap intervals: a mean, a ratio of sums, the difference between two systems.

The resamples depend on the number of examples alone, so equal lists give equal intervals anywhere, but for rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from pandas import DataFrame

RESAMPLES = 1000  # as the papers' ROUGE script: -r 1000
CONFIDENCE = 0.95  # as its -c 95
_DRAWS_AT_ONCE = 1 << 22  # 32 MB of indices; larger draws are split


class Interval(NamedTuple):
    """The ``value`` of the original data, and the bounds of its percentile interval."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """As ``Interval``; ``p`` is the two-sided probability of such a difference between two systems that are alike."""

    value: float
    low: float
    high: float
    p: float


def ratio_interval(pairs: ArrayLike) -> Interval:
    """Return sum / sum over examples from both numbers of each, [n, 2], such as a corpus F1 from counts.

    It is a mean if the second number is always 1, and 0 if the second ones sum to 0. Raises ValueError if there are no
    examples.
    """
    values = np.asarray(pairs, float)
    return _interval(_ratio(values.sum(axis=0)), _ratio(_resampled(values)))


def paired_difference(first: ArrayLike, second: ArrayLike) -> Difference:
    """Return the ratio of the ``first`` system less that of the ``second``, from both numbers of each example, [n, 2].

    The examples are the same, in the same order; each resample draws them once, for both systems, and divides a sum by
    a sum for each (micro average). An interval without 0 says that the systems differ. Its p is twice the share of
    resamples on the rarer side of 0 (Efron and Tibshirani, 1993, section 15.4), no smaller than 2 / (RESAMPLES + 1),
    nor than 2^(1 - n), the p of the exact sign test if all n pairs have one sign.
    Raises ValueError if the lists differ in length or are empty.
    """
    one, other = np.asarray(first, float), np.asarray(second, float)
    if len(one) != len(other):
        raise ValueError(f"{len(one)} scores cannot be paired with {len(other)}")
    gaps = _ratio(_resampled(one)) - _ratio(_resampled(other))
    rarer = min(np.count_nonzero(gaps <= 0), np.count_nonzero(gaps >= 0))
    p = max(2 * (1 + rarer) / (1 + len(gaps)), 2.0 ** (1 - len(one)))
    return Difference(*_interval(_ratio(one.sum(axis=0)) - _ratio(other.sum(axis=0)), gaps), p=float(min(1, p)))


def _resampled(values: np.ndarray) -> np.ndarray:
    """Return the sums of resamples, [n, k] -> [RESAMPLES, k]: of the same examples for any values of as many."""
    if not len(values):
        raise ValueError("no scores to take an interval of")
    is_small = len(values) * RESAMPLES <= _DRAWS_AT_ONCE
    draws = _kept_draws(len(values)) if is_small else _draws(len(values))
    return np.concatenate([drawn @ values for drawn in draws])


def _draws(examples: int) -> Iterator[np.ndarray]:
    """Yield for some resamples after the other how often each has each example, [some, examples]."""
    generator = np.random.default_rng(0)
    piece = max(_DRAWS_AT_ONCE // examples, 1)
    for start in range(0, RESAMPLES, piece):
        drawn = generator.integers(examples, size=(min(piece, RESAMPLES - start), examples))
        index = drawn + np.arange(len(drawn))[:, None] * examples
        yield np.bincount(index.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)


@lru_cache(1)
def _kept_draws(examples: int) -> list[np.ndarray]:
    return [*_draws(examples)]


def _interval(value: np.ndarray, resampled: np.ndarray) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(float(value), float(low), float(high))


def _ratio(sums: np.ndarray) -> np.ndarray:
    """[..., 2] -> [...]"""
    return np.divide(sums[..., 0], sums[..., 1], out=np.zeros(sums.shape[:-1]), where=sums[..., 1] != 0)


@dataclass(frozen=True)
class Figure:
    """A metric of a system, and how it is computed from the columns of its examples.

    It is the mean of the column with its name. With ``above``, it is the sum of these columns. With ``below`` too, it
    is 100 times the sum of ``above`` divided by that of ``below``. ``label`` and ``digits`` (decimals) are for tables.
    """

    label: str
    digits: int
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


def figure_of(name: str, figure: Figure, scores: "DataFrame", sure: bool = True) -> dict[str, float]:
    """Return the value of a figure, with bounds if ``sure`` and it is no sum; empty if no example has the figure."""
    pairs = pairs_of(name, figure, scores)
    if not len(pairs):
        return {}
    if figure.above and not figure.below:
        return {name: int(pairs[:, 0].sum())}
    return _named(name, figure, ratio_interval(pairs) if sure else [float(_ratio(pairs.sum(axis=0)))])


def difference_of(name: str, figure: Figure, scores: "DataFrame", others: "DataFrame") -> dict[str, float]:
    """Return ``paired_difference`` of a mean or ratio, with bounds and p (``_low``, ``_high``, ``_p``).

    Only examples that have a mean in both systems count. Empty if there is none.
    """
    if not figure.above and name in scores and name in others:
        both = scores[name].notna().to_numpy() & others[name].notna().to_numpy()
        scores, others = scores[both], others[both]
    pairs = [pairs_of(name, figure, one) for one in (scores, others)]
    if not all(map(len, pairs)):
        return {}
    *interval, p = paired_difference(*pairs)
    return _named(name, figure, interval) | {f"{name}_p": p}


def pairs_of(name: str, figure: Figure, scores: "DataFrame") -> np.ndarray:
    """Return the numerator and the denominator of each example, [n, 2]; [0, 2] if no example has the figure."""
    columns = [*figure.above, *figure.below] or [name]
    if not {*columns} <= {*scores} or scores[columns].isna().all(axis=None):
        return np.empty((0, 2))
    if not figure.above:
        values = scores[name].dropna().to_numpy()
        return np.stack([values, np.ones_like(values)], axis=1)  # numpy sums another layout in another order
    return np.stack([scores[[*part]].fillna(0).to_numpy().sum(1) for part in (figure.above, figure.below)], axis=1)


def _named(name: str, figure: Figure, interval: Sequence[float]) -> dict[str, float]:
    values = (100 if figure.below else 1) * np.array(interval)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values.tolist(), strict=False))
