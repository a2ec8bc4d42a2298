"""The second question: which paragraphs each sentence of a summary rests on, out of whatever the teacher answers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from raysum.prepare.paragraphs import Paragraph

CITATIONS = "citations"  # the field of a raw cluster that must be kept (`keep: [citations]` of the recipe)
_TRIED = 100  # places where JSON may begin
_BEGIN = "{["

Citations = list[dict[str, Any]]


def citations_of(answer: str, sentences: Sequence[str], paragraphs: Sequence[Paragraph]) -> Citations | None:
    """For each sentence its ``paragraphs``, as pairs of document and paragraph within it, from 0. None where the answer
    holds no JSON that names one.

    Prose and code fences around the JSON, numbers as texts, and lists in place of an object are understood. Numbers
    beyond the paragraphs are left out.
    """
    for value in _values(answer):
        numbers = _by_sentence(value, len(sentences))
        found = [sorted({n for n in some if 0 < n <= len(paragraphs)}) for some in numbers]
        if any(found):
            places = [[[paragraphs[n - 1].document, paragraphs[n - 1].number] for n in some] for some in found]
            return [{"sentence": text, "paragraphs": some} for text, some in zip(sentences, places, strict=True)]
    return None


def _values(text: str) -> Iterator[Any]:
    """What JSON there is in a text, from left to right."""
    decoder, place = json.JSONDecoder(), 0
    for _ in range(_TRIED):
        starts = [found for sign in _BEGIN if (found := text.find(sign, place)) >= 0]
        if not starts:
            return
        try:
            value, place = decoder.raw_decode(text, min(starts))
            yield value
        except (ValueError, RecursionError):
            place = min(starts) + 1


def _by_sentence(value: Any, sentences: int) -> list[list[int]]:
    """The paragraph numbers of each sentence, as far as a value tells any."""
    if isinstance(value, dict):
        nested = [one for one in value.values() if isinstance(one, dict)]
        if len(value) == len(nested) == 1:  # {"citations": {"1": [2]}}
            return _by_sentence(nested[0], sentences)
        return [_numbers(value.get(str(number), [])) for number in range(1, sentences + 1)]
    if isinstance(value, list) and len(value) == sentences and all(isinstance(one, list) for one in value):
        return [_numbers(one) for one in value]
    return []


def _numbers(value: Any) -> list[int]:
    given = value if isinstance(value, list) else [value]
    texts = (str(one).strip("[] ") for one in given if isinstance(one, int | str) and not isinstance(one, bool))
    return [int(text) for text in texts if text.isdecimal() and len(text) < 9]


def reference_places(extra: str) -> set[tuple[int, int]]:
    """The paragraphs that a row's reference citations name, where its kept fields (JSON, or "") hold any."""
    try:
        told = json.loads(extra or "{}").get(CITATIONS)
        return {(int(document), int(number)) for one in told or () for document, number in one["paragraphs"]}
    except (KeyError, ValueError, TypeError, AttributeError):
        return set()
