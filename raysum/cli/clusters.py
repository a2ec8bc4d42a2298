"""`raysum summarize`: clusters in data files, texts that form one cluster, or standard input, and their summaries."""

import codecs
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from raysum.config.sections import LoadConfig
from raysum.decode.page import summaries_page
from raysum.decode.summary import NoSummary, Summaries, Summary, readable
from raysum.errors import UserError
from raysum.extract.outline import outline
from raysum.extract.parts import Part
from raysum.extract.summarizer import summarizer_of
from raysum.runtime.progress import say
from raysum.runtime.remote import is_url
from raysum.runtime.storage import check_page, write_page
from raysum.sources.documents.read import parse_document, raw_document, read_documents
from raysum.sources.documents.text import DocumentText
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources, holds_clusters, sample_path
from raysum.sources.formats import TEXT
from raysum.sources.jsonl import json_records
from raysum.sources.record import LONGEST, TOO_LONG
from raysum.sources.staging import stage

_PASSWORD = re.compile(r"//[^/@\s]+@")  # in a URL
Cluster = dict[str, Any] | NoSummary
Summarize = Callable[[Sequence[dict[str, Any]]], Sequence[Summary | NoSummary]]


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
    texts: list[tuple[str, DocumentText | None]] = []  # None: read the file of that name
    for file in chain.from_iterable(map(str, stage(file, True)) if is_url(file) else [file] for file in files):
        if file == "-":
            content = sys.stdin.buffer.read(LONGEST + 1).removeprefix(codecs.BOM_UTF8)
            if content.lstrip().startswith(b"{"):
                content += sys.stdin.buffer.read()
                records = json_records(content.split(b"\n"), "standard input")
                clusters += [readable(part) for record in records for part in mapping.apply(record)]
            elif len(content) > LONGEST:
                raise UserError(f"standard input is {TOO_LONG}; summarize parts of it")
            else:
                texts.append(("standard input", parse_document(content, "", "standard input")))
        elif mapping.format not in (None, TEXT) or holds_clusters(sample_path(Path(file))):
            clusters += [readable(record) for source in find_sources([file], mapping) for record in source.records()]
        else:
            texts.append((file, None))
    if texts:
        read = iter(read_documents(Path(file) for file, text in texts if text is None))
        clusters.append(_cluster_of_texts([(file, text or next(read)) for file, text in texts], title, mapping))
    elif title:
        raise UserError("--title is for files of text; clusters in data files have their own titles")
    for message in mapping.unused_options():
        say(message)
    return clusters


def _cluster_of_texts(texts: list[tuple[str, DocumentText]], title: str, mapping: FieldMapping) -> dict[str, Any]:
    """Return the cluster of the texts of files. Documents of equal names are called by their paths."""
    files = [Path(file) for file, _ in texts]
    names, documents = [file.name for file in files], list[dict[str, Any]]()
    for file, text in texts:
        name = Path(file).name if names.count(Path(file).name) == 1 else file
        mapping.check_texts(name)
        documents += mapping.split_document(raw_document(text, name))
    title = title or (texts[0][1].title if len(texts) == 1 else "")
    folders = {Path(os.path.abspath(file)).parent for file in files}
    together = folders.pop().name if len(folders) == 1 else f"{names[0]} and {len(files) - 1} more"
    return {"id": title or (names[0] if len(files) == 1 else together), "title": title, "documents": documents}


def summarizer_in(run: str, settings: LoadConfig) -> Summarize:
    """Return the function that summarizes clusters by a run, search or system."""
    return lambda clusters: summarizer_of(run, settings).summarize_each(clusters, progress=len(clusters) > 1)


class Output(NamedTuple):
    """What to add to summaries: parts of an ``outline``, and a page in the file ``html`` that names the ``system``."""

    outline: Sequence[Part] = ()
    html: str | None = None
    system: str = ""


def summarize_clusters(rows: Sequence[Cluster], summarize: Summarize, output: Output = Output()) -> Summaries:  # noqa: B008
    """Return the summary of each cluster, or its error, with what ``output`` adds.

    Raises UserError if there is only one cluster and it cannot be summarized.
    """
    if output.html:
        check_page(Path(output.html), "--html")
    clusters = [row for row in rows if not isinstance(row, NoSummary)]
    summaries = [
        summary if isinstance(summary, NoSummary) else _outlined(summary, cluster, output.outline)
        for summary, cluster in zip(summarize(clusters), clusters, strict=True)
    ]
    written = [pair for pair in zip(summaries, clusters, strict=True) if not isinstance(pair[0], NoSummary)]
    if output.html and written:
        command = shlex.join(["raysum", *(_PASSWORD.sub("//", argument) for argument in sys.argv[1:])])
        shown, sources = zip(*written, strict=True)
        page = summaries_page(shown, sources, output.system, command)
        write_page(Path(output.html), page, "--html")
        say(f"the summaries and their sources are in {output.html}")
    remaining = iter(summaries)
    results = [row if isinstance(row, NoSummary) else next(remaining) for row in rows]
    if len(results) == 1 and isinstance(results[0], NoSummary):
        raise UserError(results[0].error)
    return Summaries(results)


def _outlined(summary: Summary, cluster: Mapping[str, Any], parts: Sequence[Part]) -> Summary:
    """Return the summary with ``parts`` of an outline, or with a warning that says why they are missing."""
    try:
        return outline(summary, cluster, parts) if parts else summary
    except UserError as error:
        return summary.model_copy(update={"warnings": [*summary.warnings, str(error)]})
