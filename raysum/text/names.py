"""The words, names and numbers of a text, and those names and numbers that do not occur in its sources.

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
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
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


def word_set(words: str) -> frozenset[str]:
    """Return the words that spaces separate."""
    return frozenset(words.split())


# Multiples and abbreviated units belong to the number before them, also after a space, a dash or a slash. Full names of
# units are ordinary words: "52.6" of the sources and "52.6 percent" of a summary are the same number.
UNITS = word_set(
    "dozen hundred thousand million billion trillion k m mn mln mio bn mrd tn pct bps nm mm cm km mi ft yd "
    "mg g kg t kt lb lbs oz ml cl l hl ha kW MW GW TW Wh kWh MWh GWh TWh kV mAh kJ Hz kHz MHz GHz kB KB MB GB TB "
    "dB kPa hPa psi mph kph kmh rpm s ms sec min h hr hrs am pm BC BCE"
)

_NO_LETTER = f"(?![^\\W_]|[{MARKS}])"
_START, _END = re.compile(f"(?<![^\\W_])(?<![{MARKS}])"), re.compile(_NO_LETTER)  # of whole words
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

# Closed classes of English: capitalized at the beginning of a sentence, they are not names.
FUNCTION_WORDS = word_set(
    "a about above across after again against all almost along already also although always among an and "
    "another any anyone anything are around as at away back be because been before behind being below beneath "
    "beside besides between beyond both but by can could despite did do does done down during each either "
    "else enough even ever every everyone everything few for from further had has have he hence her here hers "
    "herself him himself his how however i if in indeed inside instead into is it its itself just last later "
    "least less like little many may me meanwhile might mine more moreover most much must my myself near "
    "nearly neither never nevertheless next no nobody none nor not nothing now of off often on once one only "
    "onto or other others our ours ourselves out outside over own per perhaps quite rather same several shall "
    "she should since so some someone something sometimes soon still such than that the their theirs them "
    "themselves then there therefore these they this those though through throughout thus till to today "
    "together too toward towards under unless unlike until up upon us was we well were what whatever when "
    "where whereas whether which while who whom whose why will with within without would yet you your yours "
    "yourself yourselves"
)


# "May" and "Will" are also names: at the beginning of a sentence they may belong to the name after them.
OPENERS = FUNCTION_WORDS - {"may", "will"}


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


class Sources:
    """The texts of a cluster and its title, searched for exact names and numbers."""

    def __init__(self, texts: Iterable[str]):
        self.text = "\n".join(" ".join(text.split()) for text in texts)
        self.words = frozenset(WORD.findall(self.text))

    @cached_property
    def _numbers(self) -> frozenset[tuple[int, int]]:
        """The spans of the numbers."""
        return frozenset((token.start, token.end) for token in tokens(self.text, lambda _: False))

    def has(self, name: str) -> bool:
        """Return whether ``name`` occurs, not as part of longer words or numbers."""
        name = " ".join(name.split())
        numbers, text = _numbers_of(name), self.text
        if not numbers and WORD.fullmatch(name):
            return name in self.words
        begins_with_number = bool(numbers) and not numbers[0].start
        at = text.find(name)
        while at >= 0:
            is_whole = _END.match(text, at + len(name)) and (begins_with_number or _START.match(text, at))
            if is_whole and all((at + a, at + b) in self._numbers for a, b, _ in numbers):
                return True
            at = text.find(name, at + 1)
        return False


@lru_cache(2**12)
def _numbers_of(name: str) -> list[Token]:
    return [token for token in tokens(name) if token.is_number]


def name_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the names of ``text``. A function word that begins a sentence belongs to no name."""
    return [(run[0].start, run[-1].end) for run in runs(text, is_common=_is_opener)]


def unsupported(text: str, sources: Sources) -> list[tuple[int, int]]:
    """Return the spans of the names of ``text`` that do not occur in ``sources``.

    The sources may have the first word of a sentence in lower case: "sheep" supports ``Sheep graze``, but "sheep" and
    "Tanpar" do not support ``Sheep Tanpar``.
    """
    name_runs = runs(text, is_common=_is_opener)
    return [(run[0].start, run[-1].end) for run in name_runs if not _is_supported(text, run, sources)]


def _is_opener(word: str) -> bool:
    return word.lower() in OPENERS


def _is_supported(text: str, run: list[Token], sources: Sources) -> bool:
    name = text[run[0].start : run[-1].end]
    if sources.has(name):
        return True
    if not begins_sentence(text, run[0].start):
        return False
    small = name[0].lower() + name[1:]
    if sources.has(small):
        return True
    length = run[0].end - run[0].start
    first, rest = small[:length], small[length:]  # "sheep" and "37" support "Sheep 37"
    is_counted = len(run) > 1 and run[1].is_number and not run[0].is_number and rest[0].isspace()
    return is_counted and sources.has(first) and sources.has(rest.strip())
