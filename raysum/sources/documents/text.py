"""Plain text in any encoding."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from typing import BinaryIO

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.sources.documents.file_positions import Piece

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",  # after UTF-32: its mark begins with this one
    codecs.BOM_UTF16_BE: "utf-16",
}
_ZERO_BYTES = {"utf-32-le": "0111", "utf-32-be": "1110", "utf-16-le": "01", "utf-16-be": "10"}  # 1: mostly zero
_SEPARATOR = "\n\n"
_NON_ASCII = bytes(range(0x80, 0x100))
_NON_ASCII_RUN = re.compile(rb"[\x80-\xff]{2,}")
_SAMPLE = 1 << 20  # bytes of a text from which its encoding is guessed
_MARKUP = b'{"a": 1},\t;|\r\n'  # equal in all encodings of rows
_LONGEST_LINE = 64 << 20  # bytes that are converted at a time
_MAX_REPORTS = 10  # texts with invalid bytes that a process reports
_invalid_counts = list[int]()  # invalid bytes of each repaired text
_reported_encodings = set[str]()  # other than UTF-8


@dataclass(frozen=True)
class DocumentText:
    """The text of a document, its title, and its pages or headings as (first character, name).

    ``is_extracted``: the text is not the file as it is, so positions in it are not positions in the file. ``pieces``
    tells the latter, as far as they are known.
    """

    text: str
    title: str = ""
    sections: Sequence[tuple[int, str]] = ()
    is_extracted: bool = True
    pieces: Sequence[Piece] = ()


def join_blocks(blocks: Iterable[tuple[str, str]], title: str = "") -> DocumentText:
    """Return all blocks, separated by blank lines. Each has the name of the section that begins with it, or ""."""
    parts, sections, length = list[str](), list[tuple[int, str]](), 0
    for block, section in blocks:
        if section:
            sections.append((length, section))
        parts.append(block)
        length += len(block) + len(_SEPARATOR)
    return DocumentText(_SEPARATOR.join(parts), title, sections)


def without_blocks(document: DocumentText, is_unwanted: Callable[[str], bool]) -> DocumentText:
    """Return the document without the blocks that are unwanted."""
    names, blocks, start = dict(document.sections), list[tuple[str, str]](), 0
    for block in document.text.split(_SEPARATOR):
        blocks += [] if is_unwanted(block) else [(block, names.get(start, ""))]
        start += len(block) + len(_SEPARATOR)
    return join_blocks(blocks, document.title)


def decode_text(content: bytes, name: str) -> str:
    """Return ``content`` as text: by its byte-order mark, as UTF-8, or in the likeliest encoding, which is reported.

    Line ends stay, because citations count characters. Raises UserError if ``content`` is not text.
    """
    encoding = unicode_encoding(content) or "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            message = f"{name} begins as {encoding.upper()}, but is invalid at byte {error.start}; save it as UTF-8"
            raise UserError(message) from None
        text = repair_utf8(content, name) or content.decode(guess_encoding(content, name))
    if "\0" in text:
        raise UserError(f"{name} is not text: it holds NUL characters")
    return text.removeprefix("\ufeff")


def unicode_encoding(content: bytes) -> str | None:
    """Return UTF-16 or UTF-32 if a byte-order mark, or the zero bytes of ASCII characters, show it."""
    if marked := next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), None):
        return marked
    head = content[:256]
    for encoding, zeros in _ZERO_BYTES.items():
        columns = [head[position :: len(zeros)] for position in range(len(zeros))]
        is_zero = ["1" if 4 * column.count(0) > 3 * len(column) else "0" for column in columns]
        if len(head) >= 8 and "".join(is_zero) == zeros:
            return encoding
    return None


def encoding_of(content: bytes) -> str:
    """Return the name of the encoding of the first bytes of a text, or "unknown encoding"."""
    if encoding := unicode_encoding(content):
        return encoding.upper()
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(content)  # the last character may be cut
        return "UTF-8"
    if invalid_bytes(content):
        return "UTF-8 with invalid bytes"
    for encoding in _likely_encodings(content):
        with suppress(UnicodeDecodeError):
            content.decode(encoding)
            return encoding.replace("_", "-")
    return "unknown encoding"


def as_utf8(file: BinaryIO, name: str) -> Iterator[bytes] | None:
    """Return the lines of a text file that is not UTF-8 as UTF-8, or None if the file is UTF-8 or no text.

    UTF-16 and UTF-32 are converted as a whole. In other files, lines that are not UTF-8 are converted from the encoding
    that is likeliest for those at its beginning, which is reported.
    """
    sample = file.read(_SAMPLE)
    file.seek(0)
    if encoding := unicode_encoding(sample):
        text = TextIOWrapper(file, encoding, errors="replace", newline="")
        return (part.encode() for part in iter(partial(text.read, _SAMPLE), ""))
    lines = sample.split(b"\n")[: -1 if len(sample) == _SAMPLE else None]
    invalid = b"\n".join(line for line in lines if not (line.isascii() or _is_utf8(line)))
    if not invalid or invalid_bytes(sample):
        return None
    encoding = next(_likely_encodings(invalid), "utf-8")
    if encoding == "utf-8" or _MARKUP.decode(encoding, "replace").encode() != _MARKUP:
        return None
    report_encoding(encoding, name)
    rest = iter(partial(file.readline, _LONGEST_LINE), b"")
    return (line if _is_utf8(line) else line.decode(encoding, "replace").encode() for line in rest)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
        return True
    except UnicodeDecodeError:
        return invalid_bytes(content) > 0


def invalid_bytes(content: bytes) -> int:
    """Return the number of invalid bytes of a text in UTF-8 that has a few of them; 0 if it has none or is not UTF-8.

    It is UTF-8 if more than 99 % of its bytes are valid, and if it has at least as many valid characters beyond ASCII
    as invalid bytes: text in another encoding may also have few bytes beyond ASCII.
    """
    text = content.decode(errors="surrogateescape")
    invalid = len(text) - len(text.encode(errors="ignore").decode())
    beyond = len(text) - len(text.encode("ascii", errors="ignore"))
    return invalid if 100 * invalid < len(content) and beyond - invalid >= invalid else 0


def repair_utf8(content: bytes, name: str) -> str | None:
    """Decode UTF-8 with U+FFFD for a few invalid bytes, and report their number; None if it is not UTF-8 with some."""
    if not (invalid := invalid_bytes(content)):
        return None
    _invalid_counts.append(invalid)
    if len(_invalid_counts) <= _MAX_REPORTS:
        more = "; this process does not report further texts" if len(_invalid_counts) == _MAX_REPORTS else ""
        say(f"{name}: {invalid} invalid UTF-8 {'byte' if invalid == 1 else 'bytes'}, read as U+FFFD{more}")
    return content.decode(errors="replace")


def guess_encoding(content: bytes, name: str) -> str:
    """Return the likeliest encoding of a text that is not UTF-8, and report it. Raises UserError if there is none."""
    for encoding in _likely_encodings(content):
        with suppress(UnicodeDecodeError):
            content.decode(encoding)
            report_encoding(encoding, name)
            return encoding
    raise UserError(f"{name} has an unknown text encoding; save it as UTF-8")


def report_encoding(encoding: str, name: str) -> None:
    """Report the first text in an ``encoding``."""
    if encoding not in _reported_encodings:
        _reported_encodings.add(encoding)
        say(f"{name} is not UTF-8; it is read as {encoding.replace('_', '-')}, and so are similar texts")


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
