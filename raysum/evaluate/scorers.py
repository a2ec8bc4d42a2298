"""Scorers by name: what is counted of a summary, and how the figures of a system come of its examples."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import pandas as pd

from raysum.data.rows import Row, references
from raysum.decode.summary import Summary
from raysum.errors import UserError
from raysum.examples.factbook.scorer import Factbook
from raysum.metrics import rouge
from raysum.metrics.citations import attention_similarity, gold_attention
from raysum.metrics.statistics import Figure, figure_of
from raysum.teach.citing import reference_places
from raysum.text.sentences import sentence_spans
from raysum.text.wording import wording


class Scorer(Protocol):
    """Scores summaries example by example.

    ``figures`` are the ``Figure`` of a system by name, in the order of tables.
    """

    figures: ClassVar[Any]

    def score(self, rows: Sequence[Row], summaries: Sequence[Any]) -> list[dict[str, float]]:
        """The columns of each example, from its row and its ``Summary``; none where a row lacks what is compared."""


@dataclass(frozen=True)
class Rouge(Scorer):
    """ROUGE F1, precision and recall (0 to 100) against the row's references, and the words of what was written."""

    protocol: str = "google"
    several: rouge.Several = "best"
    figures: ClassVar = {name: Figure(name.replace("rouge", "ROUGE-"), 2) for name in rouge.METRICS} | {
        "words": Figure("words", 1)
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        wanted = [[_lines(text) for text in references(row)] for row in rows]
        texts = ["\n".join(sentence.text for sentence in summary.sentences) for summary in summaries]
        scores = rouge.score(texts, wanted, self.protocol, self.several)
        return scores.assign(words=[len(text.split()) for text in texts]).to_dict("records")


@lru_cache(maxsize=1024)
def _lines(text: str) -> str:
    """A sentence a line; the references of a chunk are kept for the next system."""
    return "\n".join(text[start:end] for start, end in sentence_spans(text))


class Wording(Scorer):
    """How much of a summary is new, repeated or copied (see ``metrics.wording``; the title is a source, too), and its
    length by that of the first reference, of the words of all examples together."""

    figures: ClassVar = {f"novel{size}": Figure(f"new {size}", 1) for size in range(1, 5)} | {
        "repeated": Figure("repeated", 1),
        "coverage": Figure("copied", 1),
        "density": Figure("density", 2),
        "length_ratio": Figure("length", 1, ("words_written",), ("words_wanted",)),
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        return [
            wording(one.summary, [row["title"], *row["text"]])
            | {"words_written": len(one.summary.split()), "words_wanted": len(row["summary"].split())}
            for row, one in zip(rows, summaries, strict=True)
        ]


class AttentionSimilarity(Scorer):
    """How near a system's attention to paragraphs is to where the reference comes from (0 to 1).

    A system that pays none, such as Lead, is taken at its words, as the reference is: by their tf-idf cosine with each
    paragraph. That gives Lead about what the PHT paper's Table 4 has (0.81), where the share of its words that it takes
    from each paragraph gives half of that.
    """

    figures: ClassVar = {"attention_similarity": Figure("attention", 3)}

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        scores = []
        for row, one in zip(rows, summaries, strict=True):
            own = one.attention or gold_attention(one.summary, row["text"])
            scores.append(
                {"attention_similarity": attention_similarity(own, gold_attention(row["summary"], row["text"]))}
            )
        return scores


class Support(Scorer):
    """How much of a summary stands in what it cites, and whether a name or number of it stands in no source."""

    figures: ClassVar = {
        "support": Figure("support", 1),
        "unsupported": Figure("unsupported", 0, ("unsupported",)),
        "support_facts": Figure("  ~ facts F1", 2),
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        known = ({} if one.support is None else {"support": one.support} for one in summaries)
        return [{**own, "unsupported": int(bool(one.unsupported))} for own, one in zip(known, summaries, strict=True)]


class Cited(Scorer):
    """The paragraphs that a summary cites, right where the teacher of the reference named them (`raysum teach --cite`).

    Only paragraphs that the row holds count; a row without such citations, or a text without any, counts nowhere. A
    summary that is empty has found none.
    """

    figures: ClassVar = {
        "cited_precision": Figure("as the teacher P", 1, ("cited_correct",), ("cited_given",)),
        "cited_recall": Figure("as the teacher R", 1, ("cited_correct",), ("cited_true",)),
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        return [_cited(row, one) for row, one in zip(rows, summaries, strict=True)]


def _cited(row: Row, summary: Summary) -> dict[str, float]:
    held = {*zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)}
    true = held & reference_places(row.get("extra", ""))
    given = {(one.document, one.paragraph) for sentence in summary.sentences for one in sentence.citations}
    if not true or (summary.summary.strip() and not given):
        return {}
    return {"cited_correct": len(true & given), "cited_given": len(given), "cited_true": len(true)}


# Facts come first: the factbook's targets are made from templates, so ROUGE is high where facts are wrong.
FIGURES: dict[str, Figure] = {"facts_f1": Factbook.figures["facts_f1"]}
# ROUGE-L recall of the best so many paragraphs, by name: of rankers (see ``raysum.evaluate.ranking``).
BEST = {f"recall{most}": most for most in (5, 10, 20, 40)}
FIGURES |= {name: Figure(f"ROUGE-L recall, best {most}", 2) for name, most in BEST.items()}
FIGURES |= {**Rouge.figures, **Factbook.figures, **Support.figures, **Cited.figures}
FIGURES |= {**AttentionSimilarity.figures, **Wording.figures}


def scorers_of(names: Sequence[str] | None, protocol: str = "google", several: rouge.Several = "best") -> list[Scorer]:
    """The scorers ``names``, all without names. Raises UserError."""
    known: dict[str, Scorer] = {"rouge": Rouge(protocol, several), "factbook": Factbook(), "support": Support()}
    known |= {"attention": AttentionSimilarity(), "wording": Wording(), "citations": Cited()}
    wrong = [name for name in names or () if name not in known]
    if wrong:
        raise UserError(f"no scorer {wrong[0]!r}; there are {', '.join(known)}")
    return [scorer for name, scorer in known.items() if not names or name in names]


def score(rows: Sequence[Row], summaries: Sequence[Summary], scorers: Iterable[Scorer]) -> pd.DataFrame:
    """One line an example: ``id``, whether its summary is ``empty``, and the columns of all ``scorers``."""
    parts = [pd.DataFrame(scorer.score(rows, summaries)) for scorer in scorers]
    empty = [int(not summary.summary.strip()) for summary in summaries]
    return pd.concat([pd.DataFrame({"id": [row["id"] for row in rows], "empty": empty}), *parts], axis=1)


def means(scores: pd.DataFrame, sure: Container[str] = FIGURES) -> dict[str, float]:
    """The figures of one system, those in ``sure`` with bootstrap intervals (``_low``, ``_high``), ``examples``, and
    how many of its summaries are ``empty``, where that is known."""
    figures: dict[str, float] = {}
    for name, figure in FIGURES.items():
        figures |= figure_of(name, figure, scores, name in sure)
    empty = {"empty": int(scores["empty"].sum())} if "empty" in scores else {}
    return figures | _agreement(scores) | {"examples": len(scores)} | empty


def _agreement(scores: pd.DataFrame) -> dict[str, float]:
    """``support_facts``: the correlation (Pearson's) of support and facts F1 over examples that have both."""
    facts = Factbook.figures["facts_f1"]
    if not {"support", *facts.above, *facts.below} <= {*scores.columns}:
        return {}
    f1 = scores[[*facts.above]].sum(axis=1) / scores[[*facts.below]].sum(axis=1)
    correlation = f1.corr(scores["support"])
    return {} if pd.isna(correlation) else {"support_facts": float(correlation)}
