"""The pages of the board: the list of what is there, and each run and search as its own page."""

import threading
from pathlib import Path
from urllib.parse import quote

from raysum.pages import parts
from raysum.pages.parts import document
from raysum.report.board import places
from raysum.report.board.places import Place
from raysum.report.gather import gather
from raysum.report.page import page as report_page
from raysum.tune.page import REFRESH_SECONDS, search_page
from raysum.tune.record import read_search

_LATE = "The server does not answer any more; start `raysum board` again."
_DRAWN = 12  # of those that run, at most
_KEPT = 16  # pages of what does not run


class Pages:
    """Pages of what is in ``folder``, made when they are asked for; what has not changed since is not made again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._busy = threading.Lock()
        self._kept: dict[tuple[str, object], str] = {}

    def overview(self) -> str:
        """The list of all runs and searches."""
        with self._busy:
            found = places.find(self.folder)
        running = [place for place in found if place.running]
        kinds = [place.kind for place in found]
        counted = [(f"{len(running)}", "running")]
        counted += [(f"{kinds.count(kind)}", name) for kind, name in (("run", "runs"), ("search", "searches"))]
        shown = parts.charts(*map(_shown, running[:_DRAWN]))
        sections = [parts.section("now", "Running now", shown)] if shown else []
        sections.append(parts.section("all", "Runs and searches", _table(found), parts.note(places.BOUNDS)))
        if damaged := [[place.name, place.trouble] for place in found if place.trouble]:
            sections.append(parts.section("damaged", "Damaged", parts.table(["folder", "what is wrong"], damaged)))
        return document(str(self.folder), parts.tiles(counted), sections, {}, REFRESH_SECONDS, _LATE)

    def page(self, name: str) -> str | None:
        """The page of the run or search ``name``; None where the folder has none. Raises UserError as it is damaged."""
        with self._busy:
            place = next((place for place in places.find(self.folder) if place.name == name), None)
            if place is None:
                return None
            running = places.is_running(place.path)
            key = (name, (running, places.stamp(place.path)))
            if running or key not in self._kept:
                self._kept[key] = _made(place, running)
                self._kept = dict([*self._kept.items()][-_KEPT:])
            return self._kept[key]


def _made(place: Place, running: bool) -> str:
    if place.kind == "search":
        return search_page(read_search(place.path, running))
    return report_page(gather([place.path]), REFRESH_SECONDS if running else None)


def address(place: Place) -> str:
    return f"/page/{quote(place.name)}"


def _shown(place: Place) -> str:
    """How far it is, with the way to its own page."""
    link = f'<a href="{parts.escape(address(place))}">all of it</a>'
    return f'<div>{parts.heading(place.name)}<p class="note">{parts.escape(place.done)} · {link}</p>{place.drawn}</div>'


def _table(found: list[Place]) -> str:
    if not found:
        return parts.missing("Nothing here yet; this makes a run:", "raysum train PRESET data=DATA out=RUN")
    head = ["folder", "kind", "state", "done", "last", "best", "time"]
    lines = [[one.name, one.kind, one.state, one.done, one.last, one.best, one.time] for one in found]
    return parts.table(head, lines, links={one.name: address(one) for one in found})
