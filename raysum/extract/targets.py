"""What an extractor learns to predict: how much of the references a sentence contains.

M sentences of a cluster. A value is counted for each word of the sentence, and is the highest over the references.
"""

from collections.abc import Callable, Sequence

import numpy as np

from raysum.metrics.citations import TextIndex, said
from raysum.models.systems.specs import Target
from raysum.text.cleaning import bigrams
from raysum.text.tfidf import words

_SHORT = 5  # words added to the length of a sentence, so that very short ones do not get the highest values


def sentence_targets(target: Target, sentences: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return the target values [M] of the ``sentences``: the shared content by ``target``, per word.

    ``rouge2`` counts the bigrams of the sentence that a reference has, ``rougeL`` the words of a longest common
    subsequence with a reference, and ``support`` the names, numbers and other words of a reference that the sentence
    has (see ``metrics.citations``; a name counts as three words, and each part once).
    """
    lengths = np.array([len(words(text)) + _SHORT for text in sentences])
    return np.max([_SHARED[target](sentences, text) for text in references], axis=0) / lengths


def _bigrams(sentences: Sequence[str], reference: str) -> list[int]:
    wanted = bigrams(words(reference))
    return [(bigrams(words(text)) & wanted).total() for text in sentences]


def _subsequences(sentences: Sequence[str], reference: str) -> list[int]:
    """Return the lengths of the longest common subsequences, by the bits of integers (Hyyrö, 2004)."""
    places: dict[str, int] = {}
    wanted = words(reference)
    for place, word in enumerate(wanted):
        places[word] = places.get(word, 0) | 1 << place
    every, lengths = (1 << len(wanted)) - 1, []
    for text in sentences:
        row = every  # a bit is 0 where the length grows
        for word in words(text):
            same = row & places.get(word, 0)
            row = (row + same | row - same) & every
        lengths.append(len(wanted) - row.bit_count())
    return lengths


def _support(sentences: Sequence[str], reference: str) -> list[int]:
    parts = {(part.text, part.name): part for part in said(reference)}.values()
    indices = (TextIndex([text]) for text in sentences)
    return [sum(part.weight for part in parts if index.holds(part)) for index in indices]


_SHARED: dict[Target, Callable[[Sequence[str], str], list[int]]] = {
    "rouge2": _bigrams,
    "rougeL": _subsequences,
    "support": _support,
}
