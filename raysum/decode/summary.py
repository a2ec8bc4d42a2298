"""What a summarizer returns, also over HTTP: the text, its sentences, the paragraphs that each of them cites."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Citation(_Part):
    document: int = Field(description="the number of the document in the cluster, from 0")
    paragraph: int = Field(description="the number of the paragraph in that document, from 0")
    weight: float = Field(description="its share of the sentence; the shares of a sentence sum to 1")


class Sentence(_Part):
    text: str
    citations: list[Citation] = Field(description="in falling weight")

    def render(self) -> str:
        """The text, then each citation as ``[document.paragraph] weight``."""
        return "  ".join((self.text, *(f"[{c.document}.{c.paragraph}] {c.weight:.2f}" for c in self.citations)))


class Alternative(_Part):
    """Another summary that the search found."""

    summary: str
    score: float


class Summary(_Part):
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
        """For people: the id, then a sentence a line with its citations."""
        return "\n".join((self.id, *(f"  {sentence.render()}" for sentence in self.sentences)))

    def to_dict(self) -> dict[str, Any]:
        """As ``raysum summarize`` prints it: ``alternatives`` only where there are any."""
        return self.model_dump(exclude=None if self.alternatives else {"alternatives"})
