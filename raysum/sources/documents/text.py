"""Plain text, in whatever encoding it is."""

import codecs
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from raysum.errors import UserError
from raysum.runtime.progress import say

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",  # after UTF-32, whose mark may begin with this one
    codecs.BOM_UTF16_BE: "utf-16",
}
_BETWEEN = "\n\n"
_BEYOND_ASCII = bytes(range(0x80, 0x100))
_TOGETHER = re.compile(rb"[\x80-\xff]{2,}")
_LOOKED_AT = 1 << 20  # bytes of a text whose encoding is guessed
_REPORTED = 10  # texts with invalid bytes that a process reports
_repaired = list[int]()  # numbers of invalid bytes
_SAID = set[str]()  # encodings other than UTF-8 that were met


@dataclass(frozen=True)
class Text:
    """What a document says: its text, its own title, and where its pages or headings begin: (character, name)."""

    text: str
    title: str = ""
    places: Sequence[tuple[int, str]] = ()


def assembled(blocks: Iterable[tuple[str, str]], title: str = "") -> Text:
    """Blocks with a blank line between them; each comes with the name of the place that begins with it, or ""."""
    parts, places, length = list[str](), list[tuple[int, str]](), 0
    for block, place in blocks:
        if place:
            places.append((length, place))
        parts.append(block)
        length += len(block) + len(_BETWEEN)
    return Text(_BETWEEN.join(parts), title, places)


def read(content: bytes, name: str) -> Text:
    """Text as it stands, line ends too: citations count its characters. Raises UserError where it is none."""
    return Text(decoded(content, name))


def decoded(content: bytes, name: str) -> str:
    """``content`` as text: by its mark, as UTF-8, or in the encoding that is likeliest, which is then said.

    Raises UserError where it is no text in any.
    """
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return _strict(content, encoding, name).removeprefix("\ufeff")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = repaired(content, name) or _guessed(content, name)
    if "\0" in text:
        raise UserError(f"{name} is not text: it holds NUL characters")
    return text


def repaired(content: bytes, name: str) -> str | None:
    """Decode ``content`` as UTF-8 with U+FFFD for invalid bytes, and report their number; None if it is not UTF-8.

    It is UTF-8 if more than 99 % of its bytes are valid, and if it has at least as many valid characters beyond ASCII
    as invalid bytes: text in another encoding may also have few bytes beyond ASCII.
    """
    found = content.decode(errors="surrogateescape")
    invalid = len(found) - len(found.encode(errors="ignore").decode())
    beyond = len(found) - len(found.encode("ascii", errors="ignore"))
    if not 0 < 100 * invalid < len(content) or beyond - invalid < invalid:
        return None
    _repaired.append(invalid)
    if len(_repaired) <= _REPORTED:
        more = "; this process does not report further texts" if len(_repaired) == _REPORTED else ""
        say(f"{name}: {invalid} invalid UTF-8 {'byte' if invalid == 1 else 'bytes'}, read as U+FFFD{more}")
    return content.decode(errors="replace")


def _strict(content: bytes, encoding: str, name: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        told = f"{name} begins as {encoding.upper()}, but byte {error.start} is not"
        raise UserError(f"{told}; save it as UTF-8") from None


def _guessed(content: bytes, name: str) -> str:
    from charset_normalizer import from_bytes

    text = encoding = None
    beyond = len(content) - len(content.translate(None, _BEYOND_ASCII))
    if 2 * sum(len(found[0]) for found in _TOGETHER.finditer(content)) < beyond:  # as in Western European
        with suppress(UnicodeDecodeError):
            text, encoding = content.decode("cp1252"), "cp1252"
    if text is None and (found := from_bytes(_beginning(content)).best()):
        with suppress(UnicodeDecodeError):
            text, encoding = content.decode(found.encoding), found.encoding.replace("_", "-")
    if text is None or encoding is None:
        raise UserError(f"{name} is text in no known encoding; save it as UTF-8")
    if encoding not in _SAID:
        _SAID.add(encoding)
        say(f"{name} is not UTF-8; it is read as {encoding}, like others that look so")
    return text


def _beginning(content: bytes) -> bytes:
    """Return complete lines of at most ``_LOOKED_AT`` bytes, since the detection takes 80 times as much memory."""
    if len(content) <= _LOOKED_AT:
        return content
    return content[: content.rfind(b"\n", 1, _LOOKED_AT) + 1 or _LOOKED_AT]
