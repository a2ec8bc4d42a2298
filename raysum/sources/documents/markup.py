"""Markdown, web pages and e-mail."""

import email
import email.policy
import re
from dataclasses import replace
from email.message import EmailMessage
from typing import TYPE_CHECKING

from raysum.runtime.extras import needs
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks, repair_utf8

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

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


def read_sgml(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs of the TEXT of a document of TREC, DUC and TAC; the title is its headline."""
    from lxml.html import document_fromstring

    page = document_fromstring(decode_text(content, name))
    parts = [part for text in page.iter("text") for part in text.iter("p")] or [*page.iter("text")] or [page]
    title = next((" ".join(part.text_content().split()) for part in page.iter("headline", "hl", "head")), "")
    return join_blocks(((part.text_content().strip(), "") for part in parts), title)


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
