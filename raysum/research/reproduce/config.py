"""The settings of `raysum reproduce`."""

from typing import Annotated, Literal

from pydantic import Field

from raysum.config.base import Section


class ReproduceConfig(Section):
    data: str = Field(description="raw clusters, as for prepare, with splits train, valid and test")
    out: str = Field(description="folder to write; the same command resumes there")
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        None, description="training time of each system; default: 0.5 for size=small, otherwise as in the papers"
    )
    size: Literal["small", "paper"] = Field(
        "small", description="small: the papers' layers, narrow, with lengths scaled to the data; or paper"
    )
    limit: int = Field(100, gt=0, le=10**9, description="summarized examples of a split, from the first")
    open: str | None = Field(None, description="other raw text, HIBERT's open domain; by default raysum's own corpora")
    bert: str | None = Field(None, description="folder of a published BERT, for its row")
    questions: str | None = Field(
        None, description="CSV of id, question, answer for HT's QA; by default the factbook's facts"
    )
    memory: Annotated[int, Field(gt=0, le=10**7)] | None = Field(
        None, description="MiB for the largest batch (efficiency); default: 1024 for size=small, otherwise 2048"
    )

    @property
    def seconds(self) -> float | None:
        """Return the training time of each system, with all its stages; None: as in the presets."""
        minutes = 0.5 if self.minutes is None and self.size == "small" else self.minutes
        return None if minutes is None else 60 * minutes
