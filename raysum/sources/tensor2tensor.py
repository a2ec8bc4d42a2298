"""WikiSum as tensor2tensor fetches it (Liu et al. 2018): articles, the URLs of their references, and those pages."""

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from raysum.errors import UserError
from raysum.sources.folders import leads_out
from raysum.sources.record import Record
from raysum.sources.staging import opened

CONTENT = "wiki_content.tfrecords-"
_URLS, _PAGES = "wiki_urls.json-", "references.tfrecords.gz-"
_MAX_BYTES = 1 << 30  # of a record: a greater length is damaged
_MASK = 0xA282EAD8  # of the format, because checksums of data with checksums are weak


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
        url, lead = _text(article, "url"), _text(article, "section_texts").strip()
        documents = [{"source": page, "text": pages[page]} for page in urls.get(url, []) if pages.get(page)]
        raw = {"id": url, "title": _text(article, "title"), "documents": documents, "summary": lead}
        problem = () if documents else ("none of its references was fetched", url)
        yield Record(f"{path}:{number}", raw, *problem)


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
        with opened(path) as file:
            articles = json.load(file)
        return {url: list(map(str, article["refs"])) for url, article in articles.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not map articles to URLs of references ({error!r}); fetch it again") from None


def _text(example: dict[str, list[bytes]], name: str) -> str:
    """Return the first value of a field, or ""."""
    return b"".join(example.get(name, [])[:1]).decode("utf-8", "replace")


def read_tfrecords(path: Path) -> Iterator[dict[str, list[bytes]]]:
    """Yield the fields of bytes of each record, by name. Raises UserError if the file is damaged."""
    number = 0
    try:
        with opened(path) as file:
            while head := file.read(12):
                number += 1
                length, checksum = struct.unpack("<QI", head) if len(head) == 12 else (_MAX_BYTES + 1, 0)
                if length > _MAX_BYTES or masked_crc32c(head[:8]) != checksum:
                    raise _damaged(path, number, "length")
                body = file.read(length + 4)
                if len(body) < length + 4 or masked_crc32c(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                    raise _damaged(path, number, "bytes")
                yield _features(body[:-4])
    except (OSError, EOFError, zlib.error, DecodeError) as error:
        raise UserError(f"{path} cannot be read to its end ({error}); fetch it again") from None


def _features(example: bytes) -> dict[str, list[bytes]]:
    """Return the lists of bytes of a message Example of tensorflow/core/example, which is a map of features."""
    found = dict[str, list[bytes]]()
    for features in message_fields(example)[1]:
        for entry in map(message_fields, message_fields(features)[1]):
            name, feature = entry[1][0].decode(), message_fields(entry[2][0])
            found[name] = [value for values in feature[1] for value in message_fields(values)[1]]
    return found


def _damaged(path: Path, number: int, part: str) -> UserError:
    return UserError(f"{path} is damaged at record {number}: the checksum of its {part} differs; fetch it again")


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data`` as TensorFlow's formats store it: rotated, plus a constant."""
    import google_crc32c

    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def message_fields(message: bytes) -> Mapping[int, list[Any]]:
    """Return the values of a protocol buffer message by field number: numbers, or bytes of texts and inner messages."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    fields = defaultdict[int, list[Any]](list)
    for field in UnknownFieldSet(Empty.FromString(message)):
        fields[field.field_number].append(field.data)
    return fields
