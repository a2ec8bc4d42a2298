"""The settings of `raysum reproduce`."""

from typing import Annotated, Literal

from pydantic import Field

from raysum.config.base import Section


class ReproduceConfig(Section):
    data: str = Field(description="raw clusters: what prepare takes, with splits train, valid and test")
    out: str = Field(description="folder to write; the same command goes on there")
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        None, description="training of each system; 0.5 where size is small, else what the papers did"
    )
    size: Literal["small", "paper"] = Field(
        "small", description="small: the papers' layers, narrow, with lengths scaled to the data; or paper"
    )
    limit: int = Field(100, gt=0, le=10**9, description="examples of a split that are summarized, the first so many")
    open: str | None = Field(None, description="other raw text, HIBERT's open domain; by default raysum's own corpora")
    bert: str | None = Field(None, description="folder of a published BERT, for its row")
    questions: str | None = Field(
        None, description="CSV of id, question, answer for HT's QA; by default the factbook's facts"
    )
    memory: Annotated[int, Field(gt=0, le=10**7)] | None = Field(
        None, description="MiB in which the largest batch is sought (efficiency); 1024 where size is small, else 2048"
    )

    @property
    def seconds(self) -> float | None:
        """Of the training of each system, all of its stages together; None: as the presets say."""
        minutes = 0.5 if self.minutes is None and self.size == "small" else self.minutes
        return None if minutes is None else 60 * minutes
