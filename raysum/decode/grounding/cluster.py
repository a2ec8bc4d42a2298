"""An automaton over pieces of what the summary of a cluster may say of names and numbers.

Two things go on beside each other as text is written. The *context* is what the text so far allows whatever the sources
say (`contexts`). The *nodes* are places in tries of what the sources say: names (each run of name words, and what is
left of it from each of its words on), words that may begin a sentence, and where all words are held to the sources,
those in small letters. A piece may follow where either allows it, in any segmentation of a name. A state is a context
and a set of nodes; `Cluster` works out all that follows from the tries of a cluster.

Supported is what `metrics.names` says, but for three cases in which less is allowed: a sentence's beginning is
forgotten behind many signs, one that ends without a full stop goes on into the next, and a name for eight words.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from raysum.decode.grounding.contexts import (
    ALL,
    BEGIN,
    CLOSED,
    CONTEXTS,
    DOT,
    INSIDE,
    NAMED,
    NUMBERS,
    OUT,
    SPACE,
    WORD,
)
from raysum.decode.grounding.pieces import Index, Pieces, Tries, spelled
from raysum.metrics.names import FUNCTION_WORDS, runs

_WORD = re.compile(r"[^\W_]+")
_NAME_WORDS = 8
_ROOTS = ("names", "function", "begin", "small", "letters", "other")

State = tuple[int, tuple[int, ...]]  # a context and nodes
_Reached = dict[int, State]  # by pieces


class Cluster:
    """The automaton of one cluster.

    States are numbers from 0 on, the first ``CONTEXTS`` those without nodes. ``context`` [S] of each; edges [E] sorted

    """

    def __init__(self, texts: Sequence[str], pieces: Pieces, base: "Cluster | None" = None):
        """``base`` is the automaton of no texts; what it knows of function words is taken over."""
        self._pieces, self._signs, self._base = pieces, pieces.signs, base
        self._spaced = set[int]()  # nodes behind a space
        self.tries: Tries = base.tries.copy() if base else Tries()
        self.roots: dict[str, int] = base.roots if base else {name: self.tries.root() for name in _ROOTS}
        self.matched: dict[int, list[tuple[int, str, int]]] = base.matched.copy() if base else {}
        self.states: dict[State, int] = base.states.copy() if base else {(c, ()): c for c in range(CONTEXTS)}
        self._fill([" ".join(text.split()) for text in texts])
        self._beginnings = self._find_beginnings()
        edges = self._expand()
        if base:
            edges = np.concatenate((edges, base.edges[base.edges[:, 0] >= CONTEXTS]))
        self.context = np.array([context for context, _ in self.states])
        self.edges: np.ndarray = _without_dead_ends(edges, self.context)

    def _fill(self, texts: Sequence[str]) -> None:
        """The tries of what ``texts`` say."""
        signs, pieces = self._signs, self._pieces
        words = frozenset(word for text in texts for word in _WORD.findall(text))
        named = frozenset(filter(signs.is_name, words))
        spans = [(text, *span) for text in texts for span in runs(text, named.__contains__)]
        for name in {name for text, start, end in spans for name in _parts(text[start:end])}:
            self._add_name(name)
        small = words - named
        if signs.mode != NUMBERS:
            self._add_words("begin", map(_capitalized, small if self._base else ()), CLOSED)
            self._add_words("function", () if self._base else map(_capitalized, FUNCTION_WORDS), CLOSED)
        self._add_words("small", small if signs.mode == ALL else (), CLOSED)
        if pieces.has_bytes:
            strange = {character for character in "".join(texts) if character not in pieces.characters}
            self._add_words("letters", (c for c in strange if c.isalnum() and not signs.is_name(c)), WORD)
            self._add_words("other", (c for c in strange if not c.isalnum()), OUT)

    def _add_name(self, name: str) -> None:
        node = self.roots["names"]
        for found in re.finditer(r"[^\W_]+|[\W_]", name):
            context = NAMED if found[0].isalnum() else self._signs.step(NAMED, self._signs.kind(found[0]))
            node = self.tries.add(node, spelled(found[0]), context)
            if context == SPACE:
                self._spaced.add(node)

    def _add_words(self, root: str, words: Iterable[str], context: int) -> None:
        for word in words:
            if word and word[0] in self._pieces.characters or root in ("letters", "other"):
                self.tries.add(self.roots[root], spelled(word), context)

    def _begins(self, context: int, first: bool) -> tuple[int, ...]:
        """Roots of what may begin in ``context``; ``first``: with the first character of a piece."""
        names = ["names"] if context >= OUT else []
        names += ["function", "begin"] if context >= BEGIN else []
        if context >= OUT or SPACE <= context <= DOT:
            names.append("small")
        if first and self._pieces.has_bytes and context not in (INSIDE, NAMED, CLOSED):
            names.append("letters")
        if first and self._pieces.has_bytes and context != INSIDE:
            names.append("other")
        return tuple(root for name in names if self.tries.children[root := self.roots[name]])

    def _find_beginnings(self) -> list[list[_Reached]]:
        """What each context lets begin, by the signs before it; equal parts are the same object."""
        known: dict[tuple[str, tuple[int, ...]], _Reached] = {}
        beginnings: list[list[_Reached]] = [[] for _ in range(CONTEXTS)]
        for before, (kinds, index) in self._pieces.after.items():
            for context in range(1, CONTEXTS):
                here = self._signs.walk(context, kinds)
                roots = self._begins(here, not before)
                if roots and (before, roots) not in known:
                    found = [match for root in roots for match in self.tries.matches(root, index)]
                    known[before, roots] = self._reached(here, found, len(kinds))
                if roots:
                    beginnings[context].append(known[before, roots])
        return beginnings

    def _reached(self, context: int, found: Iterable[tuple[int, str, int]], skip: int = 0) -> _Reached:
        """The states that pieces lead to from ``context``, with their first ``skip`` characters behind them."""
        reached: _Reached = {}
        walk, at_node, kinds = self._signs.walk, self.tries.context, self._pieces.kinds
        for piece, tail, node in found:
            state: State = (walk(at_node[node], tail), ()) if tail else (at_node[node], (node,))
            if tail and state[0] == INSIDE:
                continue
            if piece in reached:
                state = _either(reached[piece], state)
            elif context and (after := kinds[piece][skip:]):
                state = max(state[0], walk(context, after)), state[1]
            reached[piece] = state
        return reached

    def _expand(self) -> np.ndarray:
        """All edges, as (source, piece, target); the states that they lead to get their numbers."""
        states, waiting = self.states, list[State]()

        def numbered(reached: _Reached) -> tuple[list[int], list[int]]:
            for target in reached.values():
                if target not in states:
                    states[target] = len(states)
                    waiting.append(target)
            return list(reached), [states[target] for target in reached.values()]

        once = {id(part): numbered(part) for parts in self._beginnings for part in parts}
        edges = [(0, list[int](), list[int]())]
        edges += [(source, *once[id(part)]) for source, parts in enumerate(self._beginnings) for part in parts]
        while waiting:
            state = waiting.pop()
            edges.append((states[state], *numbered(self._after(state))))
        sources, pieces, targets = zip(*edges, strict=True)
        counts = list(map(len, pieces))
        return np.stack([np.repeat(sources, counts), *map(_joined, (pieces, targets))], 1)

    def _after(self, state: State) -> _Reached:
        """What may follow by the nodes of ``state``."""
        context, nodes = state
        reached = self._reached(context, [match for node in nodes for match in self._following(node)])
        for begun in self._beginnings[context]:
            for piece in reached.keys() & begun.keys():
                reached[piece] = _either(reached[piece], begun[piece])
        return reached

    def _following(self, node: int) -> list[tuple[int, str, int]]:
        if node not in self.matched:
            found = self.tries.matches(node, self._pieces.whole)
            if node in self._spaced:  # a sentence begins with a space, which does not double the one before
                found += self.tries.matches(node, self._pieces.after.get(" ", ("", Index()))[1])
            self.matched[node] = found
        return self.matched[node]


def _joined(parts: Iterable[list[int]]) -> np.ndarray:
    return np.array([one for part in parts for one in part], np.int64)


def _either(one: State, other: State) -> State:
    """Where both may hold for the same text."""
    return max(one[0], other[0]), tuple(sorted({*one[1], *other[1]}))


def _capitalized(word: str) -> str:
    """``word`` with a capital, "" where that is no change which can be undone."""
    capital = word[0].upper()
    return capital + word[1:] if capital.lower() == word[0] != capital else ""


def _without_dead_ends(edges: np.ndarray, context: np.ndarray) -> np.ndarray:
    """``edges`` but for those from which no pieces lead to the end of the word."""
    while True:
        useful = context != INSIDE
        useful[edges[:, 0]] = True
        kept = edges[useful[edges[:, 2]]]
        if len(kept) == len(edges):
            return kept[np.lexsort((kept[:, 1], kept[:, 0]))]
        edges = kept


def _parts(name: str) -> Iterable[str]:
    """The name from each of its words on, of eight words at most."""
    words = [found.span() for found in _WORD.finditer(name)]
    for number, (start, _) in enumerate(words):
        yield name[start : words[min(number + _NAME_WORDS, len(words)) - 1][1]]
