"""A sheet as one page: no network, usable by keyboard, each answer kept in the browser until it is saved as CSV."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources

from raysum.pages.parts import templates
from raysum.research.human.designs import Asked


def sheet_page(
    study: str, judge: str, instruction: str, asked: Sequence[Asked], tasks: Sequence[dict[str, str]], comment: str
) -> str:
    """The HTML of a judge's sheet. ``tasks`` are the texts of each, by column; the CSV has their numbers from 1."""
    data = {
        "study": study,
        "judge": judge,
        "asked": [asdict(one) for one in asked],
        "tasks": tasks,
        "comment": comment,
    }
    given = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    template = (resources.files("raysum.research.human") / "page.html").read_text(encoding="utf-8")
    return templates().from_string(template).render(judge=judge, instruction=instruction, data=given) + "\n"
