"""Markdown as text."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from raysum.sources.documents.file_positions import markdown_pieces
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

_FRONT_MATTER = re.compile(r"\A(?:---\n.*?\n(?:---|\.\.\.)|\+\+\+\n.*?\n\+\+\+)\n", re.DOTALL)  # YAML or TOML
_TITLE = re.compile(r"^title\s*[:=]\s*(.+)$", re.MULTILINE | re.IGNORECASE)


def read_markdown(content: bytes, name: str) -> DocumentText:
    """Return the text of Markdown. Raises UserError if ``content`` is not text."""
    raw = decode_text(content, name)
    document = render_markdown(raw.replace("\r\n", "\n"))
    return replace(document, pieces=markdown_pieces(document.text, raw))


def render_markdown(source: str, title: str = "") -> DocumentText:
    """Return the paragraphs, items and cells of Markdown without markup, separated by blank lines.

    Without ``title``, the title comes from the front matter or the first heading.
    """
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    front = _FRONT_MATTER.match(source)
    front_title = _TITLE.search(front[0]) if front else None
    tokens = MarkdownIt("commonmark").enable("table").parse(source[front.end() if front else 0 :])
    blocks = ((node.type, _block_text(node)) for node in SyntaxTreeNode(tokens).walk())
    document = join_blocks((text, text if kind == "heading" else "") for kind, text in blocks if text)
    heading = document.sections[0][1] if document.sections else ""
    return replace(document, title=title or (front_title[1].strip("\"' ") if front_title else heading))


def _block_text(node: "SyntaxTreeNode") -> str:
    """Return the text of a block, or "" for other nodes. The cells of a table row are one block."""
    if node.type == "tr":
        cells = [_inline_text(cell) for cell in node.children]
        return " | ".join(cells) if any(cells) else ""
    if node.type in ("heading", "paragraph"):
        return _inline_text(node)
    return node.content.strip("\n") if node.type in ("fence", "code_block") and node.content.strip() else ""


def _inline_text(block: "SyntaxTreeNode") -> str:
    breaks = {"softbreak": " ", "hardbreak": "\n"}
    tokens = [token for inline in block.children if inline.token for token in inline.token.children or ()]
    parts = (breaks.get(token.type, token.content * (token.type in ("text", "code_inline"))) for token in tokens)
    return "".join(parts).strip()
