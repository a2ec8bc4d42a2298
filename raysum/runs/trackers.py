"""Experiment trackers: MLflow and Weights & Biases get the settings and metrics of trainings and trials.

The process of the command logs, in one thread, so neither workers nor steps wait for a server. The trackers read their
own environment variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, WANDB_API_KEY, WANDB_MODE, WANDB_PROJECT.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from raysum.config.loading import leaves
from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.runtime.progress import say
from raysum.runtime.remote import public_message
from raysum.runtime.storage import read_json, write_json

State = Literal["ended", "failed", "stopped"]
_UNTRACKED = {"step", "batch_hash"}  # keys of lines of metrics.jsonl
_FILE = "trackers.json"  # names of tracked runs -> trackers -> ids in them
_PROJECT = "raysum"  # default name of MLflow's experiment and of the project in W&B
_CHUNK = 100  # parameters in a request; MLflow's limit
_LONGEST = 500  # characters of a parameter's value in MLflow
_START_SECONDS = 120.0  # for the start of W&B's own process, and of a run
_LAST_SECONDS = 60.0  # for the rest of the queue at the end
# By default, MLflow tries each request seven times, for minutes.
_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class Mlflow:
    """Runs on an MLflow server or in its database; the default is mlflow.db in the current folder."""

    def __init__(self) -> None:
        for name, value in _RETRIES.items():
            os.environ.setdefault(name, value)
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._client: Any = needs("mlflow.tracking", "the tracker mlflow").MlflowClient()
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._find_experiment()

    def _find_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)

    def start(self, name: str, group: str, settings: Mapping[str, Any], former: str | None) -> str:
        """Start the run ``name``, or continue the one with the id ``former`` if it exists; return the id.

        ``group`` joins the trials of a search.
        """
        run = former if former and self._exists(former) else None
        if run is None:
            tags = {"raysum.search": group} if group else {}
            run = self._client.create_run(self._experiment, run_name=name, tags=tags).info.run_id
        else:
            self._client.update_run(run, status="RUNNING")
        entities = needs("mlflow.entities", "the tracker mlflow")
        known = self._client.get_run(run).data.params  # which cannot change
        texts = ((key, str(value)[:_LONGEST]) for key, value in settings.items() if key not in known)
        while part := [entities.Param(*pair) for pair in islice(texts, _CHUNK)]:
            self._client.log_batch(run, params=part)
        return run

    def _exists(self, run: str) -> bool:
        try:
            return self._client.get_run(run).info.lifecycle_stage == "active"
        except needs("mlflow.exceptions", "the tracker mlflow").MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False  # another server, or a new database

    def log(self, run: str, step: int, metrics: Mapping[str, float]) -> None:
        metric, now = needs("mlflow.entities", "the tracker mlflow").Metric, int(1000 * time.time())
        self._client.log_batch(run, metrics=[metric(name, value, now, step) for name, value in metrics.items()])

    def end(self, run: str, state: State) -> None:
        self._client.set_terminated(run, {"ended": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}[state])


class Wandb:
    """Runs of Weights & Biases. They contain no command line, code or console output, which may hold secrets."""

    def __init__(self) -> None:
        self._wandb: Any = needs("wandb", "the tracker wandb")
        wait = {"x_service_wait": _START_SECONDS, "init_timeout": _START_SECONDS}
        off = {"console": "off", "x_disable_meta": True, "x_disable_stats": True, "disable_job_creation": True}
        self._settings = self._wandb.Settings(silent=True, disable_git=True, save_code=False, **off, **wait)
        self._runs = dict[str, Any]()

    def start(self, name: str, group: str, settings: Mapping[str, Any], former: str | None) -> str:
        """As :meth:`Mlflow.start`."""
        run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            group=group or None,
            name=name,
            id=former,
            resume="allow",
            reinit="create_new",
            config=dict(settings),
            allow_val_change=True,
            settings=self._settings,
        )
        run.define_metric("*", step_metric="step")  # a resumed training repeats steps
        self._runs[run.id] = run
        return run.id

    def log(self, run: str, step: int, metrics: Mapping[str, float]) -> None:
        self._runs[run].log({"step": step, **metrics})

    def end(self, run: str, state: State) -> None:
        tracked = self._runs.pop(run)
        tracked.finish(exit_code=int(state != "ended"))
        if tracked.offline:
            say(f"wandb: {tracked.name} is kept in {tracked.settings.sync_dir}; `wandb sync` uploads it")


_TRACKERS: dict[str, type[Mlflow | Wandb]] = {"mlflow": Mlflow, "wandb": Wandb}


def check_trackers(names: Sequence[str]) -> None:
    """Raises UserError if the package of a tracker is missing, or W&B has no API key."""
    for name in names:
        library = needs(name, f"train.trackers={name}")
        if name == "wandb" and not (_is_offline(library) or library.login(prompt=False, verify=False)):
            raise UserError(
                "train.trackers=wandb needs an API key: run `wandb login`, or set WANDB_MODE=offline and upload the "
                "files later with `wandb sync`"
            )


def _is_offline(wandb: Any) -> bool:
    return wandb.setup().settings.mode in ("offline", "disabled")


class Trackers:
    """Logs runs by name to the trackers ``names``; ``folder`` keeps the ids, so that a later process continues them.

    The first error of a tracker is printed, without secrets. Then that tracker is left out, and the work continues.
    """

    def __init__(self, names: Sequence[str], folder: Path):
        self._file, self._active = folder / _FILE, dict[str, Mlflow | Wandb | None](dict.fromkeys(names))
        self._calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trackers", daemon=True)
        if names:
            self._thread.start()

    def start(self, run: str, settings: Mapping[str, Any], group: str = "") -> None:
        self._put("start", run, group, dict(flat(settings)))

    def log(self, run: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the numbers in ``metrics``."""
        numbers = {name: float(value) for name, value in metrics.items() if type(value) in (int, float)}
        self._put("log", run, step, numbers)

    def end(self, run: str, state: State = "ended") -> None:
        self._put("end", run, state)

    def _put(self, *call: Any) -> None:
        if self._active:
            self._calls.put(call)

    def close(self) -> None:
        """Wait until everything is logged, at most a minute."""
        self._calls.put(None)
        if self._active:
            self._thread.join(_LAST_SECONDS)
        if self._thread.is_alive():
            say(f"{' and '.join(self._active)} did not get all metrics within {_LAST_SECONDS:.0f} s")

    def _run(self) -> None:
        ids = dict[tuple[str, str], str]()  # by tracker and run
        while call := self._calls.get():
            for name in [*self._active]:
                try:
                    self._call(name, ids, *call)
                except Exception as error:  # of a server or a library
                    del self._active[name]
                    say(f"{name} gets no more metrics ({public_message(error)}); the work continues")

    def _call(self, name: str, ids: dict[tuple[str, str], str], method: str, run: str, *values: Any) -> None:
        tracker = self._active[name] = self._active[name] or _TRACKERS[name]()
        if method == "start" and (name, run) not in ids:
            known = read_json(self._file) if self._file.is_file() else {}
            own = known.setdefault(run, {})
            group, settings = values
            own[name] = ids[name, run] = tracker.start(run, group, settings, own.get(name))
            write_json(self._file, known)
        elif method == "log" and (name, run) in ids:
            tracker.log(ids[name, run], *values)
        elif method == "end" and (name, run) in ids:
            tracker.end(ids.pop((name, run)), *values)


@contextmanager
def tracked(
    names: Sequence[str], folder: Path, run: str, settings: Mapping[str, Any]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Log the run in ``folder`` to the trackers ``names`` during the block; yield a function that logs its lines."""
    trackers = Trackers(names, folder)
    state: State = "failed"
    trackers.start(run, settings)

    def log(line: dict[str, Any]) -> None:
        trackers.log(run, line["step"], {name: line[name] for name in line.keys() - _UNTRACKED})

    try:
        yield log
        state = "ended"
    except KeyboardInterrupt:
        state = "stopped"
        raise
    finally:
        trackers.end(run, state)
        trackers.close()


def flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield nested ``settings`` by dotted keys. Lists are texts in JSON."""
    for key, value in leaves(settings):
        is_simple = value is None or isinstance(value, str | int | float)
        yield key, value if is_simple else json.dumps(value, default=str)
