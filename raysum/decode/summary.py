"""What a summarizer returns: the text, its sentences, and the paragraphs that each of them cites."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Citation:
    """A paragraph by the number of its document and its own number there, both from 0."""

    document: int
    paragraph: int
    weight: float


@dataclass(frozen=True)
class Sentence:
    """``citations`` in falling weight; the weights sum to one."""

    text: str
    citations: list[Citation]

    def render(self) -> str:
        """The text, then each citation as ``[document.paragraph] weight``."""
        return "  ".join((self.text, *(f"[{c.document}.{c.paragraph}] {c.weight:.2f}" for c in self.citations)))


@dataclass(frozen=True)
class Alternative:
    """Another summary that the search found, with its score."""

    summary: str
    score: float


@dataclass(frozen=True)
class Summary:
    """A generated summary.

    ``attention`` is the share of every paragraph of the row, best rank first, 0 for those that were not read;
    ``score`` is the one that ranked it (log-probability normalized by length, plus the terms); ``alternatives`` are the
    next best, where ``n_best`` asks for more than one.
    """

    id: str
    summary: str
    sentences: list[Sentence]
    attention: list[float]
    score: float
    alternatives: list[Alternative] = field(default_factory=list)

    def render(self) -> str:
        """For people: the id, then a sentence a line with its citations."""
        return "\n".join((self.id, *(f"  {sentence.render()}" for sentence in self.sentences)))

    def to_dict(self) -> dict[str, Any]:
        """As ``raysum summarize`` prints it: ``alternatives`` only where there are any."""
        values = asdict(self)
        return values if self.alternatives else {k: v for k, v in values.items() if k != "alternatives"}
