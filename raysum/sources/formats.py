"""The formats of files that hold raw clusters: which reader, by name, or by how the content begins."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.arrow import read_arrow
from raysum.sources.csv import read_csv, read_tsv
from raysum.sources.documents.read import is_document
from raysum.sources.jsonl import read_json, read_jsonl
from raysum.sources.pairs import SOURCES, read_pairs
from raysum.sources.parquet import read_parquet
from raysum.sources.record import Record
from raysum.sources.staging import head
from raysum.sources.stories import read_story
from raysum.sources.tensor2tensor import CONTENT, read_wikis
from raysum.sources.torch_lists import read_list

_HEAD = 4096  # bytes that are looked at
_PACKED = 4  # bytes of text in a byte that is compressed, about


@dataclass(frozen=True)
class Format:
    """A format, what names its files have, and what reads one of them.

    ``told``: these names, for people. ``begins``: how its files begin, for those of other names. A ``table`` has
    columns. What is ``plain`` is text as it lies there, where it is not gzipped. Some read files ``beside``.
    """

    name: str
    told: str
    names: str
    read: Callable[[Path], Iterator[Record]]
    begins: tuple[bytes, ...] = ()
    table: bool = False
    plain: bool = True
    beside: bool = False

    def size_of_text(self, path: Path) -> int:
        """Bytes of text in a file, about."""
        return path.stat().st_size * (1 if self.is_text(path) else _PACKED)

    def is_text(self, path: Path) -> bool:
        """Whether the file is text as it lies there."""
        return self.plain and path.suffix != ".gz"


FORMATS = {
    one.name: one
    for one in (
        Format("jsonl", ".jsonl, .ndjson (.gz)", r"\.(jsonl|ndjson)(\.gz)?$", read_jsonl, (b"{",)),
        Format("json", ".json (.gz)", r"\.json(\.gz)?$", read_json, (b"[",)),
        Format("csv", ".csv (.gz)", r"\.csv(\.gz)?$", read_csv, table=True),
        Format("tsv", ".tsv (.gz)", r"\.tsv(\.gz)?$", read_tsv, table=True),
        Format("parquet", ".parquet", r"\.parquet$", read_parquet, (b"PAR1",), table=True, plain=False),
        Format("arrow", ".arrow", r"\.arrow$", read_arrow, (b"ARROW1", b"\xff\xff\xff\xff"), table=True, plain=False),
        Format("torch", ".pt", r"\.pt$", read_list, (b"PK\x03\x04",), plain=False),
        Format("story", ".story", r"\.story$", read_story),
        Format("pairs", ".src", SOURCES.pattern, read_pairs, beside=True),
        Format("tensor2tensor", f"{CONTENT}*", rf"^{re.escape(CONTENT)}", read_wikis, plain=False, beside=True),
    )
}
_OTHERS = {  # by suffix, what is not read and what to do
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet; save it as CSV"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "an archive; unpack it, and name what is in it"),
}
TOLD = ", ".join(one.told for one in FORMATS.values())


def named(path: Path) -> Format | None:
    """The format that a file of this name has."""
    return next((one for one in FORMATS.values() if re.search(one.names, path.name)), None)


def format_of(path: Path, asked: str | None = None) -> Format:
    """The format ``asked`` for, or the one that the name tells, or else the first bytes. Raises UserError for none."""
    found = FORMATS.get(asked or "") or named(path)
    if found is not None:
        return found
    if told := _OTHERS.get(path.suffix.lower()):
        raise UserError(f"{path} is {told}")
    begun = beginning(path)
    for one in FORMATS.values():
        if one.begins and begun.startswith(one.begins):
            return one
    if is_document(path):
        raise UserError(
            f"{path} is one document; put the documents of each cluster into a folder, and name the folder that holds "
            "these folders"
        )
    raise UserError(
        f"{path}: format not known; raysum reads {TOLD} and folders of documents. What it is under another name, "
        f"--format tells ({', '.join(FORMATS)})"
    )


def beginning(path: Path) -> bytes:
    """The first bytes of a file, without those of blanks and a byte-order mark before a text."""
    found = head(path, _HEAD)
    return found.removeprefix(codecs.BOM_UTF8).lstrip() or found
