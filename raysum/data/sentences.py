"""Sentence boundaries: by rule for source paragraphs, by syntok where the rule may err in a summary."""

import re
from itertools import pairwise

# A mark that may end a sentence, closing quotes or brackets, and the white space before the next word.
_CANDIDATE = re.compile(r"""[.!?…]["'”’)\]]*\s+(?=\S)""")
# What makes a text hard: boundaries without a candidate ("it.The", "; The"), brackets, and candidates that may be none.
_ODD = re.compile(r"[;()\[\]{}<>]|[.!?…](?=\w)")
_PLAIN_END = re.compile(r"(?:[A-Z]?[a-z]{4,}|\b(?:1\d|20)\d\d)$")  # too long for most abbreviations, or a year
_PLAIN_START = re.compile(r"[A-Z](?:[a-z]| )")
_TRIMMED = re.compile(r"\S(?:.*\S)?", re.DOTALL)
_LAST_WORD = re.compile(r"[\w.&'-]+$")
_LONGEST_WORD = 24  # characters looked at before a mark
_ABBREVIATIONS = re.compile(
    "al|approx|assoc|bros|ca|capt|cf|co|col|corp|corresp|dept|dr|e\\.g|eds?|eqs?|est|etc|figs?|gen|gov|i\\.e|inc|jr|ltd?"
    "|messrs|mrs?|ms|mt|nos?|op|pp?|prof|pseud|refs?|rep|resp|rev|sect?|sen|sgt|sr|st|tab|trans|treas|univ|viz|vol|vs"
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the sentences of ``text``, exactly: syntok decides wherever the text is not plain.

    Plain are texts without brackets and semicolons where each mark follows a word of four letters or more, or a year,
    and precedes a capitalized word. In all such paragraphs of scientific papers (1,131 of 7,736) the rule gave
    syntok's boundaries, in a tenth of its time (0.6 ms for 70 words).
    """
    candidates = list(_CANDIDATE.finditer(text))
    if not _ODD.search(text) and all(_is_plain(text, candidate) for candidate in candidates):
        return _spans(text, [candidate.end() for candidate in candidates])
    import syntok.segmenter

    starts = [sentence[0].offset for part in syntok.segmenter.process(text) for sentence in part if sentence]
    return _spans(text, starts[1:])


def quick_sentence_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the sentences of ``text`` by rule alone: for source paragraphs, of which there are many.

    On the same papers, 95 % of its boundaries are syntok's, and 94 % of syntok's are among them.
    """
    return _spans(text, [found.end() for found in _CANDIDATE.finditer(text) if _ends_sentence(text, found)])


def _is_plain(text: str, candidate: re.Match[str]) -> bool:
    before = _PLAIN_END.search(text, max(0, candidate.start() - _LONGEST_WORD), candidate.start())
    if before is None or _ABBREVIATIONS.fullmatch(before[0].lower()):
        return False
    return _PLAIN_START.match(text, candidate.end()) is not None


def _ends_sentence(text: str, candidate: re.Match[str]) -> bool:
    """No sentence ends before a lower-case letter, nor at the full stop of an abbreviation or an initial."""
    if text[candidate.end()].islower():
        return False
    if text[candidate.start()] != ".":
        return True
    word = _LAST_WORD.search(text, max(0, candidate.start() - _LONGEST_WORD), candidate.start())
    return word is None or not (re.fullmatch("[A-Z]", word[0]) or _ABBREVIATIONS.fullmatch(word[0].lower()))


def _spans(text: str, later_starts: list[int]) -> list[tuple[int, int]]:
    """The text cut at ``later_starts``, white space around the pieces left out."""
    pieces = (_TRIMMED.search(text, start, end) for start, end in pairwise([0, *later_starts, len(text)]))
    return [piece.span() for piece in pieces if piece]
