"""Which paragraphs a sentence rests on: by the attention paid to them, or by the words it shares with them."""

from collections.abc import Sequence

import numpy as np

MOST = 3  # paragraphs cited for a sentence: more than a reader would check
SHARE = 0.9  # of a sentence's attention that its citations need not exceed


def overall(weights: np.ndarray) -> np.ndarray:
    """The share [M] of each paragraph in the attention ``weights`` [K, M] of a summary (PHT eq. 15)."""
    total = weights.sum(0)
    return total / max(total.sum(), np.finfo(np.float32).tiny)


def lexical(sentences: Sequence[str], paragraphs: Sequence[str]) -> np.ndarray:
    """Weights [sentences, M]: 1 at the paragraph of highest tf-idf cosine, a row of zeros where no word is shared."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+")
    known = vectorizer.fit_transform(paragraphs)
    similarity = (vectorizer.transform(sentences) @ known.T).toarray()
    best = similarity.max(1, keepdims=True)
    nearest = np.arange(len(paragraphs)) == similarity.argmax(1)[:, None]
    return (nearest & (best > 0)).astype(np.float32)


def cited(weights: np.ndarray) -> list[tuple[int, float]]:
    """Paragraphs of highest ``weights`` [M] and their weights, falling, which sum to one.

    As many as make up nine tenths of the whole, but at most three; none of weight 0.
    """
    order = np.argsort(-weights, kind="stable")[:MOST]
    reached = np.cumsum(weights[order]) >= SHARE * weights.sum()
    chosen = order[: int(reached.argmax()) + 1 if reached.any() else MOST]
    chosen = chosen[weights[chosen] > 0]
    return [(int(index), float(weights[index] / weights[chosen].sum())) for index in chosen]
