"""The texts of a cluster that a summary may take, and those that it has taken so far.

M texts of a source, T different words.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from raysum.extract.candidates import Candidates
from raysum.prepare.ranking import best_first
from raysum.text.amounts import WRITTEN
from raysum.text.languages import content_words
from raysum.text.names import WORD, is_name
from raysum.text.tfidf import TfIdf, words

_RELEVANCE = 0.7  # weight of relevance in MMR (lambda); 0.3 is the weight of the distance from taken texts
_SAME, _COMPARED, _MERGED = 0.7, 20, 2  # cosine of texts with the same content; the most compared and cited ones
_OPENING = 4  # words: two sentences of a summary do not begin with the same ones


@dataclass(frozen=True)
class SourceTexts:
    """The texts that a summary may take, in order, with the ``documents`` they come from, if known.

    ``row`` is the dataset row that contains these sentences, if there is one.
    """

    texts: Sequence[str]
    documents: Sequence[int] = ()
    reference: str = ""
    row: Any = None
    title: str = ""
    candidates: Candidates | None = None

    @classmethod
    def of(cls, row: Any, readable: bool) -> "SourceTexts":
        """Return the sentences of a row of kind extraction; ``readable``: as far as a summary can print them."""
        candidates = Candidates(row) if readable else None
        texts = row["text"] if readable else [" ".join(quote.split()) for quote in row["text"]]
        documents = [int(document) for document in row["document"]]
        return cls(texts, documents, row["summary"], row, row["title"], candidates)

    @cached_property
    def vectors(self) -> TfIdf:
        """The tf-idf vectors of the texts, by their :meth:`content`."""
        return TfIdf([*map(self.content, range(len(self.texts)))])

    def content(self, number: int) -> list[str]:
        """Return the words of a text that are compared."""
        text = self.texts[number]
        return content_words(text, self.candidates.languages[number]) if self.candidates else words(text)

    def language_of(self, document: int | None) -> str:
        """Return the language of a document, or with None of most texts."""
        assert self.candidates is not None
        languages = zip(self.documents, self.candidates.languages, strict=True)
        return dict(languages).get(-1 if document is None else document, self.candidates.language)

    def profile(self, text: str) -> np.ndarray:
        """Return [M]: the tf-idf cosines of ``text`` with all texts, of length 1, or 0 if it has no known word."""
        near = self.vectors.cosine(content_words(text, self.language_of(None)))
        return near / (np.linalg.norm(near) or 1)

    def group(self, number: int, taken: Sequence[int]) -> list[int]:
        """Return a text with those that must be printed before it and are not ``taken``; [] if none may be printed."""
        return self.candidates.group(number, taken) if self.candidates else [number]

    def same_content(self, number: int) -> list[int]:
        """Return at most two texts of other documents that say the same as a candidate, with the same names."""
        if self.candidates is None:
            return []
        near = self.vectors.nearness(number)
        order = [each for each in best_first(near).tolist() if near[each] > _SAME and each != number]
        found = dict[int, int]()  # by document
        for each in order[:_COMPARED]:
            document = self.documents[each]
            if document != self.documents[number] and _names(self.texts[each]) == _names(self.texts[number]):
                found.setdefault(document, each)
        return [*found.values()][:_MERGED]

    def printed(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts ``numbers`` as they are printed in this order."""
        return self.candidates.printed(numbers) if self.candidates else [self.texts[number] for number in numbers]


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
        if isinstance(redundancy, str) or redundancy == 1:
            return False
        return bool(self.nearness()[number] > redundancy) or self._opens_alike(number)

    def _opens_alike(self, number: int) -> bool:
        """Return whether a candidate begins with the same words as a taken one."""
        if self._source.candidates is None:
            return False
        openings = [words(self._source.candidates.text(each))[:_OPENING] for each in (number, *self.numbers)]
        return openings[0] in openings[1:]

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


@lru_cache(maxsize=4096)
def _trigrams(text: str) -> frozenset[tuple[str, ...]]:
    tokens = words(text)
    return frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False))


def _names(text: str) -> set[str]:
    """Return the numbers and capitalized words but the first word, also numbers in words; or, without capitals, all."""
    if not any(map(str.islower, text)):
        return {*words(text)}
    found = WORD.findall(text)
    return {*filter(is_name, found[1:])} | {word.lower() for word in found if word.lower() in WRITTEN}
