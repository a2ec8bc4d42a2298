"""The characters that may follow a text with any sources: small letters and signs, but no names."""

import re
from dataclasses import dataclass, field

from raysum.text.tokens import DASHES, JOINTS, SYMBOLS, UNITS, is_letter, is_name, is_number

NUMBERS, NAMES, ALL = "numbers", "names", "all"
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
# The contexts after a space, a full stop, and another joining sign.
_BEHIND = {
    NAMED: (SPACE, DOT, JOINT),
    NUMBERED: (NUMBER_SPACE, NUMBER_DOT, NUMBER_JOINT),
    NUMBER_JOINT: (OUT, NUMBER_JOINT, NUMBER_JOINT),
    NUMBER_DOT: (BEGIN, NUMBER_JOINT, NUMBER_JOINT),
    CLOSED: (OUT, END, JOINT),
}


@dataclass(frozen=True)
class Signs:
    """The kinds of characters, and the context after each."""

    mode: str
    _walked: dict[tuple[int, str, bool], int] = field(default_factory=dict, compare=False)

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

    def _in_source(self, context: int, kind: str) -> int:
        if kind == "D" or context == NUMBERED:
            return NUMBERED
        return NAMED if kind == "A" or context == NAMED else WORD

    def walk(self, context: int, kinds: str, in_source: bool = False) -> int:
        """Return the context after a piece, by the kinds of its characters."""
        after = self._walked.get((context, kinds, in_source))
        if after is None:
            after = context
            for kind in kinds:
                after = INSIDE if after == INSIDE and not in_source else self.step(after, kind, in_source)
            self._walked[context, kinds, in_source] = after = CLOSED if after == _SINGLE else after
        return after
