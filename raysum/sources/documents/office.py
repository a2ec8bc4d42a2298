"""Word documents and PDF."""

import io
import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from statistics import quantiles
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.sources.documents.text import DocumentText, join_blocks

_SENTENCE_END = re.compile(r"[.!?:。！？][\"'”’)\]]*$")
# Maximum lengths, as shares of a long line, of a line that ends a paragraph and of a heading.
_LAST_LINE, _HEADING = 0.8, 0.6


def read_docx(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs, headings and table rows. Raises an error of the library if it is not a Word document."""
    document = needs("docx", name).Document(io.BytesIO(content))
    blocks = (
        (line, line if _is_heading(block) else "")
        for block in document.iter_inner_content()
        for line in filter(None, map(str.strip, _lines(block)))
    )
    return join_blocks(blocks, (document.core_properties.title or "").strip())


def _lines(block: Any) -> list[str]:
    if hasattr(block, "rows"):
        return [" | ".join(cell.text.strip() for cell in row.cells) for row in block.rows]
    return [block.text]


def _is_heading(block: Any) -> bool:
    style = None if hasattr(block, "rows") else block.style
    return style is not None and (style.name or "").startswith(("Heading", "Title"))


def read_pdf(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs of all pages. Raises UserError if it is locked or has no text, or errors of the library."""
    pypdf = needs("pypdf", name)
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    reader = pypdf.PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UserError(f"{name} is locked by a password; save it without")
    pages = [page.extract_text() for page in reader.pages]
    title = str((reader.metadata or {}).get("/Title") or "").strip()
    blocks = [
        (paragraph, f"page {number}" if index == 0 else "")
        for number, page in enumerate(pages, 1)
        for index, paragraph in enumerate(_paragraphs(page))
    ]
    if not blocks:
        raise UserError(f"{name} holds no text on its {len(pages)} pages, as scans do; run OCR on it first")
    return join_blocks(blocks, title)


def _paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs of a page; words that are hyphenated at the end of a line are joined.

    A paragraph ends at an empty line, or after a short line that ends a sentence. A heading is a short first line that
    does not end a sentence, before a line with a capital letter or a digit.
    """
    lines = [" ".join(line.split()) for line in page.splitlines()]
    lengths = [len(line) for line in lines if line]
    long = quantiles(lengths, n=4)[2] if len(lengths) > 1 else 0
    paragraph = ""
    for line, following in pairwise([*lines, "", ""]):
        is_first = not paragraph
        if re.search(r"[a-z]-$", paragraph) and re.match(r"[a-z]", line):
            paragraph = paragraph[:-1] + line
        else:
            paragraph = f"{paragraph} {line}".strip()
        ends_sentence = _SENTENCE_END.search(line)
        is_last = ends_sentence and len(line) < _LAST_LINE * long
        is_heading = is_first and not ends_sentence and len(line) < _HEADING * long and re.match(r"[A-Z\d]", following)
        if paragraph and (not line or is_last or is_heading):
            yield paragraph
            paragraph = ""
