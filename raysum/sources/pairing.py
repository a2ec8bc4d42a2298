"""Summaries in other files than the documents: parallel lines, and files or folders with equal names."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.sources.folders import Contents, cluster_record, leads_out, names_in, say_skipped
from raysum.sources.published import with_our_fields
from raysum.sources.record import Record, bounded_lines, decode_utf8, text_record
from raysum.sources.staging import opened_text

# Names of files of sources: train.src.cleaned, test.source; and the words for summaries in the names of their files.
SOURCES = re.compile(r"(^|\.)((src|source)(\.cleaned|\.tokenized|\..*\.txt)?|article|document)$")
_TARGETS = {"src": "tgt", "source": "target", "article": "title", "document": "summary"}
_DOCUMENT_FOLDER = re.compile(
    r"(?i)(topics|docs?|documents?|articles?|sources?([ _-]?texts?)?.{0,4}|texts?|body|reviews)"
)
_SUMMARY_FOLDER = re.compile(r"(?i).*(summar|gold|reference|abstract|highlight|target).*|models?")
# Endings of names that say what a file holds, and those that number the summaries of a cluster: M.100.T.A, 1, b.
_KIND = re.compile(
    r"(?i)([._-](summ?|summar(y|ies)|gold|ref(erence)?s?|abstract|highlights?|target|tgt|src|source|body|docs?|document"
    r"|texts?|articles?|story|txt|data))+$"
)
_FIRST_KIND = re.compile(
    r"(?i)^(summ?|summar(y|ies)|gold|ref(erence)?|abst(ract)?|highlights?|target|tgt|src|source|body|docs?"
    r"|document|texts?|articles?|story)[._-](?=.)"
)  # text_12.txt and abst_12.txt
_NUMBER = re.compile(r"([._-](\d{1,3}|[A-Za-z]))+$")
_MAX_DEPTH = 4  # levels of folders


def read_pairs(path: Path, targets: Path | None = None) -> Iterator[Record]:
    """Yield the clusters of ``path``, one a line, with the summaries in the lines of ``targets``.

    By default these are ``NAME.tgt...`` beside a file ``NAME.src...`` (Multi-News), or ``.target`` beside ``.source``,
    ``.title`` beside ``.article`` and ``.summary`` beside ``.document``, if it exists.

    ``|||||`` or ``story_separator_special_tag`` separate the documents of a line, and ``NEWLINE_CHAR`` is a line break.
    Raises UserError if the files have different numbers of lines.
    """
    targets = targets or targets_of(path)
    with opened_text(path) as file, opened_text(targets) if targets else nullcontext() as target_file:
        sources = bounded_lines(file.readline)
        pairs: Iterable[tuple[bytes | None, bytes | None]] = zip(sources, repeat(None))
        if target_file:
            pairs = zip_longest(sources, bounded_lines(target_file.readline), fillvalue=b"")
        for number, (source, target) in enumerate(pairs, 1):
            if b"" in (source, target):
                longer = targets if source == b"" else path
                raise UserError(
                    f"{path} and {targets} must have the same number of lines: {longer} has a line {number} that the "
                    "other lacks; fetch both again"
                )
            where = f"{path}:{number}"
            yield text_record(where, source, partial(_pair, where, target))


def _pair(where: str, target: bytes | None, source: str) -> dict[str, Any]:
    summary = None if target is None else decode_utf8(where, target).removeprefix("\ufeff")
    (row,) = with_our_fields({"document": source.removeprefix("\ufeff"), "summary": summary}, "multi-news")
    return row


def targets_of(path: Path) -> Path | None:
    """Return the file of summaries beside ``path``, or None. Cleaned sources use the summaries of the original ones.

    Raises UserError if it is a link out of both the folder of ``path`` and that of its target.
    """
    name = _renamed(path.name, _TARGETS)
    candidates = [path.with_name(other) for other in (name, name.removesuffix(".cleaned")) if other != path.name]
    targets = next(filter(Path.is_file, candidates), None)
    if targets and all(leads_out(targets, folder) for folder in (path.parent, Path(os.path.realpath(path)).parent)):
        raise UserError(f"{targets} is a link out of its folder; copy the file of summaries there")
    return targets


def _renamed(name: str, words: Mapping[str, str]) -> str:
    """Return a file name with the ``words`` between its dots replaced; without any of them, the same name."""
    return re.sub(rf"(^|(?<=\.))({'|'.join(words)})(?=\.|$)", lambda word: words[word[0]], name)


def unpaired(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a message for each file of sources without summaries, and of summaries without sources, in ``paths``."""
    for path in paths:
        files = [path] if path.is_file() else [*filter(Path.is_file, path.glob("*"))] if path.is_dir() else []
        pairs = {file: targets_of(file) for file in files if SOURCES.search(file.name)}
        for file, targets in sorted(pairs.items()):
            if targets is None:
                yield f"{file} has no file of summaries beside it (expected {_renamed(file.name, _TARGETS)})"
        for file in sorted({*files} - {*pairs} - {*filter(None, pairs.values())} if path.is_dir() else ()):
            sources = _renamed(file.name, {"tgt": "src", "target": "source"})
            if sources != file.name and SOURCES.search(sources):
                yield f"{file} is skipped: it has no file of sources beside it (expected {sources})"


