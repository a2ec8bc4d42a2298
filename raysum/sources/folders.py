"""Folders: their contents, and clusters that are folders of documents.

Links that lead out of a folder are never followed: a corpus from elsewhere could link to any local file.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.sources.documents.read import SUFFIXES, identify, is_document, raw_document, read_documents
from raysum.sources.record import LONGEST, TOO_LONG, Record
from raysum.sources.staging import head, natural_key, with_urls

_TITLES = ("title", "headline", "name")
_SUMMARY = re.compile(r"(summary|abstract)([.-]\d+)?")
# Names, up to the suffix, of files about a repository or a dataset: README.zh-CN.md, LICENSE-MIT.txt.
_ABOUT = re.compile(
    r"(?i)(readme|licen[cs]e|copying|changelog|contributing|code[_-]of[_-]conduct|citation|requirements)([._-].{1,6})?"
)
_MAX_NAMES = 5  # in a message
_NO_DOCUMENTS = f"documents are {', '.join(SUFFIXES)}, except files such as README"


@dataclass(frozen=True)
class Contents:
    """The visible items of a folder in natural order."""

    files: list[Path]  # and links to nothing, pipes and devices
    folders: list[Path]
    links: list[Path]  # that lead out of the corpus
    any_suffix: bool = False  # of documents

    @classmethod
    def of(cls, folder: Path, corpus: Path | None = None, any_suffix: bool = False) -> "Contents":
        """Return the contents of ``folder``, which is in ``corpus`` (default: which is the corpus)."""
        found = cls([], [], [], any_suffix)
        visible = (item for item in folder.iterdir() if not item.name.startswith("."))
        for item in sorted(visible, key=lambda item: natural_key(item.name)):
            if leads_out(item, corpus or folder):
                found.links.append(item)
            elif item.is_dir():
                found.folders.append(item)
            else:
                found.files.append(item)
        return found

    @property
    def documents(self) -> list[Path]:
        return [file for file in self.files if _is_input(file, self.any_suffix)]

    @property
    def document_folders(self) -> list[Path]:
        return [folder for folder in self.folders if _holds_documents(folder, self.any_suffix)]


def leads_out(item: Path, corpus: Path) -> bool:
    """Return whether ``item`` is a link out of ``corpus``."""
    return item.is_symlink() and not Path(os.path.realpath(item)).is_relative_to(os.path.realpath(corpus))


def read_folder(folder: Path, any_suffix: bool = False) -> Iterator[Record]:
    """Yield one cluster a folder of documents (see ``documents.read``); its name is the id.

    ``title.txt`` (or ``name``, ``headline``), ``summary.txt`` (or ``abstract``) and further references such as
    ``summary.1.txt`` are not documents. Files about the folder, such as a README, are ignored. ``any_suffix``: all
    other files are documents.
    """
    for cluster in cluster_folders(folder, any_suffix):
        files = Contents.of(cluster, folder, any_suffix).documents
        yield cluster_record(cluster.name, str(cluster), files)


def cluster_record(id: str, where: str, files: Sequence[Path], summaries: Sequence[Path] = ()) -> Record:
    """Return the record of a cluster of documents, with the references in the files ``summaries``."""
    try:
        if special := next((file for file in files if not file.is_file()), None):
            raise UserError(f"{special} is not a regular file, or was removed")
        if sum(file.stat().st_size for file in files) > LONGEST:
            return Record(where, id, TOO_LONG)
        raw = _cluster(id, files)
        references = [text.text.strip() for text in read_documents(summaries)]
        return Record(where, raw | ({"summaries": references} if references else {}))
    except UserError as error:
        return Record(where, id, "a document is unreadable", str(error))


def _cluster(id: str, files: Sequence[Path]) -> dict[str, Any]:
    documents = dict(zip(files, read_documents(files), strict=True))
    texts = {file.stem: documents.pop(file).text.strip() for file in files if _is_title_or_summary(file)}
    titles = [texts.pop(name) for name in _TITLES if name in texts]
    raw: dict[str, Any] = {"id": id, "title": next(iter(titles), id.replace("_", " "))}
    names = [file.stem for file in files]
    raw["documents"] = [
        raw_document(text, file.stem if names.count(file.stem) == 1 else file.name) for file, text in documents.items()
    ]
    first = next((name for name in ("summary", "abstract") if name in texts), "")
    raw |= {"summary": texts.pop(first)} if first else {}
    return raw | ({"summaries": [*texts.values()]} if texts else {})


def cluster_folders(folder: Path, any_suffix: bool = False) -> list[Path]:
    """Return the folders that are clusters: ``folder`` itself, or the folders of documents in it.

    ``folder`` is a cluster if it has a title or a summary, documents and no folders of documents, or several documents
    beside a single folder of them. Raises UserError if more documents than folders make this ambiguous.
    """
    found = Contents.of(folder, any_suffix=any_suffix)
    documents, inner = found.documents, found.document_folders
    if any(map(_is_title_or_summary, documents)) or len(documents) > len(inner) in (0, 1):
        return [folder]
    if len(documents) > len(inner):
        raise ambiguous(folder, documents, inner)
    return inner


def documents_of(folder: Path, clusters: list[Path], any_suffix: bool = False) -> list[Path]:
    """Return the documents of the ``clusters`` of ``folder``, and report all other visible items."""
    own, documents, skipped = {*clusters}, list[Path](), list[Path]()
    for parent in dict.fromkeys([folder, *clusters]):
        found = Contents.of(parent, folder, any_suffix)
        documents += found.documents if parent in own else []
        skipped += found.links if parent != folder else []
        skipped += [file for file in found.files if parent not in own or not _is_input(file, any_suffix)]
        skipped += [inner for inner in found.folders if inner not in own]
    say_skipped(folder, names_in(folder, skipped))
    return documents


def ambiguous(folder: Path, files: list[Path], inner: list[Path]) -> UserError:
    """Return the error for a ``folder`` that holds both files and folders of documents: either may be the clusters."""
    return UserError(
        f"{folder} holds both files ({names_in(folder, files)}) and folders of documents ({names_in(folder, inner)}); "
        f"give the ones that hold the clusters: the files, or {folder}/*/ for the folders"
    )


@cache
def say_skipped(folder: Path, names: str, reason: str = _NO_DOCUMENTS) -> None:
    """Report the skipped items of a folder, once in a process."""
    if names:
        say(with_urls(f"{folder}: skipped {names}; {reason}"))


def names_in(folder: Path, items: Sequence[Path]) -> str:
    """Return the names of the first ``items`` of a folder, and the number of the others."""
    names = [
        f"{item.relative_to(folder)}{'/' * (item.is_dir() and not item.is_symlink())}" for item in items[:_MAX_NAMES]
    ]
    return ", ".join(names) + f" and {len(items) - _MAX_NAMES} more" * (len(items) > _MAX_NAMES)


def is_about_folder(file: Path) -> bool:
    """Return whether a file of this name describes its folder, such as a README."""
    return bool(_ABOUT.fullmatch(file.stem))


def _is_input(file: Path, any_suffix: bool) -> bool:
    if is_about_folder(file) or is_document(file) or not any_suffix:
        return is_document(file) and not is_about_folder(file)
    return not (file.is_file() and identify(head(file, 128)))


def _is_title_or_summary(file: Path) -> bool:
    return file.suffix == ".txt" and bool(file.stem in _TITLES or _SUMMARY.fullmatch(file.stem))


def _holds_documents(folder: Path, any_suffix: bool) -> bool:
    with suppress(PermissionError):  # such as lost+found
        return any(_is_input(item, any_suffix and item.is_file()) for item in folder.iterdir())
    return False
