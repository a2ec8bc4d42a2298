"""HTML pages and their parts: sections, tables, notes. The templates escape all data, except arguments named html."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from raysum import __version__

if TYPE_CHECKING:
    from jinja2 import Environment
    from pandas import DataFrame

_EMPTY = ("", "–", "nan")  # cells without a value


@cache
def templates() -> "Environment":
    """Return the templates of raysum's pages."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(loader=PackageLoader("raysum.pages"), autoescape=True, undefined=StrictUndefined)


def render(template: str, **values: Any) -> str:
    return templates().get_template(template).render(**values)


def document(title: str, top: str, sections: Sequence[str], every: float | None = None, note: str = "") -> str:
    """Return a page with its style and scripts: ``title``, HTML ``top``, ``sections``, and links to several ones.

    With ``every``, the page reloads after that number of seconds, and keeps open details and the scroll position. It
    shows ``note`` if no newer version appears.
    """
    page = {
        "links": re.findall('<section id="(.*?)"><h2>(.*?)</h2>', "".join(sections)),
        "written": int(time.time()),
        "scripts": ["page.js", "live.js"] if every else ["page.js"],
        "version": __version__,
        "now": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
    }
    return render("page.html", title=title, top=top, sections=sections, every=every, note=note, **page) + "\n"


def section(name: str, title: str, *html: str) -> str:
    """Return a section with the anchor ``name``."""
    return _part("section", name, title, html)


def missing(message: str, command: str) -> str:
    """Return a paragraph about missing content, and the ``command`` that creates it."""
    return _part("missing", message, command)


def note(text: str) -> str:
    return _part("note", text) if text else ""


def conclusion(text: str) -> str:
    """Return the conclusion of a page, which stands at its top."""
    return f'<p class="conclusion">{escape(text)}</p>' if text else ""


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def figure(title: str, svg: str, legend: Mapping[str, int], wide: float, high: float) -> str:
    """Return a drawing with the colour number of each name of its legend. A very wide one scrolls."""
    return _part("figure", title, svg, legend, wide, high)


def heat(columns: Sequence[str], rows: Mapping[str, Sequence[tuple[float, str]]]) -> str:
    """Return a table of shades: ``rows`` have a share (0 to 1) and CSS classes for each of ``columns``."""
    return _part("heat", columns, rows, max((share for row in rows.values() for share, _ in row), default=0) or 1)


def table(
    head: Sequence[str], lines: Iterable[Sequence[str]], numbers: bool = False, links: Mapping[str, str] | None = None
) -> str:
    """Return a table. The first column has row names, with ``links``; the others have texts, or ``numbers``.

    A column without values is left out. On a narrow screen, a row of more than three columns becomes a list.
    """
    rows = [*lines]
    shown = [at for at in range(len(head)) if not at or not rows or any(row[at] not in _EMPTY for row in rows)]
    rows = [[row[at] for at in shown] for row in rows]
    return _part("table", [head[at] for at in shown], rows, numbers, links or {})


def numbers(frame: "DataFrame") -> str:
    """Return a data frame of texts as a table."""
    return table([str(frame.index.name or ""), *frame.columns], frame.itertuples(), numbers=True)


def folded(title: str, html: str) -> str:
    return _part("folded", title, html)


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Return values in large letters, each with its label."""
    return _part("tiles", values)


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _part(macro: str, *arguments: Any) -> str:
    return str(getattr(templates().get_template("parts.html").module, macro)(*arguments))


def duration(seconds: float) -> str:
    """Return a duration such as 2 min 51 s, or 3 h 5 min."""
    seconds = seconds if seconds < 59.95 else round(seconds)
    hours, minutes, rest = int(seconds // 3600), int(seconds % 3600 // 60), seconds % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"
