"""The pages of the board: the list of runs and searches, and a page for each of them."""

import threading
from pathlib import Path
from urllib.parse import quote

from raysum.pages import parts
from raysum.pages.parts import document
from raysum.report.board import places
from raysum.report.board.places import BoardEntry
from raysum.report.gather import gather
from raysum.report.page import report_page
from raysum.tune.page import REFRESH_SECONDS, search_page
from raysum.tune.record import read_search

_LATE = "The server does not answer any more; start `raysum board` again."
_DRAWN = 12  # most running entries with a chart
_CACHED = 16  # most cached pages of entries that do not run


class Pages:
    """The pages of the runs and searches in ``folder``, made on request. Unchanged pages come from a cache."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._busy = threading.Lock()
        self._cache: dict[tuple[str, object], str] = {}

    def overview(self) -> str:
        """Return the page with all runs and searches."""
        with self._busy:
            entries = places.find_entries(self.folder)
        running = [entry for entry in entries if entry.running]
        kinds = [entry.kind for entry in entries]
        counted = [(f"{len(running)}", "running")]
        counted += [(f"{kinds.count(kind)}", name) for kind, name in (("run", "runs"), ("search", "searches"))]
        shown = parts.charts(*map(_progress, running[:_DRAWN]))
        sections = [parts.section("now", "Running now", shown)] if shown else []
        sections.append(parts.section("all", "Runs and searches", _table(entries), parts.note(places.BOUNDS)))
        if damaged := [[entry.name, entry.trouble] for entry in entries if entry.trouble]:
            sections.append(parts.section("damaged", "Damaged", parts.table(["folder", "what is wrong"], damaged)))
        return document(str(self.folder), parts.tiles(counted), sections, {}, REFRESH_SECONDS, _LATE)

    def page(self, name: str) -> str | None:
        """Return the page of the run or search ``name``, or None without one. Raises UserError if it is damaged."""
        with self._busy:
            entry = next((entry for entry in places.find_entries(self.folder) if entry.name == name), None)
            if entry is None:
                return None
            running = places.is_running(entry.path)
            key = (name, (running, places.stamp(entry.path)))
            if running or key not in self._cache:
                self._cache[key] = _build(entry, running)
                self._cache = dict([*self._cache.items()][-_CACHED:])
            return self._cache[key]


def _build(entry: BoardEntry, running: bool) -> str:
    if entry.kind == "search":
        return search_page(read_search(entry.path, running))
    return report_page(gather([entry.path]), REFRESH_SECONDS if running else None)


def entry_url(entry: BoardEntry) -> str:
    return f"/page/{quote(entry.name)}"


def _progress(entry: BoardEntry) -> str:
    """Return the progress of an entry, with a link to its page."""
    link = f'<a href="{parts.escape(entry_url(entry))}">details</a>'
    return f'<div>{parts.heading(entry.name)}<p class="note">{parts.escape(entry.done)} · {link}</p>{entry.drawn}</div>'


def _table(entries: list[BoardEntry]) -> str:
    if not entries:
        return parts.missing("Nothing here yet; this makes a run:", "raysum train PRESET data=DATA out=RUN")
    head = ["folder", "kind", "state", "done", "last", "best", "time"]
    lines = [[entry.name, entry.kind, entry.state, entry.done, entry.last, entry.best, entry.time] for entry in entries]
    return parts.table(head, lines, links={entry.name: entry_url(entry) for entry in entries})
