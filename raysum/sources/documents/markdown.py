"""Markdown: the text that it stands for, and its headings."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from raysum.sources.documents.text import Text, assembled, decoded

if TYPE_CHECKING:
    from markdown_it.token import Token

_FRONT = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)
_TITLE = re.compile(r"^title:\s*(.+)$", re.MULTILINE | re.IGNORECASE)


def read(content: bytes, name: str) -> Text:
    """Raises UserError where ``content`` is no text."""
    return rendered(decoded(content, name).replace("\r\n", "\n"))


def rendered(source: str, title: str = "") -> Text:
    """The paragraphs, items and cells of Markdown without its marks, a blank line between them.

    The title, where none is given, is the one told before the text, or else the first heading.
    """
    from markdown_it import MarkdownIt

    front = _FRONT.match(source)
    told = _TITLE.search(front[0]) if front else None
    tokens = MarkdownIt("commonmark").enable("table").parse(source[front.end() if front else 0 :])
    found = assembled((block, block if is_heading else "") for block, is_heading in _blocks(tokens))
    first = found.places[0][1] if found.places else ""
    return replace(found, title=title or (told[1].strip("\"' ") if told else first))


def _blocks(tokens: "list[Token]") -> Iterator[tuple[str, bool]]:
    """Text of each block, and whether it is a heading; the cells of a row are one block."""
    cells, opened = None, ""
    for token in tokens:
        if token.type == "tr_open":
            cells = list[str]()
        elif token.type == "tr_close" and cells is not None:
            if any(cells):
                yield " | ".join(cells), False
            cells = None
        elif token.type == "inline":
            block = _text(token)
            if cells is not None:
                cells.append(block)
            elif block:
                yield block, opened == "heading_open"
        elif token.type in ("fence", "code_block") and token.content.strip():
            yield token.content.strip("\n"), False
        opened = token.type


def _text(inline: "Token") -> str:
    kinds = {"softbreak": " ", "hardbreak": "\n"}
    parts = (
        kinds.get(token.type, token.content if token.type in ("text", "code_inline") else "")
        for token in inline.children or ()
    )
    return "".join(parts).strip()
