"""Summaries as HTML, for a notebook or as a page with their sources. No scripts, no external files.

Text has the colours of its surroundings and marks are translucent, so both are readable on light and dark backgrounds.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysum.decode.summary import Citation, Sentence, Summary

_MAX_QUOTE = 160  # characters

_STYLE = (
    ".raysum{line-height:1.5;max-width:60rem}.raysum p{margin:.4em 0}"
    ".raysum sup{opacity:.75;font-size:.75em}.raysum .s{border-radius:3px}"
    ".raysum ol{padding-left:1.8em;font-size:.92em}.raysum li,.raysum mark{border-radius:3px}"
    ".raysum mark{background:#e8b93133;color:inherit;padding:0 .1em}"
    ".raysum .s:hover{background:#e8b93155}.raysum .u{text-decoration:underline wavy #d33}"
    ".raysum .w{border-left:3px solid #d33;padding-left:.6em}.raysum .q{opacity:.7;font-size:.9em}"
    ".raysum pre{white-space:pre-wrap;overflow-wrap:anywhere;font:inherit;margin:.4em 0}"
    ".raysum summary{font-weight:600;margin-top:1em}"
)
_PAGE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
)


def fragment(summary: "Summary") -> str:
    """Return a summary with its notes. A sentence under the mouse highlights its notes, a note its sentences."""
    return _block(summary, None, ())


def summaries_page(summaries: Sequence["Summary"], clusters: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with each summary, its notes, and the sources of its raw cluster with the cited passages."""
    parts = [_section(summary, cluster) for summary, cluster in zip(summaries, clusters, strict=True)]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>raysum</title><style>{_PAGE}</style>{''.join(parts)}</html>\n"
    )


def _section(summary: "Summary", raw: Mapping[str, Any]) -> str:
    from raysum.prepare.cluster import read_cluster  # loads pyarrow

    cluster = read_cluster(raw)
    return _block(summary, cluster.title or summary.id, cluster.documents)


def _block(summary: "Summary", heading: str | None, documents: Iterable[tuple[str, str]]) -> str:
    """Return a summary under its ``heading``, with its notes and the named texts of its ``documents``."""
    name = "r" + hashlib.blake2b(summary.model_dump_json().encode(), digest_size=6).hexdigest()
    notes, top = summary.notes, "" if heading is None else f"<h2>{escape(heading)}</h2>"
    text = " ".join(_sentence(summary, number) for number in range(len(summary.sentences)))
    listed = "".join(f'<li class="n{number}">{_note(note)}</li>' for number, note in enumerate(notes, 1))
    sources = [_source(number, *document, notes) for number, document in enumerate(documents)]
    sources = ["<h3>Sources</h3>", *sources] if sources else []
    return (
        f'<div class="raysum" id="{name}"><style>{_STYLE}{_lights(name, summary)}</style>{top}<p>{text}</p>'
        f"{_trust(summary)}<ol>{listed}</ol>{''.join(sources)}</div>"
    )


def _lights(name: str, summary: "Summary") -> str:
    """Return the CSS rules that highlight notes and passages for a sentence, and passages for a note."""
    rules, light = [], "{background:#e8b93199}"
    for number, sentence in enumerate(summary.sentences):
        rules += [f"#{name}:has(.s{number}:hover) .n{note}{light}" for note in summary.numbered(sentence)]
    rules += [f"#{name}:has(li.n{note}:hover) .n{note}{light}" for note in range(1, len(summary.notes) + 1)]
    return "".join(rules)


def _sentence(summary: "Summary", number: int) -> str:
    sentence = summary.sentences[number]
    notes = "".join(f"[{note}]" for note in summary.numbered(sentence))
    support = (
        ""
        if sentence.support is None
        else f' title="{100 * sentence.support:.0f} % is in the paragraphs that it cites"'
    )
    return f'<span class="s s{number}"{support}>{doubted(sentence)}<sup>{notes}</sup></span>'


def doubted(sentence: "Sentence") -> str:
    """Return the text of a sentence, with unsupported names and numbers underlined."""
    html, done = "", 0
    for span in sentence.unsupported:
        html += f'{escape(sentence.text[done : span.start])}<span class="u">{escape(span.text)}</span>'
        done = span.end
    return html + escape(sentence.text[done:])


def _trust(summary: "Summary") -> str:
    lines = [f'<p class="w">{escape(warning)}</p>' for warning in summary.warnings]
    if summary.support is not None:
        doubted = ", ".join(escape(span.text) for span in summary.unsupported)
        lines.append(f'<p class="q">support {summary.support:.0f} of 100{doubted and f"; in no source: {doubted}"}</p>')
    return "".join(lines)


def _note(note: "Citation") -> str:
    where = f'<span class="q">characters {note.start}–{note.end}</span>'
    return f"{escape(note.name)}, “{escape(shortened(note.quote))}” {where}"


def _source(number: int, name: str, text: str, notes: Sequence["Citation"]) -> str:
    """Return a document with its cited passages marked by the numbers of their notes; open if it has any."""
    cited = {index: (note.start, note.end) for index, note in enumerate(notes, 1) if note.document == number}
    opened = " open" if cited else ""
    return f"<details{opened}><summary>{escape(name)}</summary><pre>{marked(text, cited)}</pre></details>"


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
