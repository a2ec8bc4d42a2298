"""HTML pages and their parts: sections, tables, notes. The templates escape all data, except arguments named html."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from raysum import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def templates() -> "Environment":
    """Return the templates of raysum's pages."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(loader=PackageLoader("raysum.pages"), autoescape=True, undefined=StrictUndefined)


def document(
    title: str, top: str, sections: Sequence[str], names: Mapping[str, str], every: float | None = None, note: str = ""
) -> str:
    """Return a page with its style and scripts: ``title``, HTML ``top``, ``sections``, and links to those in ``names``.

    With ``every``, the page reloads after that number of seconds, and keeps open details and the scroll position. It
    shows ``note`` if no newer version appears.
    """
    anchors = [key for key in names if any(f'id="{key}"' in section for section in sections)]
    return (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            top=top,
            sections=sections,
            links=[(key, names[key]) for key in anchors],
            every=every,
            written=int(time.time()),
            note=note,
            scripts=["page.js", "live.js"] if every else ["page.js"],
            version=__version__,
            now=f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        )
        + "\n"
    )


def section(name: str, title: str, *html: str) -> str:
    """Return a section with the anchor ``name``."""
    return _part("section", name, title, html)


def missing(message: str, command: str) -> str:
    """Return a paragraph about missing content, and the ``command`` that creates it."""
    return _part("missing", message, command)


def note(text: str) -> str:
    return _part("note", text) if text else ""


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def charts(*figures: str) -> str:
    """Return figures side by side if they fit; "" if all are empty."""
    html = "".join(figures)
    return f'<div class="charts">{html}</div>' if html else ""


def table(
    head: Sequence[str], lines: Iterable[Sequence[str]], numbers: bool = False, links: Mapping[str, str] | None = None
) -> str:
    """Return a table. The first column has row names, with ``links``; the others have texts, or ``numbers``."""
    return _part("table", head, lines, numbers, links or {})


def folded(title: str, html: str, opened: bool = False) -> str:
    return _part("folded", title, html, opened)


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
