"""Pieces of HTML that all sections are made of: sections, tables, notes. What comes from data is escaped here."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def section(name: str, title: str, *parts: str) -> str:
    """One with the anchor ``name``; the parts that are empty are left out."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def missing(told: str, command: str) -> str:
    """One line that says what is not there, and which ``command`` makes it."""
    return f'<p class="missing">{escape(told)} <code>{escape(command)}</code></p>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def charts(*drawn: str) -> str:
    """Figures side by side, as far as there is room."""
    shown = [one for one in drawn if one]
    return f'<div class="charts">{"".join(shown)}</div>' if shown else ""


def table(
    head: Sequence[str], lines: Iterable[Sequence[str]], numbers: bool = False, links: Mapping[str, str] | None = None
) -> str:
    """A table whose first column names its lines; the others are ``numbers``, or texts. ``links`` are of names."""
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


def tiles(told: Iterable[tuple[str, str]]) -> str:
    """Values in large letters, each with what it is."""
    html = (f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in told)
    return f'<div class="tiles">{"".join(html)}</div>'


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def duration(seconds: float) -> str:
    """Such as 2 min 51 s, or 3 h 5 min."""
    seconds = seconds if seconds < 59.95 else round(seconds)
    hours, minutes, rest = int(seconds // 3600), int(seconds % 3600 // 60), seconds % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"
