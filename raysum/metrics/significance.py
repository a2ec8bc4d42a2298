"""Human evaluations: whether systems differ, by scipy, and whether judges agree, by Krippendorff's alpha."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np
from scipy.stats import binomtest, f_oneway, ttest_rel, tukey_hsd

Figures = dict[str, float | None]  # None is unknown: JSON has neither infinity nor NaN
Compared = dict[tuple[str, str], Figures]  # of two systems


def anova(values: Mapping[str, Sequence[float]]) -> Figures:
    """Return ``F`` and ``p`` of a one-way ANOVA over the values of each system.

    They are None if fewer than two systems have two values, or if all values are equal.
    """
    groups = [group for group in values.values() if len(group) > 1]
    if len(groups) < 2:
        return {"F": None, "p": None}
    test = _quietly(f_oneway, *groups)
    return _known(F=test.statistic, p=test.pvalue)


def tukey(values: Mapping[str, Sequence[float]]) -> Compared:
    """Return ``difference`` of means and ``p`` by Tukey's HSD of each two systems that have two values, for all at
    once."""
    groups = {name: group for name, group in values.items() if len(group) > 1}
    if len(groups) < 2:
        return {}
    test = _quietly(tukey_hsd, *groups.values())
    pairs = combinations(enumerate(groups), 2)
    return {
        (one, other): _known(difference=test.statistic[i, j], p=test.pvalue[i, j]) for (i, one), (j, other) in pairs
    }


def paired_t(values: Mapping[str, Mapping[object, float]]) -> Compared:
    """Return ``difference``, ``t`` and Holm's ``p`` of Student's paired t test over the items of both systems.

    If no pair of values differs, p is 1.
    """
    tests: Compared = {}
    for one, other in combinations(values, 2):
        both = [item for item in values[one] if item in values[other]]
        first, second = (np.array([values[system][item] for item in both]) for system in (one, other))
        if len(both) > 1:
            test = _quietly(ttest_rel, first, second)
            p = 1.0 if (first == second).all() else test.pvalue
            tests[one, other] = _known(difference=(first - second).mean(), t=test.statistic, p=p)
    return holm(tests)


def binomial(wins: Mapping[tuple[str, str], tuple[int, int]]) -> Compared:
    """Return the exact two-sided binomial test of the wins of each two systems over each other.

    ``share`` of the first in percent, ``n``, and Holm's ``p``.
    """
    tests: Compared = {}
    for pair, (won, lost) in wins.items():
        if n := won + lost:
            tests[pair] = {"share": 100 * won / n, "n": n, "p": float(binomtest(won, n).pvalue)}
    return holm(tests)


def holm(tests: Compared) -> Compared:
    """Correct ``p`` for multiple tests by Holm's method; ``p_alone`` is the value before."""
    known = sorted((figures["p"], pair) for pair, figures in tests.items() if figures["p"] is not None)
    factors = np.arange(len(known), 0, -1)
    least = np.maximum.accumulate(np.minimum(factors * [p for p, _ in known], 1.0)).tolist()
    corrected = {pair: value for (_, pair), value in zip(known, least, strict=True)}
    return {pair: {**one, "p_alone": one["p"], "p": corrected.get(pair)} for pair, one in tests.items()}


def _quietly(test: Callable[..., Any], *groups: Any) -> Any:
    """Return the result of a test. Judges who all say the same give infinite or no statistics, without warnings."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return test(*groups)


def _known(**figures: float) -> Figures:
    return {name: float(value) if np.isfinite(value) else None for name, value in figures.items()}


def krippendorff(given: Iterable[tuple[Hashable, float]], level: Literal["nominal", "ordinal"]) -> float | None:
    """Return 1 - observed / expected disagreement over (unit, value) pairs: 1 is perfect agreement, 0 is chance.

    Returns None if no unit has two values or all values are equal. Krippendorff, Computing Krippendorff's
    Alpha-Reliability (2011): units with one value are left out, each other one counts by its number of values.
    """
    units: dict[Hashable, list[float]] = {}
    for unit, value in given:
        units.setdefault(unit, []).append(value)
    pairable = [values for values in units.values() if len(values) > 1]
    known = sorted({value for values in pairable for value in values})
    if len(known) < 2:
        return None
    counts = np.array([[values.count(value) for value in known] for values in pairable], float)
    # Coincidences [values, values]: ordered pairs of different judges in a unit, divided by its judges less one.
    weighted = counts / (counts.sum(1, keepdims=True) - 1)
    together = weighted.T @ counts - np.diag(weighted.sum(0))
    totals = together.sum(0)
    middles = totals.cumsum() - totals / 2  # ordered values are apart by those between, and half of each of the two
    apart = (middles[:, None] - middles) ** 2 if level == "ordinal" else 1 - np.eye(len(totals))
    observed, expected = (together * apart).sum(), (np.outer(totals, totals) * apart).sum()
    return float(1 - (totals.sum() - 1) * observed / expected)
