"""What evaluation counts of summaries of the factbook: facts, and citations of the paragraphs that state them.

Facts are read back out of any text made of the factbook's words: summaries, sources, mixtures of both. Text is
normalised first (lower case, punctuation dropped), so decoded pieces read like the original.
"""

import json
import math
import random
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from raysum.data.rows import Row
from raysum.examples.factbook.corpus import SHAPES, kinds
from raysum.metrics.citations import cited, lexical
from raysum.metrics.scorer import Scorer
from raysum.metrics.statistics import Figure
from raysum.text.tfidf import words

if TYPE_CHECKING:
    from pandas import DataFrame

FACTS = "facts_f1"  # the figure
KEPT = "facts"  # the field of a raw cluster that must be kept (`keep: [facts]` of the recipe)

Fact = tuple[str, str, str]  # subject, attribute and value, as plain text
_Known = tuple[re.Pattern[str], str]  # the words for an attribute, and its name
Places = set[tuple[int, int]]  # paragraphs: document, and paragraph within it


def _citation_figures(way: str, label: str) -> dict[str, Figure]:
    return {
        f"{way}_precision": Figure(f"{label} P", 1, (f"{way}_correct",), (f"{way}_given",)),
        f"{way}_recall": Figure(f"{label} R", 1, (f"{way}_correct",), (f"{way}_true",)),
    }


class Factbook(Scorer):
    """Counts of facts, and of a summary's citations, right and given; beside them what words or chance would cite."""

    figures: ClassVar = {
        FACTS: Figure("facts F1", 1, ("facts_right", "facts_right"), ("facts_right", "facts_wrong", "facts_total")),
        "facts_right": Figure("facts right", 0, ("facts_right",)),
        "facts_wrong": Figure("facts wrong", 0, ("facts_wrong",)),
        "facts_total": Figure("facts in all", 0, ("facts_total",)),
        **_citation_figures("citation", "citations"),
        **_citation_figures("lexical", "  by words"),
        **_citation_figures("random", "  at random"),
        "support_facts": Figure("support ~ facts F1", 2),
    }
    correlations = ("support_facts",)
    headline = FACTS  # targets are made from templates, so ROUGE is high even where facts are wrong

    def score(self, rows: Sequence[Row], summaries: Sequence[Any]) -> list[dict[str, float]]:
        facts = [json.loads(row["extra"] or "{}").get(KEPT) for row in rows]
        scored = zip(rows, facts, summaries, strict=True)
        return [{} if known is None else _score(row, known, summary) for row, known, summary in scored]

    def totals(self, scores: "DataFrame") -> dict[str, float]:
        """Return ``support_facts``: Pearson's correlation of support and facts F1 over examples that have both."""
        facts = self.figures[FACTS]
        if not {"support", *facts.above, *facts.below} <= {*scores.columns}:
            return {}
        f1 = scores[[*facts.above]].sum(axis=1) / scores[[*facts.below]].sum(axis=1)
        correlation = float(f1.corr(scores["support"]))
        return {} if math.isnan(correlation) else {"support_facts": correlation}

    def problem(self, dataset: Any) -> str | None:
        kept = KEPT in dataset.recipe.keep
        return None if kept else f"the dataset must be made of the factbook and prepared with --keep {KEPT}"

    def questions(self, reference: str) -> list[tuple[str, str]]:
        """Return a question for each fact that the reference states in the factbook's words."""
        facts = sorted({fact for facts in read_facts(reference.split("."), "") for fact in facts if fact[0]})
        return [(f"{_cased(s, reference)}: which {name}?", _cased(value, reference)) for s, name, value in facts]


def _cased(plain: str, reference: str) -> str:
    """Return ``plain`` with the capital letters of the reference."""
    found = re.search(r"\W+".join(map(re.escape, plain.split())), reference, re.IGNORECASE)
    return found[0] if found else plain


def _score(row: Row, facts: Sequence[dict[str, Any]], summary: Any) -> dict[str, float]:
    true = stated_in(facts, row["title"])
    sentences = [sentence.text for sentence in summary.sentences]
    read = read_facts(sentences, row["title"])
    scores: dict[str, float] = {**score_facts(" ".join(sentences), true, row["title"])}
    given = [{(c.document, c.paragraph) for c in sentence.citations} for sentence in summary.sentences]
    if any(given):
        places = list(zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True))
        draw = random.Random(row["id"])
        ways = {
            "citation": given,
            "lexical": [{places[i] for i, _ in cited(weights)} for weights in lexical(sentences, row["text"])],
            "random": [set(draw.sample(places, len(some))) for some in given],
        }
        for way, citations in ways.items():
            counts = score_citations(read, citations, true)
            scores |= {f"{way}_{name}": count for name, count in counts.items()}
    return scores


