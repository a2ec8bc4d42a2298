"""Names and numbers: what a summary may only have from its sources, and what of it stands there.

A *word* is a run of letters and digits. It is a name where it holds a capital or a digit. A *name* is a run of such
words, with one space or one sign such as a hyphen between two of them: ``Vu Tanpar``, ``O'Neil``, ``1,820``.
"""

import re
from collections.abc import Callable, Iterable

_WORD = re.compile(r"[^\W_]+")
_JOINT = re.compile(r"[ \-'’.,:/&]")
_SENTENCE_START = re.compile(r"(?:^|[.!?…\n][\"'”’)\]]*\s)[^\w]*$")

# Closed classes of English; they name nothing where a sentence begins with one of them.
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


class Sources:
    """The texts of a cluster, its title among them, asked for what stands in them as it is written."""

    def __init__(self, texts: Iterable[str]):
        self.text = "\n".join(" ".join(text.split()) for text in texts)
        self.words = frozenset(_WORD.findall(self.text))

    def has(self, name: str) -> bool:
        """Whether ``name`` stands there, not as a part of longer words."""
        if _WORD.fullmatch(name):
            return name in self.words
        if name not in self.text:  # which is told in no time, where an expression must be compiled
            return False
        return re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", self.text) is not None


def is_name(word: str) -> bool:
    """Whether a word is a number or (part of) a name by its letters."""
    return is_number(word) or any(map(str.isupper, word))


def is_number(word: str) -> bool:
    """Whether a word holds a digit or another sign for a number; a letter that counts, as in Chinese, is none."""
    return any(character.isnumeric() and not character.isalpha() for character in word)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of ``text`` start and end."""
    return [found.span() for found in _WORD.finditer(text)]


def names(text: str) -> list[tuple[int, int]]:
    """Where the names of ``text`` start and end. A function word that begins a sentence belongs to none."""
    return runs(text, common=lambda word: word.lower() in FUNCTION_WORDS)


def unsupported(text: str, sources: Sources) -> list[tuple[int, int]]:
    """Where the names of ``text`` start and end that stand nowhere in ``sources``.

    A sentence may begin with any word that stands there in small letters.
    """
    words = sources.words
    spans = runs(text, common=lambda word: word.lower() in FUNCTION_WORDS or word[:1].lower() + word[1:] in words)
    found = [span for span in spans if not sources.has(text[slice(*span)])]
    # A first word that stands in small letters, too, may still be a part of a name that is longer: The Hague.
    whole = {end: start for start, end in runs(text)}
    return [span for span in found if not sources.has(text[whole[span[1]] : span[1]])]


def runs(
    text: str, counts: Callable[[str], bool] = is_name, common: Callable[[str], bool] = lambda _: False
) -> list[tuple[int, int]]:
    """Start and end of each run of words that ``counts``; none has ``common`` ones that begin a sentence."""
    found: list[tuple[int, int]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        if not counts(match.group()) or (common(match.group()) and _begins(text, start)):
            continue
        if found and _JOINT.fullmatch(text, found[-1][1], start):
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _begins(text: str, start: int) -> bool:
    """Whether a sentence begins with the word at ``start``."""
    return _SENTENCE_START.search(text, max(0, start - 10), start) is not None
