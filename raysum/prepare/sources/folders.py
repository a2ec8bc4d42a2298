"""Folders of documents: one cluster a folder, one file a document."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.prepare.documents.read import as_raw, is_document, read_document
from raysum.prepare.sources.fetched import natural
from raysum.prepare.sources.record import LONGEST, TOO_LONG, Record

_TOLD = "title"
_SUMMARY = re.compile(r"summary([.-]\d+)?")


def read_folder(folder: Path) -> Iterator[Record]:
    """One cluster a folder of texts, Markdown, web pages, PDF, Word documents and e-mail; its name is the id.

    No documents are ``title.txt``, ``summary.txt``, and other references in ``summary.1.txt`` and so on.
    """
    for cluster in cluster_folders(folder):
        files = [file for file in listed(cluster) if is_document(file) and not file.is_dir()]
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
    told = [file for file in files if file.suffix == ".txt" and (file.stem == _TOLD or _SUMMARY.fullmatch(file.stem))]
    texts = {file.stem: read_document(file).text.strip() for file in told}
    title = texts.pop(_TOLD, folder.name.replace("_", " "))
    raw: dict[str, Any] = {"id": folder.name, "title": title}
    names = [file.stem for file in files]
    raw["documents"] = [
        as_raw(read_document(file), file.stem if names.count(file.stem) == 1 else file.name)
        for file in files
        if file not in told
    ]
    raw |= {"summary": texts.pop("summary")} if "summary" in texts else {}
    return raw | ({"summaries": [*texts.values()]} if texts else {})


def cluster_folders(folder: Path) -> Iterator[Path]:
    """``folder`` itself where it holds texts, or documents and no folders of some; else its folders that do."""
    inner = [item for item in listed(folder) if item.is_dir() and any(map(is_document, item.iterdir()))]
    itself = any(folder.glob("*.txt")) or (not inner and any(map(is_document, folder.iterdir())))
    return iter([folder] if itself else inner)


def listed(folder: Path) -> list[Path]:
    """What is visible in ``folder``, in natural order."""
    visible = (item for item in folder.iterdir() if not item.name.startswith("."))
    return sorted(visible, key=lambda item: natural(item.name))
