"""Extractive systems: each puts the texts of a source, paragraphs or sentences, in order; a summary takes the best.

M texts of a source, T different words.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, ClassVar

import numpy as np

from raysum.config.sections import LoadConfig
from raysum.extract.source_texts import SourceTexts, Taken
from raysum.prepare.ranking import best_first, centrality, positions
from raysum.runs.folder import Run
from raysum.systems import extractive, extractive_names, part
from raysum.text.cleaning import bigrams
from raysum.text.languages import content_words

# Chosen on development clusters of several sets (bench/RESULTS.md).
_TITLE, _POSITION, _POSITION_IN_ONE, _PERSONAL = 0.5, 0.5, 0.25, 0.7
_SHORT = 5  # content words of a turn of a dialogue; shorter ones are "yes, I see"


class Extractive(ABC):
    """An extractive system. It yields texts one by one, and ``Taken`` shows it which are in the summary."""

    name: str
    how: str  # description of the order of a row's texts, for people
    opens_with_title: ClassVar[bool] = False  # if it is cut at a length, as in the papers' tables
    needs_reference: ClassVar[bool] = False
    settings: ClassVar[dict[str, Any]] = {}  # defaults of ExtractConfig
    reads_sentences: ClassVar[bool] = False  # not paragraphs
    readable: ClassVar[bool] = True  # default setting: follow the rules for readable summaries
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


def training_free() -> list[Extractive]:
    """Return the registered systems that need no reference and have no length of their own."""
    named: list[Extractive] = [extractive(name) for name in extractive_names()]
    return [system for system in named if not system.needs_reference and not system.settings]


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
    readable = False
    redundancy = 1.0
    settings: ClassVar[dict[str, Any]] = {"sentences": 3}

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        return range(len(source.texts))


class LexRank(Extractive):
    """The most central first (Erkan and Radev, 2004, with cosines as edge weights).

    Among sentences of a cluster, the scores are multiplied by 1 + 0.5 x cosine with the title, by 1 + 0.5 / position in
    the document (0.25 if there is only one), by 0.7 in the first person, which needs the name of the speaker, and in a
    dialogue by n / 5 with n < 5 content words.
    """

    name = "lexrank"
    how = "most central paragraphs first"

    def order(self, source: SourceTexts, taken: Taken) -> Iterable[int]:
        return best_first(self.relevance(source)).tolist()

    def relevance(self, source: SourceTexts) -> np.ndarray:
        scores = centrality(source.vectors)
        if source.candidates is None:
            return scores
        scores *= 1 + _TITLE * source.vectors.cosine(content_words(source.title, source.candidates.language))
        position = _POSITION if len({*source.documents}) > 1 else _POSITION_IN_ONE
        scores *= 1 + position / (1 + positions(np.array(source.documents)))
        scores[source.candidates.personal()] *= _PERSONAL
        spoken, sizes = source.candidates.spoken(), np.bincount(source.vectors.rows, minlength=len(scores))
        scores[spoken] *= np.minimum(sizes[spoken] / _SHORT, 1)
        return scores / (scores.max() or 1)


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
    readable = False

    def order(self, source: SourceTexts, taken: Taken) -> Iterator[int]:
        wanted = bigrams(source.reference.lower().split())
        own = [bigrams(text.lower().split()) & wanted for text in source.texts]

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
