"""WikiSum as tensor2tensor fetches it (Liu et al. 2018): articles, the URLs of their references, and those pages."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.folders import leads_out
from raysum.sources.record import Record
from raysum.sources.staging import downloaded
from raysum.sources.tfrecords import read_tfrecords

CONTENT = "wiki_content.tfrecords-"
_URLS, _PAGES = "wiki_urls.json-", "references.tfrecords.gz-"


def read_wikis(path: Path) -> Iterator[Record]:
    """Yield the articles of one shard: the lead is the summary, and the fetched pages are the documents.

    The files of URLs and pages have the number of the shard in their names and lie under or beside its folder. If
    several processes fetched the same URL, the longest page is used.
    Raises UserError if the file of URLs or pages is missing or damaged.
    """
    shard = path.name.removeprefix(CONTENT)
    urls = _references(_files(path, _URLS + shard)[0])
    pages: dict[str, str] = {}
    for example in chain.from_iterable(map(read_tfrecords, _files(path, _PAGES + shard))):
        url, text = (_text(example, name) for name in ("url", "content"))
        if len(text) >= len(pages.get(url, "")):
            pages[url] = text
    for number, article in enumerate(read_tfrecords(path), 1):
        url, sections = _text(article, "url"), article.get("section_texts", [])
        documents = [{"source": page, "text": pages[page]} for page in urls.get(url, []) if pages.get(page)]
        raw: dict[str, Any] = {"id": url, "title": _text(article, "title"), "documents": documents}
        summary = sections[0].decode("utf-8", "replace").strip() if sections else ""
        where = f"{path}:{number}"
        if not documents:
            yield Record(where, raw, "none of its references was fetched", url)
        else:
            yield Record(where, raw | {"summary": summary})


def _files(path: Path, name: str) -> list[Path]:
    """Return the files called ``name`` under the folder of the shard; if there are none, under its parent.

    Folders of other shards and links out of the searched folder are ignored. Raises UserError if there is no such file.
    """
    for folder in (path.parent, path.parent.parent):
        others = {file.parent for file in folder.rglob(f"{CONTENT}*")} - {path.parent}
        others |= {other.parent for other in others} - {folder, *folder.parents}
        own = (file for file in sorted(folder.rglob(name)) if others.isdisjoint(file.parents))
        if files := [file for file in own if not leads_out(file, folder)]:
            return files
    raise UserError(f"{path} needs {name} in its folder or beside it; fetch that file too")


def _references(path: Path) -> dict[str, list[str]]:
    try:
        with downloaded(path):
            articles = json.loads(path.read_bytes())
        return {url: list(map(str, article["refs"])) for url, article in articles.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not map articles to URLs of references ({error!r}); fetch it again") from None


def _text(example: dict[str, list[bytes]], name: str) -> str:
    return b"".join(example.get(name, [])[:1]).decode("utf-8", "replace")
