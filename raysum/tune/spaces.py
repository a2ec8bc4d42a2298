"""Load search spaces, and resolve the config of each trial."""

import random
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import count, islice, product
from pathlib import Path
from typing import Any

from raysum.config import loading
from raysum.config.decoding import DecodeConfig
from raysum.config.problems import validate
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.placement import Share, share
from raysum.systems import count_parameters
from raysum.tune.schema import SpaceConfig

BETA, WHEN = "decode.beta", "decode.alignment_when"  # the weight of attention alignment, and when it is added
_DRAWS = 1000  # draws in a row that may exceed the budget


@dataclass(frozen=True)
class Space:
    """A search space with the overrides of the command line, and the location of each key for messages."""

    name: str
    config: SpaceConfig
    locations: dict[str, str]
    overrides: tuple[str, ...] = ()

    @cached_property
    def _preset(self) -> tuple[dict[str, Any], dict[str, str]]:
        return loading.read_values(self.config.preset) if self.config.preset else ({}, {})

    def resolve(self, values: dict[str, Any], base: DecodeConfig | None = None) -> Config:
        """Return the config of a trial with ``values`` (dotted keys), based on the preset or the decode ``base``.

        Raises UserError with every wrong key and value and its line.
        """
        resolved, locations = deepcopy(self._preset)
        if base is not None:
            resolved["decode"] = base.model_dump()
        for key, value in self.config.config.items():
            loading.assign(resolved, locations, key, value, self._location(f"config.{key}"))
        for override in self.overrides:
            loading.apply_override(resolved, locations, override)
        for key, value in values.items():
            loading.assign(resolved, locations, key, value, self._location(f"search.{key}"))
        return validate(resolved, locations, Config)

    def _location(self, key: str) -> str:
        return self.locations.get(key, f"space {self.name}")

    @cached_property
    def first(self) -> Config:
        """The config of one trial, for the settings that all trials share."""
        return self.resolve(next(self.samples()))

    @property
    def predictor(self) -> Config:
        """The config of the attention predictor of the best run."""
        return loading.load_config("alignment", loading.pairs(self.config.alignment))

    @property
    def then_overrides(self) -> list[str]:
        """The settings of this search that also apply to the decode search after it."""
        settings = self.config.model_dump(include={"split", "examples"}, exclude_unset=True)
        trackers = {"train.trackers": self.first.train.trackers} if self.first.train.trackers else {}
        decode = (pair for pair in self.overrides if pair.startswith("decode."))
        return [*loading.pairs(settings | trackers), *decode]

    @cached_property
    def then(self) -> "Space | None":
        """The decode space to search with the best run. Raises UserError if it is unknown, or no decode space."""
        if not self.config.then:
            return None
        space = load_space(self.config.then, self.then_overrides)
        if space.config.kind != "decode":
            raise UserError(f"{self.name}: then: {space.name} must be a decode space, such as beta")
        return space

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield every point of a grid, or every combination of choices and ends, also those above the budget."""
        grid = self.config.searcher == "grid"
        return self._combined(values.listed if grid else values.ends for values in self.config.search.values())

    def _combined(self, values: Iterable[list[Any]]) -> Iterator[dict[str, Any]]:
        for point in product(*values):
            yield dict(zip(self.config.search, point, strict=True))

    def fits(self, values: dict[str, Any]) -> bool:
        """Return whether the model of the trial with these ``values`` is within the budget."""
        limit = self.config.budget.parameters
        return limit is None or count_parameters(self.resolve(values).model) <= limit

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        """The trials of a grid or random search, in order, without repetition if no range is searched.

        Raises UserError if none fits the budget.
        """
        self.check_budget()
        if self.config.searcher == "grid":
            return [point for point in self.samples() if self.fits(point)]
        rng, search = random.Random(self.config.seed), self.config.search
        if not any(values.bounds for values in search.values()):
            points = self._combined(values.listed for values in search.values())
            unique = [*{repr(point): point for point in points}.values()]
            rng.shuffle(unique)
            return [*islice(filter(self.fits, unique), self.config.trials)]
        draws = ({key: values.draw(rng) for key, values in search.items()} for _ in count())
        return [self.first_fit(draws) for _ in range(self.config.trials or 0)]

    def first_fit(self, draws: Iterator[Any]) -> dict[str, Any]:
        """Return the next draw within the budget. Raises UserError if 1000 draws in a row exceed it."""
        for point in filter(self.fits, islice(draws, _DRAWS)):
            return point
        raise UserError(f"none of {_DRAWS} draws of the space {self.name} fits its budget.parameters; raise it")

    def check_budget(self) -> None:
        """Raises UserError if no trial fits the budget."""
        if not any(map(self.fits, self.samples())):
            least, point = min((count_parameters(self.resolve(point).model), label(point)) for point in self.samples())
            raise UserError(
                f"no model of the space {self.name} fits budget.parameters={self.config.budget.parameters:,.0f}: the "
                f"smallest, {point}, has {least:,}; raise it, or search smaller models"
            )

    @property
    def drawn_by_tune(self) -> bool:
        """Whether Ray Tune draws the trials during the search."""
        return self.config.searcher == "optuna" or self.config.is_population

    @property
    def num_trials(self) -> int:
        return self.config.trials if self.config.trials and self.drawn_by_tune else len(self.points)


@dataclass(frozen=True)
class Job:
    """A search with absolute paths, because Tune runs each trial in its own folder."""

    space: Space
    data: str  # as Dataset.address
    out: Path  # the search folder; files of a trial are in out/trials/NAME
    run: Run | None  # the run of a decode space; None if each trial trains its own
    length: int  # scored examples, or training steps, of a whole trial
    concurrency: int  # trials that run side by side
    threads: int  # of each of them
    least_workers: int = 0  # of each training: 1 on a cluster, so that no training runs on the host of the search

    @property
    def share(self) -> Share:
        """The CPUs and GPUs of a trial that decodes, or that trains in its own process."""
        resources = self.space.config.resources
        return share("decoder", self.concurrency, resources.cpus, resources.gpus)

    def name(self, trial: Any) -> str:
        """Return the name of Tune's ``trial``, its actor and its folder, such as ``beta=0.8``."""
        if self.space.config.is_population:  # settings change
            return trial.trial_id
        name = label(trial.config)
        return name if self.space.config.searcher == "grid" else f"{name},{trial.trial_id}"  # draws may repeat

    def folder(self, name: str) -> Path:
        return self.out / "trials" / name


