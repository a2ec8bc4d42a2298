"""Subtitles (SubRip and WebVTT) as text: cues joined to paragraphs, each with its time and speaker."""

import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from raysum.errors import UserError
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks

_TIME = r"(?:(\d{1,3}):)?(\d\d):(\d\d)[,.](\d{3})"
_CUE = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*\n?", re.MULTILINE)
_NUMBER = re.compile(r"\n\s*\d+\s*\Z")  # of the next cue
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?[ \t]+([^>]+)>")
_SPEAKER = re.compile(r"(?:>>|-)?[ \t]*([A-Z][\w.'-]*(?: [A-Z][\w.'-]*){0,3}):\s+(?=\S)")
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}|^>>\s*")  # <i>, <00:00:01.500>, {\an8}
_PAUSE, _LONG_PAUSE = 3.0, 15.0  # seconds of silence between paragraphs, and within a sentence
_LONG = 60  # words, after which the next sentence begins a paragraph
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*$")


class _Cue(NamedTuple):
    start: float  # seconds
    end: float
    speaker: str
    text: str


def read_subtitles(content: bytes, name: str) -> DocumentText:
    """Return the text of subtitles without markup, in paragraphs whose sections are their first times and speakers.

    A paragraph ends with its speaker, and at the end of a sentence after 60 words or before a pause of 3 seconds. If no
    cue ends a sentence, pauses of 3 seconds end paragraphs. Raises UserError if ``content`` is not text or has no cue.
    """
    text = decode_text(content, name).replace("\r\n", "\n").replace("\r", "\n")
    if not _CUE.search(text):
        raise UserError(f"{name} has no subtitles, such as 00:00:01,000 --> 00:00:04,000 with text in the next line")
    return join_blocks(_paragraphs([*_with_speakers([*_cues(text)])]))


def _paragraphs(cues: list[_Cue]) -> Iterator[tuple[str, str]]:
    """Yield each paragraph and its position."""
    words, place, before = list[str](), "", _Cue(0, 0, "", "")
    has_sentences = any(_SENTENCE_END.search(cue.text) for cue in cues[:-1])
    for cue in cues:
        pause = cue.start - before.end
        is_whole = not has_sentences or _SENTENCE_END.search(before.text)
        is_end = is_whole and (pause >= _PAUSE or has_sentences and len(words) >= _LONG)
        if words and (is_end or pause >= _LONG_PAUSE or cue.speaker != before.speaker):
            yield " ".join(words), place
            words = []
        if not words:
            seconds = int(cue.start)
            time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            place = f"{time}, {cue.speaker}" if cue.speaker else time
        words += cue.text.split()
        before = cue
    if words:
        yield " ".join(words), place


def _cues(text: str) -> Iterator[_Cue]:
    """Yield the cues with text. Lines of the cue before, which roll up on the screen, are left out."""
    matches, shown = [*_CUE.finditer(text)], list[str]()
    ends = [*(match.start() for match in matches[1:]), len(text)]
    is_webvtt = text.lstrip("\ufeff").startswith("WEBVTT")
    for number, (match, end) in enumerate(zip(matches, ends, strict=True), 1):
        spoken = text[match.end() : end]
        if is_webvtt:
            spoken = _BLANK_LINE.split(f"\n{spoken}" if spoken.startswith("\n") else spoken, maxsplit=1)[0]
        elif number < len(matches):
            spoken = _NUMBER.sub("", f"\n{spoken}")
        voice = _VOICE.search(spoken)
        lines = [html.unescape(_MARKUP.sub("", line.strip())).strip() for line in spoken.split("\n")]
        lines = [line for line in lines if line]
        new = lines[len(shown) :] if lines[: len(shown)] == shown else lines
        new = lines[1:] if shown and lines[:1] == shown[-1:] else new
        shown = lines or shown
        hours = [int(part or 0) for part in match.groups()]
        start, stop = (3600 * h + 60 * m + s + ms / 1000 for h, m, s, ms in (hours[:4], hours[4:]))
        if new:
            yield _Cue(start, stop, " ".join(voice[1].split()) if voice else "", "\n".join(new))


def _with_speakers(cues: list[_Cue]) -> Iterator[_Cue]:
    """Yield the cues without names of speakers before the text, as in ``ANN: Hello``; a cue without a name has that of
    the cue before. Names not in capitals occur at least twice."""
    found = [_SPEAKER.match(cue.text) for cue in cues]
    counts = Counter(match[1] for match in found if match)
    speaker = ""
    for cue, match in zip(cues, found, strict=True):
        if cue.speaker:
            yield cue
        elif match and (match[1].isupper() or counts[match[1]] > 1):
            speaker = match[1]
            yield cue._replace(speaker=speaker, text=cue.text[match.end() :])
        else:
            yield cue._replace(speaker=speaker)
