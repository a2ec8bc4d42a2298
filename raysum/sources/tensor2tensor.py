"""WikiSum as tensor2tensor fetches it (Liu et al. 2018): articles, the URLs of their references, and these pages."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.folders import leads_out
from raysum.sources.record import Record
from raysum.sources.staging import present
from raysum.sources.tfrecords import read_examples

CONTENT = "wiki_content.tfrecords-"
_URLS, _PAGES = "wiki_urls.json-", "references.tfrecords.gz-"


def read_wikis(path: Path) -> Iterator[Record]:
    """The articles of one shard: the lead is the summary, the pages that were fetched of it are the documents.

    URLs and pages have the shard's number in their names and lie under the folder of the shard, or beside it. Of a URL
    with several pages (of several processes) the longest counts.
    Raises UserError where there is no file of URLs or of pages, or one is damaged.
    """
    shard = path.name.removeprefix(CONTENT)
    urls = _references(_found(path, _URLS + shard)[0])
    pages: dict[str, str] = {}
    for example in chain.from_iterable(map(read_examples, _found(path, _PAGES + shard))):
        url, text = (_text(example, name) for name in ("url", "content"))
        if len(text) >= len(pages.get(url, "")):
            pages[url] = text
    for number, article in enumerate(read_examples(path), 1):
        url, sections = _text(article, "url"), article.get("section_texts", [])
        found = [{"source": one, "text": pages[one]} for one in urls.get(url, []) if pages.get(one)]
        raw: dict[str, Any] = {"id": url, "title": _text(article, "title"), "documents": found}
        summary = sections[0].decode("utf-8", "replace").strip() if sections else ""
        where = f"{path}:{number}"
        if not found:
            yield Record(where, raw, "none of its references was fetched", url)
        else:
            yield Record(where, raw | {"summary": summary})


def _found(path: Path, name: str) -> list[Path]:
    """The files of that name under the shard's folder, or the one above without other folders of shards in it; links
    out of that folder are passed over."""
    for folder in (path.parent, path.parent.parent):
        others = {file.parent for file in folder.rglob(f"{CONTENT}*")} - {path.parent}
        others |= {other.parent for other in others} - {folder, *folder.parents}
        own = (file for file in sorted(folder.rglob(name)) if others.isdisjoint(file.parents))
        if files := [file for file in own if not leads_out(file, folder)]:
            return files
    raise UserError(f"{path} has no {name} under its folder or beside it; its clusters need it: fetch it, too")


def _references(path: Path) -> dict[str, list[str]]:
    try:
        with present(path):
            articles = json.loads(path.read_bytes())
        return {url: list(map(str, article["refs"])) for url, article in articles.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not hold URLs of references by article ({error!r}); fetch it again") from None


def _text(example: dict[str, list[bytes]], name: str) -> str:
    return b"".join(example.get(name, [])[:1]).decode("utf-8", "replace")
