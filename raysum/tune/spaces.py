"""Search spaces: a YAML that says what is searched, how, and by which metric."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from raysum.config import (
    Config,
    DecodeConfig,
    Section,
    apply_override,
    assign,
    parse_yaml,
    presets,
    read_values,
    validate,
)
from raysum.errors import UserError

METRICS = {"decode": ("rouge1", "rouge2", "rougeL", "rougeLsum"), "train": ("valid_loss",)}


class Values(Section):
    """What one key is tried with: exactly one of the four."""

    grid: list[Any] | None = Field(None, min_length=1, description="each value once, with each of the other keys")
    choice: list[Any] | None = Field(None, min_length=1, description="one of these, drawn for each trial")
    uniform: tuple[float, float] | None = Field(None, description="a number between the two")
    loguniform: tuple[float, float] | None = Field(None, description="the same, even on a logarithmic scale")

    @model_validator(mode="after")
    def _check(self) -> "Values":
        given = [name for name in Values.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of grid, choice, uniform, loguniform; it has {given or 'none'}")
        for name in ("uniform", "loguniform"):
            bounds = getattr(self, name)
            if bounds and not (0 if name == "loguniform" else float("-inf")) < bounds[0] < bounds[1]:
                raise ValueError(f"{name} needs a lower and a greater bound{', above 0' * (name == 'loguniform')}")
        return self

    @property
    def examples(self) -> list[Any]:
        """All values, or the two ends."""
        return list(self.grid or self.choice or self.uniform or self.loguniform or ())


class SpaceConfig(Section):
    """A search space. Keys of ``config`` and ``search`` are dotted config keys (``decode.beta``)."""

    about: str = Field(description="one line: what is searched")
    kind: Literal["decode", "train"] = Field(description="decode: settings of one trained run; train: a run a trial")
    search: dict[str, Values] = Field(min_length=1)
    metric: Literal["rouge1", "rouge2", "rougeL", "rougeLsum", "valid_loss"] = "rouge2"
    searcher: Literal["grid", "random", "optuna"] = "grid"
    scheduler: Literal["fifo", "asha"] = Field("fifo", description="asha stops trials that fall behind")
    trials: int | None = Field(None, gt=0, description="how many are drawn (random, optuna)")
    seed: int = Field(0, ge=0, description="of the draws")
    preset: str | None = Field(None, description="train: preset or file that the trials change")
    config: dict[str, Any] = Field(default_factory=dict, description="keys that all trials share")
    split: str = Field("valid", description="decode: split that is scored")
    examples: int | None = Field(None, gt=0, description="decode: examples scored, the first so many; None = all")

    @model_validator(mode="after")
    def _check(self) -> "SpaceConfig":
        if self.metric not in METRICS[self.kind]:
            raise ValueError(f"metric {self.metric!r} is none of a {self.kind} space: {', '.join(METRICS[self.kind])}")
        if (self.kind == "train") != (self.preset is not None):
            raise ValueError("a train space needs a preset, a decode space has none: its run is given by run=")
        kinds = {name for values in self.search.values() for name in values.model_fields_set}
        if self.searcher == "grid" and (kinds != {"grid"} or self.trials):
            raise ValueError("searcher grid takes keys with a grid only, and no number of trials")
        if self.searcher != "grid" and ("grid" in kinds or not self.trials):
            raise ValueError(f"searcher {self.searcher} takes choice, uniform or loguniform, and a number of trials")
        if self.kind == "decode":
            wrong = [key for key in (*self.search, *self.config) if not key.startswith("decode.")]
            if wrong:
                raise ValueError(f"a decode space changes decode.* only, not {wrong[0]!r}")
        return self

    @property
    def mode(self) -> Literal["min", "max"]:
        return "min" if self.metric == "valid_loss" else "max"


@dataclass(frozen=True)
class Space:
    """A space as one search uses it: with the overrides of the command line, and where each key was written."""

    name: str
    config: SpaceConfig
    places: dict[str, str]
    overrides: tuple[str, ...] = ()

    def resolve(self, values: dict[str, Any], base: DecodeConfig | None = None) -> Config:
        """The whole config of the trial that tries ``values`` (dotted keys), over the preset or the decode ``base``.

        Raises UserError that names every wrong key and value and its line.
        """
        resolved, places = read_values(self.config.preset) if self.config.preset else ({}, {})
        if base is not None:
            resolved["decode"] = base.model_dump()
        for key, value in self.config.config.items():
            assign(resolved, places, key, value, self.places.get(f"config.{key}", f"space {self.name}"))
        for override in self.overrides:
            apply_override(resolved, places, override)
        for key, value in values.items():
            assign(resolved, places, key, value, self.places.get(f"search.{key}", f"space {self.name}"))
        return validate(resolved, places)

    def samples(self) -> Iterator[dict[str, Any]]:
        """Every point of a grid; every choice and end of other spaces."""
        for point in product(*(values.examples for values in self.config.search.values())):
            yield dict(zip(self.config.search, point, strict=True))

    @property
    def num_trials(self) -> int:
        return self.config.trials or len(list(self.samples()))

    def label(self, values: dict[str, Any]) -> str:
        """``beta=0.8``: what a trial, its actor and its folder are called. Keys by their last word, numbers short."""
        return ",".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in values.items())


def spaces() -> list[str]:
    """Names of the spaces that come with raysum, sorted."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def load_space(name: str, overrides: list[str] | None = None) -> Space:
    """A space by name or file. Overrides of config keys (``train.steps=500``) hold for all of its trials, others
    (``examples=50``) change the space itself.

    Raises UserError for an unknown space, key or value; each point of a grid is resolved and checked here.
    """
    label, text = _read(name)
    values, places = parse_yaml(text, label)
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
    return space


def _read(name: str) -> tuple[str, str]:
    path = _folder() / f"{name}.yaml" if name in spaces() else Path(name)
    if not path.is_file():
        near = get_close_matches(name, spaces(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no search space or file {name!r}; {hint}the spaces are {', '.join(spaces())}")
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


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