def spaces() -> list[str]:
    """Return the names of raysum's own spaces, sorted."""
    return loading.yaml_names(_folder())


def load_space(name: str, overrides: Iterable[str] = ()) -> Space:
    """Return a space by name or file.

    Overrides of config keys (``train.steps=500``) apply to all trials, others (``examples=50``) change the space.
    Raises UserError for an unknown space, key or value; each point of a grid is resolved and checked here.
    """
    values, locations = loading.read_yaml(name, _folder(), "search space")
    for key, known in (("preset", loading.presets()), ("then", spaces())):
        if isinstance(values.get(key), str):
            values[key] = loading.beside(values[key], name, known)
    trial_overrides = []
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] in Config.model_fields:
            trial_overrides.append(override)
        else:
            loading.apply_override(values, locations, override)
    config: SpaceConfig = validate(values, locations, SpaceConfig)
    if config.preset and config.preset not in loading.presets():
        config = config.model_copy(update={"preset": str(Path(config.preset).absolute())})  # trials run elsewhere
    searched = [override for override in trial_overrides if override.partition("=")[0] in config.search]
    if searched:
        raise UserError(f"{searched[0]!r}: the space {name} searches this key; leave it out")
    space = Space(Path(name).stem, config, locations, tuple(trial_overrides))
    space = _measuring(space)
    for sample in space.samples():
        space.resolve(sample)
    if space.then:
        _ = space.predictor  # reads and checks it
    return space


def _measuring(space: Space) -> Space:
    """Return the space with the setting that makes trainings measure its metric.

    Raises UserError if the metric is unknown, or another one selects the checkpoints.
    """
    from raysum.tune.objective import best_by, check_metric  # loads torch

    config = space.config
    check_metric(config, space.locations.get("metric", f"space {space.name}"))
    if (best := best_by(config)) is None:
        return space
    keys = {*config.config, *config.search, *(override.partition("=")[0] for override in space.overrides)}
    if "train.best_by" in keys:
        raise UserError(f"metric={config.metric} selects checkpoints by train.best_by={best}; leave train.best_by out")
    return replace(space, overrides=(*space.overrides, f"train.best_by={best}"))


def _folder() -> Path:
    """Return the folder of the spaces: `raysum.spaces` if installed, otherwise `tune_spaces` in the checkout."""
    try:
        return Path(import_module("raysum.spaces").__path__[0])
    except ModuleNotFoundError:
        return Path(__file__).resolve().parents[2] / "tune_spaces"


def label(values: dict[str, Any]) -> str:
    """Return the name of a trial, such as ``beta=0.8``: the last words of the keys, and short numbers."""
    return ",".join(f"{key.rpartition('.')[2]}={short_value(value)}" for key, value in values.items())


def short_value(value: Any) -> str:
    """Return a value for a folder name, without spaces, brackets or slashes."""
    return f"{value:.4g}" if isinstance(value, float) else re.sub(r"[^\w.+-]+", "-", str(value)).strip("-")
