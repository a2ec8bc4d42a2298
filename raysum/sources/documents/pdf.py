"""PDF: the lines of each column in reading order, without running heads, and paragraphs made of them."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median, quantiles
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.sources.documents.text import DocumentText, join_blocks
from raysum.sources.documents.web_page import is_furniture

_HYPHENATED = re.compile(r"[a-z]+(?:-[a-z]+)+")
_WORD = re.compile(r"[a-z-]+")
_SENTENCE_END = re.compile(r"[.!?:。！？][\"'”’)\]]*$")
# Maximum lengths, as shares of a long line, of a line that ends a paragraph and of a heading.
_LAST_LINE, _HEADING = 0.8, 0.6
_MARGIN = 0.1  # share of the height of a page where running heads and feet are
_MIN_PAGES = 0.4  # share of the pages, and at least two, that repeat a running head
_GUTTER = 0.012  # minimum width of the gap between two columns, as a share of the page
_COLUMN = 0.2  # minimum width of a column, as a share of the page
_MIN_LINES, _MIN_CHARACTERS = 4, 15  # of a column, and of its mean line, which tables do not have
_SPACE = 1.5  # heights of a word between it and the next word of a line
_GAP = 1.7  # usual distances of lines that end a paragraph
_PAGE_NUMBER = re.compile(r"(?i)(page |seite |p\. ?)?[-–—]? ?([\divxlc]+)( ?(/|of|von) ?\d+)? ?[-–—]?")
_PRINTED = re.compile(r"(https?|file)://\S*( \d+/\d+)?$|\d+/\d+$|\d{1,4}[./-]\d{1,2}[./-]\d{1,4}, \d{1,2}:\d\d.*")
_LINE_HYPHENS = (0x2, 0xFFFE)  # PDFium's marks of hyphens before a line break, which it leaves out
_LIGATURES = {0x2: "-", 0xFFFE: "-", 0xAD: "-", 0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl"}


@dataclass(frozen=True)
class _Line:
    """Text in a box of a page; ``top`` and ``bottom`` count from the top of the page, in shares of its height."""

    left: float
    top: float
    right: float
    bottom: float
    text: str

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def is_at_edge(self) -> bool:
        return self.bottom < _MARGIN or self.top > 1 - _MARGIN

    def on_line_of(self, other: "_Line") -> bool:
        """Return whether most of the lower one of two boxes is beside the other."""
        shared = min(self.bottom, other.bottom) - max(self.top, other.top)
        return shared > 0.5 * min(self.height, other.height)


def read_pdf(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs of all pages. Raises UserError if it is locked or has no text, or errors of the library."""
    pdfium = needs("pypdfium2", name)
    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if "password" in str(error):
            raise UserError(f"{name} is locked by a password; save it without") from None
        raise
    pages = [_boxes(page) for page in document]
    running = _running_lines(pages)
    words = frozenset(word for page in pages for line in page for word in _HYPHENATED.findall(line.text.lower()))
    is_printed = any(
        _PRINTED.fullmatch(line.text) and "/" in line.text for page in pages for line in page if line.is_at_edge
    )
    blocks = [
        (paragraph, f"page {number}" if index == 0 else "")
        for number, page in enumerate(pages, 1)
        for index, paragraph in enumerate(_paragraphs([line for line in page if not _is_running(line, running)], words))
        if not (is_printed and is_furniture(paragraph))
    ]
    if not blocks:
        raise UserError(f"{name} holds no text on its {len(pages)} pages, as scans do; run OCR on it first")
    return join_blocks(blocks, str(document.get_metadata_value("Title") or "").strip())


def _boxes(page: Any) -> list[_Line]:
    """Return the runs of words of a page that are close to each other. Vertical text, such as a stamp, is left out."""
    found, before = list[_Line](), None
    for word in _words(page):
        gap = word.left - before.right if before else 1
        is_next = before and word.on_line_of(before) and -_SPACE * word.height < gap < _SPACE * word.height
        if found and is_next:
            run = found[-1]
            top, bottom = min(run.top, word.top), max(run.bottom, word.bottom)
            found[-1] = _Line(run.left, top, word.right, bottom, f"{run.text} {word.text}")
        else:
            found.append(word)
        before = word
    return [run for run in found if not (len(run.text) > 4 and run.right - run.left < run.height / 2)]


def _words(page: Any) -> Iterator[_Line]:
    """Yield the words of a page in the order of the file, as PDFium separates them."""
    from ctypes import byref, c_double

    from pypdfium2 import raw

    text_page, (width, height) = page.get_textpage(), page.get_size()
    sides = [c_double() for _ in range(4)]
    word, box, before = "", list[float](), 0
    for number in range(text_page.count_chars() + 1):
        code = raw.FPDFText_GetUnicode(text_page, number) if number < text_page.count_chars() else 0x20
        character = _LIGATURES.get(code, chr(code))
        is_blank = character.isspace() or not code
        if word and (is_blank or before in _LINE_HYPHENS):
            yield _Line(box[0] / width, 1 - box[3] / height, box[1] / width, 1 - box[2] / height, word)
            word, box = "", []
        before = code
        if is_blank:
            continue
        word += character
        if raw.FPDFText_GetCharBox(text_page, number, *map(byref, sides)):
            left, right, bottom, top = (side.value for side in sides)
            box = [min(box[0], left), max(box[1], right), min(box[2], bottom), max(box[3], top)] if box else []
            box = box or [left, right, bottom, top]


