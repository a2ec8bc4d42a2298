"""What is served: a run at a step, and its newer checkpoints, which are loaded and tried beside the old one."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from raysum.config.problems import changed
from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, extracts
from raysum.runs.folder import Run
from raysum.runtime.session import reason
from raysum.serve.config import ServeConfig
from raysum.serve.schema import Health

T = TypeVar("T")

# A cluster that a newer checkpoint must summarize before it is served.
EXAMPLE = ["The river rose on Friday. Rescue teams brought 40 people to a school in Lisbon.", "The school stays open."]
_AT_ONCE = 4  # concurrent requests of a replica that extracts sentences


class Served(NamedTuple):
    """A run or system to serve. ``config`` has its exact run and step, ``asked`` what the user named."""

    config: ServeConfig
    asked: ServeConfig
    health: Health
    batch: int  # requests that a replica processes together
    is_extractive: bool

    @classmethod
    def of(cls, asked: ServeConfig) -> "Served":
        """Resolve a config. Raises UserError if the run or its checkpoint cannot be served."""
        if extracts(asked.run):
            extractor = Extractor.of(asked.run, asked)
            if extractor.system.needs_reference:
                raise UserError(f"{asked.run} needs reference summaries, which requests do not have")
            return cls(asked, asked, Health(status="ok", system=extractor.name), _AT_ONCE, True)
        run = Run.resolve(asked.run)
        checkpoint, *others = run.select_checkpoints(asked.checkpoint)
        step = asked.checkpoint if others else str(checkpoint.step)
        exact = asked.model_copy(update={"run": str(run.path), "checkpoint": step})
        health = Health(status="ok", run=run.name, step=checkpoint.step)
        if run.config.model.extracts:
            changed(run.extract, asked.decode)
            return cls(exact, asked, health, _AT_ONCE, True)
        return cls(exact, asked, health, changed(run.decode, asked.decode).batch_examples, False)


class Version(NamedTuple, Generic[T]):
    """A loaded model and its origin."""

    model: T
    config: ServeConfig
    loaded: float  # seconds since 1970
    load_seconds: float

    @property
    def name(self) -> dict[str, Any]:
        """The run and the step, or the system, that answers name."""
        if extracts(self.config.run):
            return {"system": self.config.run}
        step = self.config.checkpoint
        return {"run": Run.open(self.config.run).name, "step": int(step) if step.isdecimal() else step}


class Follower(Generic[T]):
    """The version that a replica serves. ``load`` returns the model of a config, or raises if it cannot summarize.

    With ``follow`` a thread looks for another best (or latest) checkpoint of the run or search. It loads that beside
    the current one, then replaces it and calls ``retire`` for the old model, which still answers its requests. A
    checkpoint that cannot be loaded is not served; ``rejected`` has the reason.
    """

    def __init__(self, served: Served, load: Callable[[ServeConfig], T], retire: Callable[[T], None] = lambda _: None):
        self._asked, self._load, self._retire = served.asked, load, retire
        self.current = self._loaded(served.config)
        self.rejected: dict[str, Any] | None = None
        if served.asked.follow and served.asked.checkpoint in ("best", "latest") and not extracts(served.asked.run):
            threading.Thread(target=self._watch, daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """Return the origin of the current version, when and how long it was loaded, and the last rejected one."""
        version = self.current
        times = {"loaded": version.loaded, "load_seconds": round(version.load_seconds, 2)}
        return {**version.name, **times, "rejected": self.rejected}

    def _loaded(self, config: ServeConfig) -> Version[T]:
        began = time.monotonic()
        return Version(self._load(config), config, time.time(), time.monotonic() - began)

    def _watch(self) -> None:
        seen = self._key(self.current.config)
        while True:
            time.sleep(self._asked.follow)
            try:
                newest = self._newest()
            except (UserError, OSError):
                continue  # the store does not answer, or a search is being written
            if self._key(newest) != seen:
                seen = self._key(newest)
                self._replace(newest)

    def _newest(self) -> ServeConfig:
        run = Run.resolve(self._asked.run)
        step = str(run.candidates(self._asked.checkpoint)[0].step)
        return self._asked.model_copy(update={"run": str(run.path), "checkpoint": step})

    def _replace(self, newest: ServeConfig) -> None:
        try:
            version = self._loaded(newest)
        except Exception as error:
            self.rejected = {"run": newest.run, "step": int(newest.checkpoint), "reason": reason(error)}
            return
        old, self.current, self.rejected = self.current, version, None
        self._retire(old.model)

    @staticmethod
    def _key(config: ServeConfig) -> tuple[str, str]:
        return config.run, config.checkpoint
