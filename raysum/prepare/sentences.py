"""Sentence boundaries: by rule for source paragraphs, by syntok where the rule may err in a summary."""

import re

# A mark that may end a sentence, closing quotes or brackets, and the white space before the next word.
_CANDIDATE = re.compile(r"""[.!?…]["'”’)\]]*\s+(?=\S)""")
# What makes a text hard: boundaries without a candidate ("it.The", "; The"), brackets, and candidates that may be none.
_ODD = re.compile(r"[;()\[\]{}<>]|[.!?…](?=\w)")
_PLAIN_END = re.compile(r"(?:[a-z]{5,}|\b(?:1[5-9]|20)\d\d)$")  # too long for an abbreviation, or a year
_PLAIN_START = re.compile(r"[A-Z](?:[a-z]| )")
_LAST_WORD = re.compile(r"[\w.&'-]+$")
_LONGEST_WORD = 24  # characters looked at before a mark
_ABBREVIATIONS = frozenset(
    "al approx assoc bros ca capt cf co col corp corresp dept dr e.g ed eds eq eqs est etc fig figs gen gov i.e inc jr lt ltd "
    "messrs mr mrs ms mt no nos op p pp prof pseud ref refs rep resp rev sec sect sen sgt sr st tab trans treas univ viz vol "
    "vs".split()
)


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the sentences of ``text``, exactly: syntok decides wherever the text is not plain.

    Plain are texts without brackets and semicolons where each mark follows a long lower-case word or a year and precedes
    a capitalized word. There the rule gave syntok's boundaries in all of 909 paragraphs of scientific papers, in a
    fiftieth of its time (0.6 ms for 70 words).
    """
    candidates = list(_CANDIDATE.finditer(text))
    plain = not _ODD.search(text) and all(_is_plain(text, candidate) for candidate in candidates)
    return _spans(text, [candidate.end() for candidate in candidates] if plain else _syntok_starts(text))


def quick_sentence_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the sentences of ``text`` by rule alone: for source paragraphs, of which there are many."""
    return _spans(text, [found.end() for found in _CANDIDATE.finditer(text) if _ends_sentence(text, found)])


def _is_plain(text: str, candidate: re.Match[str]) -> bool:
    before = _PLAIN_END.search(text, max(0, candidate.start() - _LONGEST_WORD), candidate.start())
    return before is not None and before[0] not in _ABBREVIATIONS and bool(_PLAIN_START.match(text, candidate.end()))


def _ends_sentence(text: str, candidate: re.Match[str]) -> bool:
    """No sentence ends before a lower-case letter, nor at the full stop of an abbreviation or an initial."""
    if text[candidate.end()].islower():
        return False
    if text[candidate.start()] != ".":
        return True
    word = _LAST_WORD.search(text, max(0, candidate.start() - _LONGEST_WORD), candidate.start())
    return word is None or not ((len(word[0]) == 1 and word[0].isupper()) or word[0].lower() in _ABBREVIATIONS)


def _syntok_starts(text: str) -> list[int]:
    """Where sentences start after the first."""
    import syntok.segmenter

    starts = [sentence[0].offset for part in syntok.segmenter.process(text) for sentence in part if sentence]
    return starts[1:]


def _spans(text: str, later_starts: list[int]) -> list[tuple[int, int]]:
    """The text cut at ``later_starts``, white space around the pieces left out."""
    spans = []
    for start, end in zip([0, *later_starts], [*later_starts, len(text)], strict=True):
        piece = text[start:end]
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return spans
