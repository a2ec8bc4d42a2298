"""The words, names and numbers of a text, as decoding and reports count them.

A *word* is a run of letters, combining marks and digits. A word with a digit is a number, one with a capital a part of
a name. A *number* is one token together with

* the numbers that signs join to it, and its groups of thousands: ``1,820.5``, ``12:30``, ``2019-2021``, ``1 820``,
* the capitalized words that a dash or symbol joins to it: ``COVID-19``, ``US$5``,
* its sign or currency, and its unit: ``-5``, ``$5``, ``5%``, ``10 km/h``, ``1.5 million``.

A sign at the end of a sentence and another word in lower case (``1956-born``) are not part of a number. A *run*
is a sequence of such tokens with spaces or one joint between two of them: ``Vu Tanpar``, ``O'Neil``, ``12 May 1956``.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

DASHES = "-\u2010\u2011\u2012\u2013\u2212\uff0d"  # hyphens, figure dash, en dash, minus; an em dash separates words
JOINTS = DASHES + ".,:/&'’_·\u066b\u066c\u2044\uff0c\uff0e\uff0f\uff1a"
# Two letters for each character. Higher planes have no signs, and no marks except variation selectors.
_CATEGORIES = "".join(map(unicodedata.category, map(chr, range(0x20000))))
MARKS = "".join(  # ranges for regular expressions
    f"{chr(found.start() // 2)}-{chr(found.end() // 2 - 1)}" for found in re.finditer("(?:M[cen])+", _CATEGORIES)
)
# Signs that belong to a number beside them: currencies, percent, degrees, mathematics.
_SPACED = "%‰‱°′″\uff05" + "".join(chr(found.start() // 2) for found in re.finditer("Sc", _CATEGORIES))
_MATHEMATICS = (chr(found.start() // 2) for found in re.finditer("Sm", _CATEGORIES))
SYMBOLS = frozenset("^" + _SPACED).union(_MATHEMATICS) - frozenset(JOINTS + "|")
# Multiples and abbreviated units belong to the number before them, also after a space, a dash or a slash. Full names of
# units are ordinary words: "52.6" of the sources and "52.6 percent" of a summary are the same number.
UNITS = frozenset(
    re.findall(
        r"\w+",
        "dozen hundred thousand million billion trillion k m mn mln mio bn mrd tn pct bps nm mm cm km mi ft yd "
        "mg g kg t kt lb lbs oz ml cl l hl ha kW MW GW TW Wh kWh MWh GWh TWh kV mAh kJ Hz kHz MHz GHz kB KB MB GB TB "
        "dB kPa hPa psi mph kph kmh rpm s ms sec min h hr hrs am pm BC BCE",
    )
)

_NO_LETTER = f"(?![^\\W_]|[{MARKS}])"
WORD = re.compile(f"[^\\W_]+(?:[{MARKS}]+[^\\W_]*)*")
_BLANK = re.compile(r"[^\S\n ]")  # such as no-break spaces
_SYMBOL, _DASH, _SIGN = (f"[{re.escape(''.join(sorted(some)))}]" for some in (SYMBOLS, DASHES, SYMBOLS.union(JOINTS)))
_JOINT = re.compile(f" +|[{re.escape(JOINTS)}]")
_RANGE = re.compile(f"{_SIGN}+")  # between two numbers
_COMPOUND = re.compile(f"{_DASH}|{_SYMBOL}+{_DASH}?")  # between a number and a capitalized word
_UNIT = re.compile(
    f"(?:(?:{_SYMBOL}+| *°[CFK]?| +[{_SPACED}]|(?: +|/|{_DASH})(?:{'|'.join(sorted(UNITS))})){_NO_LETTER})+"
)
SIGNS = SYMBOLS.union(DASHES, ".")  # before a number
_SENTENCE_START = re.compile(r"(?:^|[.!?…\n][\"'”’)\]]*\s)[^\w]*$")


class Token(NamedTuple):
    """The span of a word of a name, or of a number."""

    start: int
    end: int
    is_number: bool


def is_letter(character: str) -> bool:
    """Return whether ``character`` belongs to words: a letter, digit or combining mark."""
    return character.isalnum() or unicodedata.category(character)[0] == "M"


@lru_cache(2**15)
def is_name(word: str) -> bool:
    """Return whether a word is a number or (part of) a name by its letters."""
    return is_number(word) or has_capital(word)


@lru_cache(2**15)
def has_capital(word: str) -> bool:
    """Return whether a word has a letter in upper or title case."""
    return any(character.isupper() or character.istitle() for character in word)


@lru_cache(2**15)
def is_number(word: str) -> bool:
    """Return whether a word has a digit or another numeric character; letters such as Chinese numerals do not count."""
    return any(character.isnumeric() and not character.isalpha() for character in word)


def tokens(text: str, is_counted: Callable[[str], bool] = is_name) -> list[Token]:
    """Return the numbers of ``text``, and its other words that ``is_counted``."""
    text = _BLANK.sub(" ", text)
    found: list[Token] = []
    before = end = 0  # span of the previous word
    for match in WORD.finditer(text):
        (start, stop), word, last = match.span(), match.group(), found[-1] if found else None
        if last and start < last.end:  # a unit
            continue
        number = last if last and last.is_number else None
        if is_number(word):
            if number and _continues(text, number.end, before, match):
                found[-1] = number._replace(end=_with_unit(text, stop))
            else:
                compound = end and _COMPOUND.fullmatch(text, end, start) and has_capital(text[before:end])
                if compound and last and last.end == end:
                    found.pop()
                first = before if compound else _with_sign(text, start, number.end if number else 0)
                found.append(Token(first, _with_unit(text, stop), True))
        elif number and _COMPOUND.fullmatch(text, number.end, start) and has_capital(word):
            found[-1] = number._replace(end=_with_unit(text, stop))
        elif is_counted(word):
            found.append(Token(start, stop, False))
        before, end = start, stop
    return found


def runs(
    text: str, is_counted: Callable[[str], bool] = is_name, is_common: Callable[[str], bool] = lambda _: False
) -> list[list[Token]]:
    """Return the runs of the tokens of ``text``.

    A word that ``is_common`` and begins a sentence is in no run, unless a sign joins it to the next word.
    """
    text = _BLANK.sub(" ", text)
    found: list[list[Token]] = []
    own = tokens(text, is_counted)
    for token, following in pairwise([*own, None]):
        assert token is not None
        joined = following and text[token.end] != " " and _JOINT.fullmatch(text, token.end, following.start)
        if not joined and is_common(text[token.start : token.end]) and begins_sentence(text, token.start):
            continue
        if found and _JOINT.fullmatch(text, found[-1][-1].end, token.start):
            found[-1].append(token)
        else:
            found.append([token])
    return found


def begins_sentence(text: str, start: int) -> bool:
    """Return whether a sentence begins with the word at ``start``."""
    return _SENTENCE_START.search(text, max(0, start - 10), start) is not None


def _continues(text: str, end: int, before: int, match: re.Match[str]) -> bool:
    """Return whether the number that ends with the word ``before`` to ``end`` includes the number of ``match``."""
    last, word = text[before:end], match.group()
    if _RANGE.fullmatch(text, end, match.start()):
        return True
    thousands = len(last) <= 3 and len(word) == 3 and last.isdecimal() and word.isdecimal()
    return thousands and not text[end : match.start()].strip(" ")


def _with_sign(text: str, start: int, limit: int) -> int:
    """Return the start of the number at ``start`` with its signs. After a word, a dash or point is not a sign."""
    first = start
    while first > limit and text[first - 1] in SIGNS:
        first -= 1
    if first and is_letter(text[first - 1]):
        while first < start and text[first] not in SYMBOLS:
            first += 1
    return first


def _with_unit(text: str, end: int) -> int:
    unit = _UNIT.match(text, end)
    return unit.end() if unit else end
