"""Plain text in any encoding."""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from raysum.errors import UserError
from raysum.runtime.progress import say

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",  # after UTF-32: its mark begins with this one
    codecs.BOM_UTF16_BE: "utf-16",
}
_SEPARATOR = "\n\n"
_NON_ASCII = bytes(range(0x80, 0x100))
_NON_ASCII_RUN = re.compile(rb"[\x80-\xff]{2,}")
_SAMPLE = 1 << 20  # bytes of a text from which its encoding is guessed
_MAX_REPORTS = 10  # texts with invalid bytes that a process reports
_invalid_counts = list[int]()  # invalid bytes of each repaired text
_reported_encodings = set[str]()  # other than UTF-8


@dataclass(frozen=True)
class DocumentText:
    """The text of a document, its title, and its pages or headings as (first character, name)."""

    text: str
    title: str = ""
    sections: Sequence[tuple[int, str]] = ()


def join_blocks(blocks: Iterable[tuple[str, str]], title: str = "") -> DocumentText:
    """Return all blocks, separated by blank lines. Each has the name of the section that begins with it, or ""."""
    parts, sections, length = list[str](), list[tuple[int, str]](), 0
    for block, section in blocks:
        if section:
            sections.append((length, section))
        parts.append(block)
        length += len(block) + len(_SEPARATOR)
    return DocumentText(_SEPARATOR.join(parts), title, sections)


def decode_text(content: bytes, name: str) -> str:
    """Return ``content`` as text: by its byte-order mark, as UTF-8, or in the likeliest encoding, which is reported.

    Line ends stay, because citations count characters. Raises UserError if ``content`` is not text.
    """
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            message = f"{name} begins as {encoding.upper()}, but is invalid at byte {error.start}; save it as UTF-8"
            raise UserError(message) from None
        text = repair_utf8(content, name) or _guess(content, name)
    if "\0" in text:
        raise UserError(f"{name} is not text: it holds NUL characters")
    return text.removeprefix("\ufeff")


def repair_utf8(content: bytes, name: str) -> str | None:
    """Decode ``content`` as UTF-8 with U+FFFD for invalid bytes, and report their number; None if it is not UTF-8.

    It is UTF-8 if more than 99 % of its bytes are valid, and if it has at least as many valid characters beyond ASCII
    as invalid bytes: text in another encoding may also have few bytes beyond ASCII.
    """
    text = content.decode(errors="surrogateescape")
    invalid = len(text) - len(text.encode(errors="ignore").decode())
    beyond = len(text) - len(text.encode("ascii", errors="ignore"))
    if not 0 < 100 * invalid < len(content) or beyond - invalid < invalid:
        return None
    _invalid_counts.append(invalid)
    if len(_invalid_counts) <= _MAX_REPORTS:
        more = "; this process does not report further texts" if len(_invalid_counts) == _MAX_REPORTS else ""
        say(f"{name}: {invalid} invalid UTF-8 {'byte' if invalid == 1 else 'bytes'}, read as U+FFFD{more}")
    return content.decode(errors="replace")


def _guess(content: bytes, name: str) -> str:
    for encoding in _likely_encodings(content):
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            if encoding not in _reported_encodings:
                _reported_encodings.add(encoding)
                say(f"{name} is not UTF-8; it is read as {encoding.replace('_', '-')}, and so are similar texts")
            return text
    raise UserError(f"{name} has an unknown text encoding; save it as UTF-8")


def _likely_encodings(content: bytes) -> Iterator[str]:
    from charset_normalizer import from_bytes

    beyond = len(content) - len(content.translate(None, _NON_ASCII))
    if 2 * sum(len(run[0]) for run in _NON_ASCII_RUN.finditer(content)) < beyond:  # as in Western European
        yield "cp1252"
    if match := from_bytes(_sample(content)).best():
        yield match.encoding


def _sample(content: bytes) -> bytes:
    """Return complete lines of at most ``_SAMPLE`` bytes, because the detection takes 80 times as much memory."""
    if len(content) <= _SAMPLE:
        return content
    return content[: content.rfind(b"\n", 1, _SAMPLE) + 1 or _SAMPLE]
