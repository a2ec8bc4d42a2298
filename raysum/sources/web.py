"""Pages from the web in one file: RSS and Atom feeds, and WARC archives. Each file is a cluster."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.sources.documents.file_positions import ORIGIN, Origin
from raysum.sources.documents.read import parse_document
from raysum.sources.record import LONGEST, TOO_LONG, Record
from raysum.sources.staging import local_content, opened

_TEXTS = ("content", "encoded", "description", "summary")  # of an entry, the longest first


def read_feed(path: Path) -> Iterator[Record]:
    """Yield a feed as one cluster: each entry is a document, called by its title."""
    etree = needs("lxml.etree", str(path))
    with opened(path) as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        yield Record(str(path), path.name, TOO_LONG)
        return
    tree = etree.fromstring(content.strip() or b"<x/>", etree.XMLParser(resolve_entities=False, recover=True))
    if tree is None:
        raise UserError(f"{path} is not a feed (RSS or Atom); fetch it again")

    def child(element: Any, name: str) -> str:
        return next(("".join(part.itertext()).strip() for part in element.iterchildren(f"{{*}}{name}")), "")

    documents = list[dict[str, Any]]()
    for number, entry in enumerate(tree.iter("{*}item", "{*}entry"), 1):
        title = child(entry, "title")
        body = max((child(entry, name) for name in _TEXTS), key=len)
        page = f"<html><body>{body}</body></html>".encode()
        text = parse_document(page, "entry.html", f"{path}, entry {number}").text if body else ""
        document = {"source": title or f"entry {number}", "text": f"{title}\n\n{text}".strip()}
        documents.append(document | {ORIGIN: Origin(is_extracted=True)})
    title = child(next(tree.iter("{*}channel"), tree), "title")
    yield Record(str(path), {"id": path.name, "title": title, "documents": documents})


def read_warc(path: Path) -> Iterator[Record]:
    """Yield a WARC archive as one cluster: each page and text that was found is a document, called by its URL.

    Pages that cannot be read are left out. Raises UserError if the archive is damaged.
    """
    iterator, exceptions = needs("warcio.archiveiterator", str(path)), needs("warcio.exceptions", str(path))
    documents, size = list[dict[str, Any]](), 0
    with local_content(path) as local, local.open("rb") as file:
        try:
            for record in iterator.ArchiveIterator(file):
                url = record.rec_headers.get_header("WARC-Target-URI") or ""
                if text := _page(record, url):
                    documents.append({"source": url, "text": text, ORIGIN: Origin(is_extracted=True)})
                    size += len(text)
                if size > LONGEST:
                    yield Record(str(path), path.name, f"{TOO_LONG}; write a file for each cluster")
                    return
        except (exceptions.ArchiveLoadFailed, EOFError, zlib.error, AttributeError, ValueError) as error:
            raise UserError(f"{path} is not a sound WARC archive ({error}); fetch it again") from None
    yield Record(str(path), {"id": path.name, "title": "", "documents": documents})


def _page(record: Any, url: str) -> str:
    headers = record.http_headers
    kind = (headers.get_header("Content-Type") or "") if headers else ""
    if record.rec_type != "response" or not kind.startswith("text/") or headers.get_statuscode() != "200":
        return ""
    content = record.content_stream().read(LONGEST + 1)
    try:
        return parse_document(content[:LONGEST], "page.html" if "html" in kind else "page.txt", url).text.strip()
    except UserError:
        return ""
