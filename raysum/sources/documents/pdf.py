"""PDF: the text of its pages."""

import io
import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from statistics import quantiles

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.sources.documents.text import Text, assembled

_END = re.compile(r"[.!?:。！？][\"'”’)\]]*$")
_FULL, _HEADING = 0.8, 0.6  # of a long line's length: what is shorter may end a paragraph, or be a heading


def read(content: bytes, name: str) -> Text:
    """The paragraphs of each page.

    Raises UserError where it is locked or has pictures in place of text, and errors of the library where it is no PDF.
    """
    pypdf = needs("pypdf", name)
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    reader = pypdf.PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UserError(f"{name} is locked by a password; save it without")
    pages = [page.extract_text() for page in reader.pages]
    title = str((reader.metadata or {}).get("/Title") or "").strip()
    paragraphs = [(number, first, block) for number, page in enumerate(pages, 1) for first, block in _opened(page)]
    if not paragraphs:
        told = f"{name} holds no text on its {len(pages)} pages, as scans do"
        raise UserError(f"{told}; have it recognized first (OCR)")
    return assembled(((block, f"page {number}" if first else "") for number, first, block in paragraphs), title)


def _opened(page: str) -> Iterator[tuple[bool, str]]:
    """The paragraphs of a page, and whether each is the first."""
    return ((not place, block) for place, block in enumerate(_paragraphs(page)))


def _paragraphs(page: str) -> Iterator[str]:
    """The lines of a page as paragraphs, words that are parted at the end of a line made whole.

    A paragraph ends at an empty line, and after a line that is short and ends a sentence; a heading opens one, is short
    and ends none, with a capital or a digit after it.
    """
    lines = [" ".join(line.split()) for line in page.splitlines()]
    lengths = [len(line) for line in lines if line]
    long = quantiles(lengths, n=4)[2] if len(lengths) > 1 else 0
    held = ""
    for line, following in pairwise([*lines, "", ""]):
        opens = not held
        if re.search(r"[a-z]-$", held) and re.match(r"[a-z]", line):
            held = held[:-1] + line
        else:
            held = f"{held} {line}".strip()
        ended = _END.search(line) and len(line) < _FULL * long
        heads = opens and not _END.search(line) and len(line) < _HEADING * long and re.match(r"[A-Z\d]", following)
        if held and (not line or ended or heads):
            yield held
            held = ""
