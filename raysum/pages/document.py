"""A whole page of HTML with its style and scripts inside; of what goes on, one that is soon renewed."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from importlib import resources

from raysum import __version__


def document(
    title: str, top: str, sections: Sequence[str], names: Mapping[str, str], every: float | None = None, note: str = ""
) -> str:
    """The page ``title`` with the HTML ``top`` in its head, the ``sections``, and links to those in ``names``.

    With ``every`` it is looked for anew after so many seconds: what is open, and the place on the page, stay. The
    ``note`` is shown where no new one comes.
    """
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name in names.items() if _has(sections, key))
    nav = f"<nav><div>{links}</div></nav>" if links else ""
    again = f' data-every="{every:g}" data-written="{time.time():.0f}"' if every else ""
    reload = f'<noscript><meta http-equiv="refresh" content="{every:.0f}"></noscript>' if every else ""
    scripts = "".join(f"<script>{_file(name)}</script>" for name in ("page.js", *(["live.js"] if every else [])))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,">{reload}<title>raysum: {escape(title)}</title>'
        f"<style>{_file('page.css')}</style></head><body{again}><header><h1>{escape(title)}</h1>{top}"
        f'<p class="stale warning" hidden>{escape(note)}</p></header>{nav}<main>{"".join(sections)}</main>'
        f"<footer>raysum {__version__}, {datetime.now():%Y-%m-%d %H:%M:%S}</footer>{scripts}</body></html>\n"
    )


def _has(sections: Sequence[str], name: str) -> bool:
    return any(f'id="{name}"' in one for one in sections)


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
