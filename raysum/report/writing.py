"""Writing a report: the verb."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.report.gather import Gathered, gather
from raysum.report.page import report_page
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import write_page


@dataclass(frozen=True)
class Report(Shown):
    """A page that was written, and its content."""

    path: Path
    told: Gathered

    def to_dict(self) -> dict[str, Any]:
        """``report`` (the path), and the names of its ``runs``, ``searches`` and ``evaluations``."""
        kinds = ("runs", "searches", "evaluations")
        return {"report": str(self.path)} | {kind: [one.name for one in getattr(self.told, kind)] for kind in kinds}

    def render(self) -> str:
        return f"report: {self.path}"


def report(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Report:
    """One HTML page of runs, searches and evaluations (folders), into the file ``out``. It needs no network.

    A run includes its evaluations, a search its best run. Raises UserError if a folder is none of these, a file is
    damaged, or ``out`` cannot be written.

    >>> raysum.report(["runs/pht", "runs/beta"], out="report.html")
    """
    content = gather([paths] if isinstance(paths, str | os.PathLike) else paths)
    file = Path(out).expanduser().absolute()
    write_page(file, report_page(content), "--out")
    return Report(file, content)
