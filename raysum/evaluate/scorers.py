"""The registry of scorers, and the built-in ones.

Another package adds a scorer by an entry point of the group ``raysum.scorers``: ``name = package.module:Class``, where
the class extends ``raysum.metrics.scorer.Scorer``.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar

import pandas as pd

from raysum.data.rows import Row, references
from raysum.decode.summary import Summary
from raysum.errors import UserError
from raysum.metrics import rouge
from raysum.metrics.citations import attention_similarity, gold_attention
from raysum.metrics.scorer import Scorer
from raysum.metrics.statistics import Figure, figure_of
from raysum.teach.citing import reference_places
from raysum.text.sentences import sentence_spans
from raysum.text.wording import wording


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
    """The share of a summary that its citations support, and whether it has unsupported names or numbers."""

    figures: ClassVar = {
        "support": Figure("support", 1),
        "unsupported": Figure("unsupported", 0, ("unsupported",)),
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        known = ({} if one.support is None else {"support": one.support} for one in summaries)
        return [{**own, "unsupported": int(bool(one.unsupported))} for own, one in zip(known, summaries, strict=True)]


class Cited(Scorer):
    """The paragraphs that a summary cites, right where the teacher of the reference named them (`raysum teach --cite`).

    Only paragraphs of the row count. Rows and texts without citations do not count; an empty summary cites none.
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


# ROUGE-L recall of the first paragraphs, by name: of rankers (see ``raysum.evaluate.ranking``).
BEST = {f"recall{most}": most for most in (5, 10, 20, 40)}


def _registered() -> dict[str, type[Scorer]]:
    """Return the classes of scorers by name, in the order of tables: ROUGE, those of entry points, the others."""
    found: dict[str, type[Scorer]] = {"rouge": Rouge}
    for point in sorted(entry_points(group="raysum.scorers"), key=lambda point: point.name):
        found[point.name] = _checked(point)
    return found | {
        "support": Support, "citations": Cited, "attention": AttentionSimilarity, "wording": Wording,
    }  # fmt: skip


def _checked(point: EntryPoint) -> type[Scorer]:
    """Return the class of an entry point. Raises UserError if it cannot be imported or is no scorer."""
    try:
        found = point.load()
    except Exception as error:
        raise UserError(f"the scorer {point.name} ({point.value}) cannot be imported: {error!r}") from error
    if not isinstance(found, type) or not issubclass(found, Scorer):
        raise UserError(
            f"the scorer {point.name} ({point.value}) must be a class that extends raysum.metrics.scorer.Scorer"
        )
    return found


SCORERS = _registered()
HEADLINES = tuple(scorer.headline for scorer in SCORERS.values() if scorer.headline)
FIGURES: dict[str, Figure] = {
    scorer.headline: scorer.figures[scorer.headline] for scorer in SCORERS.values() if scorer.headline
}
FIGURES |= {name: Figure(f"ROUGE-L recall, best {most}", 2) for name, most in BEST.items()}
FIGURES |= {name: figure for scorer in SCORERS.values() for name, figure in scorer.figures.items()}


def scorers_of(names: Sequence[str] | None, protocol: str = "google", several: rouge.Several = "best") -> list[Scorer]:
    """Return the scorers ``names``, or all scorers if ``names`` is empty. Raises UserError for an unknown name."""
    unknown = [name for name in names or () if name not in SCORERS]
    if unknown:
        raise UserError(f"no scorer {unknown[0]!r}; there are {', '.join(SCORERS)}")
    chosen = {name: scorer for name, scorer in SCORERS.items() if not names or name in names}
    return [Rouge(protocol, several) if scorer is Rouge else scorer() for scorer in chosen.values()]


def scorer_of(metric: str) -> Scorer | None:
    """Return the scorer that computes ``metric`` from examples, or None if there is none."""
    return next((scorer() for scorer in SCORERS.values() if metric in scorer.figures and metric in selectable()), None)


def selectable() -> list[str]:
    """Return the metrics that can select a checkpoint: those that are sums or ratios over examples."""
    return [name for scorer in SCORERS.values() for name in scorer.figures if name not in scorer.correlations]


def score_table(rows: Sequence[Row], summaries: Sequence[Summary], scorers: Iterable[Scorer]) -> pd.DataFrame:
    """Return one line an example: ``id``, whether its summary is ``empty``, and the columns of all ``scorers``."""
    parts = [pd.DataFrame(scorer.score(rows, summaries)) for scorer in scorers]
    empty = [int(not summary.summary.strip()) for summary in summaries]
    return pd.concat([pd.DataFrame({"id": [row["id"] for row in rows], "empty": empty}), *parts], axis=1)


def means(scores: pd.DataFrame, sure: Container[str] = FIGURES) -> dict[str, float]:
    """Return the metrics of one system, those in ``sure`` with bootstrap intervals (``_low``, ``_high``), the number of
    ``examples``, and, if ``scores`` has it, how many summaries are ``empty``."""
    figures: dict[str, float] = {}
    for name, figure in FIGURES.items():
        figures |= figure_of(name, figure, scores, name in sure)
    for scorer in SCORERS.values():
        figures |= scorer().totals(scores)
    empty = {"empty": int(scores["empty"].sum())} if "empty" in scores else {}
    return figures | {"examples": len(scores)} | empty
