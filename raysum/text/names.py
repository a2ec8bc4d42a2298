"""Find the names and numbers of a text, and those that do not occur in its sources.

`raysum.text.tokens` defines names and numbers.
"""

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache

from raysum.text.tokens import MARKS, WORD, Token, begins_sentence, runs, tokens

# Closed classes of English: capitalized at the beginning of a sentence, they are not names.
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
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
        "yourself yourselves",
    )
)


# "May" and "Will" are also names: at the beginning of a sentence they may belong to the name after them.
OPENERS = FUNCTION_WORDS - {"may", "will"}
_START, _END = f"(?<![^\\W_])(?<![{MARKS}])", f"(?![^\\W_]|[{MARKS}])"


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
        if name not in self.text:  # fast; the rest compiles a regular expression
            return False
        numbers = _numbers_of(name)
        if not numbers and WORD.fullmatch(name):
            return name in self.words
        start = "" if numbers and not numbers[0].start else _START
        matches = re.finditer(f"{start}(?={re.escape(name)}{_END})", self.text)
        positions = (match.start() for match in matches)
        return any(all((at + a, at + b) in self._numbers for a, b, _ in numbers) for at in positions)


@lru_cache(2**12)
def _numbers_of(name: str) -> list[Token]:
    return [token for token in tokens(name) if token.is_number]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the words of ``text``."""
    return [match.span() for match in WORD.finditer(text)]


def name_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the names of ``text``. A function word that begins a sentence belongs to no name."""
    name_runs = runs(text, is_common=_is_opener)
    return [(run[0].start, run[-1].end) for run in name_runs]


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
