"""Extractive systems: each puts the texts of a source, paragraphs or sentences, in order; a summary takes the best.

M texts of a source, T different words.
"""

import sys
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count, pairwise
from typing import Any, ClassVar

import numpy as np

from raysum.config.decoding import ExtractConfig
from raysum.config.sections import LoadConfig
from raysum.prepare.ranking import best_first, centrality
from raysum.runs.folder import Run
from raysum.systems import part
from raysum.text.tfidf import TfIdf, count_words, words

WORDS = 100  # of a summary
_TOLERANCE = 1.2  # times the limit of words that the only sentence of a summary may have, if none is shorter
_TRIES = 1000  # consecutive texts that are too long; then the summary is full
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

    def best_first(self, gain: Callable[[np.ndarray], np.ndarray]) -> Iterator[int]:
        """Yield text numbers by their ``gain`` [M'], which is computed again for the remaining ones [M'] after each
        text that is taken."""
        left = np.arange(len(self._source.texts))
        while len(left):
            left, before, used = left[best_first(gain(left))], len(self.numbers), 0
            while used < len(left) and len(self.numbers) == before:
                yield int(left[used])
                used += 1
            left = np.sort(left[used:])

    def marginal(self, relevance: np.ndarray) -> Iterator[int]:
        """Yield text numbers by ``relevance`` [M] and distance from the taken texts."""
        return self.best_first(lambda left: (_RELEVANCE * relevance - (1 - _RELEVANCE) * self.nearness())[left])


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
        depths = defaultdict[int, Iterator[int]](count)
        return np.argsort([next(depths[document]) for document in source.documents], kind="stable").tolist()


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
        return taken.marginal(source.vectors.project(centroid / (np.linalg.norm(centroid) or 1)))


class Oracle(Extractive):
    """Greedy selection by bigrams of the reference: about the upper bound of extraction."""

    name = "oracle"
    how = "paragraphs with most of the reference's bigrams first"
    needs_reference = True

    def order(self, source: SourceTexts, taken: Taken) -> Iterator[int]:
        wanted = _bigrams(source.reference)
        own = [_bigrams(text) & wanted for text in source.texts]

        def gain(left: np.ndarray) -> np.ndarray:
            missing = wanted - sum((own[number] for number in taken.numbers), Counter())
            return np.array([(missing & own[number]).total() for number in left])

        return taken.best_first(gain)


class TrainedExtractive(Extractive):
    """The model of a run that extracts, by the scores of its sentences."""

    reads_sentences = True
    redundancy = 1.0  # as in the papers: similar sentences are allowed

    def __init__(self, run: Run, config: LoadConfig, device: str | None = None):
        self.name, self.how = run.name, "sentences of the highest scores first"
        self.scorer = part("raysum.sentence_scorers", run.config.model.SCORER)(run, config, device)

    def row(self, cluster: Mapping[str, Any]) -> Any:
        return self.scorer.row(cluster)

    def relevance(self, source: SourceTexts) -> np.ndarray:
        scores = self.scorer.scores(source.row)
        return scores / max(float(scores.max()), 1e-9)

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        return best_first(self.scorer.scores(source.row)).tolist()


def take(system: Extractive, source: SourceTexts, settings: ExtractConfig, whole: bool = True) -> list[int]:
    """Return the numbers of the texts that ``system`` takes, in its order, within the limits of ``settings``.

    A text is skipped if it repeats one that is taken (cross-sentence subsumption as in MEAD, Radev et al., 2004, by
    cosine, or by trigrams, Paulus et al., 2018), or if it has more words than the limit still allows. If every text
    has more words than the limit, the best of those up to 20 % above it is taken; if there is none, the shortest.
    Unless ``whole``, no text is too long, and words are separated by spaces: the caller cuts the last text.
    """
    redundancy = system.redundancy if settings.redundancy is None else settings.redundancy
    limit, most = most_words(settings), settings.sentences or len(source.texts)
    taken, left = Taken(source), limit
    too_long: dict[int, int] = {}  # lengths in words of consecutive texts
    by_novelty = redundancy == "mmr"
    for number in taken.marginal(system.relevance(source)) if by_novelty else system.order(source, taken):
        length = count_words(source.texts[number]) if whole else len(source.texts[number].split())
        if whole and length > left:
            too_long[number] = length
            if len(too_long) >= _TRIES and taken.numbers:
                break
        elif not taken.repeats(number, redundancy):
            taken.numbers.append(number)
            left, too_long = left - length, {}
            if left <= 0 or len(taken.numbers) == most:
                break
    if taken.numbers or not too_long:
        return taken.numbers
    best = next((number for number, length in too_long.items() if length <= _TOLERANCE * limit), None)
    return [min(too_long, key=too_long.__getitem__) if best is None else best]


def most_words(settings: ExtractConfig) -> int:
    """Return the most words of a summary."""
    return settings.words or (sys.maxsize if settings.sentences else WORDS)


def _bigrams(text: str) -> Counter[tuple[str, str]]:
    return Counter(pairwise(text.lower().split()))


@lru_cache(maxsize=4096)
def _trigrams(text: str) -> frozenset[tuple[str, ...]]:
    tokens = words(text)
    return frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False))
