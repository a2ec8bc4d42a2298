"""The YAML format of a search space: searched keys and values, searcher, scheduler, budget and metric."""

import math
import random
from itertools import product
from math import prod
from typing import Any, Literal

from pydantic import Field, model_validator

from raysum.config.base import Section

POINTS = 100_000  # maximum points of a space: each is resolved and checked before the first trial
# Metrics that are better if they are lower. A space can set the direction of other metrics by ``mode``.
_LOWER = {
    *("loss", "valid_loss", "grad_norm", "wait_share", "padding_share", "peak_rss_mb", "step", "train_seconds"),
    *("parameters", "unsupported", "repeated", "facts_wrong"),
}

_PLACES = ("address", "workers", "threads", "cpus_per_worker", "gpus_per_worker", "wait_minutes")  # of train

# Keys that cannot be searched, and why.
_FIXED = {
    **dict.fromkeys(("data", "mixed", "out", "run"), "is the same for all trials of a search"),
    **dict.fromkeys((f"train.{name}" for name in _PLACES), "sets where trials run, not their results"),
    "train.trackers": "sets which services get the metrics",
    "train.validate_examples": "sets the examples that trials are compared on",
    **dict.fromkeys(("model.vocabulary", "model.marks"), "comes from the dataset"),
}

# Keys that can change while weights and optimizer state stay.
_PERTURBED = {
    "optim.lr", "optim.new_lr", "optim.warmup_steps", "train.label_smoothing",
    "model.dropout", "model.attention_dropout", "model.ffn_dropout",
}  # fmt: skip


class Mixes(Section):
    """All strings of ``letters`` with these numbers of layers. LG with 2 and 3 layers has 4 + 8 = 12 mixes."""

    letters: str = Field(min_length=1, description="one letter for each kind of layer")
    layers: list[int] = Field(min_length=1, max_length=1000, description="numbers of layers")

    @model_validator(mode="after")
    def _check(self) -> "Mixes":
        if len(set(self.letters)) < len(self.letters):
            raise ValueError(f"letters {self.letters!r} repeats a letter")
        if min(self.layers) < 1 or len(set(self.layers)) < len(self.layers):
            raise ValueError(f"layers {self.layers} must be different numbers of at least 1")
        if max(self.layers) > 1000 or sum(len(self.letters) ** number for number in self.layers) > POINTS:
            raise ValueError(f"layers {self.layers} of {self.letters!r} have more than {POINTS:,} mixes; list fewer")
        return self

    @property
    def strings(self) -> list[str]:
        return ["".join(letters) for number in self.layers for letters in product(self.letters, repeat=number)]


class Values(Section):
    """The values of one searched key: exactly one of the five fields is set."""

    grid: list[Any] | None = Field(None, min_length=1, description="each value once with each value of the other keys")
    mixes: Mixes | None = Field(None, description="strings of layer letters: all in a grid, otherwise random ones")
    choice: list[Any] | None = Field(None, min_length=1, description="one of these values, drawn for each trial")
    uniform: tuple[float, float] | None = Field(None, description="a number between the two bounds")
    loguniform: tuple[float, float] | None = Field(
        None, description="a number between the two bounds, uniform on a logarithmic scale"
    )

    @model_validator(mode="after")
    def _check(self) -> "Values":
        names = [name for name in Values.model_fields if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"needs exactly one of {', '.join(Values.model_fields)}; it has {names or 'none'}")
        if self.uniform and not self.uniform[0] < self.uniform[1]:
            raise ValueError("uniform needs a lower and a greater bound")
        if self.loguniform and not 0 < self.loguniform[0] < self.loguniform[1]:
            raise ValueError("loguniform needs a lower and a greater bound, above 0")
        return self

    @property
    def listed(self) -> list[Any]:
        """All values, or an empty list for a range."""
        return list(self.mixes.strings if self.mixes else self.grid or self.choice or ())

    @property
    def bounds(self) -> tuple[float, float] | None:
        return self.uniform or self.loguniform

    @property
    def ends(self) -> list[Any]:
        """Values to validate a space with: the bounds of a range and a value inside, mixes of one letter, or all."""
        if self.mixes:
            return [letter * number for number in self.mixes.layers for letter in self.mixes.letters]
        if self.bounds:
            low, high = self.bounds
            return [low, low + (high - low) / math.pi, high]
        return self.listed

    def draw(self, rng: random.Random) -> Any:
        if self.loguniform:
            return math.exp(rng.uniform(*map(math.log, self.loguniform)))
        return rng.uniform(*self.uniform) if self.uniform else rng.choice(self.listed)


class Budget(Section):
    """Limits of a trained model."""

    parameters: float | None = Field(None, gt=0, description="maximum number of parameters of a model")
    seconds: float | None = Field(
        None, gt=0, description="maximum training time with validations; a trial ends at the first validation after it"
    )


class Resources(Section):
    """CPUs and GPUs of one trial. Trials wait for them, and as many run side by side as fit."""

    cpus: float | None = Field(None, gt=0, le=100_000, description="CPUs of a trial")
    gpus: float | None = Field(
        None, ge=0, le=100_000, description="GPUs of a trial: a whole number, or a fraction below 1 to share one"
    )

    @model_validator(mode="after")
    def _check(self) -> "Resources":
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus={self.gpus:g} must be a whole number, or a fraction below 1")
        return self


