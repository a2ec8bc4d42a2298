"""What a text says that its sources do not: a checker that shares no code with decoding and reports."""

import re
from collections.abc import Iterable

from raysum.text.names import FUNCTION_WORDS  # a list of words

_NUMBER = re.compile(
    r"(?:W*[A-ZÉŁ]W*[-–−$€])?"  # COVID-19, US$5
    r"(?:(?<!W)[-–−+$€.]+|[$€]-?)?"  # a sign or currency
    r"(?:(?<!W)\d{1,3}(?:[ \xa0\u202f]\d{3}(?!W))+|W*\dW*)"  # groups of thousands, or a word with a digit
    r"(?:[-–−+.,:/'’$€%°&_]+W*\dW*)*"  # ranges, decimals, dates
    r"(?:[-–−]W*[A-ZÉŁ]W*)?"
    r"(?: ?[%€°](?!W))*(?:[ /–-](?:km|h|million|bn|m)(?!W))*".replace("W", r"[^\W_]")
)
_WORD = re.compile(r"[^\W_]+")


def numbers(text: str) -> set[str]:
    return {" ".join(found.split()) for found in _NUMBER.findall(text)}


def invented(text: str, sources: Iterable[str], names: bool = True) -> set[str]:
    """The numbers of ``text`` that no source has, and its pairs of capitalized words that stand together in none."""
    sources = [" ".join(source.split()) for source in sources]
    found = numbers(text) - set().union(*map(numbers, sources))
    words = [*_WORD.finditer(text)] if names else []
    for one, two in zip(words, words[1:], strict=False):
        plain = [any(map(str.isupper, w)) and not any(map(str.isdigit, w)) for w in (one.group(), two.group())]
        pair = text[one.start() : two.end()]
        if all(plain) and two.start() - one.end() == 1 and re.fullmatch(r"\w+[ –−‐&/'’-]\w+", pair):
            known = any(spelling in source for source in sources for spelling in (pair, pair[0].lower() + pair[1:]))
            if not known and not (one.group().lower() in FUNCTION_WORDS and text[one.end()] == " "):
                found.add(pair)
    return found
