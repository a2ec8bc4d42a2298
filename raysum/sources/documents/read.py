"""Read a file as one document: its text, and the page or heading of each part."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.sandbox import read_limited
from raysum.sources.documents.subtitles import read_subtitles
from raysum.sources.documents.text import DocumentText, decode_text
from raysum.sources.record import LONGEST, TOO_LONG
from raysum.sources.staging import downloaded, with_urls

_SUFFIXES = {  # by kind of document
    "text": (".txt", ".text"),
    "markdown": (".md", ".markdown"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "docx": (".docx",),
    "mail": (".eml", ".mht", ".mhtml"),
    "subtitles": (".srt",),
}
SUFFIXES = tuple(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
_SIGNATURES = {b"%pdf-": "pdf", b"<!doctype html": "html", b"<html": "html"}  # first bytes in lower case


def is_document(path: Path) -> bool:
    """Return whether the suffix of ``path`` is one of a document."""
    return path.suffix.lower() in SUFFIXES


def read_document(path: Path) -> DocumentText:
    """Return the text of a file.

    The suffix decides its kind; with other suffixes, the first bytes identify PDF and web pages.
    Raises UserError if the file is unreadable, holds no text, or is too long.
    """
    try:
        with downloaded(path), path.open("rb") as file:
            content = file.read(LONGEST + 1)  # a limit for devices, too
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > LONGEST:
        raise UserError(f"{path} is {TOO_LONG}; summarize parts of it")
    return parse_document(content, path.name, str(path))


def read_documents(paths: Iterable[Path]) -> list[DocumentText]:
    """Return the text of each file. Raises UserError with the messages of all unreadable files."""
    documents, problems = list[DocumentText](), list[str]()
    for path in paths:
        try:
            documents.append(read_document(path))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError(with_urls("; ".join(problems)))
    return documents


def parse_document(content: bytes, name: str, where: str) -> DocumentText:
    """Return the text of the ``content`` of a file called ``name``. Raises UserError, with ``where`` in the message."""
    suffix = Path(name).suffix.lower()
    kind = next((kind for kind, suffixes in _SUFFIXES.items() if suffix in suffixes), None)
    head = content[:64].lstrip().lower()
    kind = kind or next((kind for signature, kind in _SIGNATURES.items() if head.startswith(signature)), "text")
    if kind == "text":
        return DocumentText(decode_text(content, where))
    return read_subtitles(content, where) if kind == "subtitles" else read_limited(kind, content, where)


def raw_document(document: DocumentText, source: str) -> dict[str, Any]:
    """Return the entry of a document in a raw cluster."""
    raw = {"source": source, "text": document.text}
    return raw | ({"places": [*map(list, document.sections)]} if document.sections else {})
