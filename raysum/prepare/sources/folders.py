"""Folders of text files: one cluster a folder, one text file a document."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysum.prepare.sources.record import LONGEST, TOO_LONG, Record


def read_folder(folder: Path) -> Iterator[Record]:
    """One cluster a folder of text files; its name is the id.

    No documents are ``title.txt``, ``summary.txt``, and other references in ``summary.1.txt`` and so on.
    """
    for cluster in cluster_folders(folder):
        try:
            files = [file for file in listed(cluster) if file.suffix == ".txt"]
            if sum(file.stat().st_size for file in files) > LONGEST:
                yield Record(str(cluster), cluster.name, TOO_LONG)
                continue
            texts = {file.stem: file.read_bytes().decode("utf-8-sig") for file in files}
        except UnicodeDecodeError as error:
            yield Record(str(cluster), cluster.name, "not UTF-8", f"byte {error.start}")
            continue
        title = texts.pop("title", cluster.name.replace("_", " ")).strip()
        summary: dict[str, Any] = {"summary": texts.pop("summary").strip()} if "summary" in texts else {}
        if others := [name for name in texts if re.fullmatch(r"summary[.-]\d+", name)]:
            summary["summaries"] = [texts.pop(name).strip() for name in others]
        documents = [{"source": name, "text": text} for name, text in texts.items()]
        yield Record(str(cluster), {"id": cluster.name, "title": title, "documents": documents, **summary})


def cluster_folders(folder: Path) -> Iterator[Path]:
    """``folder`` itself where it holds text files, else those of its folders that do."""
    found = [folder] if any(folder.glob("*.txt")) else listed(folder)
    return (item for item in found if item.is_dir() and any(item.glob("*.txt")))


def listed(folder: Path) -> list[Path]:
    """Natural sort: part 2 before part 10."""
    parts = re.compile(r"(\d+)")
    visible = (item for item in folder.iterdir() if not item.name.startswith("."))
    return sorted(
        visible, key=lambda item: [(int(p), "") if p.isdecimal() else (-1, p) for p in parts.split(item.name)]
    )
