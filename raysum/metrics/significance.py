"""Whether systems differ: the tests of the papers' human evaluations, by scipy."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations

import numpy as np

Compared = dict[tuple[str, str], dict[str, float | None]]  # of two systems, by the names of figures


def anova(values: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """One-way ANOVA over the values of each system: ``F`` and ``p``; None where fewer than two systems have two values,
    or all values are equal."""
    from scipy.stats import f_oneway

    groups = [one for one in values.values() if len(one) > 1]
    if len(groups) < 2:
        return {"F": None, "p": None}
    with _quiet():
        found = f_oneway(*groups)
    return {"F": _known(found.statistic), "p": _known(found.pvalue)}


def tukey(values: Mapping[str, Sequence[float]]) -> Compared:
    """Tukey's HSD of each two systems that have two values: ``difference`` of means and ``p``, for all at once."""
    from scipy.stats import tukey_hsd

    groups = {name: one for name, one in values.items() if len(one) > 1}
    if len(groups) < 2:
        return {}
    with _quiet():
        found = tukey_hsd(*groups.values())
    pairs = combinations(enumerate(groups), 2)
    return {
        (one, other): {"difference": float(found.statistic[i, j]), "p": _known(found.pvalue[i, j])}
        for (i, one), (j, other) in pairs
    }


def paired_t(values: Mapping[str, Mapping[object, float]]) -> Compared:
    """Student's paired t test of each two systems over what both were judged on: ``difference``, ``t``, and ``p`` by
    Holm; 1 where no pair of values differs."""
    from scipy.stats import ttest_rel

    found: Compared = {}
    for one, other in combinations(values, 2):
        both = [name for name in values[one] if name in values[other]]
        first, second = (np.array([values[system][name] for name in both]) for system in (one, other))
        if len(both) > 1:
            with _quiet():
                test = ttest_rel(first, second)
            same = bool((first == second).all())
            figures = {"t": _known(test.statistic), "p": 1.0 if same else _known(test.pvalue)}
            found[one, other] = {"difference": float((first - second).mean()), **figures}
    return holm(found)


def binomial(wins: Mapping[tuple[str, str], tuple[int, int]]) -> Compared:
    """Exact two-sided binomial test of the wins of each two systems over each other: ``share`` of the first in
    percent, ``n``, and ``p`` by Holm."""
    from scipy.stats import binomtest

    return holm(
        {
            pair: {"share": 100 * won / (won + lost), "n": won + lost, "p": float(binomtest(won, won + lost).pvalue)}
            for pair, (won, lost) in wins.items()
            if won + lost
        }
    )


def holm(tests: Compared) -> Compared:
    """Correct ``p`` for multiple tests by Holm's method; ``p_alone`` is the value before."""
    known = sorted((figures["p"], pair) for pair, figures in tests.items() if figures["p"] is not None)
    least = 0.0
    corrected = {}
    for done, (p, pair) in enumerate(known):
        least = max(least, min(1.0, (len(known) - done) * p))
        corrected[pair] = least
    return {pair: {**one, "p_alone": one["p"], "p": corrected.get(pair)} for pair, one in tests.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Judges who all say the same leave nothing to divide by: infinite or no statistics, without warnings."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _known(value: float) -> float | None:
    """JSON has neither infinity nor NaN."""
    return float(value) if np.isfinite(value) else None
