"""Which trials Ray Tune runs: those of a list, or those that Optuna draws within the budget."""

import pickle
from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

from raysum.tune.values import Values

_DRAWS = 1000  # that may exceed the budget one after the other


class Listed(Searcher):
    """The ``points`` of a grid or a random search, one after the other."""

    def __init__(self, points: list[dict[str, Any]]):
        super().__init__()
        self.points, self.given = points, 0

    def suggest(self, trial_id: str) -> Any:
        if self.given == len(self.points):
            return Searcher.FINISHED
        self.given += 1
        return self.points[self.given - 1]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The list does not depend on results."""

    def save(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "wb") as file:  # Tune names it .pkl and looks for the newest such file
            pickle.dump(self.given, file)

    def restore(self, checkpoint_path: str) -> None:
        with open(checkpoint_path, "rb") as file:
            self.given = pickle.load(file)


class Drawn(OptunaSearch):
    """Optuna's draws; those that do not ``fit`` the budget are told to it as failed, and drawn again."""

    def __init__(self, fit: Callable[[dict[str, Any]], bool], **settings: Any):
        super().__init__(**settings)
        self.fit = fit

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        for number in range(_DRAWS):
            drawn = f"{trial_id}-{number}"
            values = super().suggest(drawn)
            if values is None:
                return None
            if self.fit(values):
                self._ot_trials[trial_id] = self._ot_trials.pop(drawn)
                return values
            self.on_trial_complete(drawn, error=True)
        raise RuntimeError(f"of {_DRAWS} draws none fits budget.parameters; raise it")


def domain(values: Values) -> Domain:
    """What Ray Tune draws a key of a search from."""
    if values.uniform:
        return tune.uniform(*values.uniform)
    if values.loguniform:
        return tune.loguniform(*values.loguniform)
    return tune.choice(values.listed)
