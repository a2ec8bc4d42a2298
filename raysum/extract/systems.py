"""Extractive systems: each puts the texts of a source, paragraphs or sentences, in order.

M texts of a source, T different words.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from raysum.prepare.ranking import best_first, centrality
from raysum.text.tfidf import TfIdf, words

_RELEVANCE = 0.7  # weight of relevance in MMR (lambda); 0.3 is the weight of the distance from taken texts


@dataclass(frozen=True)
class SourceTexts:
    """The texts that a summary may take, in order, with the ``documents`` they come from, if known.

    ``row`` is the dataset row that contains these sentences, if there is one.
    """

    texts: Sequence[str]
    documents: Sequence[int] = ()
    reference: str = ""
    row: Any = None

    @cached_property
    def vectors(self) -> TfIdf:
        return TfIdf([words(text) for text in self.texts])


class Taken:
    """The numbers of the texts of a source that are in the summary so far."""

    def __init__(self, source: SourceTexts):
        self.numbers: list[int] = []
        self._source, self._compared = source, 0
        self._nearness = np.zeros(len(source.texts))

    def nearness(self) -> np.ndarray:
        """Return [M]: the highest tf-idf cosine of each text with a taken one, or 0 if none is taken."""
        for number in self.numbers[self._compared :]:
            self._nearness = np.maximum(self._nearness, self._source.vectors.nearness(number))
        self._compared = len(self.numbers)
        return self._nearness

    def repeats(self, number: int, redundancy: float | str) -> bool:
        """Return whether a text repeats a taken one, by the setting ``redundancy`` of ExtractConfig."""
        if redundancy == "trigram":
            own = _trigrams(self._source.texts[number])
            return any(own & _trigrams(self._source.texts[taken]) for taken in self.numbers)
        return not isinstance(redundancy, str) and redundancy < 1 and bool(self.nearness()[number] > redundancy)


class Extractive(ABC):
    """An extractive system. It yields texts one by one, and ``Taken`` shows it which are in the summary."""

    name: str
    how: str  # description of the order of a row's texts, for people
    opens_with_title: ClassVar[bool] = False  # if it is cut at a length, as in the papers' tables
    needs_reference: ClassVar[bool] = False
    settings: ClassVar[dict[str, Any]] = {}  # defaults of ExtractConfig
    reads_sentences: ClassVar[bool] = False  # not paragraphs
    redundancy: ClassVar[float] = 0.7  # default setting: cosine above which a sentence repeats another

    def row(self, cluster: Mapping[str, Any]) -> Any:
        """Return the dataset row of a raw cluster, or None if the system needs only its texts."""
        return None

    def relevance(self, source: SourceTexts) -> np.ndarray:
        """Return the relevance [M] of each text, 0 to 1."""
        order = [*self.order(source, Taken(source))]
        relevance = np.zeros(len(source.texts))
        relevance[order] = 1 - np.arange(len(order)) / len(order)
        return relevance

    def ordered(self, source: SourceTexts, taken: Taken, redundancy: float | str) -> Iterable[int]:
        """Return the order of :meth:`order`, or by relevance and novelty if ``redundancy`` is ``mmr``."""
        return marginal(self.relevance(source), taken) if redundancy == "mmr" else self.order(source, taken)

    @abstractmethod
    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        """Return the numbers of the texts of ``source``, best first."""


class Lead(Extractive):
    """The first texts. With several documents: the first of each, then the second of each (DUC's coverage baseline).

    With one source, the title comes first (the baseline of the HT and PHT papers).
    """

    name = "lead"
    how = "title, then ranked paragraphs"
    opens_with_title = True

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        if not source.documents:
            return range(len(source.texts))
        seen = Counter[int]()
        depth = []
        for document in source.documents:
            depth.append(seen[document])
            seen[document] += 1
        return np.argsort(depth, kind="stable").tolist()


class Lead3(Extractive):
    """The first three sentences, the usual baseline of news (Nallapati et al., 2017)."""

    name = "lead3"
    how = "the first sentences"
    reads_sentences = True
    redundancy = 1.0
    settings: ClassVar[dict[str, Any]] = {"sentences": 3}

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        return range(len(source.texts))


class LexRank(Extractive):
    """The most central first (Erkan and Radev, 2004, with cosines as edge weights)."""

    name = "lexrank"
    how = "most central paragraphs first"

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        return best_first(centrality(source.vectors)).tolist()


class Mmr(Extractive):
    """Maximal marginal relevance (Carbonell and Goldstein, 1998) to the centroid of tf-idf (Radev et al., 2004)."""

    name = "mmr"
    how = "central paragraphs first, unlike those before them"

    def order(self, source: SourceTexts, taken: Taken) -> Iterator[int]:
        centroid = source.vectors.total(np.ones(len(source.texts)))
        return marginal(source.vectors.project(centroid / (np.linalg.norm(centroid) or 1)), taken)


class Oracle(Extractive):
    """Greedy selection by bigrams of the reference: about the upper bound of extraction."""

    name = "oracle"
    how = "paragraphs with most of the reference's bigrams first"
    needs_reference = True

    def order(self, source: SourceTexts, taken: Taken) -> Iterator[int]:
        missing = _bigrams(source.reference)
        own = [_bigrams(text) & missing for text in source.texts]
        left = list(range(len(own)))
        while left:
            gains = {number: (missing & own[number]).total() for number in left}
            ordered = sorted(left, key=lambda number: -gains[number])
            used = yield from _until_one_is_taken(ordered, taken)
            missing = missing - own[ordered[used - 1]]
            left = sorted(ordered[used:])


def marginal(relevance: np.ndarray, taken: Taken) -> Iterator[int]:
    """Yield text numbers by ``relevance`` [M] and distance from the taken texts, which is updated after each."""
    left = np.arange(len(relevance))
    while len(left):
        gain = _RELEVANCE * relevance - (1 - _RELEVANCE) * taken.nearness()
        left = left[best_first(gain[left])]
        used = yield from _until_one_is_taken(left.tolist(), taken)
        left = np.sort(left[used:])


def _until_one_is_taken(ordered: list[int], taken: Taken) -> Generator[int, None, int]:
    """Yield the numbers until one is taken, and return how many were used."""
    before = len(taken.numbers)
    for used, number in enumerate(ordered, 1):
        yield number
        if len(taken.numbers) > before:
            return used
    return len(ordered)


def _bigrams(text: str) -> Counter[tuple[str, str]]:
    return Counter(pairwise(text.lower().split()))


@lru_cache(maxsize=4096)
def _trigrams(text: str) -> frozenset[tuple[str, ...]]:
    tokens = words(text)
    return frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False))
