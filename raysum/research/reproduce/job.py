"""`raysum reproduce`: prepare, train and evaluate everything that the tables need, then fill them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.research.reproduce import training
from raysum.research.reproduce.corpora import DEFAULT_OPEN, OPEN, check_splits, prepare_dataset
from raysum.research.reproduce.measures import fill_table
from raysum.research.reproduce.rendering import Filled, Reproduction
from raysum.research.reproduce.tables import BASE, SECONDS, PaperTable, ReproduceConfig, chosen, systems
from raysum.research.reproduce.workspace import Workspace
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.progress import Stages, span
from raysum.runtime.storage import write_json, write_text, writing
from raysum.sources.find import find_sources

_NOTHING = 0.005  # is shown as 0.00
_FACTBOOK = 19 << 20  # estimated bytes of the quickstart's corpus
_UNPUBLISHED = (
    "of random weights and small, in word pieces of the data, as no bert=FOLDER of published weights was given"
)


@dataclass(frozen=True)
class Step:
    """A step, which is skipped if ``done`` exists, and otherwise calls ``act`` with the workspace and ``arguments``."""

    name: str
    message: str
    seconds: float
    done: Path
    act: Callable[..., None]
    arguments: tuple[Any, ...]
    fixed: float = 0.0  # the part of ``seconds`` that is equal on all machines


@with_settings(ReproduceConfig)
def reproduce(tables: str, data: str | Path, out: str | Path, **settings: Any) -> Reproduction:
    """Make the papers' ``tables`` (ids such as ``ht-2,pht-1``, or ``all``) with systems that raysum trains.

    ``data`` are raw clusters. All results are in ``out``: the same call resumes there, and other tables reuse trained
    systems. Raises UserError if a table is unknown, the data lacks a split, or ``out`` has other files.

    >>> raysum.reproduce("ht-2,ht-3", "clusters", "out", minutes=5).to_pandas()
    """
    began, asked = time.monotonic(), chosen(tables)
    place = Workspace(section_of(ReproduceConfig, {**settings, "data": str(data), "out": str(out)}))
    _check_files(place.config)
    sources = find_sources([place.config.data])
    if place.config.open is not None:
        find_sources([place.config.open])
    check_splits(place, sources)
    size = sum(source.size for source in sources)
    with folder_lock(place.out, place.out / LOCK), writing(place.out):
        place.claim(size)
        steps = {step.name: step for step in _steps(place, asked, size) if not step.done.exists()}
        _run(place, [*steps.values()])
        made = [_made(place, table) for table in asked]
    return Reproduction(str(place.out), time.monotonic() - began, made)


def _check_files(config: ReproduceConfig) -> None:
    """Raise UserError if a file or folder in the settings is missing, before anything is made."""
    for name, wanted in (("bert", "tokenizer.json"), ("questions", "")):
        given = getattr(config, name)
        if given and not (file := Path(given).expanduser() / wanted).is_file():
            raise UserError(f"{name}={given}: there is no file {file}")


def _run(place: Workspace, steps: list[Step]) -> None:
    stages = Stages({step.name: step.seconds for step in steps}, fixed={step.name: step.fixed for step in steps})
    for number, step in enumerate(steps):
        untrained = sum(coming.name.startswith("train ") for coming in steps[number:])
        with stages.stage(step.name, step.message + (f"; left to train: {untrained}" if untrained else "")):
            step.act(place, *step.arguments)


def _steps(place: Workspace, tables: list[PaperTable], size: int) -> Iterator[Step]:
    """Yield the steps that the tables need, in order; ``size`` is the raw text in bytes."""
    used = [one for table in tables for one in table.needed if not place.lacks(one)]
    datasets = dict.fromkeys([*([BASE] if used else []), *(name for one in used for name in one.datasets)])
    if any(table.measure == "recall" for table in tables) and place.config.size == "paper":
        datasets["many"] = None
    prepared = SECONDS["start"] + SECONDS["prepare"] * size / _FACTBOOK
    for name in datasets:
        message, done = f"prepare the data for {name} input", place.data(name)
        yield Step(f"data {name}", message, prepared, done, prepare_dataset, (name,))
    seconds = place.config.seconds or 3600.0
    length = span(seconds) if place.config.seconds else "as long as its paper did"
    for name, run in {run.name: run for one in used for run in one.trained}.items():
        whole, done = seconds + SECONDS["start"] * (1 + len(run.pretrained)), place.trained(name)
        yield Step(f"train {name}", f"train {name}, {length}", whole, done, training.train_system, (run,), seconds)
    for name in dict.fromkeys(one.run for one in used if one.strategy):
        run, done = systems()[name], place.trained(f"{name}.alignment")
        message = f"train the attention predictor of {name}"
        yield Step(f"align {name}", message, SECONDS["align"], done, training.train_alignment, (run,))
        message, done = f"choose the weight of alignment for {name} on the valid split", place.trained(f"{name}.beta")
        yield Step(f"beta {name}", message, SECONDS["evaluate"], done, training.choose_beta, (run,))
    for table in tables:
        for system in table.needed if table.measure in ("rouge", "attention", "people") else ():
            if not place.lacks(system):
                folder = training.folder_of(place, system.name, table)
                name = f"evaluate {folder.name}, {table.protocol}, {table.split}"
                message = f"evaluate {system.name} on {place.config.limit} examples of {table.split} ({table.protocol})"
                done, act = folder / "table.json", training.evaluate_system
                yield Step(name, message, SECONDS["evaluate"], done, act, (system, table))


def _made(place: Workspace, table: PaperTable) -> Filled:
    """Fill and write the table."""
    found = fill_table(place, table)
    rows = [_row(place, table, name, cells) for name, cells in found["rows"].items()]
    notes = [*table.notes, *found.get("notes", [])]
    if table.measure == "rouge":
        notes += _too_short(rows)
    if place.config.open is None and any(OPEN in one.pretrained for one in table.needed):
        notes.append(DEFAULT_OPEN)
    lacking = {one.name: lacks for one in table.needed if (lacks := place.lacks(one))}
    notes += [f"{name} needs {lacks}; without it its row stays open." for name, lacks in lacking.items()]
    facts = {"protocol": found["protocol"]} if "protocol" in found else {}
    if table.measure == "efficiency":
        facts["size"] = found["size"]
    else:
        examples = f", {found['examples']} examples of {table.split}" if "examples" in found else ""
        facts |= {"data": f"{place.config.data}{examples}", "size": f"{place.config.size}: {place.scale}"}
    if spent := [row["seconds"] for row in rows if row["seconds"]]:
        facts["training"] = f"{min(spent):.0f} to {max(spent):.0f} s of each system, pre-training included"
    made = Filled(table, rows, facts, notes, found.get("plot"))
    file = place.table(table.id, ".json")
    file.parent.mkdir(exist_ok=True)
    write_json(file, made.to_dict())
    write_text(file.with_suffix(".html"), made.page())
    return made


def _too_short(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a note on the rows that were trained and have a figure that is shown as 0.00."""
    trained = (row for row in rows if row["seconds"])
    lost = [row["row"] for row in trained if any(cell.get("value", 1) < _NOTHING for cell in row["ours"])]
    if lost:
        yield f"{', '.join(lost)}: figures of 0 say only that the training was too short; give more minutes=."


def _row(place: Workspace, table: PaperTable, name: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    row = table.row(name)
    system = systems().get(row.system)
    spent = training.seconds_of(place, system) if system and table.measure != "efficiency" else None
    note = system.note if system else ""
    if row.system == "bert" and not place.config.bert:
        note = _UNPUBLISHED
    return {"row": name, "system": row.system, "paper": row.paper, "ours": cells, "seconds": spent, "note": note}
