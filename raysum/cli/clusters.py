"""What the command line is asked to summarize: data files of clusters, texts that form one cluster, standard input."""

import codecs
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from raysum.decode.summary import NoSummary
from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.runtime.remote import is_url
from raysum.sources.documents.read import parse_document, raw_document, read_documents
from raysum.sources.documents.text import DocumentText
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources, sample_path
from raysum.sources.formats import format_by_name
from raysum.sources.jsonl import json_records
from raysum.sources.record import LONGEST, TOO_LONG, Record, Rejected
from raysum.sources.staging import stage

Given = dict[str, Any] | NoSummary


def given_clusters(files: Sequence[str], title: str = "", mapping: FieldMapping = FieldMapping()) -> list[Given]:  # noqa: B008
    """Raw clusters: those of data files and folders, in order; ``-`` is standard input, JSON lines or one text.

    A row that does not read as a cluster has a NoSummary in its place. All other files are documents (text, Markdown,
    web pages, PDF, Word, e-mail) of one cluster about ``title``, by default that of a single one; it comes last.
    ``mapping`` maps the fields of rows, and its separator splits texts, too.
    Raises UserError where a file does not read, or a title is given without texts, or paths with them.
    """
    clusters: list[Given] = []
    named_texts: list[tuple[str, DocumentText | None]] = []  # None: that of a file of that name
    for file in chain.from_iterable(map(str, stage(file, True)) if is_url(file) else [file] for file in files):
        if file == "-":
            given = sys.stdin.buffer.read(LONGEST + 1).removeprefix(codecs.BOM_UTF8)
            if given.lstrip().startswith(b"{"):
                given += sys.stdin.buffer.read()
                records = json_records(given.split(b"\n"), "standard input")
                clusters += [_cluster(one) for record in records for one in mapping.apply(record)]
            else:
                if len(given) > LONGEST:
                    raise UserError(f"standard input is {TOO_LONG}; summarize parts of it")
                named_texts.append(("standard input", parse_document(given, "", "standard input")))
        elif format_by_name(Path(file)) or mapping.format or sample_path(Path(file)).is_dir():
            clusters += [_cluster(record) for source in find_sources([file], mapping) for record in source.records()]
        else:
            named_texts.append((file, None))
    if named_texts:
        read = iter(read_documents(Path(file) for file, text in named_texts if text is None))
        texts = [(file, text or next(read)) for file, text in named_texts]
        names = [Path(file).name for file, _ in texts]
        own = [name if names.count(name) == 1 else file for name, (file, _) in zip(names, texts, strict=True)]
        found = zip(own, (text for _, text in texts), strict=True)
        documents = [document for name, text in found for document in _documents(name, text, mapping)]
        title = title or (texts[0][1].title if len(texts) == 1 else "")
        clusters.append(
            {"id": title or _name([Path(file) for file, _ in texts]), "title": title, "documents": documents}
        )
    elif title:
        raise UserError("--title is for files of text; clusters in data files have their own titles")
    for message in mapping.unused_options():
        say(message)
    return clusters


def _name(files: list[Path]) -> str:
    """Of one file its own, of several that of the folder that they are all in, if there is one."""
    first, *others = files
    if not others:
        return first.name
    folders = {file.absolute().parent for file in files}
    return folders.pop().name if len(folders) == 1 else f"{first.name} and {len(others)} more"


def _documents(name: str, text: DocumentText, mapping: FieldMapping) -> list[dict[str, Any]]:
    mapping.check_texts(name)
    return mapping.split_document(raw_document(text, name))


def _cluster(record: Record) -> Given:
    try:
        return record.cluster()
    except Rejected as reason:
        return NoSummary(record.id, f"{record.where}: {reason}")
