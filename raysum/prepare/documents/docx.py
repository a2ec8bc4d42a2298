"""Word documents: paragraphs, headings and tables."""

import io
import zipfile
from typing import Any

from raysum.errors import UserError
from raysum.prepare.documents.text import Text, assembled
from raysum.prepare.sources.record import LONGEST, TOO_LONG
from raysum.runtime.extras import needs


def read(content: bytes, name: str) -> Text:
    """Raises UserError where it is no Word document, or too long."""
    docx = needs("docx", name)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            size = sum(part.file_size for part in parts.infolist() if part.filename.endswith(".xml"))
        document = docx.Document(io.BytesIO(content)) if size <= LONGEST else None
    except Exception as error:  # of zip, XML and the library itself
        told = str(error)[:100] or type(error).__name__
        raise UserError(f"{name} does not read as a Word document ({told}); save it again, or leave it out") from None
    if document is None:
        raise UserError(f"{name} unpacks to something {TOO_LONG}; save it in parts")
    blocks = (
        (line, line if _is_heading(block) else "")
        for block in document.iter_inner_content()
        for line in filter(None, map(str.strip, _lines(block)))
    )
    return assembled(blocks, (document.core_properties.title or "").strip())


def _lines(block: Any) -> list[str]:
    if hasattr(block, "rows"):
        return [" | ".join(cell.text.strip() for cell in row.cells) for row in block.rows]
    return [block.text]


def _is_heading(block: Any) -> bool:
    style = None if hasattr(block, "rows") else block.style
    return style is not None and (style.name or "").startswith(("Heading", "Title"))
