"""Folders of documents: one cluster a folder, one file a document."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.read import as_raw, is_document, read_documents
from raysum.sources.record import LONGEST, TOO_LONG, Record
from raysum.sources.staging import natural

_TOLD = "title"
_SUMMARY = re.compile(r"summary([.-]\d+)?")
# Names, up to the suffix, of what tells about a repository or a dataset: README.zh-CN.md, LICENSE-MIT.txt.
_ABOUT = re.compile(
    r"(?i)(readme|licen[cs]e|copying|changelog|contributing|code[_-]of[_-]conduct|citation|requirements)([._-].{1,6})?"
)


def read_folder(folder: Path) -> Iterator[Record]:
    """One cluster a folder of texts, Markdown, web pages, PDF, Word documents and e-mail; its name is the id.

    No documents are ``title.txt``, ``summary.txt``, other references in ``summary.1.txt`` and so on, and a README and
    the like.
    """
    for cluster in cluster_folders(folder):
        files = [file for file in listed(cluster, folder) if _is_read(file) and not file.is_dir()]
        if odd := next((file for file in files if not file.is_file()), None):
            yield Record(str(cluster), cluster.name, "a document does not read", f"{odd} is no file to read, or gone")
            continue
        if sum(file.stat().st_size for file in files) > LONGEST:
            yield Record(str(cluster), cluster.name, TOO_LONG)
            continue
        try:
            yield Record(str(cluster), _cluster(cluster, files))
        except UserError as error:
            yield Record(str(cluster), cluster.name, "a document does not read", str(error))


def _cluster(folder: Path, files: list[Path]) -> dict[str, Any]:
    found = dict(zip(files, read_documents(files), strict=True))
    texts = {file.stem: found.pop(file).text.strip() for file in files if _is_told(file)}
    title = texts.pop(_TOLD, folder.name.replace("_", " "))
    raw: dict[str, Any] = {"id": folder.name, "title": title}
    names = [file.stem for file in files]
    raw["documents"] = [
        as_raw(text, file.stem if names.count(file.stem) == 1 else file.name) for file, text in found.items()
    ]
    raw |= {"summary": texts.pop("summary")} if "summary" in texts else {}
    return raw | ({"summaries": [*texts.values()]} if texts else {})


def _is_read(file: Path) -> bool:
    """Whether a file of a folder belongs to a cluster: no README, LICENSE or the like does."""
    return is_document(file) and not is_about(file)


def is_about(file: Path) -> bool:
    """Whether a file of this name tells about the folder that it is in, such as a README."""
    return bool(_ABOUT.fullmatch(file.stem))


def _is_told(file: Path) -> bool:
    """Whether it is a title or a reference."""
    return file.suffix == ".txt" and bool(file.stem == _TOLD or _SUMMARY.fullmatch(file.stem))


def cluster_folders(folder: Path, inner: Sequence[Path] | None = None) -> list[Path]:
    """``folder`` itself where it has a title or a summary, or documents and no folders of some; else its folders that
    do (``inner``), also where files lie beside them, unless there is but one and there are more files.

    Raises UserError where that does not tell which are the clusters.
    """
    inner = document_folders(folder) if inner is None else [*inner]
    documents = [item for item in listed(folder) if _is_read(item) and not item.is_dir()]
    if any(map(_is_told, documents)) or len(documents) > len(inner) in (0, 1):
        return [folder]
    if len(documents) > len(inner):
        raise unclear(folder, documents, inner)
    return inner


def document_folders(folder: Path) -> list[Path]:
    """The folders in ``folder`` that hold documents."""
    return [item for item in listed(folder) if item.is_dir() and _holds_documents(item)]


def _holds_documents(folder: Path) -> bool:
    with suppress(PermissionError):  # such as lost+found
        return any(map(_is_read, folder.iterdir()))
    return False


def unclear(folder: Path, files: list[Path], inner: list[Path]) -> UserError:
    """What lies in ``folder`` may be meant in two ways."""
    told = [", ".join(item.name for item in some[:3]) + ", ..." * (len(some) > 3) for some in (files, inner)]
    return UserError(
        f"{folder} holds files ({told[0]}) and folders of documents ({told[1]}); name what holds the clusters: the "
        f"files, or the folders as {folder}/*/"
    )


def parted(folder: Path, clusters: list[Path]) -> tuple[list[Path], list[str]]:
    """The documents of the ``clusters`` of ``folder``, and what else is visible in all of these."""
    own, documents, left_out = {*clusters}, list[Path](), list[str]()
    for one in dict.fromkeys([folder, *clusters]):
        left_out += [str(item.relative_to(folder)) for item in links_out(one, folder)] if one != folder else []
        for item in listed(one, folder):
            is_folder = item.is_dir()
            if one in own and _is_read(item) and not is_folder:
                documents.append(item)
            elif item not in own:
                left_out.append(f"{item.relative_to(folder)}{'/' * is_folder}")
    return documents, left_out


def listed(folder: Path, corpus: Path | None = None) -> list[Path]:
    """What is visible in ``folder``, in natural order, without links out of the ``corpus`` (by default ``folder``)."""
    return [item for item in _visible(folder) if not leads_out(item, corpus or folder)]


def links_out(folder: Path, corpus: Path) -> list[Path]:
    """The links in ``folder`` that lead out of the ``corpus``."""
    return [item for item in _visible(folder) if leads_out(item, corpus)]


def _visible(folder: Path) -> list[Path]:
    visible = (item for item in folder.iterdir() if not item.name.startswith("."))
    return sorted(visible, key=lambda item: natural(item.name))


def leads_out(item: Path, corpus: Path) -> bool:
    """Whether ``item`` is a link out of the ``corpus``: one from elsewhere could name any file of this machine."""
    return item.is_symlink() and not Path(os.path.realpath(item)).is_relative_to(os.path.realpath(corpus))
