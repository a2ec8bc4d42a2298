"""Search spaces, found and resolved: the config of each trial, and what all trials of a search share."""

import json
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from raysum.config.loading import apply_override, assign, load_config, parse_yaml, presets, read_values
from raysum.config.problems import did_you_mean, validate
from raysum.config.sections import Config, DecodeConfig
from raysum.errors import UserError
from raysum.systems import count_parameters
from raysum.tune.schema import SpaceConfig

DRAWS = 1000  # that may exceed the budget one after the other


@dataclass(frozen=True)
class Space:
    """A space as one search uses it: with the overrides of the command line, and where each key was written."""

    name: str
    config: SpaceConfig
    places: dict[str, str]
    overrides: tuple[str, ...] = ()

    @cached_property
    def _preset(self) -> tuple[dict[str, Any], dict[str, str]]:
        return read_values(self.config.preset) if self.config.preset else ({}, {})

    def resolve(self, values: dict[str, Any], base: DecodeConfig | None = None) -> Config:
        """The whole config of the trial that tries ``values`` (dotted keys), over the preset or the decode ``base``.

        Raises UserError that names every wrong key and value and its line.
        """
        resolved, places = deepcopy(self._preset)
        if base is not None:
            resolved["decode"] = base.model_dump()
        for key, value in self.config.config.items():
            assign(resolved, places, key, value, self.places.get(f"config.{key}", f"space {self.name}"))
        for override in self.overrides:
            apply_override(resolved, places, override)
        for key, value in values.items():
            assign(resolved, places, key, value, self.places.get(f"search.{key}", f"space {self.name}"))
        return validate(resolved, places, Config)

    @property
    def of_alignment(self) -> list[str]:
        """Overrides of the config that the attention predictor of the best run is trained with."""
        return [f"{key}={json.dumps(value)}" for key, value in self.config.alignment.items()]

    @property
    def passed_on(self) -> list[str]:
        """Overrides of the search that follows: what this one says of decoding."""
        said = {key: getattr(self.config, key) for key in ("split", "examples") if key in self.config.model_fields_set}
        decoding = [override for override in self.overrides if override.startswith("decode.")]
        return [*(f"{key}={json.dumps(value)}" for key, value in said.items()), *decoding]

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
        for point in product(*(values.listed if grid else values.ends for values in self.config.search.values())):
            yield dict(zip(self.config.search, point, strict=True))

    def fits(self, values: dict[str, Any]) -> bool:
        """Whether the model of the trial that tries ``values`` is within the budget."""
        most = self.config.budget.parameters
        return most is None or count_parameters(self.resolve(values).model) <= most

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        """The trials of a grid or a random search, in order. Raises UserError where none fits the budget."""
        self.check_budget()
        if self.config.searcher == "grid":
            return [point for point in self.samples() if self.fits(point)]
        rng = random.Random(self.config.seed)
        return [self._drawn(rng) for _ in range(self.config.trials or 0)]

    def _drawn(self, rng: random.Random) -> dict[str, Any]:
        for _ in range(DRAWS):
            point = {key: values.draw(rng) for key, values in self.config.search.items()}
            if self.fits(point):
                return point
        raise self.no_fit()

    def no_fit(self) -> UserError:
        """What to say where draws do not come within the budget."""
        return UserError(f"of {DRAWS} draws of the space {self.name} none fits its budget.parameters; raise it")

    def check_budget(self) -> None:
        """Raises UserError where no trial fits the budget."""
        if not any(map(self.fits, self.samples())):
            sizes = {count_parameters(self.resolve(point).model): point for point in self.samples()}
            least = min(sizes)
            raise UserError(
                f"no model of the space {self.name} fits budget.parameters={self.config.budget.parameters:,.0f}: the "
                f"smallest, {label(sizes[least])}, has {least:,}; raise it, or search smaller models"
            )

    @property
    def num_trials(self) -> int:
        return self.config.trials or len(self.points)


@dataclass(frozen=True)
class Job:
    """Paths are absolute: Tune runs each trial in a folder of its own."""

    space: Space
    data: str
    out: str  # the search folder; a trial's own files go to out/trials/NAME
    run: str  # the run whose decoding is searched; "" where trials train their own
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
        return Path(self.out) / "trials" / name


def spaces() -> list[str]:
    """Names of the spaces that come with raysum, sorted."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def load_space(name: str, overrides: list[str] | None = None) -> Space:
    """A space by name or file. Overrides of config keys (``train.steps=500``) hold for all of its trials, others
    (``examples=50``) change the space itself.

    Raises UserError for an unknown space, key or value; each point of a grid is resolved and checked here.
    """
    place, text = _read(name)
    values, places = parse_yaml(text, place)
    of_trials = []
    for override in overrides or []:
        if override.partition("=")[0].partition(".")[0] in Config.model_fields:
            of_trials.append(override)
        else:
            apply_override(values, places, override)
    config: SpaceConfig = validate(values, places, SpaceConfig)
    if config.preset and config.preset not in presets():
        config = config.model_copy(update={"preset": str(Path(config.preset).absolute())})  # trials run elsewhere
    searched = [override for override in of_trials if override.partition("=")[0] in config.search]
    if searched:
        raise UserError(f"{searched[0]!r}: this key is what the space {name} searches; leave it out")
    space = Space(Path(name).stem, config, places, tuple(of_trials))
    for sample in space.samples():
        space.resolve(sample)
    if space.then:
        load_config("alignment", space.of_alignment)
    return space


def _read(name: str) -> tuple[str, str]:
    path = _folder() / f"{name}.yaml" if name in spaces() else Path(name)
    if not path.is_file():
        near = did_you_mean(name, spaces())
        raise UserError(f"no search space or file {name!r}; {near}the spaces are {', '.join(spaces())}")
    try:
        return path.name, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the search space {path}: {error}") from None


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
