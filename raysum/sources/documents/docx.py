"""Word documents: paragraphs, headings and tables."""

import io
from typing import Any

from raysum.runtime.extras import needs
from raysum.sources.documents.text import Text, assembled


def read(content: bytes, name: str) -> Text:
    """Raises an error of the library's where it is no Word document."""
    document = needs("docx", name).Document(io.BytesIO(content))
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
