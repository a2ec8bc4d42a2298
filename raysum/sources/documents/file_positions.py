"""Where the text of a document comes from: its pages or speakers, and its characters in files of text with markup.

The letters and digits of the text are searched in those of the file, without tags, comments and the addresses of links.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any, NamedTuple

ORIGIN = "origin"  # the field of a document in a raw cluster
_LINE = re.compile(r"[^\n\r]+")
_LETTERS = r"[^\W_]+"
_TAGS = r"<!--.*?-->|<(?P<tag>(?i:script|style|noscript|template))\b.*?</(?P=tag)\s*>|<[!/?a-zA-Z][^<>]*>"
_ADDRESS = r"<[^<>\s]+[@:][^<>\s]+>"  # which Markdown shows
_ENTITY = r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|\w{2,31});"
_LINKS = r"!\[[^\]\n]*\]\([^()\n]*\)|\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+[\"'][^\"'\n]*[\"'])?\)|\]\[[^\]\n]*\]"
OF_MARKDOWN, OF_PAGES = f"(?!{_ADDRESS})(?:{_TAGS})|{_LINKS}|{_ENTITY}", f"{_TAGS}|{_ENTITY}"  # what is not text
_QUOTED_PRINTABLE = r"(?:=[\dA-F]{2})+|=\r?\n"
_LONG = 40  # letters of a line that is searched before the short ones around it
_SHORTEST = 16  # letters of the parts of a line that is not found as a whole
_WINDOW = 200_000  # letters in which a line is searched


class Piece(NamedTuple):
    """Characters of a text, and those of its file; if both are as many, each corresponds to one."""

    start: int
    end: int
    file_start: int
    file_end: int


class Origin(NamedTuple):
    """The pages, headings or speakers of a document as (first character, name), and its characters in its file.

    ``is_extracted``: the text is not the file as it is. ``pieces`` are the positions in the file, as far as they are
    known. Only readers of documents make it: a row of a user may have a field of the same name, with any value.
    """

    places: Sequence[tuple[int, str]] = ()
    pieces: Sequence[Piece] = ()
    is_extracted: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Origin":
        found = document.get(ORIGIN)
        return found if isinstance(found, cls) else cls()


class _Visible:
    """The letters and digits of a file that readers see, in order, with their first and last characters there."""

    def __init__(self, raw: str, markup: str):
        letters, self.starts, self.ends = list[str](), list[int](), list[int]()
        for found in re.finditer(f"(?P<letters>{_LETTERS})|(?P<escaped>{markup})", raw, re.DOTALL):
            if own := found["letters"]:
                letters.append(own)
                self.starts += range(found.start(), found.end())
                self.ends += range(found.start() + 1, found.end() + 1)
            elif shown := [sign for sign in _shown(found["escaped"]) if sign.isalnum()]:
                letters += shown
                self.starts += [found.start()] * len(shown)
                self.ends += [found.end()] * len(shown)
        self.letters = "".join(letters)


def _shown(markup: str) -> str:
    """Return the characters that an entity or a quoted-printable sequence stands for; "" for other markup."""
    if markup.startswith("&"):
        return unescape(markup)
    if re.fullmatch(_QUOTED_PRINTABLE, markup) and len(markup) > 2:
        return bytes.fromhex(markup.replace("=", "").strip()).decode(errors="replace")
    return ""


def mail_pieces(text: str, raw: str, is_page: bool) -> list[Piece]:
    """Return the pieces of the ``text`` of an e-mail with a body that is plain or a page, not in base64."""
    is_quoted = re.search(r"(?im)^content-transfer-encoding:\s*quoted-printable", raw) is not None
    markup = [_QUOTED_PRINTABLE] * is_quoted + [OF_PAGES] * is_page
    return find_pieces(text, raw, "|".join(markup) or r"\b\B")


def file_span(pieces: Sequence[Sequence[int]], start: int, end: int, quote: str) -> tuple[int, int] | None:
    """Return the characters in a file of the ``quote`` from ``start`` to ``end`` of its text; None if not known."""
    first = bisect_right(pieces, start, key=lambda piece: piece[1])
    last = bisect_left(pieces, end, key=lambda piece: piece[0]) - 1
    if first > last:
        return None
    opening, closing = Piece(*pieces[first]), Piece(*pieces[last])
    outside = quote[: max(0, opening.start - start)] + quote[max(0, closing.end - start) :]
    if any(map(str.isalnum, outside)):
        return None
    file_start, file_end = opening.file_start, closing.file_end
    if _is_equal(opening):
        file_start += max(0, start - opening.start)
    if _is_equal(closing):
        file_end -= max(0, closing.end - end)
    return (file_start, file_end) if file_start < file_end else None


def _is_equal(piece: Piece) -> bool:
    return piece.end - piece.start == piece.file_end - piece.file_start


def find_pieces(text: str, raw: str, markup: str) -> list[Piece]:
    """Return the pieces of the ``text`` of a file with the content ``raw``, in order.

    ``markup`` is a regular expression of what is not text, such as OF_PAGES. The long lines are searched first, then
    the others between them.
    """
    visible = _Visible(raw, markup)
    lines = [[at for at in range(*line.span()) if text[at].isalnum()] for line in _LINE.finditer(text)]
    lines = [line for line in lines if line]
    found, cursor = dict[int, int](), 0
    for number, line in enumerate(lines):
        if len(line) >= _LONG:
            at = _find(text, line, visible, cursor)
            if at >= 0:
                found[number], cursor = at, at + len(line)
    limits = [len(visible.letters), *reversed(found.values())]  # the start of the next long line is the last one
    pieces, cursor = list[Piece](), 0
    for number, line in enumerate(lines):
        long = [(line, limits.pop())] if number in found else []
        for part, at in long or _parts(text, line, visible, cursor, limits[-1]):
            pieces += _placed(text, part, visible, at, raw)
            cursor = at + len(part)
    return pieces


def _find(text: str, letters: list[int], visible: _Visible, start: int, end: int | None = None) -> int:
    last = start + _WINDOW if end is None else min(end, start + _WINDOW)
    return visible.letters.find("".join(map(text.__getitem__, letters)), start, last)


def _parts(text: str, line: list[int], visible: _Visible, start: int, end: int) -> Iterator[tuple[list[int], int]]:
    """Yield the line, or those of its halves, quarters and so on that are in the file, with their places there."""
    at = _find(text, line, visible, start, end)
    if at >= 0:
        yield line, at
    elif len(line) >= 2 * _SHORTEST:
        middle = len(line) // 2
        for part in (line[:middle], line[middle:]):
            for placed in _parts(text, part, visible, start, end):
                yield placed
                start = placed[1] + len(placed[0])


def _placed(text: str, letters: list[int], visible: _Visible, at: int, raw: str) -> Iterator[Piece]:
    """Yield the pieces of ``letters`` that are at letter ``at`` of the file, with the signs beside them."""
    starts, ends = visible.starts[at : at + len(letters)], visible.ends[at : at + len(letters)]
    # Letters with the same shift are one piece; one that is several characters in the file is a piece of its own.
    shifts = [
        start - here if end - start == 1 else None for here, start, end in zip(letters, starts, ends, strict=True)
    ]
    first = 0
    for last, shift in enumerate(shifts):
        is_last = last + 1 == len(shifts)
        if not is_last and shift is not None and shift == shifts[last + 1]:
            continue
        piece = Piece(letters[first], letters[last] + 1, starts[first], ends[last])
        yield _with_signs(text, piece, raw) if is_last else piece
        first = last + 1


def _with_signs(text: str, piece: Piece, raw: str) -> Piece:
    """Return a piece with the signs after it that are also in the file, such as a full stop and quotation marks."""
    end, file_end = piece.end, piece.file_end
    while _is_equal(piece) and end < len(text) and file_end < len(raw) and text[end] == raw[file_end]:
        if text[end].isalnum() or text[end].isspace():
            break
        end, file_end = end + 1, file_end + 1
    return piece._replace(end=end, file_end=file_end)
