"""Search spaces, found and resolved: the config of each trial, and what all trials of a search share."""

import random
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
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
from raysum.systems import count_parameters
from raysum.tune.schema import SpaceConfig

BETA, WHEN = "decode.beta", "decode.alignment_when"  # the weight of attention alignment, and where it acts
_DRAWS = 1000  # that may exceed the budget one after the other


@dataclass(frozen=True)
class Space:
    """A space as one search uses it: with the overrides of the command line, and where each key was written."""

    name: str
    config: SpaceConfig
    places: dict[str, str]
    overrides: tuple[str, ...] = ()

    @cached_property
    def _preset(self) -> tuple[dict[str, Any], dict[str, str]]:
        return loading.read_values(self.config.preset) if self.config.preset else ({}, {})

    def resolve(self, values: dict[str, Any], base: DecodeConfig | None = None) -> Config:
        """The whole config of the trial that tries ``values`` (dotted keys), over the preset or the decode ``base``.

        Raises UserError that names every wrong key and value and its line.
        """
        resolved, places = deepcopy(self._preset)
        if base is not None:
            resolved["decode"] = base.model_dump()
        for key, value in self.config.config.items():
            loading.assign(resolved, places, key, value, self.places.get(f"config.{key}", f"space {self.name}"))
        for override in self.overrides:
            loading.apply_override(resolved, places, override)
        for key, value in values.items():
            loading.assign(resolved, places, key, value, self.places.get(f"search.{key}", f"space {self.name}"))
        return validate(resolved, places, Config)

    @cached_property
    def first(self) -> Config:
        """The config of one trial: what all have in common can be read from it."""
        return self.resolve(next(self.samples()))

    @property
    def predictor(self) -> Config:
        """What the attention predictor of the best run is trained with."""
        return loading.load_config("alignment", loading.pairs(self.config.alignment))

    @property
    def passed_on(self) -> list[str]:
        """Overrides of the search that follows: what this one says of decoding."""
        said = self.config.model_dump(include={"split", "examples"}, exclude_unset=True)
        return [*loading.pairs(said), *(override for override in self.overrides if override.startswith("decode."))]

    @cached_property
    def then(self) -> "Space | None":
        """The decode space that the best run is searched with. Raises UserError where it is none, or unknown."""
        if not self.config.then:
            return None
        space = load_space(self.config.then, self.passed_on)
        if space.config.kind != "decode":
            raise UserError(f"{self.name} goes on with {space.name}, which must be a decode space, such as beta")
        return space

    def samples(self) -> Iterator[dict[str, Any]]:
        """Every point of a grid, whatever the budget; every choice and end of other spaces."""
        grid = self.config.searcher == "grid"
        return self._combined(values.listed if grid else values.ends for values in self.config.search.values())

    def _combined(self, tried: Iterable[list[Any]]) -> Iterator[dict[str, Any]]:
        for point in product(*tried):
            yield dict(zip(self.config.search, point, strict=True))

    def fits(self, values: dict[str, Any]) -> bool:
        """Whether the model of the trial that tries ``values`` is within the budget."""
        most = self.config.budget.parameters
        return most is None or count_parameters(self.resolve(values).model) <= most

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        """The trials of a grid or a random search, in order; where points can be counted, none of a random one comes
        twice. Raises UserError where none fits the budget."""
        self.check_budget()
        if self.config.searcher == "grid":
            return [point for point in self.samples() if self.fits(point)]
        rng, searched = random.Random(self.config.seed), self.config.search
        if not any(values.bounds for values in searched.values()):
            points = self._combined(values.listed for values in searched.values())
            different = [*{repr(point): point for point in points}.values()]
            rng.shuffle(different)
            return [*islice(filter(self.fits, different), self.config.trials)]
        draws = ({key: values.draw(rng) for key, values in searched.items()} for _ in count())
        return [self.first_fit(draws) for _ in range(self.config.trials or 0)]

    def first_fit(self, draws: Iterator[Any]) -> dict[str, Any]:
        """The next of ``draws`` that is within the budget. Raises UserError where none of many is."""
        for point in filter(self.fits, islice(draws, _DRAWS)):
            return point
        raise UserError(f"of {_DRAWS} draws of the space {self.name} none fits its budget.parameters; raise it")

    def check_budget(self) -> None:
        """Raises UserError where no trial fits the budget."""
        if not any(map(self.fits, self.samples())):
            least, point = min((count_parameters(self.resolve(point).model), label(point)) for point in self.samples())
            raise UserError(
                f"no model of the space {self.name} fits budget.parameters={self.config.budget.parameters:,.0f}: the "
                f"smallest, {point}, has {least:,}; raise it, or search smaller models"
            )

    @property
    def drawn_by_tune(self) -> bool:
        """Whether the trials are not known before the search."""
        return self.config.searcher == "optuna" or self.config.scheduler == "pbt"

    @property
    def num_trials(self) -> int:
        return self.config.trials if self.config.trials and self.drawn_by_tune else len(self.points)


