"""Folders of documents: one cluster a folder, one file a document."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.read import is_document, raw_document, read_documents
from raysum.sources.record import LONGEST, TOO_LONG, Record
from raysum.sources.staging import natural_key

_TITLE = "title"
_SUMMARY = re.compile(r"summary([.-]\d+)?")
# Names, up to the suffix, of files about a repository or a dataset: README.zh-CN.md, LICENSE-MIT.txt.
_ABOUT = re.compile(
    r"(?i)(readme|licen[cs]e|copying|changelog|contributing|code[_-]of[_-]conduct|citation|requirements)([._-].{1,6})?"
)


def read_folder(folder: Path) -> Iterator[Record]:
    """Yield one cluster a folder of documents (see ``documents.read``); its name is the id.

    ``title.txt``, ``summary.txt`` and further references such as ``summary.1.txt`` are not documents. Files about the
    folder, such as a README, are ignored.
    """
    for cluster in cluster_folders(folder):
        files = [file for file in visible_items(cluster, folder) if _is_input(file) and not file.is_dir()]
        if special := next((file for file in files if not file.is_file()), None):
            detail = f"{special} is not a regular file, or was removed"
            yield Record(str(cluster), cluster.name, "a document is unreadable", detail)
            continue
        if sum(file.stat().st_size for file in files) > LONGEST:
            yield Record(str(cluster), cluster.name, TOO_LONG)
            continue
        try:
            yield Record(str(cluster), _cluster(cluster, files))
        except UserError as error:
            yield Record(str(cluster), cluster.name, "a document is unreadable", str(error))


def _cluster(folder: Path, files: list[Path]) -> dict[str, Any]:
    documents = dict(zip(files, read_documents(files), strict=True))
    texts = {file.stem: documents.pop(file).text.strip() for file in files if _is_title_or_summary(file)}
    title = texts.pop(_TITLE, folder.name.replace("_", " "))
    raw: dict[str, Any] = {"id": folder.name, "title": title}
    names = [file.stem for file in files]
    raw["documents"] = [
        raw_document(text, file.stem if names.count(file.stem) == 1 else file.name) for file, text in documents.items()
    ]
    raw |= {"summary": texts.pop("summary")} if "summary" in texts else {}
    return raw | ({"summaries": [*texts.values()]} if texts else {})


def _is_input(file: Path) -> bool:
    return is_document(file) and not is_about_folder(file)


def is_about_folder(file: Path) -> bool:
    """Return whether a file of this name describes its folder, such as a README."""
    return bool(_ABOUT.fullmatch(file.stem))


def _is_title_or_summary(file: Path) -> bool:
    return file.suffix == ".txt" and bool(file.stem == _TITLE or _SUMMARY.fullmatch(file.stem))


def cluster_folders(folder: Path, inner: Sequence[Path] | None = None) -> list[Path]:
    """Return the folders that are clusters: ``folder`` itself, or the folders of documents in it (``inner``).

    ``folder`` is a cluster if it has a title or a summary, documents and no folders of documents, or several documents
    beside a single folder of them. Raises UserError if more documents than folders make this ambiguous.
    """
    inner = document_folders(folder) if inner is None else [*inner]
    documents = [item for item in visible_items(folder) if _is_input(item) and not item.is_dir()]
    if any(map(_is_title_or_summary, documents)) or len(documents) > len(inner) in (0, 1):
        return [folder]
    if len(documents) > len(inner):
        raise ambiguous(folder, documents, inner)
    return inner


def document_folders(folder: Path) -> list[Path]:
    """Return the folders in ``folder`` that hold documents."""
    return [item for item in visible_items(folder) if item.is_dir() and _holds_documents(item)]


def _holds_documents(folder: Path) -> bool:
    with suppress(PermissionError):  # such as lost+found
        return any(map(_is_input, folder.iterdir()))
    return False


def ambiguous(folder: Path, files: list[Path], inner: list[Path]) -> UserError:
    """Return the error for a ``folder`` that holds both files and folders of documents: either may be the clusters."""
    files_shown, inner_shown = (
        ", ".join(path.name for path in paths[:3]) + ", ..." * (len(paths) > 3) for paths in (files, inner)
    )
    return UserError(
        f"{folder} holds both files ({files_shown}) and folders of documents ({inner_shown}); give the ones that hold "
        f"the clusters: the files, or {folder}/*/ for the folders"
    )


def split_documents(folder: Path, clusters: list[Path]) -> tuple[list[Path], list[str]]:
    """Return the documents of the ``clusters`` of ``folder``, and the names of all other visible items."""
    own, documents, skipped = {*clusters}, list[Path](), list[str]()
    for parent in dict.fromkeys([folder, *clusters]):
        skipped += [str(link.relative_to(folder)) for link in links_out(parent, folder)] if parent != folder else []
        for item in visible_items(parent, folder):
            is_folder = item.is_dir()
            if parent in own and _is_input(item) and not is_folder:
                documents.append(item)
            elif item not in own:
                skipped.append(f"{item.relative_to(folder)}{'/' * is_folder}")
    return documents, skipped


def visible_items(folder: Path, corpus: Path | None = None) -> list[Path]:
    """Return the visible items of ``folder`` in natural order, except links out of ``corpus`` (default ``folder``)."""
    return [item for item in _visible(folder) if not leads_out(item, corpus or folder)]


def links_out(folder: Path, corpus: Path) -> list[Path]:
    """Return the links in ``folder`` that lead out of ``corpus``."""
    return [item for item in _visible(folder) if leads_out(item, corpus)]


def _visible(folder: Path) -> list[Path]:
    visible = (item for item in folder.iterdir() if not item.name.startswith("."))
    return sorted(visible, key=lambda item: natural_key(item.name))


def leads_out(item: Path, corpus: Path) -> bool:
    """Return whether ``item`` is a link out of ``corpus``. A corpus from elsewhere could link to any local file."""
    return item.is_symlink() and not Path(os.path.realpath(item)).is_relative_to(os.path.realpath(corpus))
