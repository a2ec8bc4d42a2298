"""The pages of the board: the runs and searches in a folder with their progress, and a page for each of them.

Nothing is written or executed.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from raysum.errors import UserError
from raysum.extract.explanation import EXPLANATION
from raysum.pages import parts
from raysum.report import training
from raysum.report.gather import RunRecord, gather
from raysum.report.page import report_page
from raysum.report.status import folder_kind, is_running
from raysum.report.verdict import verdict_of_states
from raysum.runs.folder import Run
from raysum.tune.page import REFRESH_SECONDS, best_so_far, metric_title, search_page
from raysum.tune.record import RECORD, SearchRecord, read_search

_DEEP, _FOLDERS, _ENTRIES = 6, 20_000, 2_000
_BOUNDS = f"Looked for {_DEEP} folders deep, {_ENTRIES:,} of them in {_FOLDERS:,} at most; links are not followed."
_FILES = ("config.yaml", "metrics.jsonl", "checkpoints", "decode.yaml", EXPLANATION, "search.yaml", RECORD, "best.json")
_INSIDE = ("alignment/metrics.jsonl", "evaluation/*/*/table.json", f"*/{RECORD}", "*/best.json")
_LATE = "The server does not answer any more; start `raysum board` again."
_DRAWN = 12  # most running entries with a chart
_CACHED = 16  # most cached pages of entries that do not run
_COLUMNS = ("kind", "state", "done", "last", "best", "time")

Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class BoardEntry:
    """A run or a search. ``name`` is its path in the folder."""

    name: str
    path: Path
    kind: str
    state: str = "damaged"
    done: str = ""
    last: str = ""
    best: str = ""
    time: str = ""
    trouble: str = ""
    drawn: str = ""  # HTML chart, while it runs
    changed: float = 0.0  # seconds since 1970

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def url(self) -> str:
        return f"/page/{quote(self.name)}"


class Pages:
    """The pages of the runs and searches in ``folder``, made on request, one at a time."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._busy = threading.Lock()

    def overview(self) -> str:
        """Return the page with all runs and searches."""
        with self._busy:
            entries = find_entries(self.folder)
        running, kinds = [entry for entry in entries if entry.running], [entry.kind for entry in entries]
        tiles = {"running": len(running), "runs": kinds.count("run"), "searches": kinds.count("search")}
        lines = [[entry.name, *(getattr(entry, column) for column in _COLUMNS)] for entry in entries]
        table = parts.table(["folder", *_COLUMNS], lines, links={entry.name: entry.url for entry in entries})
        if not entries:
            table = parts.missing("Nothing here yet; this makes a run:", "raysum train PRESET data=DATA out=RUN")
        sections = [parts.section("all", "Runs and searches", table, parts.note(_BOUNDS))]
        if running:
            charts = parts.render("running.html", entries=running[:_DRAWN])
            sections.insert(0, parts.section("now", "Running now", charts))
        if damaged := [[entry.name, entry.trouble] for entry in entries if entry.trouble]:
            sections.append(parts.section("damaged", "Damaged", parts.table(["folder", "what is wrong"], damaged)))
        newest = max(entries, key=lambda entry: entry.changed, default=None)
        conclusion = verdict_of_states(kinds, [entry.state for entry in entries], newest.name) if newest else ""
        top = parts.conclusion(conclusion) + parts.tiles((str(count), name) for name, count in tiles.items())
        return parts.document(str(self.folder), top, sections, REFRESH_SECONDS, _LATE)

    def page(self, name: str) -> str | None:
        """Return the page of the run or search ``name``, or None without one. Raises UserError if it is damaged."""
        with self._busy:
            entry = next((entry for entry in find_entries(self.folder) if entry.name == name), None)
            if entry is None:
                return None
            running = is_running(entry.path)
            build = _build.__wrapped__ if running else _build
            return build(entry.path, entry.kind, running, stamp(entry.path))


@lru_cache(maxsize=_CACHED)
def _build(path: Path, kind: str, running: bool, state: Stamp) -> str:
    if kind == "search":
        return search_page(read_search(path, running))
    return report_page(gather([path]), REFRESH_SECONDS if running else None)


def find_entries(folder: Path) -> list[BoardEntry]:
    """Return the runs and searches in ``folder``: running ones first, then the newest."""
    entries = []
    for path, kind in _folders(folder):
        name = os.fsencode(path.relative_to(folder)).decode(errors="replace")
        entries.append(_read(BoardEntry(name, path, kind), is_running(path), stamp(path)))
    return sorted(entries, key=lambda entry: (not entry.running, -entry.changed, entry.name))


def _folders(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders of runs and searches with their kind, not those inside of them. Links are not followed."""
    level, seen, left = [folder], 0, _ENTRIES
    for _ in range(_DEEP):
        deeper: list[Path] = []
        for path in level:
            seen += 1
            if seen > _FOLDERS or not left:
                return
            if kind := folder_kind(path):
                left -= 1
                yield path, kind
                continue
            with suppress(OSError), os.scandir(path) as items:
                inner = [Path(item) for item in items if item.is_dir(follow_symlinks=False)]
                deeper += sorted(item for item in inner if not item.name.startswith("."))
        level = deeper


def stamp(path: Path) -> Stamp:
    """Return a value that changes if a file that shows progress changes."""
    inside = chain.from_iterable(sorted(path.glob(pattern)) for pattern in _INSIDE)
    times = list[tuple[int, int]]()
    for file in (*(path / name for name in _FILES), *inside):
        with suppress(OSError):
            status = file.stat()
            times.append((status.st_mtime_ns, status.st_size))
    return tuple(times)


@lru_cache(maxsize=2 * _ENTRIES)
def _read(entry: BoardEntry, running: bool, state: Stamp) -> BoardEntry:
    entry = replace(entry, changed=max((time for time, _ in state), default=0) / 1e9)
    try:
        if entry.kind == "search":
            return _of_search(entry, read_search(entry.path, running))
        return _of_run(entry, RunRecord(Run.open(entry.path)), running)
    except UserError as error:
        return replace(entry, trouble=str(error))
    except Exception as error:  # unexpected values in damaged files
        return replace(entry, trouble=f"cannot be read ({type(error).__name__}: {error})")


def _of_run(entry: BoardEntry, record: RunRecord, running: bool) -> BoardEntry:
    losses, config = record.validations, record.run.config
    has_steps = not record.lines.empty and not config.model.TRAINER
    return replace(
        entry,
        state=record.state_name(running),
        done=f"step {record.step:,} of {config.train.steps:,}" if has_steps else "",
        last=f"valid loss {losses[max(losses)]:.4f}" if losses else "",
        best=f"valid loss {min(losses.values()):.4f}" if losses else "",
        time=parts.duration(record.seconds) if record.seconds else "",
        drawn=training.loss([record]).html() if running else "",
    )


def _of_search(entry: BoardEntry, search: SearchRecord) -> BoardEntry:
    metric, states = search.space.metric, [trial.state for trial in search.trials]
    failed = f", {states.count('failed')} failed" if "failed" in states else ""
    scored = [trial for trial in search.trials if trial.metrics]
    last = max((trial.reports[-1] for trial in scored), key=lambda report: report.minutes, default=None)
    return replace(
        entry,
        state=search.state,
        done=f"{states.count('ended')} of {search.total} trials{failed}",
        last=f"{metric_title(metric)} {last.metrics[metric]:.4g}" if last else "",
        best=f"{metric_title(metric)} {scored[0].metrics[metric]:.4g}" if scored else "",
        time=parts.duration(60 * search.minutes),
        drawn=best_so_far(search).html() if search.running else "",
    )
