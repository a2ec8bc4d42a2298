"""An automaton over pieces of what the summary of a cluster may say of names and numbers.

Two things go on beside each other as text is written. The *context* is what the text so far allows whatever the sources
say (`contexts`). The *nodes* are places within what the sources say: names (each run of name words and numbers, and
what is left of it from each of its tokens on), words that may begin a sentence, and where all words are held to the
sources, those in small letters. A piece may follow where either allows it, in any segmentation of a name. A state is a
context and a set of nodes; `Cluster` works out what follows from one when it is asked for it.

Supported is what `metrics.names` says, but for some cases in which less is allowed. A sentence's beginning is forgotten
behind many signs and behind a dash, and a name for eight tokens. A sentence that ends without a full stop goes on into
the next. A sentence's first word in a name that sources write small is not joined to that name. A name begins behind a
space, a bracket or quote, a sign behind a word in small letters, but not right behind a full stop or symbol.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

from raysum.decode.grounding.contexts import (
    ALL,
    BEGIN,
    CLOSED,
    CONTEXTS,
    DOT,
    INSIDE,
    NAMED,
    NUMBER_DOT,
    NUMBER_SPACE,
    NUMBERED,
    NUMBERS,
    OUT,
    SIGN,
    WORD,
)
from raysum.decode.grounding.pieces import KNOWN, Pieces, spelled
from raysum.text.names import OPENERS
from raysum.text.tokens import UNITS, Token, is_letter, is_number, runs
from raysum.text.tokens import WORD as A_WORD

_NAME_TOKENS = 8
# What nodes are in; each node is such a letter and what is spelled so far.
_NAME, _FUNCTION, _BEGIN, _SMALL, _UNIT, _LETTER, _OTHER = "nfbsulo"
_LAST = "\xff"  # behind every byte of UTF-8

State = tuple[int, tuple[str, ...]]  # a context and nodes
Reached = dict[int, State]  # by pieces
_Part = tuple[str, str, int]  # what may begin, the signs before it, and the context behind these


class Cluster:
    """The automaton of one cluster."""

    def __init__(self, texts: Sequence[str], pieces: Pieces, base: "Cluster | None" = None):
        """``base`` is the automaton of no texts; what it knows of function words is taken over."""
        self._pieces, self._signs = pieces, pieces.signs
        self._ends: dict[str, int] = base._ends.copy() if base else {}  # the contexts of nodes, where not INSIDE
        self._starts: dict[_Part, Reached] = {}
        self._parts: list[tuple[_Part, ...]] = (
            base._parts if base else [self._begin(context) for context in range(CONTEXTS)]
        )
        self._begun: dict[tuple[_Part, ...], Reached] = {}
        self._after: dict[State, Reached] = {}
        text = "\n".join(" ".join(text.split()) for text in texts)
        self._own = self._spell(text, OPENERS if base is None else ())
        if base:
            self._own[_FUNCTION] = base._own[_FUNCTION]
            parts = ((_FUNCTION, before, OUT) for before in pieces.after)
            self._starts |= {part: base._start(*part) for part in parts}

    def next(self, state: State, piece: int) -> State:
        """Where ``piece`` leads from ``state``."""
        context = state[0]
        plain = int(self._pieces.follow[context, piece]), ()
        return self.names(state).get(piece) or self.begun(context).get(piece, plain)

    def names(self, state: State) -> Reached:
        """What may follow by the nodes of ``state``."""
        if state not in self._after:
            context, nodes = state
            reached: Reached = {}
            for node in nodes:
                own = self._own[node[0]]
                for spelling in own[bisect_left(own, node) : bisect_left(own, node + _LAST)]:
                    self._go_on(reached, spelling, len(node))
            self._walk(reached, context)
            self._after[state] = reached | _both(reached, self.begun(context))
        return self._after[state]

    def begun(self, context: int) -> Reached:
        """What ``context`` lets begin."""
        parts = self._parts[context]
        if parts not in self._begun:
            reached = self._begun.setdefault(parts, {})
            for part in parts:
                reached |= self._start(*part)
        return self._begun[parts]

    def _begin(self, context: int) -> tuple[_Part, ...]:
        """What may begin in ``context``, and behind which signs; a piece has the signs of one part."""
        behind = {before: self._signs.walk(context, kinds) for before, (kinds, _) in self._pieces.after.items()}
        return tuple(self._begins(here, before) for before, here in behind.items())

    def _begins(self, context: int, before: str) -> _Part:
        """What may begin in ``context``, which is behind the signs ``before``."""
        has_bytes = self._pieces.has_bytes and not before
        after_number = NUMBER_SPACE <= context <= NUMBER_DOT
        roots = _NAME if context >= OUT else ""
        roots += _FUNCTION + _BEGIN if context >= BEGIN else ""
        if context >= SIGN or NUMBER_SPACE <= context <= DOT:
            roots += _SMALL if after_number else _SMALL + _UNIT
        if has_bytes and not after_number and context not in (INSIDE, NAMED, NUMBERED, CLOSED):
            roots += _LETTER
        if has_bytes and context != INSIDE:
            roots += _OTHER
        return roots, before, context if after_number else OUT

    def _start(self, roots: str, before: str, context: int) -> Reached:
        """The states that pieces lead to which begin with the signs ``before`` and go on with what is in ``roots``."""
        if (roots, before, context) not in self._starts:
            reached = self._starts.setdefault((roots, before, context), {})
            if len(roots) > 1:
                for part in (self._start(root, before, context) for root in roots):
                    reached |= part | _both(part, reached)
            elif roots:
                for spelling in self._own[roots]:
                    self._go_on(reached, spelling, 1, before)
                self._walk(reached, context, len(before.encode("latin-1").decode()))
        return self._starts[roots, before, context]

    def _go_on(self, reached: Reached, spelling: str, start: int, before: str | None = None) -> None:
        """Into ``reached``: the pieces that ``spelling`` goes on with from its ``start``."""
        for piece, tail, length in self._pieces.matches(spelling[start:], before):
            node = spelling[: start + length]
            context = self._ends.get(node, INSIDE)
            state: State = (self._signs.walk(context, tail), ()) if tail else (context, (node,))
            if tail and state[0] == INSIDE:
                continue
            reached[piece] = _either(reached[piece], state) if piece in reached else state

    def _walk(self, reached: Reached, context: int, skip: int = 0) -> None:
        """In ``reached``: what pieces lead to from ``context``, with their first ``skip`` characters behind them."""
        if context != INSIDE:
            for piece, (after, nodes) in reached.items():
                if kinds := self._pieces.kinds[piece][skip:]:
                    reached[piece] = max(after, self._signs.walk(context, kinds)), nodes

    def _spell(self, text: str, function: Iterable[str]) -> dict[str, list[str]]:
        """The spellings of what ``text`` says, by what they are."""
        mode, pieces = self._signs.mode, self._pieces
        words = set(A_WORD.findall(text))
        named = set(filter(pieces.is_name, words))
        names = dict(name for run in runs(text, named.__contains__) for name in _parts(text, run))
        small = words - named
        begin, function = ((), ()) if mode == NUMBERS else (small, function)
        held = small if mode == ALL else set[str]()
        strange = set(text) - pieces.characters - {"\n"} if pieces.has_bytes else ()
        letters = {c for c in strange if is_letter(c)}
        return {
            _NAME: sorted(self._name(*name) for name in names.items()),
            _FUNCTION: self._words(_FUNCTION, map(_capitalized, function), CLOSED),
            _BEGIN: self._words(_BEGIN, map(_capitalized, begin), NAMED),
            _SMALL: self._words(_SMALL, held - UNITS, CLOSED),
            _UNIT: self._words(_UNIT, held & UNITS, CLOSED),
            _LETTER: self._words(_LETTER, (c for c in letters if not pieces.is_name(c)), WORD),
            _OTHER: self._words(_OTHER, (c for c in strange if self._signs.kind(c) in "!)x"), OUT),
        }

    def _name(self, name: str, tokens: Sequence[Token]) -> str:
        """The spelling of a name, up to a token that cannot be written."""
        node, context, end = _NAME, INSIDE, 0
        for start, stop, is_a_number in tokens:
            if joint := name[end:start]:
                node += spelled(joint)
                self._ends[node] = context = self._signs.step(context, self._signs.kind(joint))
            token, context, end = name[start:stop], NUMBERED if is_a_number else NAMED, stop
            spelling = self._pieces.spelling(token)
            if not spelling:
                break
            first = A_WORD.match(token)
            if first and self._signs.mode != NUMBERS and not is_number(first.group()):  # the name in COVID-19
                self._ends[node + spelled(first.group())] = NAMED
            node += spelling
            self._ends[node] = context
        return node

    def _words(self, root: str, words: Iterable[str], context: int) -> list[str]:
        spellings = sorted(root + spelling for spelling in map(self._pieces.spelling, words) if spelling)
        self._ends.update(dict.fromkeys(spellings, context))
        return spellings


def _either(one: State, other: State) -> State:
    """Where both may hold for the same text."""
    return one if one == other else (max(one[0], other[0]), tuple(sorted({*one[1], *other[1]})))


def _both(one: Reached, other: Reached) -> Reached:
    """The pieces of both."""
    return {piece: _either(one[piece], other[piece]) for piece in one.keys() & other.keys()}


@lru_cache(KNOWN)
def _capitalized(word: str) -> str:
    """``word`` with a capital, "" where that is no change which can be undone."""
    capital = word[0].upper()
    return capital + word[1:] if capital.lower() == word[0] != capital else ""


def _parts(text: str, run: Sequence[Token]) -> Iterable[tuple[str, tuple[Token, ...]]]:
    """The name of a run from each of its tokens on, of eight tokens at most, and where these stand in it."""
    for number, (first, _, _) in enumerate(run):
        part = run[number : number + _NAME_TOKENS]
        yield (
            text[first : part[-1].end],
            tuple(Token(start - first, end - first, is_number) for start, end, is_number in part),
        )
