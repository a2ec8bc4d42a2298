"""Folders of searches as raysum leaves them, without running one."""

import json
from pathlib import Path
from typing import Any

import yaml

from raysum.runtime.storage import append_line
from raysum.tune.record import RECORD

HOSTILE = '<script>alert("1")</script>&<b onclick=x>'


def write_search(folder: Path, *lines: dict, ended: bool = False, **space: Any) -> Path:
    """A search of dropout rates (or another ``space``) with the ``lines`` as its record."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"about": "rates", "kind": "train", "preset": "pht", "metric": "valid_loss"}
    values |= {"search": {"model.dropout": {"grid": [0.0, 0.1, 0.2, HOSTILE]}}, **space}
    content = {"format": 2, "name": "rates", "space": values, "config": {"train": {"steps": 40}}}
    (folder / "search.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    for line in lines:
        append_line(folder / RECORD, line)
    if ended:
        (folder / "best.json").write_text(json.dumps({"run": "trials/a"}))
    return folder


def began(at: float, name: str, value: object) -> dict:
    return {"time": at, "trial": name, "config": {"model.dropout": value}}


def reported(at: float, name: str, step: int, loss: float) -> dict:
    metrics = {"valid_loss": loss, "step": step, "parameters": 1000, "train_seconds": 3.0}
    return {"time": at, "trial": name, "metrics": metrics, "seconds": 4.0}


def over(at: float, name: str, error: str | None = None) -> dict:
    return {"time": at, "trial": name} | ({"state": "failed", "error": error} if error else {"state": "ended"})


def write_tune_results(folder: Path, name: str, config: dict, *results: dict, error: str = "") -> None:
    """The files of a trial as Ray Tune writes them: settings in the order of their names, results, an error."""
    trial = folder / "tune" / name
    trial.mkdir(parents=True)
    (trial / "params.json").write_text(json.dumps(config, sort_keys=True))
    (trial / "result.json").touch()
    for result in results:
        append_line(trial / "result.json", result | {"config": config})
    if error:
        (trial / "error.txt").write_text(f"Traceback\n{error}\n")


def running_search(folder: Path) -> Path:
    """Of four trials one has ended after a minute, one runs, one failed; the last has not begun."""
    return write_search(
        folder,
        {"time": 1000.0, "begun": 4},
        began(1000.0, "a", 0.0),
        began(1000.0, "b", 0.1),
        reported(1030.0, "a", 20, 3.0),
        reported(1040.0, "b", 20, 3.5),
        reported(1060.0, "a", 40, 2.5),
        over(1060.0, "a"),
        began(1061.0, "c", HOSTILE),
        over(1062.0, "c", f"ValueError: {HOSTILE}"),
    )
