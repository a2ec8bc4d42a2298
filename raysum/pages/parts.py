"""HTML pages and their parts: sections, tables, notes. These functions escape all data."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib import resources

from raysum import __version__


def document(
    title: str, top: str, sections: Sequence[str], names: Mapping[str, str], every: float | None = None, note: str = ""
) -> str:
    """Return a page with its style and scripts: ``title``, HTML ``top``, ``sections``, and links to those in ``names``.

    With ``every``, the page reloads after that number of seconds, and keeps open details and the scroll position. It
    shows ``note`` if no newer version appears.
    """
    anchors = [key for key in names if any(f'id="{key}"' in section for section in sections)]
    links = "".join(f'<a href="#{key}">{names[key]}</a>' for key in anchors)
    nav = f"<nav><div>{links}</div></nav>" if links else ""
    timing = f' data-every="{every:g}" data-written="{time.time():.0f}"' if every else ""
    reload = f'<noscript><meta http-equiv="refresh" content="{every:.0f}"></noscript>' if every else ""
    scripts = "".join(f"<script>{_resource(name)}</script>" for name in ("page.js", *(["live.js"] if every else [])))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,">{reload}<title>raysum: {escape(title)}</title>'
        f"<style>{_resource('page.css')}</style></head><body{timing}><header><h1>{escape(title)}</h1>{top}"
        f'<p class="stale warning" hidden>{escape(note)}</p></header>{nav}<main>{"".join(sections)}</main>'
        f"<footer>raysum {__version__}, {datetime.now():%Y-%m-%d %H:%M:%S}</footer>{scripts}</body></html>\n"
    )


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def section(name: str, title: str, *parts: str) -> str:
    """Return a section with the anchor ``name``."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def missing(message: str, command: str) -> str:
    """Return a paragraph about missing content, and the ``command`` that creates it."""
    return f'<p class="missing">{escape(message)} <code>{escape(command)}</code></p>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


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
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{_linked(first, links or {})}</th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in lines
    )
    kind = ' class="numbers"' if numbers else ""
    return f'<div class="wide"><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _linked(name: str, links: Mapping[str, str]) -> str:
    return f'<a href="{escape(links[name])}">{escape(name)}</a>' if name in links else escape(name)


def folded(title: str, html: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{html}</details>"


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Return values in large letters, each with its label."""
    html = (f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in values)
    return f'<div class="tiles">{"".join(html)}</div>'


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def duration(seconds: float) -> str:
    """Return a duration such as 2 min 51 s, or 3 h 5 min."""
    seconds = seconds if seconds < 59.95 else round(seconds)
    hours, minutes, rest = int(seconds // 3600), int(seconds % 3600 // 60), seconds % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"
