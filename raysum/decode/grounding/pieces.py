"""The pieces of a vocabulary by their spelling.

A spelling is UTF-8 as a string with one character for each byte, because a piece may be one byte of a character.
"""

from collections import defaultdict
from functools import lru_cache
from itertools import takewhile

import numpy as np

from raysum.decode.grounding.contexts import CONTEXTS, INSIDE, WORD, Signs
from raysum.text.tokens import SIGNS, SYMBOLS, is_letter
from raysum.tokenizers.tokenizer import Tokenizer

KNOWN = 2**15  # words in a cache; most words recur from cluster to cluster


class Pieces:
    """The pieces of a vocabulary by their spelling, and what contexts allow; the same for all clusters.

    ``follow`` [CONTEXTS, V]: the context after each piece. ``bias`` [CONTEXTS, V]: 0 if the piece may follow with any
    sources, else -inf.
    """

    def __init__(self, vocabulary: Tokenizer, mode: str):
        self.signs = Signs(mode)
        self.size = len(vocabulary)
        spellings = vocabulary.spellings()
        texts = [text_of(spelling) for spelling in spellings]
        mark = vocabulary.marks.sentence_end  # a space, but names and numbers end with their sentence
        self._alone = frozenset(text for piece, text in enumerate(texts) if text and piece != mark)
        self.characters = frozenset("".join(self._alone))
        self.has_bytes = None in texts
        self.whole = Index()  # pieces by spelling, and by spelling without signs at the end
        self._after = defaultdict[str, Index](Index)
        kinds = [None if text is None else self.signs.kinds(text) for text in texts]
        self.kinds = [kind or "" for kind in kinds]
        for piece, (spelling, text) in enumerate(zip(spellings, texts, strict=True)):
            if spelling and piece != mark:
                self._index(piece, spelling.decode("latin-1"), text)
        # By the signs at their beginning: the kinds of these, and the pieces by the rest of their spelling.
        self.after = {
            before: (self.signs.kinds(before.encode("latin-1").decode()), index)
            for before, index in self._after.items()
            if index
        }
        different = {kind: number for number, kind in enumerate(dict.fromkeys(self.kinds))}
        each = np.array([different[kind] for kind in self.kinds])
        strict = np.array([[self.signs.walk(c, kind) for kind in different] for c in range(CONTEXTS)])[:, each]
        in_source = np.array([[self.signs.walk(c or WORD, kind, True) for kind in different] for c in range(CONTEXTS)])
        strict[:, [kind is None for kind in kinds]] = INSIDE
        self.bias = np.where(strict == INSIDE, -np.float32(np.inf), np.float32(0))
        self.follow = np.where(strict == INSIDE, in_source[:, each], strict)
        self._longest = max(map(len, self.whole))
        self._matches = lru_cache(KNOWN)(self._find)
        self.is_name = lru_cache(KNOWN)(self.signs.is_name)
        self.spelling = lru_cache(KNOWN)(self._spelling)

    def _spelling(self, word: str) -> str:
        """Return the spelling of ``word``, or "" if the pieces cannot write it."""
        return byte_spelling(word) if self.has_bytes or self._alone.issuperset(word) else ""

    def matches(self, spelling: str, before: str | None = None) -> list[tuple[int, str, int]]:
        """Return the pieces with which ``spelling`` begins: each with its tail and its length in ``spelling``.

        With ``before``, these signs come before ``spelling``, which begins with a word.
        """
        return self._matches(spelling[: self._longest], before)

    def _find(self, spelling: str, before: str | None) -> list[tuple[int, str, int]]:
        index, matches = self.whole if before is None else self.after[before][1], []
        for end in range(1, len(spelling) + 1):
            pieces = index.get(spelling[:end])
            if pieces is None:
                break
            matches += [(piece, tail, end) for piece, tail in pieces]
        return matches

    def _index(self, piece: int, spelling: str, text: str | None) -> None:
        if text is None:
            self.whole.add(spelling, piece, "")
            self._after[""].add(spelling, piece, "")
            return
        before, behind = _signs(text), len(text) - _signs(text[::-1])
        # The signs before a number and the symbols after it may belong to it.
        starts = [start for start in range(before + 1) if start == before or text[start] in SIGNS]
        ends = [end for end in range(behind, len(text) + 1) if end in (behind, len(text)) or text[end - 1] in SYMBOLS]
        for index, start in [(self.whole, 0), *((self._after[byte_spelling(text[:start])], start) for start in starts)]:
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


def text_of(spelling: bytes) -> str | None:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None


def byte_spelling(text: str) -> str:
    return text.encode(errors="replace").decode("latin-1")
