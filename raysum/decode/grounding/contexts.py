"""What a text may go on with whatever the sources say, character by character: small letters and signs, but no name."""

import re
from dataclasses import dataclass, field

from raysum.metrics.names import is_name, is_number

NUMBERS, NAMES, ALL = "numbers", "names", "all"
_UNSPACED = re.compile("[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")

# Contexts. Of two that hold for the same text, the later one allows more.
INSIDE = 0  # a name, or a word held to the sources, that is not at its end: nothing may follow but by the nodes
NAMED = 1  # a name has just ended
SPACE, JOINT, DOT = 2, 3, 4  # one sign behind a name: if a name follows, both are one
CLOSED = 5  # a word has ended that no letter may follow
WORD = 6  # within or behind a word in small letters
OUT = 7  # behind a sign
END, BEGIN = 8, 11  # behind a full stop, and up to 2 signs that close; at a sentence's beginning, and up to 3 signs
CONTEXTS = 15
_SINGLE = 15  # within a word of one piece


@dataclass(frozen=True)
class Signs:
    """The kinds of characters, and what each does to a context."""

    mode: str
    _walked: dict[tuple[int, str, bool], int] = field(default_factory=dict, compare=False)

    def kind(self, character: str) -> str:
        """``A`` makes a word a name, ``a`` is another letter, ``c`` one of a script without spaces, others signs."""
        if character.isalnum():
            if self.is_name(character):
                return "A"
            return "c" if self.mode == ALL and _UNSPACED.match(character) else "a"
        if character.isspace():
            return " "
        return character if character in ".'’" else "!" if character in "!?…" else self._sign(character)

    def is_name(self, word: str) -> bool:
        return is_number(word) if self.mode == NUMBERS else is_name(word)

    def _sign(self, character: str) -> str:
        return "-" if character in "-,:/&" else ")" if character in '"”)]' else "_" if character == "_" else "x"

    def step(self, context: int, kind: str, told: bool = False) -> int:
        """The context after one more character; names, too, may be written where they are ``told``."""
        if kind in "Aac":
            if told:
                return WORD
            if kind == "A" or context in (INSIDE, NAMED, CLOSED):
                return INSIDE
            return _SINGLE if self.mode == ALL and kind == "a" else WORD
        context = CLOSED if context == _SINGLE else context
        if context == INSIDE and not told:
            return INSIDE
        if context in (NAMED, SPACE) and kind == " ":
            return SPACE
        if context == NAMED and kind in ".-'’":
            return DOT if kind == "." else JOINT
        if kind in ".!" and context < BEGIN:
            return END
        if context == DOT or END <= context < BEGIN:
            closed = 0 if context == DOT else context - END
            if kind == " ":
                return BEGIN
            return END + closed + 1 if kind in ")'’" and closed < 2 else OUT
        if BEGIN <= context < CONTEXTS - 1 and kind != "_":
            return context + 1
        return OUT

    def walk(self, context: int, kinds: str, told: bool = False) -> int:
        """The context after a piece, by the kinds of its characters."""
        known = self._walked.get((context, kinds, told))
        if known is None:
            known = context
            for kind in kinds:
                known = INSIDE if known == INSIDE and not told else self.step(known, kind, told)
            self._walked[context, kinds, told] = known = CLOSED if known == _SINGLE else known
        return known
