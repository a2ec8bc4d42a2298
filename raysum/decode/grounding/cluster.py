"""An automaton over pieces: the names and numbers that the summary of one cluster may contain.

A state is a context and a set of nodes. The *context* is what the text so far allows with any sources (`pieces`).
The *nodes* are positions in strings of the sources: names (each run of name words and numbers, from each of its
tokens), words that may begin a sentence and, in the mode "all", words in small letters. A piece may follow if the
context or a node allows it, so names can be segmented in any way. The automaton computes the successors of a state when
they are first needed.

The rule for a supported name is that of `text.names`, with exceptions that allow less. The beginning of a sentence is
forgotten after many signs and after a dash, and a name after eight tokens. A sentence without a full stop continues
into the next one. The first word of a sentence is not joined to a name that sources write in small letters. A name
begins after a space, a bracket, a quote, or a sign after a word in small letters, but not directly after a full stop or
symbol.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

from raysum.decode.grounding.pieces import CLOSED, INSIDE, NAMED, NUMBERED, OUT, WORD, Part, Pieces, Root, byte_spelling
from raysum.text.names import OPENERS, UNITS, Token, is_letter, is_number, runs
from raysum.text.names import WORD as A_WORD

_NAME_TOKENS = 8
_LAST = "\xff"  # sorts after every byte of UTF-8

State = tuple[int, tuple[str, ...]]  # a context and nodes
Reached = dict[int, State]  # next states by piece


class SourceAutomaton:
    """The automaton of one cluster."""

    def __init__(self, texts: Sequence[str], pieces: Pieces, base: "SourceAutomaton | None" = None):
        """``base`` is the automaton without texts, which supplies the function words."""
        self._pieces, self._signs = pieces, pieces.signs
        self._ends: dict[str, int] = base._ends.copy() if base else {}  # contexts of nodes, if not INSIDE
        self._starts: dict[Part, Reached] = {}
        self._begun: dict[tuple[Part, ...], Reached] = {}
        self._after: dict[State, Reached] = {}
        text = "\n".join(" ".join(text.split()) for text in texts)
        self._own = self._spell(text, OPENERS if base is None else ())
        if base:
            self._own[Root.FUNCTION] = base._own[Root.FUNCTION]
            parts = ((Root.FUNCTION, before, OUT) for before in pieces.after)
            self._starts |= {part: base._start(*part) for part in parts}

    def next(self, state: State, piece: int) -> State:
        """Return the state after ``piece``."""
        context = state[0]
        plain = int(self._pieces.follow[context, piece]), ()
        return self.names(state).get(piece) or self.begun(context).get(piece, plain)

    def names(self, state: State) -> Reached:
        """Return the next states by the pieces that the nodes of ``state`` allow."""
        if state not in self._after:
            context, nodes = state
            reached: Reached = {}
            for node in nodes:
                own = self._own[node[0]]
                for spelling in own[bisect_left(own, node) : bisect_left(own, node + _LAST)]:
                    self._continue(reached, spelling, len(node))
            self._walk(reached, context)
            self._after[state] = reached | _both(reached, self.begun(context))
        return self._after[state]

    def begun(self, context: int) -> Reached:
        """Return the next states by the pieces with which nodes may begin in ``context``."""
        parts = self._pieces.parts[context]
        if parts not in self._begun:
            reached = self._begun.setdefault(parts, {})
            for part in parts:
                reached |= self._start(*part)
        return self._begun[parts]

    def _start(self, roots: str, before: str, context: int) -> Reached:
        """Return the next states by pieces with the signs ``before`` and then the beginning of a node of ``roots``."""
        if (roots, before, context) not in self._starts:
            reached = self._starts.setdefault((roots, before, context), {})
            if len(roots) > 1:
                for part in (self._start(root, before, context) for root in roots):
                    reached |= part | _both(part, reached)
            elif roots:
                for spelling in self._own[roots]:
                    self._continue(reached, spelling, 1, before)
                self._walk(reached, context, len(before))
        return self._starts[roots, before, context]

    def _continue(self, reached: Reached, spelling: str, start: int, before: str | None = None) -> None:
        """Add to ``reached`` the pieces that continue ``spelling`` from its ``start``."""
        for piece, tail, length in self._pieces.matches(spelling[start:], before):
            node = spelling[: start + length]
            context = self._ends.get(node, INSIDE)
            state: State = (self._signs.walk(context, tail), ()) if tail else (context, (node,))
            if tail and state[0] == INSIDE:
                continue
            reached[piece] = _either(reached[piece], state) if piece in reached else state

    def _walk(self, reached: Reached, context: int, skip: int = 0) -> None:
        """Update the contexts in ``reached`` for pieces from ``context``, without their first ``skip`` characters."""
        if context != INSIDE:
            for piece, (after, nodes) in reached.items():
                if kinds := self._pieces.kinds[piece][skip:]:
                    reached[piece] = max(after, self._signs.walk(context, kinds)), nodes

    def _spell(self, text: str, function: Iterable[str]) -> dict[str, list[str]]:
        """Return the spellings of names and words of ``text``, sorted, by kind of node."""
        mode, pieces = self._signs.mode, self._pieces
        words = set(A_WORD.findall(text))
        named = set(filter(pieces.is_name, words))
        parts = (run[n : n + _NAME_TOKENS] for run in runs(text, named.__contains__) for n in range(len(run)))
        names = {text[part[0].start : part[-1].end]: part for part in parts}
        small = words - named
        begin, function = ((), ()) if mode == "numbers" else (small, function)
        restricted = small if mode == "all" else set[str]()
        unknown = set(text) - pieces.characters - {"\n"} if pieces.has_bytes else ()
        letters = {c for c in unknown if is_letter(c)}
        return {
            Root.NAME: sorted(self._name(text, part) for part in names.values()),
            Root.FUNCTION: self._words(Root.FUNCTION, map(_capitalized, function), CLOSED),
            Root.BEGIN: self._words(Root.BEGIN, map(_capitalized, begin), NAMED),
            Root.SMALL: self._words(Root.SMALL, restricted - UNITS, CLOSED),
            Root.UNIT: self._words(Root.UNIT, restricted & UNITS, CLOSED),
            Root.LETTER: self._words(Root.LETTER, (c for c in letters if not pieces.is_name(c)), WORD),
            Root.OTHER: self._words(Root.OTHER, (c for c in unknown if self._signs.kind(c) in "!)x"), OUT),
        }

    def _name(self, text: str, tokens: Sequence[Token]) -> str:
        """Return the node of the name of ``tokens``, which ends before the first token without a spelling."""
        node, context, end = Root.NAME, INSIDE, tokens[0].start
        for start, stop, is_a_number in tokens:
            if joint := text[end:start]:
                node += byte_spelling(joint)
                self._ends[node] = context = self._signs.step(context, self._signs.kind(joint))
            token, context, end = text[start:stop], NUMBERED if is_a_number else NAMED, stop
            spelling = self._pieces.spelling(token)
            if not spelling:
                break
            first = A_WORD.match(token)
            if first and self._signs.mode != "numbers" and not is_number(first.group()):  # the name in COVID-19
                self._ends[node + byte_spelling(first.group())] = NAMED
            node += spelling
            self._ends[node] = context
        return node

    def _words(self, root: str, words: Iterable[str], context: int) -> list[str]:
        spellings = sorted(root + spelling for spelling in map(self._pieces.spelling, words) if spelling)
        self._ends.update(dict.fromkeys(spellings, context))
        return spellings


def _either(one: State, other: State) -> State:
    """Return the state that allows what either allows."""
    return one if one == other else (max(one[0], other[0]), tuple(sorted({*one[1], *other[1]})))


def _both(one: Reached, other: Reached) -> Reached:
    """Return the merged states of the pieces that are in both."""
    return {piece: _either(one[piece], other[piece]) for piece in one.keys() & other.keys()}


@lru_cache(2**15)
def _capitalized(word: str) -> str:
    """Return ``word`` with a capital, or "" if that changes nothing or cannot be undone."""
    capital = word[0].upper()
    return capital + word[1:] if capital.lower() == word[0] != capital else ""
