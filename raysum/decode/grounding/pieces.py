"""The pieces of a vocabulary by their spelling.

Spellings are UTF-8, as strings of one character a byte: so a piece may be one byte of a character.
"""

import re
from collections import defaultdict
from functools import lru_cache

import numpy as np

from raysum.data.tokenizer import Tokenizer
from raysum.decode.grounding.contexts import CONTEXTS, INSIDE, WORD, Signs

_BEFORE, _BEHIND = re.compile(r"\A[\W_]*"), re.compile(r"(?<![\W_])[\W_]*\Z")  # the signs around the words of a piece
KNOWN = 2**15  # words of which is kept what is found out; most words recur from cluster to cluster


class Pieces:
    """What is the same for all clusters: the pieces of a vocabulary by their spelling, and what contexts allow.

    ``follow`` [CONTEXTS, V] is the context after each piece, ``bias`` [CONTEXTS, V] is 0 where it may follow whatever
    the sources say, else -inf.
    """

    def __init__(self, vocabulary: Tokenizer, mode: str):
        self.signs = Signs(mode)
        self.size = len(vocabulary)
        spellings = vocabulary.spellings()
        texts = [text_of(spelling) for spelling in spellings]
        self._alone = frozenset(text for text in texts if text)
        self.characters = frozenset("".join(self._alone))
        self.has_bytes = None in texts
        self.whole = Index()  # pieces by spelling, and by spelling without signs at the end
        self._after = defaultdict[str, Index](Index)
        kinds = [None if text is None else "".join(map(self.signs.kind, text)) for text in texts]
        self.kinds = [kind or "" for kind in kinds]
        for piece, (spelling, text) in enumerate(zip(spellings, texts, strict=True)):
            if spelling:
                self._index(piece, spelling.decode("latin-1"), text)
        # Likewise what is left of them, by the signs that they begin with, and the kinds of these.
        self.after = {
            before: ("".join(map(self.signs.kind, before.encode("latin-1").decode())), index)
            for before, index in self._after.items()
            if index
        }
        different = {kind: number for number, kind in enumerate(dict.fromkeys(self.kinds))}
        each = np.array([different[kind] for kind in self.kinds])
        strict = np.array([[self.signs.walk(c, kind) for kind in different] for c in range(CONTEXTS)])[:, each]
        told = np.array([[self.signs.walk(c or WORD, kind, True) for kind in different] for c in range(CONTEXTS)])
        strict[:, [kind is None for kind in kinds]] = INSIDE
        self.bias = np.where(strict == INSIDE, -np.float32(np.inf), np.float32(0))
        self.follow = np.where(strict == INSIDE, told[:, each], strict)
        self._longest = max(map(len, self.whole))
        self._matches = lru_cache(KNOWN)(self._find)
        self.is_name = lru_cache(KNOWN)(self.signs.is_name)
        self.spelling = lru_cache(KNOWN)(self._spelling)

    def _spelling(self, word: str) -> str:
        """``word`` as it is spelled, "" where it cannot be written: then no piece leads into it."""
        return spelled(word) if self.has_bytes or self._alone.issuperset(word) else ""

    def matches(self, spelling: str, before: str | None = None) -> list[tuple[int, str, int]]:
        """The pieces that ``spelling`` begins with: each with its tail, and how much of ``spelling`` it is.

        With ``before``, those that begin with these signs and go on with ``spelling``, which begins with a word.
        """
        return self._matches(spelling[: self._longest], before)

    def _find(self, spelling: str, before: str | None) -> list[tuple[int, str, int]]:
        index, found = self.whole if before is None else self.after[before][1], []
        for end in range(1, len(spelling) + 1):
            pieces = index.get(spelling[:end])
            if pieces is None:
                break
            found += [(piece, tail, end) for piece, tail in pieces]
        return found

    def _index(self, piece: int, spelling: str, text: str | None) -> None:
        before, behind = (spelled("".join(signs.findall(text or ""))) for signs in (_BEFORE, _BEHIND))
        tail = "".join(map(self.signs.kind, text_of(behind.encode("latin-1")) or ""))
        for index, rest in ((self.whole, spelling), (self._after[before], spelling[len(before) :])):
            index.add(rest, piece, "")
            if tail and len(rest) > len(behind):
                index.add(rest[: -len(behind)], piece, tail)


class Index(dict[str, list[tuple[int, str]]]):
    """Pieces by spelling, each with the kinds of the signs behind it; with all beginnings of spellings."""

    def add(self, spelling: str, piece: int, tail: str) -> None:
        for end in range(1, len(spelling)):
            self.setdefault(spelling[:end], [])
        if spelling:
            self.setdefault(spelling, []).append((piece, tail))


def text_of(spelling: bytes) -> str | None:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None


def spelled(text: str) -> str:
    return text.encode(errors="replace").decode("latin-1")
