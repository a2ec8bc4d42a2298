"""A file as one document: its text, and what page or heading each part of it stands under."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents import text
from raysum.sources.documents.sandbox import read_limited
from raysum.sources.documents.text import Text
from raysum.sources.record import LONGEST, TOO_LONG
from raysum.sources.staging import as_asked, present

_READERS = {  # what reads files of these suffixes: a module of this package
    "text": (".txt", ".text"),
    "markdown": (".md", ".markdown"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "docx": (".docx",),
    "mail": (".eml", ".mht", ".mhtml"),
}
SUFFIXES = tuple(suffix for suffixes in _READERS.values() for suffix in suffixes)
_BEGIN = {b"%PDF-": "pdf", b"<!doctype html": "html", b"<html": "html"}


def is_document(path: Path) -> bool:
    """Whether a file of this name is read as a document."""
    return path.suffix.lower() in SUFFIXES


def read_document(path: Path) -> Text:
    """The text of a file, by its suffix; of other suffixes PDF and web pages are known by how they begin.

    Raises UserError where it does not read, holds no text, or is too long.
    """
    try:
        with present(path), path.open("rb") as file:
            content = file.read(LONGEST + 1)  # no more, also of a device
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > LONGEST:
        raise UserError(f"{path} is {TOO_LONG}; summarize parts of it")
    return parsed(content, path.name, str(path))


def read_documents(paths: Iterable[Path]) -> list[Text]:
    """The text of each file. Raises UserError naming all that do not read."""
    found, problems = list[Text](), list[str]()
    for path in paths:
        try:
            found.append(read_document(path))
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError(as_asked("; ".join(problems)))
    return found


def parsed(content: bytes, name: str, where: str) -> Text:
    """The text of what is in a file called ``name``; ``where`` stands in messages. Raises UserError."""
    suffix = Path(name).suffix.lower()
    kind = next((kind for kind, suffixes in _READERS.items() if suffix in suffixes), None)
    head = content[:64].lstrip().lower()
    kind = kind or next((kind for begin, kind in _BEGIN.items() if head.startswith(begin.lower())), "text")
    return text.read(content, where) if kind == "text" else read_limited(kind, content, where)


def as_raw(found: Text, source: str) -> dict[str, Any]:
    """A document as it stands in a raw cluster."""
    return {"source": source, "text": found.text} | ({"places": [*map(list, found.places)]} if found.places else {})
