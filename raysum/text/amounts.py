"""Amounts in a sentence: numbers with their values and what they count, such as "twelve people", "5 %" or "12 May"."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from raysum.text.names import FUNCTION_WORDS, WORD, is_number, word_set

_ONES = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    "|eighteen|nineteen|twenty"
)
_TENS = {"thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "seventy": 70.0, "eighty": 80.0, "ninety": 90.0}
WRITTEN = {word: float(number) for number, word in enumerate(_ONES.split("|"), 1)} | _TENS | {"dozen": 12.0}
_TIMES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "bn": 1e9}
_NUMBER = re.compile(
    rf"(?<![\w.,/:–-])(?P<sign>[$€£¥]?)(?P<digits>\d+(?:[.,]\d+)*|\b(?:{'|'.join(WRITTEN)})\b)(?![\w/:–-]|[.,]\d)"
    rf"(?P<times>\s(?:{'|'.join(_TIMES)})\b)?(?P<percent>\s?%|\sper\s?cent\b)?",
    re.IGNORECASE,
)
_MONTHS = word_set(
    "january february march april may june july august september october november december "
    "januar februar märz mai juni juli oktober dezember"
)
_HEDGING = {
    "about": "about|around|nearly|almost|roughly|some|approximately|estimated|etwa|rund|fast",
    "least": "at least|more than|over|mindestens|mehr als|über",
    "most": "at most|up to|less than|fewer than|under|höchstens|bis zu|weniger als",
}
_HEDGES = {kind: re.compile(rf"\b(?:{words})\s*$", re.I) for kind, words in _HEDGING.items()}
_CLOSE = 0.1  # relative difference of amounts that "about" allows
_NEAR = 40  # characters after a number in which the word is that it counts
_SHORTEST = 4  # letters of a word that is counted
_BETWEEN = re.compile(r"[\w\s]*\s")  # a number and that word
# "two of the twelve"
_PART = re.compile(rf"\s+of\s+(?:the|its|their|all|these|those)\s+(?:\d+|{'|'.join(WRITTEN)})\b", re.I)
_YEARS = range(1000, 2101)


@dataclass(frozen=True)
class Amount:
    """A number from ``start`` to ``end`` of a sentence with its ``value``.

    ``unit`` is %, a currency, "day", "year", or the word that it counts, without the s of a plural. ``hedge`` is
    "about", "least" (at least, more than), "most", or "".
    """

    start: int
    end: int
    value: float
    unit: str
    hedge: str = ""

    def contradicts(self, other: "Amount") -> bool:
        """Return whether both cannot be true of the same, as far as "about" and "at least" allow."""
        low, high = sorted((self, other), key=lambda amount: amount.value)
        if low.value == high.value or low.hedge == "least" or high.hedge == "most":
            return False
        return "about" not in (low.hedge, high.hedge) or high.value - low.value > _CLOSE * high.value


def amounts(text: str) -> Iterator[Amount]:
    """Yield the amounts of a sentence in order. A number without a unit, and one in a code or time, is none."""
    for found in _NUMBER.finditer(text):
        value = _value(found["digits"].lower(), (found["times"] or "").strip().lower())
        unit, end = _unit(text, found, value)
        if unit and value is not None:
            before = text[max(0, found.start() - _NEAR) : found.start()]
            hedge = next((kind for kind, pattern in _HEDGES.items() if pattern.search(before)), "")
            yield Amount(found.start(), end, value, unit, hedge)


def _value(digits: str, times: str) -> float | None:
    """Return the value of "1,200" or "twelve", times a word such as "million"; None if it is not one number."""
    plain = re.sub(r"[.,](?=\d{3}(?!\d))", "", digits).replace(",", ".")
    if digits not in WRITTEN and plain.count(".") > 1:
        return None
    return WRITTEN.get(digits, 0.0 if digits in WRITTEN else float(plain)) * _TIMES.get(times, 1)


def _unit(text: str, found: re.Match[str], value: float | None) -> tuple[str, int]:
    """Return what a number counts, or "", and where the amount ends."""
    if found["percent"] or found["sign"]:
        return "%" if found["percent"] else found["sign"], found.end()
    part = _PART.match(text, found.end())
    begin = part.end() if part else found.end()
    following = [*WORD.finditer(text, begin, begin + _NEAR)][:2]
    if any(word[0].lower() == "more" for word in following[:1]):  # than the documents said before
        return "", found.end()
    before = [*WORD.finditer(text, max(0, found.start() - _NEAR), found.start())][-1:]
    if any(word[0].lower() in _MONTHS for word in (*before, *following[:1])):
        return "day", found.end()
    if found["digits"].isdigit() and value in _YEARS and not found["times"]:
        return "year", found.end()
    counted = next((word for word in following if _is_counted(word[0])), None)
    if counted is None or not _BETWEEN.fullmatch(text, begin, counted.start()):
        return "", found.end()
    word = counted[0].lower()
    return "%" if word == "percentage" else word.removesuffix("s"), found.end() if part else counted.end()


def _is_counted(word: str) -> bool:
    return len(word) >= _SHORTEST and not is_number(word) and word.lower() not in FUNCTION_WORDS
