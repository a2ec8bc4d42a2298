"""Documents: how each kind of file is recognized, and how a file is read as the text of one document."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.file_positions import ORIGIN, Origin
from raysum.sources.documents.sandbox import DocumentFormat, read_limited
from raysum.sources.documents.text import DocumentText, decode_text
from raysum.sources.documents.unsupported import identify
from raysum.sources.record import LONGEST, TOO_LONG
from raysum.sources.staging import opened, with_urls

_TEXT = DocumentFormat("text", (".txt", ".text"))
DOCUMENT_FORMATS = (
    _TEXT,
    DocumentFormat("Markdown", (".md", ".markdown"), "markdown:read_markdown", "markdown_it"),
    DocumentFormat(
        "a web page", (".html", ".htm", ".xhtml"), "web_page:read_html", "trafilatura", ("<!doctype html", "<html")
    ),
    DocumentFormat("PDF", (".pdf",), "pdf:read_pdf", "pypdfium2", ("%pdf-",)),
    DocumentFormat("a Word document", (".docx",), "office:read_docx", "docx"),
    DocumentFormat("PowerPoint", (".pptx",), "office:read_pptx", "pptx"),
    DocumentFormat("OpenDocument", (".odt", ".odp"), "office:read_odf", "lxml.etree"),
    DocumentFormat("Rich Text", (".rtf",), "office:read_rtf", "striprtf.striprtf", ("{\\rtf",)),
    DocumentFormat("EPUB", (".epub",), "office:read_epub", "lxml.html"),
    DocumentFormat("LaTeX", (".tex",), "source_text:read_latex", "pylatexenc.latex2text", ("\\documentclass",)),
    DocumentFormat("reStructuredText", (".rst",), "source_text:read_rst", "docutils.core"),
    DocumentFormat("AsciiDoc", (".adoc", ".asciidoc"), "source_text:read_asciidoc", "markdown_it"),
    DocumentFormat("a notebook", (".ipynb",), "source_text:read_notebook", "markdown_it"),
    DocumentFormat("e-mail", (".eml", ".mht", ".mhtml"), "mail:read_mail", "trafilatura"),
    DocumentFormat("a news-wire text (SGML)", (".sgml", ".sgm"), "web_page:read_sgml", "lxml", ("<doc>", "<doc ")),
    DocumentFormat("subtitles", (".srt", ".vtt"), "subtitles:read_subtitles", "", ("webvtt",)),
)
SUFFIXES = tuple(suffix for form in DOCUMENT_FORMATS for suffix in form.suffixes)


def is_document(path: Path) -> bool:
    """Return whether the suffix of ``path`` is one of a document."""
    return path.suffix.lower() in SUFFIXES


def read_document(path: Path) -> DocumentText:
    """Return the text of a file. Raises UserError if the file is unreadable, holds no text, or is too long."""
    try:
        with opened(path) as file:
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
    form = _detect(content, name)
    if not form.reader:
        if kind := identify(content[:128]):
            raise UserError(f"{where} is {kind}")
        return DocumentText(decode_text(content, where), is_extracted=False)
    return read_limited(form, content, where)


def _detect(content: bytes, name: str) -> DocumentFormat:
    """Return the format by the suffix of ``name``, by the first bytes, or plain text."""
    suffix, head = Path(name).suffix.lower(), content[:64].decode("latin-1").lstrip().lower()
    by_suffix = [form for form in DOCUMENT_FORMATS if suffix in form.suffixes]
    by_content = [form for form in DOCUMENT_FORMATS if form.signatures and head.startswith(form.signatures)]
    return [*by_suffix, *by_content, _TEXT][0]


def raw_document(document: DocumentText, source: str) -> dict[str, Any]:
    """Return the entry of a document in a raw cluster."""
    origin = Origin(document.sections, document.pieces, document.is_extracted)
    return {"source": source, "text": document.text} | ({ORIGIN: origin} if any(origin) else {})
