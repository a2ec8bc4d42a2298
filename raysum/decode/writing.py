"""From hypotheses to summaries: text, sentences, and the paragraphs that each of them cites.

M paragraphs of a row, R those that were read, K tokens of a summary.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from raysum.config.sections import DecodeConfig
from raysum.data.rows import Row
from raysum.data.vocabulary import Vocabulary
from raysum.decode.beam import Hypothesis
from raysum.decode.searching import Found
from raysum.decode.summary import Alternative, Citation, Sentence, Summary
from raysum.metrics import citations
from raysum.models.special_ids import EOS, SENTENCE_END


def write_up(row: Row, found: Found, settings: DecodeConfig, vocabulary: Vocabulary) -> list[Summary]:
    """The summary of ``row`` by each beta; what several betas found alike is written once."""
    written: dict[tuple[int, ...], Summary] = {}
    summaries = []
    for (best, *others), attention in zip(found.hypotheses, found.attention, strict=True):
        ids = tuple(best.ids)
        if ids not in written:
            everywhere = np.zeros((len(attention), len(row["document"])), attention.dtype)
            everywhere[:, found.read] = attention[:, : len(found.read)]
            written[ids] = _summary(row, best, everywhere, settings, vocabulary)
        alternatives = [Alternative(summary=vocabulary.decode(other.ids), score=other.score) for other in others]
        changes: dict[str, Any] = {"score": best.score, "alternatives": alternatives}
        summaries.append(written[ids].model_copy(update=changes))
    return summaries


def _summary(
    row: Row, best: Hypothesis, attention: np.ndarray, settings: DecodeConfig, vocabulary: Vocabulary
) -> Summary:
    """What ``best`` says and cites, with its ``attention`` [K, M]."""
    spans = [(vocabulary.decode(best.ids[a:b]), attention[a:b]) for a, b in sentence_spans(best.ids)]
    spans = [(text, weights) for text, weights in spans if text]
    weights = [citations.overall(part) for _, part in spans]
    if settings.citations == "lexical" and spans:
        weights = list(citations.lexical([text for text, _ in spans], row["text"]))
    sentences = [
        Sentence(text=text, citations=[_citation(row, *pair) for pair in citations.cited(shares)])
        for (text, _), shares in zip(spans, weights, strict=True)
    ]
    return Summary(
        id=row["id"],
        summary=vocabulary.decode(best.ids),
        sentences=sentences,
        attention=citations.overall(attention).tolist(),
        score=best.score,
    )


def _citation(row: Row, paragraph: int, weight: float) -> Citation:
    document, number = int(row["document"][paragraph]), int(row["paragraph"][paragraph])
    return Citation(document=document, paragraph=number, weight=weight)


def sentence_spans(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where each sentence of a summary's ``ids`` begins and ends: they end before ``<Q>`` and EOS."""
    stop = ids.index(EOS) if EOS in ids else len(ids)
    marks = [-1, *(i for i in range(stop) if ids[i] == SENTENCE_END), stop]
    return [(before + 1, after) for before, after in pairwise(marks) if after > before + 1]
