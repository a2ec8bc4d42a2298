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
    """ROUGE F1, precision and recall (0 to 100) against the row's references, and the words of the summary."""

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
    """The new, repeated and copied parts of a summary (see ``text.wording``; the title is a source), and its length
    relative to the first reference, by the words of all examples together."""

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
    """The similarity of a system's attention to paragraphs to the origin of the reference (0 to 1).

    A system without attention, such as Lead, is scored by the tf-idf cosine of its words with each paragraph, as the
    reference is. That gives Lead about what the PHT paper's Table 4 has (0.81); the share of its words that it takes
    from each paragraph gives half of that.
    """

    figures: ClassVar = {"attention_similarity": Figure("attention", 3)}

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        scores = list[dict[str, float]]()
        for row, one in zip(rows, summaries, strict=True):
            own, gold = (gold_attention(text, row["text"]) for text in (one.summary, row["summary"]))
            scores.append({"attention_similarity": attention_similarity(one.attention or own, gold)})
        return scores


class Support(Scorer):
    """The share of a summary that its citations support, and whether it has unsupported names or numbers."""

    figures: ClassVar = {
        "support": Figure("support", 1),
        "unsupported": Figure("unsupported", 0, ("unsupported",)),
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        return [
            ({} if one.support is None else {"support": one.support}) | {"unsupported": int(bool(one.unsupported))}
            for one in summaries
        ]


class Cited(Scorer):
    """The cited paragraphs, right if the teacher of the reference named them (`raysum teach --cite`).

    Only paragraphs of the row count. Rows and texts without citations do not count; an empty summary cites none.
    """

    figures: ClassVar = {
        "cited_precision": Figure("as the teacher P", 1, ("cited_correct",), ("cited_given",)),
        "cited_recall": Figure("as the teacher R", 1, ("cited_correct",), ("cited_true",)),
    }

    def score(self, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[dict[str, float]]:
        scores = list[dict[str, float]]()
        for row, one in zip(rows, summaries, strict=True):
            held = {*zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)}
            true = held & reference_places(row.get("extra", ""))
            given = {(note.document, note.paragraph) for sentence in one.sentences for note in sentence.citations}
            counts: dict[str, float] = {
                "cited_correct": len(true & given),
                "cited_given": len(given),
                "cited_true": len(true),
            }
            scores.append(counts if true and (given or not one.summary.strip()) else {})
        return scores


def _load(point: EntryPoint) -> type[Scorer]:
    """Return the class of an entry point. Raises UserError if it cannot be imported or is no scorer."""
    try:
        scorer = point.load()
    except Exception as error:
        raise UserError(f"the scorer {point.name} ({point.value}) cannot be imported: {error!r}") from error
    if not isinstance(scorer, type) or not issubclass(scorer, Scorer):
        raise UserError(
            f"the scorer {point.name} ({point.value}) must be a class that extends raysum.metrics.scorer.Scorer"
        )
    return scorer


# In the order of tables; the headlines come first there, then the recalls of rankers (see ``raysum.evaluate.ranking``).
SCORERS: dict[str, type[Scorer]] = {
    "rouge": Rouge,
    **{point.name: _load(point) for point in sorted(entry_points(group="raysum.scorers"))},
    "support": Support,
    "citations": Cited,
    "attention": AttentionSimilarity,
    "wording": Wording,
}
BEST = {f"recall{most}": most for most in (5, 10, 20, 40)}  # ROUGE-L recall of the first paragraphs, by name
_FIGURES = {name: figure for scorer in SCORERS.values() for name, figure in scorer.figures.items()}
HEADLINES = tuple(scorer.headline for scorer in SCORERS.values() if scorer.headline)
FIGURES: dict[str, Figure] = {name: _FIGURES[name] for name in HEADLINES}
FIGURES |= {name: Figure(f"ROUGE-L recall, best {most}", 2) for name, most in BEST.items()} | _FIGURES


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
