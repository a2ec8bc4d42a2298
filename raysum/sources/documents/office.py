"""Word, PowerPoint, OpenDocument, Rich Text and EPUB as text, and the cells of spreadsheets."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.runtime.processes import hushed
from raysum.sources.documents.text import DocumentText, join_blocks
from raysum.sources.documents.web_page import decode_page, html_blocks

_ODF = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
_ODF_TEXT = _ODF % "text"
_ODF_BREAKS = {f"{_ODF_TEXT}s": " ", f"{_ODF_TEXT}tab": " ", f"{_ODF_TEXT}line-break": "\n"}
_ODF_SKIPPED = (f"{_ODF_TEXT}tracked-changes", _ODF % "office" + "annotation", f"{_ODF_TEXT}table-of-content")
_LOWEST = 1 << 60  # position of a shape without one


def read_docx(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs, headings and table rows. Raises an error of the library if it is not a Word document."""
    document = needs("docx", name).Document(io.BytesIO(content))

    def blocks() -> Iterator[tuple[str, str]]:
        for block in document.iter_inner_content():
            if hasattr(block, "rows"):
                yield from ((_row(cell.text for cell in row.cells).strip(), "") for row in block.rows)
                continue
            text, style = block.text.strip(), block.style
            is_heading = style is not None and (style.name or "").startswith(("Heading", "Title"))
            yield text, text if is_heading else ""

    return join_blocks((block for block in blocks() if block[0]), (document.core_properties.title or "").strip())


def _row(cells: Iterable[str]) -> str:
    """Return the different texts of neighbouring cells on a line."""
    texts = [" ".join(cell.split()) for cell in cells]
    return " | ".join(text for text, before in zip(texts, ["", *texts], strict=False) if text != before or not text)


def read_pptx(content: bytes, name: str) -> DocumentText:
    """Return the texts of all slides from top to bottom, with the numbers of the slides."""
    document = needs("pptx", name).Presentation(io.BytesIO(content))

    def texts(shapes: Any) -> Iterator[str]:
        for shape in sorted(shapes, key=lambda shape: (_LOWEST if shape.top is None else shape.top, shape.left or 0)):
            if hasattr(shape, "shapes"):
                yield from texts(shape.shapes)
            elif getattr(shape, "has_table", False):
                yield from (_row(cell.text for cell in row.cells) for row in shape.table.rows)
            elif shape.has_text_frame:
                yield from (" ".join(paragraph.text.split()) for paragraph in shape.text_frame.paragraphs)

    def blocks() -> Iterator[tuple[str, str]]:
        for number, slide in enumerate(document.slides, 1):
            place = f"slide {number}"
            for text in filter(None, texts(slide.shapes)):
                yield text, place
                place = ""

    return join_blocks(blocks(), (document.core_properties.title or "").strip())


def read_odf(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs and headings of an OpenDocument text or presentation, the latter with numbers of slides."""
    from lxml import etree

    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        tree = etree.fromstring(parts.read("content.xml"), etree.XMLParser(resolve_entities=False, huge_tree=True))
    skipped = {node for kind in _ODF_SKIPPED for part in tree.iter(kind) for node in part.iter()}

    def blocks() -> Iterator[tuple[str, str]]:
        slide, place = 0, ""
        for node in tree.iter(f"{_ODF_TEXT}h", f"{_ODF_TEXT}p", _ODF % "drawing" + "page"):
            if node.tag.endswith("page"):
                slide += 1
                place = f"slide {slide}"
            elif node not in skipped and (text := _odf_text(node, skipped)):
                yield text, place or (text if node.tag.endswith("}h") else "")
                place = ""

    return join_blocks(blocks())


def _odf_text(node: Any, skipped: set[Any]) -> str:
    parts = [node.text or ""]
    for part in node:
        inner = "" if part in skipped else _odf_text(part, skipped)
        parts += [_ODF_BREAKS.get(part.tag, inner), part.tail or ""]
    return "".join(parts).strip() if node.tag in (f"{_ODF_TEXT}p", f"{_ODF_TEXT}h") else "".join(parts)


def read_rtf(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs of Rich Text. Raises UserError if it is none."""
    rtf_to_text = needs("striprtf.striprtf", name).rtf_to_text
    source = content.decode("latin-1")
    if not source.lstrip().startswith("{\\rtf"):
        raise UserError(f"{name} is no Rich Text, which begins with {{\\rtf; save it again, or as .txt")
    lines = (" ".join(line.split()) for line in rtf_to_text(source, errors="ignore").split("\n"))
    return join_blocks((line, "") for line in lines if line)


def read_epub(content: bytes, name: str) -> DocumentText:
    """Return the text of the chapters in reading order. Raises UserError if it is protected or no EPUB."""
    from lxml import etree

    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        files = set(parts.namelist())
        if "META-INF/encryption.xml" in files and b"#aes" in parts.read("META-INF/encryption.xml"):
            raise UserError(f"{name} is protected against copying; use a copy without protection")
        parser = etree.XMLParser(resolve_entities=False, recover=True)
        container = etree.fromstring(parts.read("META-INF/container.xml"), parser)
        package_name = next(container.iter("{*}rootfile")).get("full-path")
        package = etree.fromstring(parts.read(package_name), parser)
        items = {item.get("id"): item for item in package.iter("{*}item")}
        order = [items[item.get("idref")] for item in package.iter("{*}itemref") if item.get("idref") in items]
        chapters = [item for item in order if "nav" not in (item.get("properties") or "").split()]
        paths = [normpath(join(dirname(package_name), unquote(item.get("href")))) for item in chapters]
        pages = [decode_page(parts.read(path), f"{name}/{path}") for path in paths if path in files]
        title = next((element.text for element in package.iter("{*}title") if element.text), "")
    return join_blocks((block for page in pages for block in html_blocks(page)), title)


def read_sheets(content: bytes, name: str) -> dict[str, list[tuple[int, list[str]]]]:
    """Return the rows with text of each sheet (Excel or OpenDocument) and their numbers from 1, without empty columns.

    The library holds all cells up to the farthest, and ends the process if they do not fit into memory.
    """
    calamine = needs("python_calamine", name)
    with hushed():
        book = calamine.CalamineWorkbook.from_filelike(io.BytesIO(content))
        return {sheet: _sheet_rows(book, sheet) for sheet in book.sheet_names}


def _sheet_rows(book: Any, sheet: str) -> list[tuple[int, list[str]]]:
    numbered = enumerate(book.get_sheet_by_name(sheet).iter_rows(), 1)
    rows = [(number, [*map(str, row)]) for number, row in numbered if any(cell != "" for cell in row)]
    used = [column for column, cells in enumerate(zip(*(row for _, row in rows), strict=True)) if any(cells)]
    return [(number, [row[column] for column in used]) for number, row in rows]