def _running_lines(pages: list[list[_Line]]) -> set[tuple[str, int]]:
    """Return the texts, without digits, and the heights of lines at the edges of several pages."""
    counts = Counter(key for page in pages for key in {_key(line) for line in page if line.is_at_edge})
    return {key for key, count in counts.items() if count >= max(2, _MIN_PAGES * len(pages) / 2)}


def _key(line: _Line) -> tuple[str, int]:
    return re.sub(r"\d+", "#", line.text), round(line.top * 50)


def _is_running(line: _Line, running: set[tuple[str, int]]) -> bool:
    if not line.is_at_edge:
        return False
    return _key(line) in running or bool(_PAGE_NUMBER.fullmatch(line.text) or _PRINTED.fullmatch(line.text))


def _ordered(boxes: list[_Line]) -> Iterator[list[_Line]]:
    """Yield the boxes of each column or part of a page in reading order (recursive XY cut, Nagy and Seth 1984).

    Columns are cut first. A line that crosses them is cut off above and below.
    """
    for position, width in _gaps([(box.left, box.right) for box in boxes]):
        sides = [[box for box in boxes if (box.left >= position) == is_right] for is_right in (False, True)]
        if width >= _GUTTER and all(map(_is_column, sides)):
            yield from _ordered(sides[0])
            yield from _ordered(sides[1])
            return
    rows = _gaps([(box.top, box.bottom) for box in boxes])
    if not rows or max(box.right for box in boxes) - min(box.left for box in boxes) < 2 * _COLUMN:
        yield boxes
        return
    position = max(rows, key=lambda gap: gap[1])[0]
    upper, lower = ([box for box in boxes if (box.top >= position) == is_lower] for is_lower in (False, True))
    parts = [*_ordered(upper), *_ordered(lower)]
    yield from parts if any(_is_column(part) and len(parts) > 2 for part in parts) else [boxes]


def _is_column(boxes: list[_Line]) -> bool:
    if len(boxes) < _MIN_LINES:
        return False
    width = max(box.right for box in boxes) - min(box.left for box in boxes)
    return width >= _COLUMN and sum(len(box.text) for box in boxes) >= _MIN_CHARACTERS * len(boxes)


def _gaps(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the end and the width of each gap between ``spans``."""
    ordered = sorted(spans)
    ends = accumulate((end for _, end in ordered), max)
    return [(start, start - end) for end, (start, _) in zip(ends, ordered[1:], strict=False) if start > end]


def _lines(boxes: list[_Line]) -> list[str]:
    """Return the lines of a column from top to bottom, with an empty line at each larger distance."""
    rows = list[list[_Line]]()
    for box in sorted(boxes, key=lambda box: (box.top + box.bottom, box.left)):
        if rows and box.on_line_of(rows[-1][-1]):
            rows[-1].append(box)
        else:
            rows.append([box])
    tops = [row[0].top for row in rows]
    usual = median(lower - upper for upper, lower in pairwise(tops)) if len(tops) > 1 else 0
    lines = list[str]()
    for row, above in zip(rows, [None, *tops], strict=False):
        lines += [""] if above is not None and row[0].top - above > _GAP * usual else []
        row.sort(key=lambda box: box.left)
        text = row[0].text
        for before, box in pairwise(row):
            text += " " * (box.left - before.right > 0.001) + box.text
        lines.append(text)
    return lines


def _paragraphs(boxes: list[_Line], compounds: Collection[str]) -> Iterator[str]:
    """Yield the paragraphs of a page. Words that are hyphenated at the end of a line are joined, except ``compounds``.

    A paragraph ends at an empty line, or after a short line that ends a sentence. A heading is a short first line that
    does not end a sentence, before a line with a capital letter or a digit.
    """
    lines = [line for part in (_ordered(boxes) if boxes else ()) for line in _lines(part)]
    lengths = [len(line) for line in lines if line]
    long = quantiles(lengths, n=4)[2] if len(lengths) > 1 else 0
    paragraph = ""
    for line, following in pairwise([*lines, "", ""]):
        is_first = not paragraph
        if re.search(r"[a-z]-$", paragraph) and re.match(r"[a-z]", line):
            is_compound = f"{paragraph.split()[-1]}{_WORD.match(line)[0]}".lower() in compounds  # type: ignore[index]
            paragraph = (paragraph if is_compound else paragraph[:-1]) + line
        else:
            paragraph = f"{paragraph} {line}".strip()
        ends_sentence = _SENTENCE_END.search(line)
        is_last = ends_sentence and len(line) < _LAST_LINE * long
        is_heading = is_first and not ends_sentence and len(line) < _HEADING * long and re.match(r"[A-Z\d]", following)
        if paragraph and (not line or is_last or is_heading):
            yield paragraph
            paragraph = ""
