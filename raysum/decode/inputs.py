"""What the command line is asked to summarize: data files of clusters, texts that form one cluster, standard input."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.prepare.sources.files import Record, cluster_id
from raysum.prepare.sources.files import read_clusters as read_sources

DATA_FILES = (".jsonl", ".jsonl.gz", ".csv", ".parquet")
STDIN = "-"


def read_clusters(files: Sequence[str], title: str = "") -> list[dict[str, Any]]:
    """Raw clusters: those of data files and folders (see raysum.prepare.sources.files), in order; ``-`` is standard
    input, JSON lines or one text. All other files are texts, the documents of one cluster about ``title``, which
    comes last.

    Raises UserError where a file or line does not read, or a title is given without texts.
    """
    clusters: list[dict[str, Any]] = []
    texts: list[dict[str, str]] = []
    for file in files:
        if file == STDIN:
            text = sys.stdin.read()
            if text.lstrip().startswith("{"):
                clusters += _json_lines(text)
            else:
                texts.append({"source": "standard input", "text": text})
        elif file.endswith(DATA_FILES) or Path(file).is_dir():
            clusters += map(_cluster, read_sources([file]))
        else:
            texts.append({"source": Path(file).name, "text": _read(file)})
    if texts:
        clusters.append({"id": title or texts[0]["source"], "title": title, "documents": texts})
    elif title:
        raise UserError("--title is for files of text; clusters in data files have their own titles")
    return clusters


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None


def _json_lines(text: str) -> list[dict[str, Any]]:
    clusters = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would cut at marks that JSON strings may hold
        if line.strip():
            try:
                raw = json.loads(line)
            except ValueError as error:
                raise UserError(f"standard input, line {number}: not JSON ({error})") from None
            clusters.append(_cluster(Record(f"standard input:{number}", raw)))
    return clusters


def _cluster(record: Record) -> dict[str, Any]:
    if record.problem:
        raise UserError(f"{record.where}: {record.problem} ({record.detail})")
    if not isinstance(record.raw, dict):
        raise UserError(f"{record.where}: not an object with title and documents")
    return record.raw | {"id": cluster_id(record)}
