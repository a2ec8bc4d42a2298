"""What a text may go on with whatever the sources say, character by character: small letters and signs, but no name."""

import re
from dataclasses import dataclass, field

from raysum.text.tokens import DASHES, JOINTS, SYMBOLS, UNITS, is_letter, is_name, is_number

NUMBERS, NAMES, ALL = "numbers", "names", "all"
_UNSPACED = re.compile("[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_SMALL = re.compile("a+")
_UNIT_STARTS = frozenset(unit[:end] for unit in UNITS for end in range(1, len(unit) + 1))

# Contexts. Of two that hold for the same text, the later one allows more.
INSIDE = 0  # a name, number or word held to the sources, that is not at its end: nothing may follow but by the nodes
NAMED, NUMBERED = 1, 2  # a name or number has just ended
# Signs behind a number: what a number, name, unit or symbol would belong to.
NUMBER_SPACE, NUMBER_JOINT, NUMBER_DOT = 3, 4, 5
SPACE, JOINT, DOT = 6, 7, 8  # one sign behind a name: if a name follows, both are one
CLOSED = 9  # a word has ended that no letter may follow
WORD = 10  # within or behind a word in small letters
SIGN = 11  # behind a sign or symbol to which a number would belong
END = 12  # behind a full stop, and up to 2 signs that close
OUT = 15  # behind another sign
BEGIN = 16  # at a sentence's beginning, and up to 3 signs
CONTEXTS = 20
_SINGLE = 20  # within a word of one piece
# The contexts behind a space, a point, and another sign that joins.
_BEHIND = {
    NAMED: (SPACE, DOT, JOINT),
    NUMBERED: (NUMBER_SPACE, NUMBER_DOT, NUMBER_JOINT),
    NUMBER_JOINT: (OUT, NUMBER_JOINT, NUMBER_JOINT),
    NUMBER_DOT: (BEGIN, NUMBER_JOINT, NUMBER_JOINT),
    CLOSED: (OUT, END, JOINT),
}


@dataclass(frozen=True)
class Signs:
    """The kinds of characters, and what each does to a context."""

    mode: str
    _walked: dict[tuple[int, str, bool], int] = field(default_factory=dict, compare=False)

    def kinds(self, text: str) -> str:
        """The kind of each character.

        ``A`` makes a word a name and ``D`` a number, ``a`` is another letter, ``c`` one of a script without spaces.
        ``u`` are the letters of a unit, ``p`` those of a word that may go on as one. Others are signs.
        """
        kinds = "".join(map(self.kind, text))
        for found in _SMALL.finditer(kinds):
            start, end = found.span()
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
            return "c" if self.mode == ALL and _UNSPACED.match(character) else "a"
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
        return is_number(word) if self.mode == NUMBERS else is_name(word)

    def step(self, context: int, kind: str, told: bool = False) -> int:
        """The context after one more character; names, too, may be written where they are ``told``."""
        if kind in "ADacup":
            return self._told(context, kind) if told else self._letter(context, kind)
        context = CLOSED if context == _SINGLE else context
        if context == INSIDE and not told:
            return INSIDE
        if context in (NUMBERED, NUMBER_SPACE) and kind == "%":
            return NUMBERED if told else INSIDE
        if context in (SPACE, NUMBER_SPACE) and kind == " ":
            return context
        if context in _BEHIND and kind in " .-,'’_%":
            space, point, joint = _BEHIND[context]
            return space if kind == " " else point if kind == "." else joint
        if kind in "-%":
            return OUT if (context, kind) == (WORD, "-") and self.mode != NUMBERS else SIGN
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
        if context == NUMBER_JOINT and self.mode == NUMBERS:  # the word may have a capital, which is no kind of its own
            return INSIDE
        if context in (NUMBER_SPACE, NUMBER_JOINT) and kind in "up":
            return _SINGLE if kind == "p" else INSIDE
        return _SINGLE if kind != "c" and (context == _SINGLE or self.mode == ALL) else WORD

    def _told(self, context: int, kind: str) -> int:
        if kind == "D" or context == NUMBERED:
            return NUMBERED
        return NAMED if kind == "A" or context == NAMED else WORD

    def walk(self, context: int, kinds: str, told: bool = False) -> int:
        """The context after a piece, by the kinds of its characters."""
        known = self._walked.get((context, kinds, told))
        if known is None:
            known = context
            for kind in kinds:
                known = INSIDE if known == INSIDE and not told else self.step(known, kind, told)
            self._walked[context, kinds, told] = known = CLOSED if known == _SINGLE else known
        return known
