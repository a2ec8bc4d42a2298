"""One raw cluster of a source, or why it could not be read."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.errors import UserError


class Rejected(Exception):
    """A raw cluster that gives no row; ``reason`` is one of a few fixed texts, so that they can be counted."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Record:
    """One raw cluster, or (``raw`` is then the text as it stood) why it could not be read."""

    where: str  # file:line, file:row or the cluster's folder
    raw: Any
    problem: str = ""
    detail: str = ""

    @property
    def id(self) -> str:
        """The row's own; else the file name and line, which are unique within a corpus of differently named files."""
        own = self.raw.get("id") if isinstance(self.raw, dict) else None
        return str(own) if own not in (None, "") else Path(self.where).name

    def cluster(self) -> dict[str, Any]:
        """The raw cluster with its ``id``. Raises Rejected where it could not be read."""
        if self.problem:
            raise Rejected(self.problem, self.detail)
        if not isinstance(self.raw, dict):
            raise Rejected("not an object with title and documents")
        return self.raw | {"id": self.id}


def check_columns(path: Path, columns: Iterable[str]) -> None:
    """Raises UserError where a table has neither documents nor paragraphs."""
    if not {"documents", "paragraphs"} & set(columns):
        found = ", ".join(columns) or "nothing"
        raise UserError(f"{path} has no column `documents` or `paragraphs`, only {found}; rename one")


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
