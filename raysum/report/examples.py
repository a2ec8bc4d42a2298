"""The section of chosen examples: references, summaries with citations, a heat map, the sources."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from raysum.decode.page import doubted, marked, shortened
from raysum.decode.summary import Citation, Summary
from raysum.pages import parts
from raysum.report.gather import EvaluationRecord, NotedSummary, ShownExample

_COLUMNS = 40  # paragraphs of a heat map, at most


def examples(evaluations: Sequence[EvaluationRecord]) -> str:
    """Return chosen examples of each evaluation. A sentence under the mouse highlights its passages."""
    shown = [evaluation for evaluation in evaluations if evaluation.examples]
    if not shown:
        return ""
    note = "Point at a sentence, a passage or a square to highlight its counterparts. Underlined: not in any source."
    blocks = [parts.heading(one.name) + "".join(_example(one, each) for each in one.examples) for one in shown]
    return parts.section("examples", "Examples", parts.note(note), *blocks)


def _example(evaluation: EvaluationRecord, example: ShownExample) -> str:
    output, row, systems = example.output, example.row, evaluation.table.systems
    citing = (name for name, summary in output.notes.items() if summary.notes)
    main = next(citing, next(iter(systems), ""))
    summary = output.notes.get(main, NotedSummary())
    rouge2 = {name: f"{value:.1f}" for name, value in example.rouge2.items()}
    return parts.render(
        "example.html",
        title=f"{row['title']} ({output.id})" if row and row["title"] else output.id,
        why=example.why,
        output=output,
        main=main,
        rouge2=rouge2,
        summary=summary,
        sources=_sources(summary.notes, row) if row else None,
        heat=_heat(summary, row),
        others=[(name, rouge2.get(name, ""), output.text(name)) for name in systems if name != main],
        doubted=doubted,
        shortened=shortened,
    )


def _heat(summary: Summary, row: dict[str, Any] | None) -> str:
    """Return the weights of each sentence's citations by paragraph, and the attention of the whole summary."""
    cited = {_place(note) for note in summary.notes}
    ranked = list(zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)) if row else []
    columns = sorted({*ranked, *cited})[:_COLUMNS]
    if not cited:
        return ""
    rows = dict[str, list[tuple[float, str]]]()
    for number, sentence in enumerate(summary.sentences, 1):
        notes = [*zip(summary.numbered(sentence), sentence.citations, strict=True)]
        cells = ([(n, note) for n, note in notes if _place(note) == place] for place in columns)
        rows[f"sentence {number}"] = [*map(_cell, cells)]
    if ranked and len(summary.attention) == len(ranked):
        attention = defaultdict[tuple[int, int], float](float)  # a split paragraph has several pieces
        for place, weight in zip(ranked, summary.attention, strict=True):
            attention[place] += weight
        rows["all attention"] = [(attention[place], "") for place in columns]
    return parts.heat([f"{document + 1}.{paragraph + 1}" for document, paragraph in columns], rows)


def _cell(notes: Sequence[tuple[int, Citation]]) -> tuple[float, str]:
    """Return the weight of ``notes``, and their classes for highlighting."""
    return sum(note.weight for _, note in notes), " ".join(f"n{number}" for number, _ in notes)


def _place(note: Citation) -> tuple[int, int]:
    return note.document, note.paragraph


def _sources(notes: Sequence[Citation], row: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the paragraphs (number and HTML with the cited passages marked) of each document of ``row``."""
    places = zip(
        row["document"].tolist(), row["paragraph"].tolist(), row["char_start"].tolist(), row["text"], strict=True
    )
    sources: dict[str, list[tuple[str, str]]] = {}
    for document, paragraph, begin, text in sorted(places):
        cited = {
            number: (max(0, note.start - begin), min(len(text), note.end - begin))
            for number, note in enumerate(notes, 1)
            if _place(note) == (document, paragraph) and 0 <= note.start - begin < len(text)
        }
        name = f"{document + 1}. {row['source'][document] or 'document'}"
        sources.setdefault(name, []).append((f"{document + 1}.{paragraph + 1}", marked(text, cited)))
    return sources
