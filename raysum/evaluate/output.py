"""What a system gives for a row of a dataset. No torch: scoring runs in processes that start often."""

from dataclasses import dataclass, field
from typing import Any

from raysum.decode.summary import Citation, Summary

Row = dict[str, Any]


@dataclass(frozen=True)
class Output:
    """One summary: its sentences, the paragraphs that each cites, and the share [M] of attention of each paragraph."""

    sentences: list[str]
    citations: list[list[Citation]] = field(default_factory=list)
    attention: list[float] | None = None

    @classmethod
    def of(cls, summary: Summary) -> "Output":
        sentences = summary.sentences
        return cls([s.text for s in sentences], [s.citations for s in sentences], summary.attention)
