"""Input of `raysum summarize`: data files with clusters, texts that form one cluster, or standard input."""

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

Cluster = dict[str, Any] | NoSummary


def input_clusters(
    files: Sequence[str],
    title: str = "",
    mapping: FieldMapping = FieldMapping(),  # noqa: B008
) -> list[Cluster]:
    """Return the raw clusters of data files and folders, in order; ``-`` is standard input, JSON lines or one text.

    A row that is not a valid cluster becomes a NoSummary. All other files (text, Markdown, web pages, PDF, Word,
    e-mail) are the documents of one last cluster about ``title``, by default the title of its only document. The fields
    of rows have the names of ``mapping``, whose separator also splits texts.
    Raises UserError if a file cannot be read, a title comes without texts, or paths come with texts.
    """
    clusters: list[Cluster] = []
    named_texts: list[tuple[str, DocumentText | None]] = []  # None: read the file of that name
    for file in chain.from_iterable(map(str, stage(file, True)) if is_url(file) else [file] for file in files):
        if file == "-":
            content = sys.stdin.buffer.read(LONGEST + 1).removeprefix(codecs.BOM_UTF8)
            if content.lstrip().startswith(b"{"):
                content += sys.stdin.buffer.read()
                records = json_records(content.split(b"\n"), "standard input")
                clusters += [_cluster(part) for record in records for part in mapping.apply(record)]
            else:
                if len(content) > LONGEST:
                    raise UserError(f"standard input is {TOO_LONG}; summarize parts of it")
                named_texts.append(("standard input", parse_document(content, "", "standard input")))
        elif format_by_name(Path(file)) or mapping.format or sample_path(Path(file)).is_dir():
            clusters += [_cluster(record) for source in find_sources([file], mapping) for record in source.records()]
        else:
            named_texts.append((file, None))
    if named_texts:
        read = iter(read_documents(Path(file) for file, text in named_texts if text is None))
        texts = [(file, text or next(read)) for file, text in named_texts]
        names = [Path(file).name for file, _ in texts]
        own = [name if names.count(name) == 1 else file for name, (file, _) in zip(names, texts, strict=True)]
        named_documents = zip(own, (text for _, text in texts), strict=True)
        documents = [document for name, text in named_documents for document in _documents(name, text, mapping)]
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
    """Return the name of a single file, or of the folder that contains all files, or the first name and a count."""
    first, *others = files
    if not others:
        return first.name
    folders = {file.absolute().parent for file in files}
    return folders.pop().name if len(folders) == 1 else f"{first.name} and {len(others)} more"


def _documents(name: str, text: DocumentText, mapping: FieldMapping) -> list[dict[str, Any]]:
    mapping.check_texts(name)
    return mapping.split_document(raw_document(text, name))


def _cluster(record: Record) -> Cluster:
    try:
        return record.cluster()
    except Rejected as reason:
        return NoSummary(record.id, f"{record.where}: {reason}")
