"""Where the documents of a cluster disagree: equal statements with different numbers. M sentences."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from raysum.decode.summary import Citation, Claim, Disagreement
from raysum.extract.source_texts import SourceTexts
from raysum.text.amounts import WRITTEN, Amount, amounts
from raysum.text.languages import content_words
from raysum.text.names import WORD, is_name, is_number

_NEAR, _NEARER = 0.3, 0.4  # cosine of two sentences that may state the same, and one that needs fewer shared words
_SHARED = 3  # content words in common
_COMPARED = 500  # sentences with amounts, at most
_BEFORE = 3  # content words before an amount that are compared
_BESIDE = 60  # characters of a statement that are shown on each side of its amount


class Stated(NamedTuple):
    """An amount of the sentence of this number."""

    sentence: int
    amount: Amount


def disagreements(row: Mapping[str, Any], source: SourceTexts) -> list[Disagreement]:
    """Return the statements of several documents of ``row`` that have different amounts, the most similar first.

    Two sentences make the same statement if their tf-idf cosine is at least 0.3, if they share three content words (two
    above 0.4), the unit and the word before the amounts, and if neither has names that the other replaces. A document
    that also has the amount of the other does not disagree.
    """
    found = {sentence: [*amounts(text)] for sentence, text in enumerate(source.texts)}
    known = defaultdict[tuple[int, str], set[float]](set)
    for sentence, own in found.items():
        for amount in own:
            known[source.documents[sentence], amount.unit].add(amount.value)

    def is_known(stated: Stated, sentence: int) -> bool:
        return stated.amount.value in known[source.documents[sentence], stated.amount.unit]

    groups = list[list[Stated]]()
    with_amounts = [sentence for sentence, own in found.items() if own][:_COMPARED]
    for first, second in _same_statements(source, with_amounts):
        for pair in _contradictions(found[first], found[second]):
            one, other = Stated(first, pair[0]), Stated(second, pair[1])
            if _is_alike(one, other, source) and not (is_known(one, second) or is_known(other, first)):
                _join(groups, (one, other))
    return [_disagreement(row, group) for group in groups]


def _same_statements(source: SourceTexts, sentences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of ``sentences`` of different documents that make the same statement, the nearest first."""
    near = {sentence: source.vectors.nearness(sentence) for sentence in sentences}
    terms = {sentence: {*source.content(sentence)} for sentence in sentences}
    names = {sentence: _names(source.texts[sentence]) for sentence in sentences}

    def are_same(first: int, second: int) -> bool:
        cosine, shared = near[first][second], len(terms[first] & terms[second])
        is_same = cosine >= _NEAR and shared >= (_SHARED if cosine < _NEARER else _SHARED - 1)
        return bool(is_same) and (names[first] <= names[second] or names[second] <= names[first])

    pairs = combinations(sentences, 2)
    others = (pair for pair in pairs if source.documents[pair[0]] != source.documents[pair[1]])
    yield from sorted((pair for pair in others if are_same(*pair)), key=lambda pair: -near[pair[0]][pair[1]])


def _names(text: str) -> set[str]:
    return {word for word in WORD.findall(text)[1:] if is_name(word) and not is_number(word)}


def _contradictions(first: Sequence[Amount], second: Sequence[Amount]) -> Iterator[tuple[Amount, Amount]]:
    """Yield the amounts of the same unit that contradict each other, if the sentences have no other ones of that unit,
    or the same other ones: "two of the twelve hangers" and "three of its twelve hangers"."""
    for unit in dict.fromkeys(amount.unit for amount in first):
        one, other = ([amount for amount in each if amount.unit == unit] for each in (first, second))
        differing = [(a, b) for a, b in zip(one, other, strict=False) if a.value != b.value]
        if len(one) == len(other) and len(differing) == 1 and differing[0][0].contradicts(differing[0][1]):
            yield differing[0]


def _is_alike(one: Stated, other: Stated, source: SourceTexts) -> bool:
    """Return whether the word before each amount is one of the three before the other: killing 12 and wounding 15."""
    before = []
    for sentence, amount in (one, other):
        found = content_words(source.texts[sentence][: amount.start], source.language_of(source.documents[sentence]))
        before.append([word for word in found if not is_number(word) and word not in WRITTEN][-_BEFORE:])
    return all(not own or own[-1] in others for own, others in (before, before[::-1])) and before.count([]) != 1


def _join(groups: list[list[Stated]], pair: Collection[Stated]) -> None:
    """Add a pair to the group that has one of the two, or as a new group."""
    group = next((group for group in groups if not {*pair}.isdisjoint(group)), None)
    if group is None:
        groups.append(group := [])
    group += [stated for stated in pair if stated not in group]


def _disagreement(row: Mapping[str, Any], group: Sequence[Stated]) -> Disagreement:
    """Return a row of the table: the first sentence without its amount, and each amount with its sentences."""
    claims, texts = defaultdict[float, list[Stated]](list), row["text"]
    for stated in sorted(group):
        claims[stated.amount.value].append(stated)
    return Disagreement(
        subject=_without(texts[group[0].sentence], group[0].amount),
        claims=[
            Claim(
                value=_printed(texts[first.sentence], first.amount),
                citations=[Citation.of(row, each.sentence, 1 / (1 + len(others))) for each in (first, *others)],
            )
            for first, *others in claims.values()
        ],
    )


def _printed(text: str, amount: Amount) -> str:
    hedge = {"about": "about ", "least": "at least ", "most": "at most "}.get(amount.hedge, "")
    return hedge + " ".join(text[amount.start : amount.end].split())


def _without(text: str, amount: Amount) -> str:
    """Return a sentence with […] instead of its amount, shortened on both sides to whole words."""
    before, after = text[: amount.start], text[amount.end :]
    if len(before) > _BESIDE:
        before = "… " + before[-_BESIDE:].partition(" ")[2]
    if len(after) > _BESIDE:
        after = after[:_BESIDE].rpartition(" ")[0] + " …"
    return " ".join(f"{before}[…]{after}".split())
