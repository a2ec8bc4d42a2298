"""Scores of summaries: ROUGE, facts and citations where the dataset knows them, attention; by example and overall."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from raysum.data.sentences import sentence_spans
from raysum.decode.citations import cited, lexical
from raysum.evaluate.output import Output, Row
from raysum.metrics import rouge
from raysum.metrics.attention import attention_similarity, gold_attention
from raysum.metrics.statistics import mean_interval, ratio_interval
from raysum.prepare.factbook import score_citations, score_facts

# Corpus figures as percentages of summed counts: figure -> counts above and below the line.
RATIOS = {
    "facts_f1": (["facts_right", "facts_right"], ["facts_right", "facts_wrong", "facts_total"]),
    "citation_precision": (["citation_correct"], ["citation_given"]),
    "citation_recall": (["citation_correct"], ["citation_true"]),
    "lexical_precision": (["lexical_correct"], ["lexical_given"]),
    "lexical_recall": (["lexical_correct"], ["lexical_true"]),
    "random_precision": (["random_correct"], ["random_given"]),
    "random_recall": (["random_correct"], ["random_true"]),
}
COUNTS = ("facts_right", "facts_wrong", "facts_total")


def score(rows: Sequence[Row], outputs: Sequence[Output], protocol: str = "google") -> pd.DataFrame:
    """One line an example: ``id``, ROUGE F1, precision and recall (0 to 100), ``words``, and where they are known
    ``attention_similarity`` to the reference (0 to 1), counts of facts and of citations, right and given.
    """
    references = ["\n".join(row["summary"][a:b] for a, b in sentence_spans(row["summary"])) for row in rows]
    scores = rouge.score(["\n".join(output.sentences) for output in outputs], references, protocol)
    scores.insert(0, "id", [row["id"] for row in rows])
    others = [_other_scores(row, output) for row, output in zip(rows, outputs, strict=True)]
    return pd.concat([scores, pd.DataFrame(others)], axis=1)


def means(scores: pd.DataFrame) -> dict[str, float]:
    """The figures of one system, each with its seeded bootstrap interval as ``_low`` and ``_high``, and ``examples``.

    Means of the examples' scores; facts and citations from summed counts; all 0 to 100 but ``words``,
    ``attention_similarity`` and the counts ``facts_right``, ``facts_wrong``, ``facts_total``.
    """
    figures: dict[str, float] = {}
    for name in (*rouge.METRICS, "attention_similarity", "words"):
        if name in scores and scores[name].notna().any():
            _put(figures, name, *mean_interval(scores[name].dropna().to_numpy()))
    for name, (above, below) in RATIOS.items():
        if {*above, *below} <= {*scores.columns}:
            top, bottom = (sum(scores[column].fillna(0).to_numpy() for column in side) for side in (above, below))
            _put(figures, name, *(100 * np.array(ratio_interval(top, bottom))))
    counts = {name: int(scores[name].sum()) for name in COUNTS if name in scores}
    return figures | counts | {"examples": len(scores)}


def _put(figures: dict[str, float], name: str, value: float, low: float, high: float) -> None:
    figures |= {name: float(value), f"{name}_low": float(low), f"{name}_high": float(high)}


def _other_scores(row: Row, output: Output) -> dict[str, Any]:
    scores: dict[str, Any] = {"words": sum(len(sentence.split()) for sentence in output.sentences)}
    if output.attention is not None:
        gold = gold_attention(row["summary"], row["text"])
        scores["attention_similarity"] = attention_similarity(output.attention, gold.tolist())
    if row["facts"]:
        facts = json.loads(row["facts"])
        found = score_facts(" ".join(output.sentences), facts, row["title"])
        scores |= {"facts_right": found.right, "facts_wrong": found.wrong, "facts_total": found.total}
        if output.citations:
            given = [[(c.document, c.paragraph, c.weight) for c in citations] for citations in output.citations]
            ways = {"citation": given, "lexical": _lexical(row, output.sentences), "random": _random(row, given)}
            for name, citations in ways.items():
                stated = score_citations(list(zip(output.sentences, citations, strict=True)), facts, row["title"])
                scores |= {f"{name}_correct": stated.correct, f"{name}_given": stated.cited}
                scores[f"{name}_true"] = stated.stating
    return scores


def _lexical(row: Row, sentences: Sequence[str]) -> list[list[tuple[int, int, float]]]:
    """What the sentences would cite by words alone: the paragraph of nearest tf-idf."""
    return [
        [(int(row["document"][index]), int(row["paragraph"][index]), weight) for index, weight in cited(weights)]
        for weights in lexical(sentences, row["text"])
    ]


def _random(row: Row, given: Sequence[Sequence[tuple[int, int, float]]]) -> list[list[tuple[int, int, float]]]:
    """As many citations of each sentence as were given, of paragraphs drawn by the example's id."""
    draw = random.Random(row["id"])
    places = list(zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True))
    return [[(*place, 1 / len(some)) for place in draw.sample(places, len(some))] for some in given]
