"""Agreement between judges: Krippendorff's alpha, which allows missing judgements."""

from collections.abc import Hashable, Iterable
from typing import Literal

import numpy as np


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
    sizes = counts.sum(1)
    # Coincidences [values, values]: ordered pairs of different judges in a unit, divided by its judges less one.
    together = (counts / (sizes - 1)[:, None]).T @ counts - np.diag((counts / (sizes - 1)[:, None]).sum(0))
    totals = together.sum(0)
    apart = _distances(totals) if level == "ordinal" else 1 - np.eye(len(known))
    observed, expected = (together * apart).sum(), (np.outer(totals, totals) * apart).sum()
    return float(1 - (totals.sum() - 1) * observed / expected)


def _distances(totals: np.ndarray) -> np.ndarray:
    """Return the squared distances of ordered values: the values between two, plus half of each of the two."""
    middles = totals.cumsum() - totals / 2
    return (middles[:, None] - middles[None, :]) ** 2
