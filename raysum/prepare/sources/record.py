"""One raw cluster of a source, or why it could not be read."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.errors import UserError


@dataclass(frozen=True)
class Record:
    """One raw cluster, or (``raw`` is then the text as it stood) why it could not be read."""

    where: str  # file:line, file:row or the cluster's folder
    raw: Any
    problem: str = ""
    detail: str = ""


def cluster_id(record: Record) -> str:
    """The row's own id; else the file name and line, which are unique within a corpus of differently named files."""
    own = record.raw.get("id") if isinstance(record.raw, dict) else None
    return str(own) if own not in (None, "") else Path(record.where).name


def check_columns(path: Path, columns: Iterable[str]) -> None:
    """Raises UserError where a table has neither documents nor paragraphs."""
    if not {"documents", "paragraphs"} & set(columns):
        raise UserError(
            f"{path} has no column `documents` or `paragraphs`, only {', '.join(columns) or 'nothing'}; rename one"
        )


def listed_texts(column: str, value: Any) -> Any:
    """The value of a table's column; of ``documents`` and ``paragraphs`` the JSON list that it holds, or one text."""
    if column not in ("documents", "paragraphs") or not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            pass  # a document that begins with a bracket
    return [value] if value.strip() else []
