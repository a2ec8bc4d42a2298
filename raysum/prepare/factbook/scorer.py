"""What evaluation counts of summaries of the factbook: facts, and citations of the paragraphs that state them."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from raysum.data.rows import Row
from raysum.metrics.citations import cited, lexical
from raysum.metrics.statistics import Figure
from raysum.prepare.factbook.reader import score_citations, score_facts

KEPT = "facts"  # the field of a raw cluster that must be kept (`keep: [facts]` of the recipe)

Cited = list[tuple[int, int, float]]  # document, paragraph within it, weight


def _citation_figures(way: str, label: str) -> dict[str, Figure]:
    return {
        f"{way}_precision": Figure(f"{label} P", 1, (f"{way}_correct",), (f"{way}_given",)),
        f"{way}_recall": Figure(f"{label} R", 1, (f"{way}_correct",), (f"{way}_true",)),
    }


@dataclass(frozen=True)
class Factbook:
    """Counts of facts, and of a summary's citations, right and given; beside them what words or chance would cite."""

    figures: ClassVar = {
        "facts_f1": Figure(
            "facts F1", 1, ("facts_right", "facts_right"), ("facts_right", "facts_wrong", "facts_total")
        ),
        "facts_right": Figure("facts right", 0, ("facts_right",)),
        "facts_wrong": Figure("facts wrong", 0, ("facts_wrong",)),
        "facts_total": Figure("facts in all", 0, ("facts_total",)),
        **_citation_figures("citation", "citations"),
        **_citation_figures("lexical", "  by words"),
        **_citation_figures("random", "  at random"),
    }

    def knows(self, row: Row) -> bool:
        return bool(row["extra"]) and KEPT in json.loads(row["extra"])

    def score(self, rows: Sequence[Row], summaries: Sequence[Any]) -> list[dict[str, float]]:
        return [_score(row, summary) for row, summary in zip(rows, summaries, strict=True)]


def _score(row: Row, summary: Any) -> dict[str, float]:
    facts, sentences = json.loads(row["extra"])[KEPT], [sentence.text for sentence in summary.sentences]
    found = score_facts(" ".join(sentences), facts, row["title"])
    scores: dict[str, float] = {"facts_right": found.right, "facts_wrong": found.wrong, "facts_total": found.total}
    given = [[(c.document, c.paragraph, c.weight) for c in sentence.citations] for sentence in summary.sentences]
    if any(given):
        ways = {"citation": given, "lexical": _lexical(row, sentences), "random": _random(row, given)}
        for name, citations in ways.items():
            stated = score_citations(list(zip(sentences, citations, strict=True)), facts, row["title"])
            scores |= {f"{name}_correct": stated.correct, f"{name}_given": stated.cited, f"{name}_true": stated.stating}
    return scores


def _lexical(row: Row, sentences: Sequence[str]) -> list[Cited]:
    """What the sentences would cite by words alone: the paragraph of nearest tf-idf."""
    return [
        [(int(row["document"][index]), int(row["paragraph"][index]), weight) for index, weight in cited(weights)]
        for weights in lexical(sentences, row["text"])
    ]


def _random(row: Row, given: Sequence[Cited]) -> list[Cited]:
    """As many citations of each sentence as were given, of paragraphs drawn by the example's id."""
    draw = random.Random(row["id"])
    places = list(zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True))
    return [[(*place, 1 / len(some)) for place in draw.sample(places, len(some))] for some in given]
