"""The settings of `raysum human sheets`."""

from typing import Annotated, Literal

from pydantic import Field

from raysum.config.base import Section

Most = Annotated[int, Field(gt=0, le=10_000)]


class SheetsConfig(Section):
    design: Literal["best-worst", "pairwise", "rating", "ranking", "questions"] = Field(
        description="what judges do: best-worst, pairwise, rating, ranking or questions"
    )
    out: str = Field(description="folder to write: sheets/ for the judges, key.json for you alone")
    items: Most = Field(20, description="examples, drawn from those that all evaluations have")
    judges: Most = Field(3, description="judges; each has a sheet of their own")
    seed: int = Field(0, description="the same seed and outputs give the same sheets")
    systems: list[str] | None = Field(
        None,
        description="systems to judge, by default all but those named -paper, which cut sentences; `reference` may be "
        "one, and is then not shown besides",
    )
    questions: str | None = Field(None, description="CSV of id, question, answer; by default the factbook's facts")
