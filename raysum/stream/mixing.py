"""Several datasets in one plan, by shares: which rows of each come in which epoch, decided as all of the plan is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_OWN = 2  # apart from what the plan itself draws by seed and epoch


@dataclass(frozen=True)
class Mix:
    """``groups`` of each dataset, which lie one after the other in the plan, and ``shares`` of the rows, of sum 1.

    A dataset gives an endless sequence of rows: epochs of its own, each with every kept row once and the row groups in
    another order. An epoch of the mix has as many rows as all datasets together, and after E of them exactly
    ``E * rows * share`` of each sequence have come, rounded. So all rows of a dataset come equally often, but for one.
    """

    groups: tuple[int, ...]
    shares: tuple[float, ...]

    def windows(
        self, index: int, seed: int, count: int, kept: Sequence[int], members: Callable[[np.ndarray], np.ndarray]
    ) -> list[np.ndarray]:
        """The rows of epoch ``index`` in ``count`` windows, each with its share of every dataset.

        ``kept`` rows has each dataset; ``members(groups)`` are those of row groups, by their numbers in the plan.
        """
        rows, parts, first = sum(kept), [], 0
        for number, (groups, share) in enumerate(zip(self.groups, self.shares, strict=True)):
            begin, end = (int(epoch * rows * share + 0.5) for epoch in (index, index + 1))
            own = range(begin // kept[number], -(-end // kept[number]))
            orders = [np.random.default_rng([seed, epoch, _OWN, number]).permutation(groups) for epoch in own]
            visited = [members(first + order) for order in orders]
            taken = np.concatenate([np.empty(0, np.int64), *visited])[begin - own.start * kept[number] :][: end - begin]
            parts.append(np.array_split(taken, count))
            first += groups
        return [np.concatenate(window) for window in zip(*parts, strict=True)]
