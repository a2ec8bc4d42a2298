"""Subtitles (SubRip, .srt) as text: cues joined to paragraphs, each with its time."""

import re
from collections.abc import Iterator

from raysum.errors import UserError
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks

_TIME = r"(\d{1,3}):(\d\d):(\d\d)[,.](\d{3})"
_CUE = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*\n?", re.MULTILINE)
_NUMBER = re.compile(r"\n\s*\d+\s*\Z")  # of the next cue
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>|\{\\[^{}]*\}")  # <i>, <font color=...>, {\an8}
_PAUSE = 3.0  # seconds of silence between paragraphs
_LONG = 60  # words, after which the next sentence begins a paragraph
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*$")


def read_subtitles(content: bytes, name: str) -> DocumentText:
    """Return the text of subtitles without times and markup, in paragraphs whose sections are their first times.

    A paragraph ends at a pause of 3 seconds, or after 60 words at the end of a sentence. Raises UserError if
    ``content`` is not text or has no cue.
    """
    text = decode_text(content, name).replace("\r\n", "\n").replace("\r", "\n")
    if not _CUE.search(text):
        raise UserError(f"{name} has no subtitles, such as 00:00:01,000 --> 00:00:04,000 with text in the next line")
    return join_blocks(_paragraphs(text))


def _paragraphs(text: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph and its first time."""
    words, time, before = list[str](), "", 0.0
    for start, end, spoken in _cues(text):
        is_long = len(words) >= _LONG and _SENTENCE_END.search(words[-1])
        if words and (start - before >= _PAUSE or is_long):
            yield " ".join(words), time
            words = []
        if not words:
            time = f"{int(start) // 3600:02}:{int(start) // 60 % 60:02}:{int(start) % 60:02}"
        words += spoken.split()
        before = end
    if words:
        yield " ".join(words), time


def _cues(text: str) -> Iterator[tuple[float, float, str]]:
    """Yield the first and last second of each cue with text, and the text."""
    cues = [*_CUE.finditer(text)]
    ends = [*(cue.start() for cue in cues[1:]), len(text)]
    for number, (cue, end) in enumerate(zip(cues, ends, strict=True), 1):
        spoken = text[cue.end() : end]
        spoken = _NUMBER.sub("", f"\n{spoken}") if number < len(cues) else spoken
        spoken = _MARKUP.sub("", spoken).strip()
        hours = [int(part) for part in cue.groups()]
        first, last = (3600 * h + 60 * m + s + ms / 1000 for h, m, s, ms in (hours[:4], hours[4:]))
        if spoken:
            yield first, last, spoken
