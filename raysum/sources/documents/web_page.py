"""Web pages and news-wire texts (SGML)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from raysum.runtime.extras import needs
from raysum.sources.documents.file_positions import OF_PAGES, find_pieces
from raysum.sources.documents.source_text import render_markdown
from raysum.sources.documents.text import DocumentText, decode_text, join_blocks, unicode_encoding, without_blocks

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_TEXT_TAGS = (*_HEADINGS, "p", "ul", "ol", "dl", "table", "blockquote", "pre")
_UNSEEN = ("script", "style", "noscript", "template", "title")
_INLINE_TAGS = (
    "a abbr b bdi bdo br cite code data del dfn em font i img ins kbd label mark q ruby rt s samp small span "
    "strike strong sub sup td th time tt u var wbr"
)
_INLINE = frozenset(_INLINE_TAGS.split())
_CHARSET = re.compile(rb"""(?i)<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*["']?([\w.:-]+)""")
_HEAD = 4096  # bytes in which a page declares its encoding
_XML_DECLARATION = re.compile(r"^\s*<\?xml.*?\?>")
_NAMES = ("comment", "disqus", "cookie", "consent", "newsletter", "byline", "share", "related")
_PRUNED = [  # elements with such a class or id, unless they hold most of the page
    f"//*[contains(translate(concat(' ', @class, ' ', @id), 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', "
    f"'abcdefghijklmnopqrstuvwxyz'), ' {name}')][not(.//article or self::body or self::article)]"
    for name in _NAMES
]
_BARE_UNWANTED = " | ".join(["//nav", "//aside", "//footer", *_PRUNED])
_BARE = 0.9  # share of the text that is in headings, paragraphs, lists and tables directly below the body
_FURNITURE = {  # patterns, and the maximum number of words of such a block
    r"(?i)\bcookies?\b.*\b(accept|agree|consent|settings|policy|use)|\b(we|site) uses? cookies": 80,
    r"(?i)^(accept|reject|allow|manage) (all|cookies|preferences)|^(i agree|got it|skip to (main )?content)$": 8,
    r"(?i)^(sign|log) (in|up|out)\b|^subscribe\b|\bnewsletter\b|^share (this|on|via)\b|^follow us\b": 20,
    r"(?i)^(advertisement|sponsored|read more|related (articles|stories)|most read|print|menu|search)\b": 8,
    r"(?i)all rights reserved|^(©|copyright\b)|terms of (use|service).*privacy|privacy.*terms of": 25,
    r"^(?i:by) [A-Z][\w.'’-]+( (?:[A-Z][\w.'’-]+|and|&|,))*( ?[|,–—-] ?.*)?$": 14,
    r"(?i)^(published|updated|posted|last (modified|updated))\b.*\d|^\d+ (min(ute)?s? read|comments?)$": 14,
}


def read_html(content: bytes, name: str) -> DocumentText:
    """Return the main text of a web page with its headings, without menus, banners and comments.

    If a page is too short to find its main text, all of its text is returned.
    Raises UserError if the library that reads web pages is not installed.
    """
    trafilatura = needs("trafilatura", name)
    page = decode_page(content, name)
    main_text = trafilatura.extract(
        page, output_format="markdown", include_comments=False, include_links=False, prune_xpath=_PRUNED
    )
    metadata = trafilatura.extract_metadata(page)
    title = (metadata.title if metadata else None) or ""
    if not page.strip():
        return DocumentText("", title)
    if main_text and _is_bare(page):
        found = without_blocks(join_blocks(html_blocks(page, _BARE_UNWANTED), title), is_furniture)
    elif main_text:
        found = without_blocks(render_markdown(main_text, title), is_furniture)
    else:
        found = join_blocks(html_blocks(page), title)
    return replace(found, pieces=find_pieces(found.text, page, OF_PAGES))


def _is_bare(page: str) -> bool:
    """Return whether a page is a text without layout, as converters write it.

    trafilatura finds no main element in such a page, and leaves its headings and lists out.
    """
    from lxml.html import document_fromstring

    body = document_fromstring(page).find("body")
    if body is None:
        return False
    lengths = {each: len(each.text_content()) for each in body if isinstance(each.tag, str)}
    bare = sum(length for each, length in lengths.items() if each.tag in _TEXT_TAGS)
    return bare >= _BARE * sum(lengths.values()) > 0


def decode_page(content: bytes, name: str) -> str:
    """Return the text of a page in the encoding that it declares, if it is valid, or else the likeliest one."""
    declared, text = _CHARSET.search(content[:_HEAD]), None
    if declared and not unicode_encoding(content):
        with suppress(LookupError, ValueError):
            text = content.decode(declared[1].decode())
    text = decode_text(content, name) if text is None else text
    return _XML_DECLARATION.sub(lambda found: " " * len(found[0]), text)  # positions stay


def is_furniture(block: str) -> bool:
    """Return whether a paragraph of a web page is a banner, a byline, or a link to elsewhere on the site."""
    num_words = len(block.split())
    return any(num_words <= most and re.search(pattern, block) for pattern, most in _FURNITURE.items())


def html_blocks(page: str, unwanted: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts of a web page in blocks, such as paragraphs and rows, each with itself if it is a heading.

    ``unwanted`` is the XPath of elements to leave out.
    """
    from lxml.etree import iterwalk
    from lxml.html import HTMLParser, document_fromstring

    parser = HTMLParser(huge_tree=True)  # the default loses elements below a depth of 256
    tree, parts, heading = document_fromstring(page, parser=parser), list[str](), False
    for element in tree.xpath(unwanted) if unwanted else ():
        element.drop_tree()

    def block() -> Iterator[tuple[str, str]]:
        if text := " ".join("".join(parts).split()):
            yield text, text if heading else ""
        parts.clear()

    for event, element in iterwalk(tree, events=("start", "end", "comment", "pi")):
        if event in ("comment", "pi"):
            parts.append(element.tail or "")
            continue
        is_block = element.tag not in _INLINE
        if is_block:
            yield from block()
            heading = event == "start" and element.tag in _HEADINGS
        is_cell = element.tag in ("td", "th", "br")
        if event == "start":
            parts.append("" if element.tag in _UNSEEN else element.text or "")
        else:
            parts.append((" " if is_cell else "") + (element.tail or ""))
    yield from block()


def read_sgml(content: bytes, name: str) -> DocumentText:
    """Return the paragraphs of the TEXT of a document of TREC, DUC and TAC; the title is its headline."""
    from lxml.html import document_fromstring

    page = document_fromstring(decode_text(content, name))
    parts = [part for text in page.iter("text") for part in text.iter("p")] or [*page.iter("text")] or [page]
    title = next((" ".join(part.text_content().split()) for part in page.iter("headline", "hl", "head")), "")
    return join_blocks(((part.text_content().strip(), "") for part in parts), title)
