"""The settings of `raysum evaluate`."""

from typing import Literal

from pydantic import Field

from raysum.config.sections import LoadConfig


class EvaluateConfig(LoadConfig):
    data: str = Field(description="dataset folder")
    split: str | None = Field(None, description="split; may be left out where there is one")
    limit: int | None = Field(None, gt=0, le=10**9, description="examples, the first so many")
    protocol: str = Field("google", description="ROUGE protocol: google, ht-paper, pht-paper, graphsum, hibert-paper")
    references: Literal["best", "mean", "jackknife"] = Field(
        "best", description="what ROUGE counts of several: best, mean or jackknife"
    )
    scorers: list[str] | None = Field(
        None,
        min_length=1,
        description="rouge, support, citations, attention, wording, and those of installed packages; by default all",
    )
    reference_length: bool = Field(
        False, description="a system that extracts, with the number of words of each reference, as in papers' tables"
    )
    swapped: bool = Field(False, description="also the control: another cluster's sources")
    terms: bool = Field(False, description="plain, strCov, extProb and attAlign (PHT paper, Table 2)")
    checkpoints: int = Field(
        1, gt=0, le=100, description="evaluate so many, the best by validation loss, and average their scores"
    )
    out: str | None = Field(None, description="folder for outputs; by default inside the run")
