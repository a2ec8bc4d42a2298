"""Documents: how each kind of file is recognized, and how a file is read as the text of one document."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.file_positions import ORIGIN, Origin
from raysum.sources.documents.sandbox import DocumentFormat, read_limited
from raysum.sources.documents.text import DocumentText, decode_text, unicode_encoding
from raysum.sources.record import LONGEST, TOO_LONG
from raysum.sources.staging import opened, with_urls

_TEXT = DocumentFormat("text", (".txt", ".text"))
DOCUMENT_FORMATS = (
    _TEXT,
    DocumentFormat("Markdown", (".md", ".markdown"), "source_text:read_markdown", "markdown_it"),
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
_OCR, _SPEECH = "run OCR on it first", "transcribe it to subtitles (.srt, .vtt) first"
_UNPACK, _PROGRAM = "unpack it", "leave it out"
_OTHERS = {  # unsupported files: their names and advice, by a pattern of their first bytes
    rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\0|MM\0\*|BM.{4}\0{4}|RIFF....WEBP": ("an image", _OCR),
    rb".{4}ftyp(?:heic|heix|mif1|avif)": ("an image", _OCR),
    rb"ID3|\xff[\xfb\xf3\xf2]|OggS|fLaC|RIFF....WAVE|FORM....AIF": ("audio", _SPEECH),
    rb".{4}ftyp|\x1aE\xdf\xa3|RIFF....AVI |FLV": ("audio or video", _SPEECH),
    rb"%!PS": ("PostScript", "convert it with ps2pdf"),
    rb"AT&TFORM": ("DjVu", "convert it with ddjvu to PDF"),
    rb".{60}BOOKMOBI": ("a Kindle book", "convert it to EPUB with ebook-convert"),
    rb"\xd0\xcf\x11\xe0": ("a document of Office 97 to 2003 or Outlook", "save it as .docx, .pptx, .xlsx or .eml"),
    rb"PK\x03\x04": ("a ZIP archive or a document in one", "let its name end in .zip, .docx, .odt, .epub or .pptx"),
    rb"7z\xbc\xaf|Rar!": ("a 7-Zip or RAR archive", _UNPACK),
    rb"\x1f\x8b": ("gzipped", "let its name end in .gz or .tar.gz"),
    rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd": ("compressed", _UNPACK),
    rb"PAR1": ("Parquet", "let its name end in .parquet"),
    rb"ARROW1": ("Arrow", "let its name end in .arrow"),
    rb"SQLite format 3": ("an SQLite database", "let its name end in .sqlite"),
    rb"\x89HDF|\x93NUMPY|\x80[\x02-\x05]": ("an array or a pickle", "save its texts as JSON lines"),
    rb"\x7fELF|MZ|\xca\xfe\xba\xbe|\xcf\xfa\xed\xfe": ("a program", _PROGRAM),
    rb"wOF[F2]|\0\x01\0\0\0|OTTO": ("a font", _PROGRAM),
    rb"\xf7\x02": ("TeX's DVI", "give the .tex file or a PDF"),
    rb"%PDF-": ("PDF", "let its name end in .pdf"),
}


def is_document(path: Path) -> bool:
    """Return whether the suffix of ``path`` is one of a document."""
    return path.suffix.lower() in SUFFIXES


def identify(head: bytes) -> str:
    """Return what a file with these first bytes (at least 128) is, with advice, or "" if it may be text."""
    for pattern, (name, advice) in _OTHERS.items():
        if re.match(pattern, head, re.DOTALL):
            return f"{name}; {advice}"
    is_binary = head.count(0) * 20 > len(head) > 16 and not unicode_encoding(head)
    return "binary; save its text as .txt" if is_binary else ""


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
