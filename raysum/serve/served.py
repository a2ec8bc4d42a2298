"""What is served: a run at a step, and its newer checkpoints, which are loaded and tried beside the old one."""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from raysum.config.decoding import DECODE_ALIASES, DecodeConfig, ExtractConfig
from raysum.config.problems import changed
from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, extracts
from raysum.runs.folder import Run
from raysum.runtime.session import reason
from raysum.serve.config import ModelConfig, ServeConfig
from raysum.serve.schema import Health

T = TypeVar("T")

# A cluster that a newer checkpoint must summarize before it is served.
EXAMPLE = ["The river rose on Friday. Rescue teams brought 40 people to a school in Lisbon.", "The school stays open."]
_OF_MODELS = (DecodeConfig.model_fields.keys() | DECODE_ALIASES) - ExtractConfig.model_fields.keys()  # settings
_OF_EXTRACTS = ExtractConfig.model_fields.keys() - DecodeConfig.model_fields.keys()
_AT_ONCE = 4  # concurrent requests of a replica that extracts sentences


class Served(NamedTuple):
    """A run or system to serve. ``config`` has its exact run and step, ``asked`` what the user named."""

    config: ModelConfig
    asked: ModelConfig
    health: Health
    batch: int  # requests that a replica processes together
    is_extractive: bool
    size: int = 0  # bytes of its weights

    @classmethod
    def of(cls, asked: ModelConfig, is_one_of_several: bool = False) -> "Served":
        """Resolve a config. Raises UserError if the run or its checkpoint cannot be served.

        If it ``is_one_of_several``, it leaves out settings that only models of the other kind have.
        """
        if extracts(asked.run):
            asked = _without(_OF_MODELS, asked, "dtype", "checkpoint") if is_one_of_several else asked
            extractor = Extractor.of(asked.run, asked)
            if extractor.system.needs_reference:
                raise UserError(f"{asked.run} needs reference summaries, which requests do not have")
            return cls(asked, asked, Health(status="ok", system=extractor.name), _AT_ONCE, True)
        run = Run.resolve(asked.run)
        if is_one_of_several:
            asked = _without(_OF_MODELS, asked, "dtype") if run.config.model.extracts else _without(_OF_EXTRACTS, asked)
        checkpoint, *others = run.select_checkpoints(asked.checkpoint)
        step = asked.checkpoint if others else str(checkpoint.step)
        exact = asked.model_copy(update={"run": str(run.path), "checkpoint": step})
        health = Health(status="ok", run=run.name, step=checkpoint.step)
        size = checkpoint.weights.stat().st_size
        if run.config.model.extracts:
            changed(run.extract, asked.decode)
            return cls(exact, asked, health, _AT_ONCE, True, size)
        return cls(exact, asked, health, changed(run.decode, asked.decode).batch_examples, False, size)


def _without(settings: Collection[str], config: ModelConfig, *names: str) -> ModelConfig:
    """Return ``config`` without decoding ``settings``, and with the defaults of ``names``."""
    decode = {name: value for name, value in config.decode.items() if name not in settings}
    return config.model_copy(
        update={"decode": decode} | {name: ModelConfig.model_fields[name].default for name in names}
    )


def all_served(config: ServeConfig) -> dict[str, Served]:
    """Return the models of a service by their names, the default one first. Raises as :meth:`Served.of` does.

    Decoding settings, checkpoint and dtype apply to the models that have them.
    """
    shared = {name: getattr(config, name) for name in ModelConfig.model_fields if name != "run"}
    shared["replicas"] = config.most_replicas  # which share the cores
    if isinstance(config.run, str):
        served = Served.of(ModelConfig(run=config.run, **shared))
        return {served.health.system or str(served.health.run): served}
    return {name: Served.of(ModelConfig(run=run, **shared), True) for name, run in config.run.items()}


def health_of(served: Mapping[str, Served]) -> Health:
    """Return the health of a service: that of its default model, and the names of all, if there are several."""
    default = next(iter(served.values())).health
    return default.model_copy(update={"models": [*served]}) if len(served) > 1 else default


class Version(NamedTuple, Generic[T]):
    """A loaded model and its origin."""

    model: T
    config: ModelConfig
    loaded: float  # seconds since 1970
    load_seconds: float

    @property
    def name(self) -> dict[str, Any]:
        """The run and the step, or the system, that answers name."""
        if extracts(self.config.run):
            return {"system": self.config.run}
        step = self.config.checkpoint
        return {"run": Run.open(self.config.run).name, "step": int(step) if step.isdecimal() else step}


@cache
def _described(run: str, checkpoint: str) -> dict[str, Any]:
    """Return the layers of the run, if it has any, and the validation metrics of the checkpoint."""
    if extracts(run):
        return {}
    folder = Run(run)
    spec = folder.config.model
    letters = {part: getattr(spec, part, None) for part in ("encoder", "decoder")}
    mix = letters if all(isinstance(layers, str) for layers in letters.values()) else None
    figures = folder.figures(int(checkpoint)) if checkpoint.isdecimal() else {}
    return {"mix": mix, "validation": {name: value for name, value in figures.items() if math.isfinite(value)}}


class Follower(Generic[T]):
    """The version that a replica serves. ``load`` returns the model of a config, or raises if it cannot summarize.

    With ``follow`` a thread looks for another best (or latest) checkpoint of the run or search. It loads that beside
    the current one, then replaces it and calls ``retire`` for the old model, which still answers its requests. A
    checkpoint that cannot be loaded is not served; ``rejected`` has the reason.
    """

    def __init__(self, served: Served, load: Callable[[ModelConfig], T], retire: Callable[[T], None] = lambda _: None):
        self._asked, self._load, self._retire = served.asked, load, retire
        self._is_closed = threading.Event()
        self.current = self._loaded(served.config)
        self.rejected: dict[str, Any] | None = None
        if served.asked.follow and served.asked.checkpoint in ("best", "latest") and not extracts(served.asked.run):
            threading.Thread(target=self._watch, daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """Return the values of a ``schema.ModelCard`` except ``beta``."""
        version = self.current
        times = {"loaded": version.loaded, "load_seconds": round(version.load_seconds, 2)}
        about = _described(version.config.run, version.config.checkpoint)
        return {**version.name, **times, "rejected": self.rejected, **about}

    def close(self) -> None:
        """End the thread, and retire the model."""
        self._is_closed.set()
        self._retire(self.current.model)

    def _loaded(self, config: ModelConfig) -> Version[T]:
        began = time.monotonic()
        return Version(self._load(config), config, time.time(), time.monotonic() - began)

    def _watch(self) -> None:
        seen = self.current.config
        while not self._is_closed.wait(self._asked.follow):
            try:
                newest = self._newest()
            except (UserError, OSError):
                continue  # the store does not answer, or a search is being written
            if newest != seen:
                seen = newest
                self._replace(newest)

    def _newest(self) -> ModelConfig:
        run = Run.resolve(self._asked.run)
        step = str(run.candidates(self._asked.checkpoint)[0].step)
        return self._asked.model_copy(update={"run": str(run.path), "checkpoint": step})

    def _replace(self, newest: ModelConfig) -> None:
        try:
            version = self._loaded(newest)
        except Exception as error:
            self.rejected = {"run": newest.run, "step": int(newest.checkpoint), "reason": reason(error)}
            return
        if self._is_closed.is_set():
            self._retire(version.model)
            return
        old, self.current, self.rejected = self.current, version, None
        self._retire(old.model)
