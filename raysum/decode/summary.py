"""What a summarizer returns, also over HTTP: the text, its sentences, the paragraphs that each of them cites."""

from typing import Any

from pydantic import BaseModel, Field


class Citation(BaseModel, frozen=True):
    document: int = Field(description="the number of the document in the cluster, from 0")
    paragraph: int = Field(description="the number of the paragraph in that document, from 0")
    weight: float = Field(description="its share of the sentence; the shares of a sentence sum to 1")
    source: str | None = Field(None, description="the name of the document")
    quote: str = Field("", description="the passage that is cited, as it stands there")
    start: int = Field(0, description="where the quote starts in the document as it was given, in characters from 0")
    end: int = Field(0, description="where it ends")


class Sentence(BaseModel, frozen=True):
    text: str
    citations: list[Citation] = Field(description="in falling weight")
    support: float | None = Field(None, description="0 to 1: how far the citations bear it out")


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
    support: float | None = Field(None, description="0 to 100: how far the citations bear the summary out")
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
