"""What a summarizer returns, also over HTTP: the text, its sentences, the paragraphs that each of them cites."""

from typing import Any

from pydantic import BaseModel, Field


class Citation(BaseModel, frozen=True):
    document: int = Field(description="the number of the document in the cluster, from 0")
    paragraph: int = Field(description="the number of the paragraph in that document, from 0")
    weight: float = Field(description="its share of the sentence; the shares of a sentence sum to 1")


class Sentence(BaseModel, frozen=True):
    text: str
    citations: list[Citation] = Field(description="in falling weight")


class Alternative(BaseModel, frozen=True):
    """Another summary that the search found."""

    summary: str
    score: float


class Summary(BaseModel, frozen=True):
    """A generated summary."""

    id: str
    summary: str
    sentences: list[Sentence]
    attention: list[float] = Field(
        description="share of the attention of each ranked paragraph, best rank first; 0 for those that were not read"
    )
    score: float = Field(description="what ranked the summary: log-probability normalized by length, plus the terms")
    alternatives: list[Alternative] = Field([], description="the next best, where n_best asks for more than one")

    def render(self) -> str:
        """For people: the id, then a sentence a line, each citation behind it as ``[document.paragraph] weight``."""
        lines = [self.id]
        for sentence in self.sentences:
            cited = (f"[{c.document}.{c.paragraph}] {c.weight:.2f}" for c in sentence.citations)
            lines.append("  ".join(("", sentence.text, *cited)))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As ``raysum summarize`` prints it: ``alternatives`` only where there are any."""
        return self.model_dump(exclude=None if self.alternatives else {"alternatives"})
