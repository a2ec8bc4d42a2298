"""The pieces of a vocabulary by their spelling, and the characters that may follow a text with any sources.

These are small letters and signs, but no names. A spelling is UTF-8 as a string with one character for each byte,
because a piece may be one byte of a character.
"""

import re
from collections import defaultdict
from functools import cache, lru_cache
from itertools import takewhile

import numpy as np

from raysum.text.names import DASHES, JOINTS, SIGNS, SYMBOLS, UNITS, is_letter, is_name, is_number
from raysum.tokenizers.tokenizer import Tokenizer

_UNSPACED = re.compile("[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_SMALL = re.compile("a+")
_UNIT_STARTS = frozenset(unit[:end] for unit in UNITS for end in range(1, len(unit) + 1))

# Contexts. If two are possible for a text, the later one allows more.
INSIDE = 0  # inside a name, number or restricted word: only nodes allow a piece
NAMED, NUMBERED = 1, 2  # a name or number has just ended
# Signs after a number: a number, name, unit or symbol after them would belong to it.
NUMBER_SPACE, NUMBER_JOINT, NUMBER_DOT = 3, 4, 5
SPACE, JOINT, DOT = 6, 7, 8  # one sign after a name: a name after it would be the same name
CLOSED = 9  # after a word that no letter may follow
WORD = 10  # in or after a word in small letters
SIGN = 11  # after a sign or symbol to which a number would belong
END = 12  # after a full stop and up to 2 closing signs
OUT = 15  # after another sign
BEGIN = 16  # at the beginning of a sentence, and after up to 3 signs
CONTEXTS = 20
_SINGLE = 20  # inside a word of one piece
_KNOWN = 2**15  # words in a cache; most words recur from cluster to cluster
# The contexts after a space, a full stop, and another joining sign.
_BEHIND = {
    NAMED: (SPACE, DOT, JOINT),
    NUMBERED: (NUMBER_SPACE, NUMBER_DOT, NUMBER_JOINT),
    NUMBER_JOINT: (OUT, NUMBER_JOINT, NUMBER_JOINT),
    NUMBER_DOT: (BEGIN, NUMBER_JOINT, NUMBER_JOINT),
    CLOSED: (OUT, END, JOINT),
}


class Signs:
    """The kinds of characters, and the context after each."""

    def __init__(self, mode: str):
        self.mode = mode
        self.walk = cache(self._walk)

    def kinds(self, text: str) -> str:
        """Return the kind of each character.

        ``A``: a letter that makes a word a name; ``D``: one that makes it a number; ``a``: another letter; ``c``: a
        letter of a script without spaces; ``u``: the letters of a unit; ``p``: those of the beginning of a unit. Other
        kinds are signs.
        """
        kinds = "".join(map(self.kind, text))
        for match in _SMALL.finditer(kinds):
            start, end = match.span()
            word = text[start:end]
            if word in UNITS:
                kinds = kinds[:start] + "u" * (end - start) + kinds[end:]
            elif end == len(text) and word in _UNIT_STARTS:
                kinds = kinds[:start] + "p" * (end - start)
        return kinds

    def kind(self, character: str) -> str:
        if is_letter(character):
            if is_number(character):
                return "D"
            if self.is_name(character):
                return "A"
            return "c" if self.mode == "all" and _UNSPACED.match(character) else "a"
        if character.isspace():
            return " "
        if character in SYMBOLS:
            return "%"
        if character in ".'’_":
            return character
        if character in JOINTS:
            return "-" if character in DASHES else ","
        return "!" if character in "!?…" else ")" if character in '"”)]' else "x"

    def is_name(self, word: str) -> bool:
        return is_number(word) if self.mode == "numbers" else is_name(word)

    def step(self, context: int, kind: str, in_source: bool = False) -> int:
        """Return the context after one more character. Names are allowed too if they are ``in_source``."""
        if kind in "ADacup":
            return self._in_source(context, kind) if in_source else self._letter(context, kind)
        context = CLOSED if context == _SINGLE else context
        if context == INSIDE and not in_source:
            return INSIDE
        if context in (NUMBERED, NUMBER_SPACE) and kind == "%":
            return NUMBERED if in_source else INSIDE
        if context in (SPACE, NUMBER_SPACE) and kind == " ":
            return context
        if context in _BEHIND and kind in " .-,'’_%":
            space, point, joint = _BEHIND[context]
            return space if kind == " " else point if kind == "." else joint
        if kind in "-%":
            return OUT if (context, kind) == (WORD, "-") and self.mode != "numbers" else SIGN
        if kind in ".!":
            return END
        if context == DOT or END <= context < OUT:
            closed = 0 if context == DOT else context - END
            if kind == " ":
                return BEGIN
            return END + closed + 1 if kind in ")'’" and closed < 2 else OUT
        if BEGIN <= context < CONTEXTS - 1 and kind != "_":
            return context + 1
        return OUT

    def _letter(self, context: int, kind: str) -> int:
        if kind in "AD" or context in (INSIDE, NAMED, NUMBERED, CLOSED):
            return INSIDE
        if context == NUMBER_JOINT and self.mode == "numbers":  # a capital of the word would be no kind of its own
            return INSIDE
        if context in (NUMBER_SPACE, NUMBER_JOINT) and kind in "up":
            return _SINGLE if kind == "p" else INSIDE
        return _SINGLE if kind != "c" and (context == _SINGLE or self.mode == "all") else WORD

    def _in_source(self, context: int, kind: str) -> int:
        if kind == "D" or context == NUMBERED:
            return NUMBERED
        return NAMED if kind == "A" or context == NAMED else WORD

    def _walk(self, context: int, kinds: str, in_source: bool = False) -> int:
        """Return the context after a piece, by the kinds of its characters."""
        for kind in kinds:
            context = INSIDE if context == INSIDE and not in_source else self.step(context, kind, in_source)
        return CLOSED if context == _SINGLE else context


class Root:
    """The kinds of nodes; a node is such a letter and the spelling so far."""

    NAME, FUNCTION, BEGIN, SMALL, UNIT, LETTER, OTHER = "nfbsulo"


Part = tuple[str, str, int]  # the kinds of nodes that may begin, the signs before them, and the context after these


class Pieces:
    """The pieces of a vocabulary by their spelling, and what contexts allow; the same for all clusters.

    ``follow`` [CONTEXTS, V]: the context after each piece. ``bias`` [CONTEXTS, V]: 0 if the piece may follow with any
    sources, else -inf. ``kinds``: those of the characters of each piece. ``parts``: the parts that may begin in each
    context, one for each sequence of signs before them.
    """

    def __init__(self, vocabulary: Tokenizer, mode: str):
        self.signs = Signs(mode)
        spellings = vocabulary.spellings()
        texts = [_text(spelling) for spelling in spellings]
        mark = vocabulary.marks.sentence_end  # a space, but names and numbers end with their sentence
        self._alone = frozenset(text for piece, text in enumerate(texts) if text and piece != mark)
        self.characters, self.has_bytes = frozenset("".join(self._alone)), None in texts
        self.kinds = [self.signs.kinds(text or "") for text in texts]
        self._whole = Index()  # pieces by spelling, and by spelling without signs at the end
        after = defaultdict[str, Index](Index)  # by the signs at their beginning, and by the rest of their spelling
        for piece, (spelling, text) in enumerate(zip(spellings, texts, strict=True)):
            if spelling and piece != mark:
                self._index(piece, spelling, text, after)
        self.after = {before: index for before, index in after.items() if index}
        self.parts = [tuple(self._part(context, before) for before in self.after) for context in range(CONTEXTS)]
        different, each = np.unique(self.kinds, return_inverse=True)
        kinds, walk = different.tolist(), self.signs.walk
        strict = np.array([[walk(context, kind) for kind in kinds] for context in range(CONTEXTS)])[:, each]
        in_source = np.array([[walk(context or WORD, kind, True) for kind in kinds] for context in range(CONTEXTS)])
        strict[:, [text is None for text in texts]] = INSIDE
        self.bias = np.where(strict == INSIDE, -np.float32(np.inf), np.float32(0))
        self.follow = np.where(strict == INSIDE, in_source[:, each], strict)
        self._longest = max(map(len, self._whole))
        self._matches = lru_cache(_KNOWN)(self._find)
        self.is_name = lru_cache(_KNOWN)(self.signs.is_name)
        self.spelling = lru_cache(_KNOWN)(self._spelling)

    def _part(self, context: int, before: str) -> Part:
        """Return the part that may begin in ``context``, after the signs ``before``."""
        context = self.signs.walk(context, self.signs.kinds(before))
        has_bytes = self.has_bytes and not before
        after_number = NUMBER_SPACE <= context <= NUMBER_DOT
        roots = Root.NAME if context >= OUT else ""
        roots += Root.FUNCTION + Root.BEGIN if context >= BEGIN else ""
        if context >= SIGN or NUMBER_SPACE <= context <= DOT:
            roots += Root.SMALL if after_number else Root.SMALL + Root.UNIT
        if has_bytes and not after_number and context not in (INSIDE, NAMED, NUMBERED, CLOSED):
            roots += Root.LETTER
        if has_bytes and context != INSIDE:
            roots += Root.OTHER
        return roots, before, context if after_number else OUT

    def _spelling(self, word: str) -> str:
        """Return the spelling of ``word``, or "" if the pieces cannot write it."""
        return byte_spelling(word) if self.has_bytes or self._alone.issuperset(word) else ""

    def matches(self, spelling: str, before: str | None = None) -> list[tuple[int, str, int]]:
        """Return the pieces with which ``spelling`` begins: each with its tail and its length in ``spelling``.

        With ``before``, these signs come before ``spelling``, which begins with a word.
        """
        return self._matches(spelling[: self._longest], before)

    def _find(self, spelling: str, before: str | None) -> list[tuple[int, str, int]]:
        index, matches = self._whole if before is None else self.after[before], []
        for end in range(1, len(spelling) + 1):
            pieces = index.get(spelling[:end])
            if pieces is None:
                break
            matches += [(piece, tail, end) for piece, tail in pieces]
        return matches

    def _index(self, piece: int, spelling: bytes, text: str | None, after: dict[str, "Index"]) -> None:
        """Add a piece to the indices; ``text`` is None if the piece is a part of a character."""
        if text is None:
            self._whole.add(spelling.decode("latin-1"), piece, "")
            after[""].add(spelling.decode("latin-1"), piece, "")
            return
        before, behind = _signs(text), len(text) - _signs(text[::-1])
        # The signs before a number and the symbols after it may belong to it.
        starts = [start for start in range(before + 1) if start == before or text[start] in SIGNS]
        ends = [end for end in range(behind, len(text) + 1) if end in (behind, len(text)) or text[end - 1] in SYMBOLS]
        for index, start in [(self._whole, 0), *((after[text[:start]], start) for start in starts)]:
            for end in ends:
                index.add(byte_spelling(text[start:end]), piece, self.signs.kinds(text[end:]))


class Index(dict[str, list[tuple[int, str]]]):
    """Pieces by spelling, each with the kinds of the signs after it. All beginnings of spellings are keys."""

    def add(self, spelling: str, piece: int, tail: str) -> None:
        for end in range(1, len(spelling)):
            self.setdefault(spelling[:end], [])
        if spelling:
            self.setdefault(spelling, []).append((piece, tail))


def _signs(text: str) -> int:
    """Return the number of signs at the beginning of ``text``."""
    return sum(1 for _ in takewhile(lambda character: not is_letter(character), text))


def _text(spelling: bytes) -> str | None:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None


def byte_spelling(text: str) -> str:
    return text.encode(errors="replace").decode("latin-1")
