"""PDF: the text of its pages."""

import io
import logging
import re
from collections.abc import Iterator
from itertools import pairwise
from statistics import quantiles

from raysum.errors import UserError
from raysum.prepare.documents.text import Text
from raysum.runtime.extras import needs

_END = re.compile(r"[.!?:。！？][\"'”’)\]]*$")
_FULL, _HEADING = 0.8, 0.6  # of a long line's length: what is shorter may end a paragraph, or be a heading


def read(content: bytes, name: str) -> Text:
    """The paragraphs of each page. Raises UserError where it is no PDF, is locked, or has pictures in place of text."""
    pypdf = needs("pypdf", name)
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UserError(f"{name} is locked by a password; save it without")
        pages = [page.extract_text() for page in reader.pages]
        title = str((reader.metadata or {}).get("/Title") or "").strip()
    except UserError:
        raise
    except Exception as error:  # pypdf raises errors of many kinds on damaged files
        raise UserError(f"{name} does not read as PDF ({type(error).__name__}: {str(error)[:100]})") from None
    text, places = "", list[tuple[int, str]]()
    for number, page in enumerate(pages, 1):
        for block in _paragraphs(page):
            text += "\n\n" if text else ""
            if not places or places[-1][1] != f"page {number}":
                places.append((len(text), f"page {number}"))
            text += block
    if not text.strip():
        told = f"{name} holds no text on its {len(pages)} pages, as scans do"
        raise UserError(f"{told}; have it recognized first (OCR)")
    return Text(text, title, places)


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
