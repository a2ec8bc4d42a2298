"""Citations in a teacher's answer: which paragraphs support each sentence of its summary."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from raysum.prepare.paragraphs import Paragraph

CITATIONS = "citations"  # the field of a raw cluster, which `prepare --keep citations` keeps
_MOST_STARTS = 100  # positions where JSON may begin


def citations_of(answer: str, sentences: Sequence[str], paragraphs: Sequence[Paragraph]) -> list[dict[str, Any]] | None:
    """Return the ``paragraphs`` of each sentence as pairs [document, paragraph within it], both from 0.

    None if no JSON in the answer names a paragraph. Prose and code fences around the JSON, numbers as strings, and
    lists instead of an object are accepted. Unknown paragraph numbers are skipped.
    """
    for value in _json_values(answer):
        numbers = [
            sorted({number for number in row if 0 < number <= len(paragraphs)})
            for row in _by_sentence(value, len(sentences))
        ]
        if any(numbers):
            pairs = [[[paragraphs[n - 1].document, paragraphs[n - 1].number] for n in row] for row in numbers]
            return [{"sentence": text, "paragraphs": row} for text, row in zip(sentences, pairs, strict=True)]
    return None


def _json_values(text: str) -> Iterator[Any]:
    """Yield the JSON objects and lists of a text, from left to right."""
    decoder, position = json.JSONDecoder(), 0
    for _ in range(_MOST_STARTS):
        starts = [start for bracket in "{[" if (start := text.find(bracket, position)) >= 0]
        if not starts:
            return
        try:
            value, position = decoder.raw_decode(text, min(starts))
            yield value
        except (ValueError, RecursionError):
            position = min(starts) + 1


def _by_sentence(value: Any, sentences: int) -> list[list[int]]:
    """Return the paragraph numbers of each sentence, or an empty list if the value has another form."""
    if isinstance(value, dict):
        nested = [inner for inner in value.values() if isinstance(inner, dict)]
        if len(value) == len(nested) == 1:  # {"citations": {"1": [2]}}
            return _by_sentence(nested[0], sentences)
        return [_numbers(value.get(str(number), [])) for number in range(1, sentences + 1)]
    if isinstance(value, list) and len(value) == sentences and all(isinstance(row, list) for row in value):
        return [_numbers(row) for row in value]
    return []


def _numbers(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    texts = (str(item).strip("[] ") for item in values if isinstance(item, int | str) and not isinstance(item, bool))
    return [int(text) for text in texts if text.isdecimal() and len(text) < 9]


def reference_places(extra: str) -> set[tuple[int, int]]:
    """Return the (document, paragraph) pairs of a row's reference citations; ``extra`` is its kept fields as JSON."""
    try:
        citations = json.loads(extra or "{}").get(CITATIONS)
        return {(int(document), int(number)) for row in citations or () for document, number in row["paragraphs"]}
    except (KeyError, ValueError, TypeError, AttributeError):
        return set()
