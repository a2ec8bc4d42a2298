"""The pieces of a vocabulary by their spelling, and tries of what can be spelled with them.

Spellings are UTF-8, as strings of one character a byte: so a piece may be one byte of a character.
"""

import re
from collections import defaultdict

import numpy as np

from raysum.data.vocabulary import Vocabulary
from raysum.decode.grounding.contexts import CONTEXTS, INSIDE, WORD, Signs

_BEFORE, _BEHIND = re.compile(r"\A[\W_]*"), re.compile(r"(?<![\W_])[\W_]*\Z")  # the signs around the words of a piece


class Pieces:
    """What is the same for all clusters: the pieces of a vocabulary by their spelling, and what contexts allow.

    ``follow`` [CONTEXTS, V] is the context after each piece, ``allowed`` [CONTEXTS, V] whether it may follow whatever
    the sources say.
    """

    def __init__(self, vocabulary: Vocabulary, mode: str):
        self.signs = Signs(mode)
        self.size = len(vocabulary)
        spellings = vocabulary.spellings()
        texts = [text_of(spelling) for spelling in spellings]
        self.characters = frozenset("".join(text for text in texts if text))
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
        self.allowed = strict != INSIDE
        self.follow = np.where(self.allowed, strict, told[:, each])

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


class Tries:
    """Tries of spellings; a node has children and the context that holds when the text is at this place."""

    def __init__(self) -> None:
        self.children: list[dict[str, int]] = []
        self.context: list[int] = []

    def copy(self) -> "Tries":
        """One that may be added to under roots that have no children yet."""
        copy = Tries()
        copy.children, copy.context = [children or {} for children in self.children], self.context.copy()
        return copy

    def root(self) -> int:
        """A new node."""
        self.children.append({})
        self.context.append(INSIDE)
        return len(self.children) - 1

    def add(self, node: int, spelling: str, context: int) -> int:
        """The node of ``spelling`` under ``node``, in ``context``."""
        for character in spelling:
            child = self.children[node].get(character)
            if child is None:
                child = self.children[node][character] = self.root()
            node = child
        self.context[node] = max(self.context[node], context)
        return node

    def matches(self, root: int, index: Index) -> list[tuple[int, str, int]]:
        """Pieces of ``index`` that can be spelled from ``root`` on: each with its tail, and the node it leads to."""
        found, open_ends = [], [(root, "")]
        while open_ends:
            node, spelling = open_ends.pop()
            for character, child in self.children[node].items():
                pieces = index.get(longer := spelling + character)
                if pieces is not None:
                    open_ends.append((child, longer))
                    if pieces:
                        found += [(piece, tail, child) for piece, tail in pieces]
        return found