@dataclass(frozen=True)
class Job:
    """Paths are absolute: Tune runs each trial in a folder of its own."""

    space: Space
    data: str  # as Dataset.address
    out: Path  # the search folder; a trial's own files go to out/trials/NAME
    run: Run | None  # whose decoding is searched; None where trials train their own
    length: int  # examples scored, or steps trained, in a whole trial
    at_once: int  # trials that run side by side
    threads: int  # of each of them

    def name(self, trial: Any) -> str:
        """What Tune's ``trial``, its actor and its folder are called: ``beta=0.8``."""
        if self.space.config.scheduler == "pbt":  # settings change
            return trial.trial_id
        named = label(trial.config)
        return named if self.space.config.searcher == "grid" else f"{named},{trial.trial_id}"  # draws may repeat

    def folder(self, name: str) -> Path:
        return self.out / "trials" / name


def spaces() -> list[str]:
    """Names of the spaces that come with raysum, sorted."""
    return loading.yaml_names(_folder())


def load_space(name: str, overrides: Iterable[str] = ()) -> Space:
    """A space by name or file. Overrides of config keys (``train.steps=500``) hold for all of its trials, others
    (``examples=50``) change the space itself.

    Raises UserError for an unknown space, key or value; each point of a grid is resolved and checked here.
    """
    values, places = loading.read_yaml(name, _folder(), "search space")
    for key, known in (("preset", loading.presets()), ("then", spaces())):
        if isinstance(values.get(key), str):
            values[key] = loading.beside(values[key], name, known)
    of_trials = []
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] in Config.model_fields:
            of_trials.append(override)
        else:
            loading.apply_override(values, places, override)
    config: SpaceConfig = validate(values, places, SpaceConfig)
    if config.preset and config.preset not in loading.presets():
        config = config.model_copy(update={"preset": str(Path(config.preset).absolute())})  # trials run elsewhere
    searched = [override for override in of_trials if override.partition("=")[0] in config.search]
    if searched:
        raise UserError(f"{searched[0]!r}: this key is what the space {name} searches; leave it out")
    space = Space(Path(name).stem, config, places, tuple(of_trials))
    for sample in space.samples():
        space.resolve(sample)
    if space.then:
        _ = space.predictor  # reads and checks it
    return space


def _folder() -> Path:
    """Where the spaces are: `raysum.spaces` when installed, else `tune_spaces` beside the package in a checkout."""
    try:
        return Path(import_module("raysum.spaces").__path__[0])
    except ModuleNotFoundError:
        return Path(__file__).resolve().parents[2] / "tune_spaces"


def label(values: dict[str, Any]) -> str:
    """``beta=0.8``: what a trial, its actor and its folder are called. Keys by their last word, numbers short."""
    return ",".join(f"{key.rpartition('.')[2]}={short(value)}" for key, value in values.items())


def short(value: Any) -> str:
    """A value in the name of a folder: without spaces, brackets or slashes."""
    return f"{value:.4g}" if isinstance(value, float) else re.sub(r"[^\w.+-]+", "-", str(value)).strip("-")