class SpaceConfig(Section):
    """A search space. Keys of ``config`` and ``search`` are dotted config keys (``decode.beta``)."""

    about: str = Field(description="description of the search in one line")
    kind: Literal["decode", "train"] = Field(
        description="decode: search settings of one trained run; train: each trial trains a run"
    )
    search: dict[str, Values] = Field(min_length=1)
    metric: str = Field(
        "rouge2",
        description="objective: a metric of `raysum evaluate`, also of a registered scorer; train: also one that "
        "trainings log, such as valid_loss (the default), loss, tokens_per_s or train_seconds",
    )
    mode: Literal["min", "max"] | None = Field(
        None, description="min: a lower metric is better; None = min for losses, times, sizes and errors, else max"
    )
    searcher: Literal["grid", "random", "optuna"] = "grid"
    scheduler: Literal["fifo", "asha", "hyperband", "pbt", "pb2"] = Field(
        "fifo",
        description="asha stops the worst trials early; hyperband (asynchronous) runs asha with four first limits, "
        "from 1/27 of a trial to a whole one; pbt replaces them at each validation by copies of the best "
        "ones with similar settings (trials train side by side); pb2 does so with settings that a Gaussian process "
        "predicts from all trials, and searches ranges only",
    )
    trials: int | None = Field(None, gt=0, le=POINTS, description="number of random draws (random, optuna)")
    max_concurrent: int | None = Field(
        None, gt=0, le=POINTS, description="maximum number of trials that run side by side; None = all that fit"
    )
    resources: Resources = Field(default_factory=Resources, description="CPUs and GPUs of a trial")
    retries: int = Field(0, ge=0, le=1000, description="times that a failed trial runs again; training resumes")
    stop: dict[str, float] = Field(
        default_factory=dict,
        description="a trial ends when one of these metrics reaches its value: a loss, and a metric to minimize, at "
        "or below it, others at or above it",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the random draws")
    preset: str | None = Field(None, description="train: preset or file that the trials change")
    config: dict[str, Any] = Field(default_factory=dict, description="keys that all trials share")
    budget: Budget = Field(default_factory=Budget, description="train: limits of a trained model")
    then: str | None = Field(None, description="train: decode space to search next with the best run")
    alignment: dict[str, Any] = Field(
        default_factory=dict, description="then: config keys for the training of the attention predictor"
    )
    split: str = Field("valid", description="decode, then: split to score")
    examples: int | None = Field(
        None, gt=0, le=10**9, description="decode, then: score only this many first examples; None = all"
    )

    @model_validator(mode="before")
    @classmethod
    def _metric_of_kind(cls, values: Any) -> Any:
        is_training = isinstance(values, dict) and values.get("kind") == "train"
        return {"metric": "valid_loss", **values} if is_training else values

    @model_validator(mode="after")
    def _check(self) -> "SpaceConfig":
        if (self.kind == "train") != (self.preset is not None):
            raise ValueError("a train space needs a preset; a decode space has none, because it needs run=")
        kinds = {name for values in self.search.values() for name in values.model_fields_set}
        if self.searcher == "grid" and (kinds - {"grid", "mixes"} or self.trials):
            raise ValueError("searcher grid accepts only keys with a grid or mixes, and no number of trials")
        if self.searcher != "grid" and ("grid" in kinds or not self.trials):
            raise ValueError(
                f"searcher {self.searcher} needs choice, uniform, loguniform or mixes, and a number of trials"
            )
        if prod(len(values.listed or values.ends) for values in self.search.values()) > POINTS:
            raise ValueError(f"search has more than {POINTS:,} combinations of values; list fewer")
        self._check_keys()
        if self.kind == "decode" and self.model_fields_set & {"budget", "then", "alignment"}:
            raise ValueError("budget, then and alignment belong to spaces that train")
        if self.alignment and not self.then:
            raise ValueError("alignment has no effect without then; leave it out")
        if self.is_population:
            self._check_population()
        return self

    def _check_keys(self) -> None:
        for key in self.search:
            if key in _FIXED:
                raise ValueError(f"{key} cannot be searched: it {_FIXED[key]}")
            if self.kind == "train" and key.startswith("decode."):
                raise ValueError(f"{key} does not affect the {self.metric} of a train space; use a decode space")
        if self.kind == "decode":
            wrong = [key for key in (*self.search, *self.config) if not key.startswith("decode.")]
            if wrong:
                raise ValueError(f"a decode space changes decode.* only, not {wrong[0]!r}")

    def _check_population(self) -> None:
        if self.kind != "train" or self.searcher != "random" or (self.trials or 0) < 2:
            raise ValueError(f"scheduler {self.scheduler} needs kind train, searcher random and at least 2 trials")
        if self.max_concurrent:
            raise ValueError(f"scheduler {self.scheduler} trains all trials side by side; leave max_concurrent out")
        if wrong := [key for key in self.search if key not in _PERTURBED]:
            raise ValueError(
                f"scheduler {self.scheduler} cannot search {wrong[0]}, because trials copy the weights of others; "
                f"it can search {', '.join(sorted(_PERTURBED))}"
            )
        if listed := [key for key, values in self.search.items() if self.scheduler == "pb2" and not values.bounds]:
            raise ValueError(
                f"scheduler pb2 searches ranges only: give {listed[0]} uniform or loguniform bounds, or use "
                "scheduler=pbt"
            )

    @property
    def is_population(self) -> bool:
        """Whether trials copy weights and change settings during the search."""
        return self.scheduler in ("pbt", "pb2")

    @property
    def goal(self) -> Literal["min", "max"]:
        """Whether a lower or a higher metric is better."""
        return self.mode or ("min" if self.metric in _LOWER else "max")
