"""Selection of the texts of a summary: in the order of a system, within a length, without repetitions."""

import sys
from dataclasses import dataclass, replace
from math import ceil

from raysum.config.decoding import WORDS, ExtractConfig
from raysum.extract.source_texts import SourceTexts, Taken
from raysum.extract.systems import Extractive
from raysum.text.tfidf import count_words

_TOLERANCE = 1.2  # times the limit that the only sentence of a summary may have, if none is shorter
_TRIES = 1000  # consecutive texts that are too long; then the summary is full
_SHRINKS, _ROOM = 2, 10  # a printed text is at least as long as the raw one divided by 2, less 10


@dataclass(frozen=True)
class Length:
    """The most of a summary: ``limit`` words or characters, and ``sentences``."""

    limit: int
    sentences: int
    unit: str = "words"

    @classmethod
    def of(cls, settings: ExtractConfig, source: SourceTexts) -> "Length":
        """Return the length by ``settings`` of a summary of ``source``, at least one word."""
        sentences = settings.sentences or len(source.texts)
        if settings.characters:
            return cls(settings.characters, sentences, "characters")
        if settings.percent:
            return cls(ceil(settings.percent / 100 * sum(map(count_words, source.texts))), sentences)
        return cls(settings.words or (sys.maxsize if settings.sentences else WORDS), sentences)

    @property
    def space(self) -> int:
        """The length of the space between two texts."""
        return int(self.unit == "characters")

    def count(self, text: str) -> int:
        """Return the length of a text."""
        return count_words(text) if self.unit == "words" else len(text)


def take(system: Extractive, source: SourceTexts, settings: ExtractConfig, whole: bool = True) -> list[int]:
    """Return the numbers of the texts that ``system`` takes, in its order, within the limits of ``settings``.

    A text is skipped if it repeats one that is taken (cross-sentence subsumption as in MEAD, Radev et al., 2004, by
    cosine, or by trigrams, Paulus et al., 2018), or if it is longer than the limit still allows. If every text is
    longer than the limit, the best of those up to 20 % above it is taken; if there is none, the shortest. A text that
    continues another is taken with that one. If no text can be printed by the rules of ``source.candidates``, they do
    not apply. Unless ``whole``, no text is too long, and words are separated by spaces: the caller cuts the last text.
    """
    redundancy = system.redundancy if settings.redundancy is None else settings.redundancy
    length = Length.of(settings, source)
    taken, left = Taken(source), length.limit + length.space
    too_long: dict[int, int] = {}  # lengths of consecutive texts
    by_novelty = redundancy == "mmr"
    for number in taken.marginal(system.relevance(source)) if by_novelty else system.order(source, taken):
        if whole and too_long and length.count(source.texts[number]) > _SHRINKS * left + _ROOM:
            group, size = [number], length.count(source.texts[number])
        else:
            group = source.group(number, taken.numbers)
            printed = (source.printed([each])[0] for each in group)
            size = sum(length.count(text) + length.space if whole else len(text.split()) for text in printed)
        if not group or number in taken.numbers:
            continue
        if (whole and size > left) or len(taken.numbers) + len(group) > length.sentences:
            too_long[number] = size
            if len(too_long) >= _TRIES and taken.numbers:
                break
        elif not any(taken.repeats(each, redundancy) for each in group):
            taken.numbers += group
            left, too_long = left - size, {}
            if left <= 0 or len(taken.numbers) == length.sentences:
                break
    if not taken.numbers and not too_long and source.candidates:
        return take(system, replace(source, candidates=None), settings, whole)
    if taken.numbers or not too_long:
        return taken.numbers
    best = next((number for number, size in too_long.items() if size <= _TOLERANCE * length.limit), None)
    return [min(too_long, key=too_long.__getitem__) if best is None else best]
