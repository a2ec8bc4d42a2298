"""Summaries as HTML, for a notebook or as a page with their sources. No scripts, no external files.

Text has the colours of its surroundings and marks are translucent, so both are readable on light and dark backgrounds.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from raysum.pages.parts import render
from raysum.prepare.cluster import read_cluster

if TYPE_CHECKING:
    from raysum.decode.summary import Sentence, Summary

_MAX_QUOTE = 160  # characters


def summaries_page(
    summaries: Sequence["Summary"], clusters: Sequence[Mapping[str, Any]], system: str = "", command: str = ""
) -> str:
    """Return a page with each summary, its notes, and the sources of its raw cluster with the cited passages.

    It begins with a table of contents, the date, and the ``system`` and ``command`` that made it.
    """
    pairs = [(summary, read_cluster(raw)) for summary, raw in zip(summaries, clusters, strict=True)]
    titles = [cluster.title or summary.id for summary, cluster in pairs]
    blocks = [
        fragment(summary, title, cluster.documents) for (summary, cluster), title in zip(pairs, titles, strict=True)
    ]
    values = {"titles": titles, "system": system, "command": command, "now": f"{datetime.now():%Y-%m-%d %H:%M}"}
    return render("summaries.html", blocks=blocks, **values) + "\n"


def fragment(summary: "Summary", heading: str | None = None, documents: Iterable[tuple[str, str]] = ()) -> str:
    """Return a summary under its ``heading``, with its notes and the named texts of its ``documents``.

    A sentence under the mouse highlights its notes, a note its sentences.
    """
    sources = []
    for number, (name, text) in enumerate(documents):
        cited = {n: (note.start, note.end) for n, note in enumerate(summary.notes, 1) if note.document == number}
        sources.append({"name": name, "html": marked(text, cited), "cited": bool(cited)})
    name = "r" + hashlib.blake2b(summary.model_dump_json().encode(), digest_size=6).hexdigest()
    values = {"summary": summary, "heading": heading, "sources": sources, "doubted": doubted, "shortened": shortened}
    return render("summary.html", name=name, **values)


def doubted(sentence: "Sentence") -> str:
    """Return the text of a sentence, with unsupported names and numbers underlined."""
    html, done = "", 0
    for span in sentence.unsupported:
        html += f'{escape(sentence.text[done : span.start])}<span class="u">{escape(span.text)}</span>'
        done = span.end
    return html + escape(sentence.text[done:])


def marked(text: str, cited: Mapping[int, tuple[int, int]]) -> str:
    """Return ``text`` with its ``cited`` passages, by number of the note, marked by classes n1, n2 and so on."""
    edges = sorted({0, len(text), *chain.from_iterable(cited.values())})
    pieces = []
    for start, end in pairwise(edges):
        here = [index for index, (first, last) in cited.items() if first <= start and end <= last]
        piece = escape(text[start:end])
        pieces.append(f'<mark class="{" ".join(f"n{index}" for index in here)}">{piece}</mark>' if here else piece)
        pieces += [f"<sup>[{index}]</sup>" for index in here if cited[index][1] == end]
    return "".join(pieces)


def shortened(quote: str) -> str:
    """Return ``quote`` in one line, without its middle if it is longer than 160 characters."""
    line, half = " ".join(quote.split()), _MAX_QUOTE // 2
    return line if len(line) <= _MAX_QUOTE else f"{line[:half].rstrip()} ... {line[-half:].lstrip()}"
