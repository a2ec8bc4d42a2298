"""The file formats of raw clusters: choose the reader by the file name, or by the first bytes."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.conversations import read_mailbox, read_slack
from raysum.sources.documents.read import identify, is_document
from raysum.sources.folders import read_folder
from raysum.sources.jsonl import read_json_clusters, read_jsonl
from raysum.sources.pairing import SOURCES, read_paired, read_pairs
from raysum.sources.published import read_story, read_torch_list
from raysum.sources.record import Record
from raysum.sources.staging import head
from raysum.sources.tables import read_arrow, read_csv, read_parquet, read_sheet, read_sqlite
from raysum.sources.tensor2tensor import CONTENT, read_wikis
from raysum.sources.web import read_feed, read_warc

_HEAD = 4096  # bytes compared with signatures
_COMPRESSION = 4  # bytes of text per compressed byte, about


@dataclass(frozen=True)
class Format:
    """A file format, its reader, and how its files are recognized.

    ``extensions`` is shown to users; ``pattern`` matches file names; ``signatures`` are first bytes of files with other
    names. ``is_table``: the rows have columns. ``is_text``: files are uncompressed text, unless gzipped.
    ``needs_siblings``: the reader also reads other files of the folder.
    """

    name: str
    extensions: str
    pattern: str
    read: Callable[..., Iterator[Record]]  # of a path, and the path of summaries elsewhere or the name of a table
    signatures: tuple[bytes, ...] = ()
    is_table: bool = False
    is_text: bool = True
    needs_siblings: bool = False

    def is_plain_text(self, path: Path) -> bool:
        """Return whether the file at ``path`` is uncompressed text."""
        return self.is_text and path.suffix != ".gz"

    def text_size(self, path: Path) -> int:
        """Return the approximate number of bytes of text in a file."""
        return path.stat().st_size * (1 if self.is_plain_text(path) else _COMPRESSION)


TEXT = "text"  # the format of folders with documents of any suffix
_TABLE = (True, False)  # ``is_table`` and ``is_text`` of binary tables
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
FORMATS = {
    form.name: form
    for form in (
        Format("jsonl", ".jsonl, .ndjson (.gz)", r"\.(jsonl|ndjson)(\.gz)?$", read_jsonl, (b"{",)),
        Format("json", ".json (.gz)", r"\.json(\.gz)?$", read_json_clusters, (b"[",)),
        Format("csv", ".csv (.gz)", r"\.csv(\.gz)?$", read_csv, is_table=True),
        Format("tsv", ".tsv (.gz)", r"\.tsv(\.gz)?$", partial(read_csv, delimiter="\t"), is_table=True),
        Format("parquet", ".parquet", r"\.parquet$", read_parquet, (b"PAR1",), is_table=True, is_text=False),
        Format("arrow", ".arrow", r"\.arrow$", read_arrow, _ARROW, is_table=True, is_text=False),
        Format("torch", ".pt", r"\.pt$", read_torch_list, (b"PK\x03\x04",), is_text=False),
        Format("sqlite", ".sqlite, .db", r"\.(sqlite3?|db)$", read_sqlite, (b"SQLite format 3",), *_TABLE),
        Format("xlsx", ".xlsx, .xls, .ods", r"(?i)\.(xlsx|xlsm|xls|ods)$", read_sheet, (), *_TABLE),
        Format("mbox", ".mbox", r"\.mbox$", read_mailbox, (b"From ",), is_text=False),
        Format("feed", ".rss, .atom", r"\.(rss|atom)$|(^|[._-])(feed|rss|atom)\.xml$", read_feed, (b"<rss", b"<feed")),
        Format("warc", ".warc (.gz)", r"\.warc(\.gz)?$", read_warc, (b"WARC/",), is_text=False),
        Format("story", ".story, .subject", r"\.(story|subject)$", read_story),
        Format("pairs", ".src, .source, .article, .document", SOURCES.pattern, read_pairs, needs_siblings=True),
        Format(TEXT, "", r"$^", partial(read_folder, any_suffix=True)),
        Format(
            "tensor2tensor", f"{CONTENT}*", rf"^{re.escape(CONTENT)}", read_wikis, is_text=False, needs_siblings=True
        ),
    )
}
# Formats that no file name or option selects.
FOLDERS = Format("folders", "folders of documents", "", read_folder)
SLACK = Format("slack", "Slack exports", "", read_slack)
PAIRED = Format("paired", "a folder of documents beside a folder of summaries", "", read_paired)
EXTENSIONS = ", ".join(form.extensions for form in FORMATS.values() if form.extensions)
_UNSUPPORTED = (".7z", ".rar")  # archives


def format_by_name(path: Path) -> Format | None:
    """Return the format with this file name, or None."""
    return next((form for form in FORMATS.values() if re.search(form.pattern, path.name)), None)


def format_of(path: Path, name: str | None = None) -> Format:
    """Return the format by ``name``, by the file name, or by the first bytes.

    Raises UserError if none matches, or if the file should be UTF-8 text and is not.
    """
    form = FORMATS.get(name or "") or format_by_name(path) or _format_by_content(path)
    if form.is_plain_text(path) and (kind := identify(head(path, 128))):
        raise UserError(f"{path} is not text, but {kind}")
    return form


def _format_by_content(path: Path) -> Format:
    if path.suffix.lower() in _UNSUPPORTED:
        raise UserError(f"{path} is an archive; unpack it, and give the files in it")
    content = head(path, _HEAD)
    content = content.removeprefix(codecs.BOM_UTF8).lstrip() or content
    for form in FORMATS.values():
        if form.signatures and content.startswith(form.signatures):
            return form
    if is_document(path):
        raise UserError(
            f"{path} is one document; put the documents of each cluster into a folder, and give the folder that holds "
            "these folders"
        )
    if kind := identify(content):
        raise UserError(f"{path} is {kind}")
    raise UserError(
        f"{path} has an unknown format; raysum reads {EXTENSIONS} and folders of documents. If its format is one of "
        f"these, name it with --format ({', '.join(FORMATS)})"
    )
