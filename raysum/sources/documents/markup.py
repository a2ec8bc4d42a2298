"""Markdown, web pages and e-mail."""

import email
import email.policy
import re
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from typing import TYPE_CHECKING

from raysum.runtime.extras import needs
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks, repair_utf8

if TYPE_CHECKING:
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)
_TITLE = re.compile(r"^title:\s*(.+)$", re.MULTILINE | re.IGNORECASE)


def read_markdown(content: bytes, name: str) -> DocumentText:
    """Return the text of Markdown. Raises UserError if ``content`` is not text."""
    return render_markdown(decode_text(content, name).replace("\r\n", "\n"))


def render_markdown(source: str, title: str = "") -> DocumentText:
    """Return the paragraphs, items and cells of Markdown without markup, separated by blank lines.

    Without ``title``, the title comes from the front matter or the first heading.
    """
    from markdown_it import MarkdownIt

    front = _FRONT_MATTER.match(source)
    front_title = _TITLE.search(front[0]) if front else None
    tokens = MarkdownIt("commonmark").enable("table").parse(source[front.end() if front else 0 :])
    document = join_blocks((block, block if is_heading else "") for block, is_heading in _blocks(tokens))
    heading = document.sections[0][1] if document.sections else ""
    return replace(document, title=title or (front_title[1].strip("\"' ") if front_title else heading))


def _blocks(tokens: "list[Token]") -> Iterator[tuple[str, bool]]:
    """Yield the text of each block, and whether it is a heading. The cells of a table row are one block."""
    cells, previous = None, ""
    for token in tokens:
        if token.type == "tr_open":
            cells = list[str]()
        elif token.type == "tr_close" and cells is not None:
            if any(cells):
                yield " | ".join(cells), False
            cells = None
        elif token.type == "inline":
            block = _inline_text(token)
            if cells is not None:
                cells.append(block)
            elif block:
                yield block, previous == "heading_open"
        elif token.type in ("fence", "code_block") and token.content.strip():
            yield token.content.strip("\n"), False
        previous = token.type


def _inline_text(inline: "Token") -> str:
    breaks = {"softbreak": " ", "hardbreak": "\n"}
    parts = (
        breaks.get(token.type, token.content if token.type in ("text", "code_inline") else "")
        for token in inline.children or ()
    )
    return "".join(parts).strip()


def read_html(content: bytes, name: str) -> DocumentText:
    """Return the main text of a web page with its headings, without menus, banners and comments.

    If a page is too short to find its main text, all of its text is returned.
    Raises UserError if the library that reads web pages is not installed.
    """
    trafilatura = needs("trafilatura", name)
    page = repair_utf8(content, name) or content
    main_text = trafilatura.extract(page, output_format="markdown", include_comments=False, include_links=False)
    metadata = trafilatura.extract_metadata(page)
    title = (metadata.title if metadata else None) or ""
    if main_text:
        return render_markdown(main_text, title)
    if not content.strip():
        return DocumentText("", title)
    from lxml.html import HTMLParser, document_fromstring

    parser = HTMLParser(huge_tree=True)  # the default loses elements below a depth of 256
    return DocumentText(" ".join(document_fromstring(page, parser=parser).text_content().split()), title)


def read_mail(content: bytes, name: str) -> DocumentText:
    """Return the body of an e-mail or a saved web page (MHTML), without quoted lines; the title is the subject.

    Raises UserError if the body is not text.
    """
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    body = message.get_body(("plain", "html"))
    subject = str(message.get("subject") or "")
    if body is None:
        return DocumentText("", subject)
    payload = body.get_payload(decode=True)
    raw = payload if isinstance(payload, bytes) else b""
    if body.get_content_subtype() == "html":
        page = read_html(raw, name)
        return replace(page, title=subject or page.title)
    try:
        text = raw.decode(body.get_content_charset() or "utf-8")
    except (ValueError, LookupError):  # the header names a wrong or unknown encoding
        text = decode_text(raw, name)
    lines = (line for line in text.replace("\r\n", "\n").split("\n") if not line.startswith(">"))
    return DocumentText("\n".join(lines).strip(), subject)
