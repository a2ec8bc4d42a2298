"""What the command line is asked to summarize: data files of clusters, texts that form one cluster, standard input."""

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysum.config.loading import read_text
from raysum.errors import UserError
from raysum.prepare.sources.find import SUFFIXES, find_sources, place
from raysum.prepare.sources.jsonl import json_records
from raysum.prepare.sources.record import LONGEST, TOO_LONG, Record, Rejected
from raysum.prepare.sources.shape import Shape
from raysum.runtime.progress import say
from raysum.runtime.storage import converted


def given_clusters(files: Sequence[str], title: str = "", shape: Shape = Shape()) -> list[dict[str, Any]]:  # noqa: B008
    """Raw clusters: those of data files and folders, in order; ``-`` is standard input, JSON lines or one text.

    All other files are texts, the documents of one cluster about ``title``, which comes last. Rows are of ``shape``;
    its separator parts texts, too.
    Raises UserError where a file or line does not read, or a title is given without texts, or paths with them.
    """
    clusters: list[dict[str, Any]] = []
    texts: list[tuple[str, str]] = []  # with their names
    for file in files:
        if file == "-":
            given = sys.stdin.buffer.read(LONGEST + 1).removeprefix(codecs.BOM_UTF8)
            if given.lstrip().startswith(b"{"):
                given += sys.stdin.buffer.read()
                records = json_records(given.split(b"\n"), "standard input")
                clusters += [_cluster(one) for record in records for one in shape.applied(record)]
            else:
                _check_size("standard input", len(given))
                texts.append(("standard input", _decoded(given)))
        elif file.endswith(SUFFIXES) or place(Path(file)).is_dir():
            clusters += [_cluster(record) for source in find_sources([file], shape) for record in source.records()]
        else:
            path = Path(file)
            _check_size(file, path.stat().st_size if path.is_file() else 0)
            texts.append((path.name, read_text(path)))
    if texts:
        documents = [document for name, text in texts for document in _documents(name, text, shape)]
        clusters.append({"id": title or texts[0][0], "title": title, "documents": documents})
    elif title:
        raise UserError("--title is for files of text; clusters in data files have their own titles")
    for told in shape.idle():
        say(told)
    return clusters


def _check_size(name: str, size: int) -> None:
    if size > LONGEST:
        raise UserError(f"{name} is {TOO_LONG}; summarize parts of it")


def _documents(name: str, text: str, shape: Shape) -> list[dict[str, str]]:
    shape.check_texts(name)
    if "\0" in text:
        raise UserError(f"{name} is not text: it holds NUL characters")
    return shape.parted({"source": name, "text": text})


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text (byte {error.start}); {converted(text, 'FILE')}") from None


def _cluster(record: Record) -> dict[str, Any]:
    try:
        return record.cluster()
    except Rejected as reason:
        raise UserError(f"{record.where}: {reason}") from None
