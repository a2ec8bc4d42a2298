"""Schedulers that let the worst trials copy the weights of the best ones: pbt and pb2."""

import random
from functools import partial
from typing import Any

from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pb2 import PB2

from raysum.tune.schema import Values
from raysum.tune.spaces import Job
from raysum.tune.training import domain


def population(job: Job) -> PopulationBasedTraining:
    """Return the scheduler: at each validation the worst quarter copies weights and settings of the best quarter.

    With pbt, each copied setting is then drawn again (with probability 1/4) or changed: a number by a factor of 0.8 or
    1.2, a choice to its neighbour. With pb2, a Gaussian process of the gains of all trials so far selects new settings.
    """
    space = job.space.config
    shared: dict[str, Any] = {
        "time_attr": "step",
        "perturbation_interval": job.space.first.train.validate_every,
        "synch": True,  # trials wait for each other at each validation, so the search is fair and reproducible
    }
    if space.scheduler == "pb2":
        return DistinctPB2(space.search, space.seed, **shared)
    mutations: dict[str, Any] = {key: values.listed or domain(values) for key, values in space.search.items()}
    explore = partial(within, space.search)
    return PopulationBasedTraining(hyperparam_mutations=mutations, custom_explore_fn=explore, **shared)


def within(search: dict[str, Values], config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with numbers clipped to their ranges."""
    ranges = {key: values.bounds for key, values in search.items() if values.bounds}
    return config | {key: min(max(config[key], low), high) for key, (low, high) in ranges.items()}


class DistinctPB2(PB2):
    """PB2 that draws settings at random if it would copy those of another trial.

    Ray's PB2 copies them until the copied trial has two results with the same settings, so at the first validation.
    The copy would then repeat the training of the other trial exactly.
    """

    def __init__(self, search: dict[str, Values], seed: int, **settings: Any):
        bounds: dict[str, Any] = {key: list(values.bounds or ()) for key, values in search.items()}
        super().__init__(hyperparam_bounds=bounds, custom_explore_fn=self.distinct, **settings)
        self.search, self.rng, self.known = search, random.Random(seed), set[str]()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        self.known.add(repr(trial.config))

    def distinct(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return ``config`` within its ranges, or drawn settings if a trial has had it."""
        new = within(self.search, config)
        if repr(new) in self.known:
            new |= {key: values.draw(self.rng) for key, values in self.search.items()}
        self.known.add(repr(new))
        return new
