"""Sentences that are whole but do not belong in a summary: repeated headlines, and speech and narrators of stories.

M sentences of a row of kind extraction, in order.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from raysum.text.languages import content_words
from raysum.text.readability import is_first_person

_OPENING = 4  # sentences at the beginning of a document in which its headlines can be
# "WASHINGTON (AP) --", "Wien -", "Lesbos/Athen (dpa) –" before the first sentence of news
_PLACE = r"[A-ZÀ-Ž][\w.'’]+(?:[ /-][A-ZÀ-Ž][\w.'’]*){0,3}(?:, [A-Z][\w. ]{0,14})?"
_DATELINE = re.compile(rf"{_PLACE}(?: \([\w /,.]{{2,20}}\))? (?:-|--|–|—|:) ?(?=[“„\"]?[A-ZÀ-Ž0-9])")
_FEWEST, _REPEATED = 3, 0.6  # content words of a headline, and the share of them in one of the sentences after it
_SPEECH = re.compile(r"[“„«»\"‘']\w|[–—-]+ ?[“„«\"]")
_QUOTES, _OPENING_QUOTES = re.compile('[“”„«»"]'), "“„«"
_ADDRESSED = re.compile(r"\b(?:you|your|yours|thou|thee|thy)\b", re.I)
_STORY, _FEWEST_SPEECHES = 0.15, 8  # share and number of the sentences of a document that begin with a quotation


def unprinted(texts: Sequence[str], places: Sequence[tuple[int, int]], languages: Sequence[str]) -> set[int]:
    """Return the numbers of the sentences [M] that a summary leaves out, if there are others.

    They are headlines that the beginning of their document repeats, and in stories speech and the first person.
    ``places`` [M] are documents and paragraphs.
    """
    found = set[int]()
    by_document = defaultdict[int, list[int]](list)
    for number, (document, _) in enumerate(places):
        by_document[document].append(number)
    for numbers in by_document.values():
        if len(numbers) > _OPENING:
            found |= _headlines(texts, numbers[:_OPENING], languages)
        begun = sum(_SPEECH.match(texts[number]) is not None for number in numbers)
        if begun >= max(_FEWEST_SPEECHES, _STORY * len(numbers)):
            found |= _speeches(texts, places, numbers)
            found.update(number for number in numbers if is_first_person(texts[number], languages[number]))
    return found


def _headlines(texts: Sequence[str], opening: Sequence[int], languages: Sequence[str]) -> set[int]:
    """Return the sentences before a dateline, and the first one if a longer one after it has most of its words."""
    dated = next((place for place, number in enumerate(opening) if _DATELINE.match(texts[number])), 0)
    first, *later = ({*content_words(texts[number], languages[number])} for number in opening)
    longer = [words for words in later if len(words) > len(first) >= _FEWEST]
    is_repeated = any(len(first & words) >= _REPEATED * len(first) for words in longer)
    return {*opening[: max(dated, int(is_repeated))]}


def _speeches(texts: Sequence[str], places: Sequence[tuple[int, int]], numbers: Sequence[int]) -> set[int]:
    """Return those of ``numbers`` that begin with a quotation, or within one of their paragraph, or say "you"."""
    found, is_open, before = set[int](), False, (-1, -1)
    for number in numbers:
        text, place = texts[number], places[number]
        is_open = is_open and place == before
        if is_open or _SPEECH.match(text) or _ADDRESSED.search(text):
            found.add(number)
        for mark in _QUOTES.findall(text):
            is_open = mark in _OPENING_QUOTES if mark != '"' else not is_open
        before = place
    return found