def summaries_beside(folder: Path) -> tuple[Path, Path] | None:
    """Return the only folder of documents and the only folder of summaries in ``folder``, by their names, or None."""
    folders = Contents.of(folder).folders
    documents = [inner for inner in folders if _DOCUMENT_FOLDER.fullmatch(inner.name)]
    summaries = [inner for inner in folders if _SUMMARY_FOLDER.fullmatch(inner.name) and inner not in documents]
    if len(documents) == len(summaries) == 1 and _best_match(documents[0], summaries[0]):
        others = [inner for inner in folders if inner not in (*documents, *summaries)]
        say_skipped(
            folder, names_in(folder, others), f"{documents[0].name} has documents, {summaries[0].name} summaries"
        )
        return documents[0], summaries[0]
    return None


def read_paired(documents: Path, summaries: Path) -> Iterator[Record]:
    """Yield the clusters of the folder ``documents``, with the files in ``summaries`` that have their names.

    A cluster is a file, a folder of files, or all files with names that begin with that of a summary (M1047 and
    M104). In names, endings such as ``_body``, ``.gold`` and ``.M.100.T.A`` do not count; a folder or suffix that both
    have, such as the language, does. Raises UserError if no name fits.
    """
    clusters = _best_match(documents, summaries)
    used = {file for files, own in clusters.values() for file in (*files, *own)}
    for folder in (documents, summaries):
        files = [*_files(folder, folder, _MAX_DEPTH)]
        if not used:
            raise UserError(
                f"no file in {summaries} has the name of a document in {documents} "
                f"(such as {names_in(folder, files)}); rename them to equal names"
            )
        if missing := [file for file in files if file not in used]:
            say(f"{folder}: no counterpart for {names_in(folder, missing)}; they are skipped")
    for id, (files, own) in clusters.items():
        yield cluster_record(id, str(files[0]), files, own)


def _files(folder: Path, corpus: Path, depth: int) -> Iterator[Path]:
    found = Contents.of(folder, corpus, any_suffix=True)
    yield from found.documents
    for inner in found.folders if depth else []:
        yield from _files(inner, corpus, depth - 1)


def _stem(name: str) -> str:
    return _KIND.sub("", name.rpartition(".")[0] or name).lower()


def _first(name: str) -> str:
    return _KIND.sub("", name.partition(".")[0]).lower()


def _last(name: str) -> str:
    return _FIRST_KIND.sub("", _stem(name))


# The names of documents and summaries that are compared, and whether the latter may begin the former.
_Rule = tuple[Callable[[str], str], Callable[[str], str], bool]
_RULES: tuple[_Rule, ...] = (
    (_stem, _stem, False),
    (_stem, lambda name: _KIND.sub("", _NUMBER.sub("", _stem(name))), False),
    (_first, _first, False),
    (_first, _first, True),
    (_last, _last, False),
)
_Match = dict[str, tuple[list[Path], tuple[Path, ...]]]


def _best_match(documents: Path, summaries: Path) -> _Match:
    """Return the files of each cluster and its summaries, by the rule that finds most."""
    texts, references = ([*_files(folder, folder, _MAX_DEPTH)] for folder in (documents, summaries))
    options = [(rule, by_folder) for rule in _RULES for by_folder in (False, True)]
    matches = [_match(documents, texts, summaries, references, *option) for option in options]
    return max(matches, key=lambda match: len({file for files, own in match.values() for file in (*files, *own)}))


def _match(
    documents: Path, texts: list[Path], summaries: Path, references: list[Path], rule: _Rule, by_folder: bool
) -> _Match:
    name_of_document, name_of_summary, is_prefix = rule
    known, clusters = defaultdict[str, list[Path]](list), _Match()
    for reference in references:
        known[name_of_summary(reference.name)].append(reference)
    for text in texts:
        if by_folder and text.parent == documents:
            continue
        file_or_folder = text.parent.name if by_folder else text.name
        name = name_of_document(file_or_folder)
        prefixes = [name[:end] for end in range(len(name), 1, -1)] if is_prefix else [name]
        name = next((prefix for prefix in prefixes if prefix in known), "")
        about = {*text.relative_to(documents).parent.parts, text.suffix.removeprefix(".")}
        shared = {file: about.intersection(file.relative_to(summaries).parent.parts) for file in known.get(name, ())}
        own = tuple(file for file in shared if len(shared[file]) == max(map(len, shared.values())))
        if own:
            begin = file_or_folder[: len(name)] if file_or_folder.lower().startswith(name) else name
            id = file_or_folder if by_folder else ".".join([begin, *sorted(shared[own[0]])])
            clusters.setdefault(id, ([], own))[0].append(text)
    return clusters
