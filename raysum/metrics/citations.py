"""The paragraphs that support a text: by attention, by shared words, and by both.

M paragraphs of a cluster, K tokens of a summary.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from raysum.metrics.support import Said, TextIndex, said
from raysum.text.tfidf import TfIdf, words

MOST = 3  # paragraphs cited for a sentence: more than a reader would check
SHARE = 0.9  # of a sentence's attention that its citations need not exceed
LEAST = 0.2  # of the highest weight that a paragraph needs to be cited by attention and words together
_WORD = 0.1  # weight of a word beside a name's: with 0 to 0.3 the factbook's valid split gives the same figures


def overall(weights: np.ndarray) -> np.ndarray:
    """Return the share [M] of each paragraph in the attention ``weights`` [K, M] of a summary (PHT eq. 15)."""
    total = weights.sum(0)
    return total / max(total.sum(), np.finfo(np.float32).tiny)


def lexical(sentences: Sequence[str], paragraphs: Sequence[str]) -> np.ndarray:
    """Return weights [sentences, M]: 1 at the paragraph of highest tf-idf cosine; zeros if no word is shared."""
    similarity = _tfidf(sentences, paragraphs)
    best = similarity.max(1, keepdims=True)
    nearest = np.arange(len(paragraphs)) == similarity.argmax(1)[:, None]
    return (nearest & (best > 0)).astype(np.float32)


def combined(
    sentences: Sequence[str], attention: Sequence[np.ndarray], passages: Sequence[TextIndex], title: str
) -> np.ndarray:
    """Return weights [sentences, M] from the ``attention`` [M] of each sentence and the words shared with paragraphs.

    Each name, number and other word of a sentence distributes its weight over the paragraphs that contain it, in
    proportion to their attention. Rare words weigh more; words of the title are ignored. If no word occurs in any
    paragraph, the attention is returned. On the factbook's test split (``raysum quickstart``), citations have 98 %
    precision and 98 % recall; by attention alone 57 % and 95 %, by words alone 67 % and 38 %.
    """
    known = {part.text for part in said(title)}
    return np.array(
        [
            _weighed([part for part in said(sentence) if part.text not in known], weights, passages)
            for sentence, weights in zip(sentences, attention, strict=True)
        ]
    ).reshape(len(sentences), len(passages))


def _weighed(parts: Sequence[Said], attention: np.ndarray, passages: Sequence[TextIndex]) -> np.ndarray:
    paid = attention + np.finfo(np.float32).tiny  # a paragraph that was not read may hold it, too
    weights = np.zeros(len(passages))
    for part in parts:
        holding = np.array([passage.holds(part) for passage in passages])
        if holding.any():
            rare = np.log((1 + len(passages)) / (1 + holding.sum()))
            weights += (1.0 if part.name else _WORD) * rare * holding * paid / paid[holding].sum()
    return weights / weights.sum() if weights.any() else attention


def strongest(weights: np.ndarray) -> list[tuple[int, float]]:
    """Return citations as :func:`cited` does: at most three weights that are at least a fifth of the highest."""
    return cited(np.where(weights >= LEAST * weights.max(initial=0), weights, 0), 1.0)


def cited(weights: np.ndarray, part: float = SHARE) -> list[tuple[int, float]]:
    """Return the paragraphs of highest ``weights`` [M] with their weights, in falling order, normalized to sum to 1.

    Enough paragraphs to reach ``part`` of the total are cited, but at most three, and none of weight 0.
    """
    order = np.argsort(-weights, kind="stable")[:MOST]
    reached = np.cumsum(weights[order]) >= part * weights.sum()
    chosen = order[: int(reached.argmax()) + 1 if reached.any() else MOST]
    chosen = chosen[weights[chosen] > 0]
    return [(int(index), float(weights[index] / weights[chosen].sum())) for index in chosen]


def gold_attention(summary: str, paragraphs: Sequence[str]) -> np.ndarray:
    """Return the gold attention [M]: tf-idf cosines with the reference ``summary``, normalized to sum to 1.

    PHT paper (attention alignment), section 7.1.1. If no paragraph shares a word with the summary, all are equal.
    """
    similarities = _tfidf([summary], paragraphs)[0]
    total = similarities.sum()
    return similarities / total if total else np.full(len(paragraphs), 1 / max(len(paragraphs), 1))


def attention_similarity(attention: ArrayLike, gold: ArrayLike) -> float:
    """Return the cosine between two distributions over the same M paragraphs; 0 if one of them is all zeros.

    Raises ValueError if they differ in length.
    """
    first, second = np.asarray(attention, float), np.asarray(gold, float)
    if first.shape != second.shape:
        raise ValueError(f"attention over {first.size} paragraphs, gold over {second.size}")
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / lengths) if lengths else 0.0


def _tfidf(texts: Sequence[str], paragraphs: Sequence[str]) -> np.ndarray:
    """Cosines [texts, M]; document frequencies are those of the paragraphs."""
    vectors = TfIdf([words(paragraph) for paragraph in paragraphs])
    return np.array([vectors.cosine(words(text)) for text in texts]).reshape(len(texts), len(paragraphs))
