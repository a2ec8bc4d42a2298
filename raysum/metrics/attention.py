"""How close the attention of a summary over paragraphs comes to what the reference summary looks like.

PHT paper (attention alignment), section 7.1.1: the gold distribution is the normalized tf-idf similarity between the
reference summary and each paragraph, and a system is scored by the cosine between its attention and that.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def gold_attention(summary: str, paragraphs: Sequence[str]) -> np.ndarray:
    """[M] tf-idf cosine similarity of ``summary`` to each of M paragraphs, divided by its sum.

    Document frequencies are those of the paragraphs. Where no paragraph shares a word with the summary all are equal.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    even = np.full(len(paragraphs), 1 / max(len(paragraphs), 1))
    words = TfidfVectorizer(token_pattern=r"\w+")
    try:
        vectors = words.fit_transform(paragraphs)
    except ValueError:  # there is no word in any paragraph
        return even
    similarities = (vectors @ words.transform([summary]).T).toarray()[:, 0]
    total = similarities.sum()
    return similarities / total if total else even


def attention_similarity(attention: ArrayLike, gold: ArrayLike) -> float:
    """Cosine between two distributions over the same M paragraphs; 0 where one of them is all zeros.

    Raises ValueError where they differ in length.
    """
    first, second = np.asarray(attention, float), np.asarray(gold, float)
    if first.shape != second.shape:
        raise ValueError(f"attention over {first.size} paragraphs, gold over {second.size}")
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / lengths) if lengths else 0.0
