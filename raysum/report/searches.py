"""What a report tells of searches: their spaces and trials, read from their folders without Ray."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.config.loading import parse_yaml, read_text
from raysum.config.problems import validate
from raysum.errors import UserError
from raysum.evaluate.scorers import FIGURES
from raysum.runtime.storage import read_json, read_lines
from raysum.tune.results import Trial, ranked
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import label

_COSTS = ("valid_loss", "step", "parameters", "train_seconds", "examples")  # of a trial, beside its figures


@dataclass(frozen=True)
class Searched:
    """A search: its space and its trials, best first; ``then`` is the one that followed."""

    name: str
    path: Path
    space: SpaceConfig
    trials: list[Trial]
    ended: bool
    then: "Searched | None" = None


def read_search(path: Path) -> Searched:
    """Raises UserError where something in the folder does not read."""
    file = path / "search.yaml"
    values, places = parse_yaml(read_text(file), str(file))
    if not isinstance(values.get("space"), dict):
        raise UserError(f"{file} does not say what was searched; put back a copy, or search again")
    inner = {key.removeprefix("space."): place for key, place in places.items()}
    space = validate(_told(values["space"]), inner, SpaceConfig)
    trials = ranked(space, _trials(path, space))
    then = path / str(space.then)
    follows = read_search(then) if space.then and (then / "search.yaml").is_file() else None
    name = f"{path.name} ({values.get('name') or 'a space'})"
    return Searched(name, path, space, trials, (path / "best.json").is_file(), follows)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` without those that were written although nobody had given them: nothing, and sections of nothing."""
    inner = {key: _told(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value not in (None, {})}


def _trials(path: Path, space: SpaceConfig) -> list[Trial]:
    """As Ray Tune's result.json tell them: one that failed and was tried again counts once, as it ended."""
    files = sorted(path.glob("tune/*/result.json"), key=lambda file: (file.stat().st_mtime, file))
    found = [trial for file in files if (trial := _trial(file, space))]
    later = [[one.config for one in found[place:]] for place in range(1, len(found) + 1)]
    return [one for one, others in zip(found, later, strict=True) if not one.error or one.config not in others]


def _trial(file: Path, space: SpaceConfig) -> Trial | None:
    """None of one that has reported nothing yet and has not failed."""
    *_, last = [{}, *read_lines(file)]
    error = file.with_name("error.txt")
    if not last and not error.is_file():
        return None
    config = last.get("config") or read_json(file.with_name("params.json"))
    if not isinstance(config, dict):
        raise UserError(f"{file} does not say what the trial tried; put back a copy")
    name = label(config) if space.searcher == "grid" else file.parent.name
    if error.is_file() or not isinstance(last.get(space.metric), int | float):
        told = error.read_text(encoding="utf-8", errors="replace").strip().splitlines() if error.is_file() else []
        return Trial(name, config, {}, 0.0, told[-1] if told else f"it reported no {space.metric}")
    wanted = {*_COSTS, *(key + end for key in FIGURES for end in ("", "_low", "_high"))}
    metrics = {key: value for key, value in last.items() if key in wanted and isinstance(value, int | float)}
    return Trial(name, config, metrics, float(last.get("time_total_s") or 0.0))