def stated_in(facts: Sequence[dict[str, Any]], title: str) -> dict[Fact, Places]:
    """The true facts of an example (see ``generate``), and the paragraphs that state each."""
    named = {(_plain(title), fact["attribute"], _plain(fact["value"])): fact["paragraphs"] for fact in facts}
    return {fact: {(document, paragraph) for document, paragraph in places} for fact, places in named.items()}


def score_facts(text: str, true: dict[Fact, Places], title: str) -> dict[str, int]:
    """Distinct facts of a summary with sentences up to periods: stated and true, stated and not true of the
    subject, and how many there were to state."""
    stated = {*chain.from_iterable(read_facts(text.split("."), title))}
    right = len(stated & true.keys())
    return {"facts_right": right, "facts_wrong": len(stated) - right, "facts_total": len(true)}


def score_citations(
    read: Sequence[Sequence[Fact]], citations: Sequence[Places], true: dict[Fact, Places]
) -> dict[str, int]:
    """Citations of each sentence, ``read`` as facts, against the paragraphs that truly state what it says.

    ``given`` paragraphs; ``correct`` of them state a true fact of the sentence; ``true`` ones state one, cited or not.
    Precision is correct / given and recall correct / true, best of sums over a corpus. A sentence without a true fact
    has no true citation and counts nowhere: facts are scored by ``score_facts``.
    """
    counts = {"correct": 0, "given": 0, "true": 0}
    for facts, cited_places in zip(read, citations, strict=True):
        stating = {place for fact in facts for place in true.get(fact, ())}
        if stating:
            counts["correct"] += len(stating & cited_places)
            counts["given"] += len(cited_places)
            counts["true"] += len(stating)
    return counts


def read_facts(sentences: Iterable[str], title: str) -> list[list[Fact]]:
    """What each of consecutive sentences states, of any subject; a pronoun before any subject means ``title``.

    Source phrases name their subject; a lead's clauses belong to the subject of the last opening before them.
    """
    subject, read = _plain(title), []
    for facts, opened, stated in map(_statements, map(_plain, sentences)):
        subject = opened or subject
        read.append([*facts, *((subject, name, value) for name, value in stated)])
    return read


@lru_cache(maxsize=4096)  # systems share sentences, and each is read for facts and for citations
def _statements(sentence: str) -> tuple[list[Fact], str, list[tuple[str, str]]]:
    """Return the facts of a plain sentence's phrases, the subject that the sentence opens or "", and the names and
    values of its clauses."""
    phrases, clauses, openings, pronouns = _patterns()
    facts = [(found["s"], name, found["v"]) for phrase, name in phrases for found in phrase.finditer(sentence)]
    opening = openings.search(sentence)
    opened = next(filter(None, opening.groups())) if opening else ""
    if not (lead := opening or pronouns.match(sentence)):
        return facts, opened, []
    stated = [(name, found["v"]) for clause, name in clauses for found in clause.finditer(sentence, lead.end())]
    return facts, opened, stated


@cache
def _patterns() -> tuple[list[_Known], list[_Known], re.Pattern[str], re.Pattern[str]]:
    """Of plain text: phrases and clauses with the groups ``s`` and ``v``; openings, whose one matching group is the
    subject; pronouns."""
    phrases, clauses = [], []
    for kind in kinds():
        for attribute in kind.attributes:
            slots = f"(?P<s>{SHAPES[kind.name]})", f"(?P<v>{SHAPES[attribute.value]})"
            phrases += [(re.compile(_pattern(phrase, *slots)), attribute.name) for phrase in attribute.phrases]
            clauses.append((re.compile(_pattern(attribute.clause, *slots)), attribute.name))
    openings = [_pattern(kind.opening, f"({SHAPES[kind.name]})", "") for kind in kinds()]
    pronouns = sorted({kind.pronoun.lower() for kind in kinds()})
    return phrases, clauses, re.compile("|".join(openings)), re.compile(rf"(?:{'|'.join(pronouns)})\b")


def _pattern(phrase: str, subject: str, value: str) -> str:
    """The expression for the words of a phrase up to its last slot, with the given ones in its slots."""
    known = re.findall(r"\{[sv]\}|\w+", phrase[: phrase.rindex("}") + 1].lower())
    return rf"\b{' '.join(known).format(s=subject, v=value)}\b"


def _plain(text: str) -> str:
    return " ".join(words(text))
