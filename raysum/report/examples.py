"""The section of chosen examples: references, summaries with citations, a heat map, the sources."""

from collections.abc import Sequence
from typing import Any

from raysum.decode.page import doubted, marked, shortened
from raysum.decode.summary import Citation, Summary
from raysum.pages import charts, parts
from raysum.pages.parts import escape
from raysum.report.gather import Evaluated, Notes, ShownExample

_COLUMNS = 40  # paragraphs of a heat map, at most


def examples(evaluations: Sequence[Evaluated]) -> str:
    """Return chosen examples of each evaluation. A sentence under the mouse highlights its passages."""
    shown = [evaluation for evaluation in evaluations if evaluation.examples]
    if not shown:
        return ""
    note = "Point at a sentence, a passage or a square to highlight its counterparts. Underlined: not in any source."
    blocks = [parts.heading(one.name) + "".join(_example(one, each) for each in one.examples) for one in shown]
    return parts.section("examples", "Examples", parts.note(note), *blocks)


def _example(one: Evaluated, example: ShownExample) -> str:
    output, row = example.output, example.row
    cites = (name for name, notes in output.notes.items() if any(part.citations for part in notes.sentences))
    main = next(cites, next(iter(one.table.systems), ""))
    notes = output.notes.get(main, Notes(sentences=[]))
    summary = Summary(id=output.id, summary="", sentences=notes.sentences, attention=notes.attention, score=0.0)
    title = f"{row['title']} ({output.id})" if row and row["title"] else output.id
    others = [
        [name, f"{example.rouge2[name]:.1f}" if name in example.rouge2 else "", output.text(name)]
        for name in one.table.systems
        if name != main
    ]
    beside = parts.folded("The other systems", parts.table(["system", "ROUGE-2", "summary"], others)) if others else ""
    text = " ".join(_sentence(summary, number) for number in range(len(summary.sentences)))
    left = (
        f"<h5>Reference</h5><p>{escape(output.reference)}</p><h5>{escape(main)}{_judged(example, main, notes)}</h5>"
        f"<p>{text or escape(output.text(main))}</p>{''.join(map(_warning, notes.warnings))}"
        f"{_heat(summary, row)}{beside}"
    )
    right = _sources(summary.notes, row) if row else _quotes(summary.notes)
    return (
        f'<article class="example"><h4>{escape(title)} <small>{escape(example.why)}</small></h4>'
        f'<div class="pair"><div>{left}</div><div>{right}</div></div></article>'
    )


def _judged(example: ShownExample, main: str, notes: Notes) -> str:
    details = [f"ROUGE-2 {example.rouge2[main]:.1f}"] if main in example.rouge2 else []
    details += [] if notes.support is None else [f"support {notes.support:.0f} of 100"]
    return f" <small>{', '.join(details)}</small>"


def _warning(text: str) -> str:
    return f'<p class="warning">{escape(text)}</p>'


def _sentence(summary: Summary, number: int) -> str:
    sentence = summary.sentences[number]
    places = summary.numbered(sentence)
    notes = "".join(f"[{place}]" for place in places)
    return f'<span tabindex="0" class="s {_classes(places)}">{doubted(sentence)}<sup>{notes}</sup></span>'


def _classes(places: Sequence[int]) -> str:
    return " ".join(f"n{place}" for place in dict.fromkeys(places))


def _heat(summary: Summary, row: dict[str, Any] | None) -> str:
    """What of each sentence's citations each paragraph has, by its numbers from 1; below, all attention to it."""
    cited = {(note.document, note.paragraph) for sentence in summary.sentences for note in sentence.citations}
    ranked = list(zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)) if row else []
    columns = sorted({*ranked, *cited})[:_COLUMNS]
    if not cited:
        return ""
    cells = []
    for sentence in summary.sentences:
        notes = list(zip(summary.numbered(sentence), sentence.citations, strict=True))
        cells.append([_cell([(n, note) for n, note in notes if _at(note) == place]) for place in columns])
    names = [f"sentence {number}" for number in range(1, len(cells) + 1)]
    if ranked and len(summary.attention) == len(ranked):
        paid = dict(zip(ranked, summary.attention, strict=True))
        cells.append([(paid.get(place, 0.0), "") for place in columns])
        names.append("all attention")
    drawn = charts.heat("Weights of citations", names, [f"{d + 1}.{p + 1}" for d, p in columns], cells)
    return f"<h5>Where it comes from <small>document.paragraph</small></h5>{drawn}"


def _cell(notes: Sequence[tuple[int, Citation]]) -> tuple[float, str]:
    """Return the weight of ``notes``, and their classes for highlighting."""
    return sum(note.weight for _, note in notes), _classes([n for n, _ in notes])


def _at(note: Citation) -> tuple[int, int]:
    return note.document, note.paragraph


def _sources(notes: Sequence[Citation], row: dict[str, Any]) -> str:
    """The paragraphs of the ``row`` in the order of their documents, with what is cited marked."""
    places = zip(
        row["document"].tolist(), row["paragraph"].tolist(), row["char_start"].tolist(), row["text"], strict=True
    )
    html, last = "<h5>Sources</h5>", None
    for document, paragraph, begin, text in sorted(places, key=lambda place: place[:2]):
        if document != last:
            html += f"<h6>{document + 1}. {escape(row['source'][document] or 'document')}</h6>"
            last = document
        cited = {
            number: (max(0, note.start - begin), min(len(text), note.end - begin))
            for number, note in enumerate(notes, 1)
            if _at(note) == (document, paragraph) and 0 <= note.start - begin < len(text)
        }
        html += f"<p><small>{document + 1}.{paragraph + 1}</small> {marked(text, cited)}</p>"
    return html


def _quotes(notes: Sequence[Citation]) -> str:
    """Return the cited passages, if the sources are not available."""
    listed = "".join(
        f'<li><mark class="n{number}">{escape(shortened(note.quote))}</mark> '
        f"<small>{escape(note.source or 'document')} {note.document + 1}.{note.paragraph + 1}</small></li>"
        for number, note in enumerate(notes, 1)
    )
    return f"<h5>Cited</h5><ol>{listed}</ol>" if listed else ""
