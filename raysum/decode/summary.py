"""What a summarizer returns, also over HTTP: the text, its sentences, the passages that each of them cites."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from raysum.decode.page import fragment, shortened
from raysum.errors import UserError

T = TypeVar("T")

_WARNED = 3  # clusters of which they are shown the same warning, or error


class Citation(BaseModel, frozen=True):
    document: int = Field(description="the number of the document in the cluster, from 0")
    paragraph: int = Field(description="the number of the paragraph in that document, from 0")
    weight: float = Field(description="its share of the sentence; the shares of a sentence sum to 1")
    source: str | None = Field(None, description="name of the document")
    quote: str = Field("", description="the passage of that paragraph that is nearest to the sentence")
    start: int = Field(0, description="where the quote begins in the document as it was given, in characters")
    end: int = Field(0, description="and where it ends")
    place: str | None = Field(None, description="the page or heading that it stands under, where the document has any")

    @property
    def name(self) -> str:
        """The location for people: the document, and the page or heading."""
        return ", ".join(filter(None, (self.source or f"document {self.document + 1}", self.place)))


class Span(BaseModel, frozen=True):
    start: int = Field(description="first character, from 0")
    end: int = Field(description="the character after the last")
    text: str


class Sentence(BaseModel, frozen=True):
    text: str
    citations: list[Citation] = Field(description="in falling weight")
    support: float | None = Field(
        None,
        description="share (0 to 1) of its names, numbers and other words, a name or number counted as three, that "
        "stand in the paragraphs cited, or in all where it cites none, or in the title; null without any",
    )
    unsupported: list[Span] = Field([], description="its names and numbers that stand neither in title nor sources")


class Alternative(BaseModel, frozen=True):
    """Another summary that the search found."""

    summary: str
    score: float


class Summary(BaseModel, frozen=True):
    """A summary."""

    id: str
    summary: str
    sentences: list[Sentence]
    attention: list[float] = Field(
        description="share of the attention of each ranked paragraph, best rank first; 0 for those that were not read"
    )
    score: float = Field(description="what ranked the summary: log-probability normalized by length, plus the terms")
    support: float | None = Field(None, description="as of its sentences, of all that they say, 0 to 100")
    unsupported: list[Span] = Field([], description="those of its sentences, by their places in the summary")
    warnings: list[str] = Field([], description="what speaks against trusting it: what is unlike training")
    alternatives: list[Alternative] = Field([], description="the next best, where n_best asks for more than one")

    @property
    def notes(self) -> list[Citation]:
        """What is cited, each passage once, in the order of the sentences: note 1, note 2, and so on."""
        cited = [citation for sentence in self.sentences for citation in sentence.citations]
        return list({_place(citation): citation for citation in cited}.values())

    def located(self, cluster: Mapping[str, Any]) -> "Summary":
        """With the places of what is cited, where documents of the raw cluster tell their ``places``.

        Each is a first character and the name of the page or heading that begins there.
        """
        documents = [*enumerate(cluster.get("documents") or ())]
        told = {n: one["places"] for n, one in documents if isinstance(one, Mapping) and one.get("places")}
        if not told:
            return self
        sentences = [
            sentence.model_copy(
                update={"citations": [_located(one, told.get(one.document, ())) for one in sentence.citations]}
            )
            for sentence in self.sentences
        ]
        return self.model_copy(update={"sentences": sentences})

    def numbered(self, sentence: Sentence) -> list[int]:
        """The numbers of the notes to one of its sentences, from 1."""
        places = [_place(note) for note in self.notes]
        return [places.index(_place(citation)) + 1 for citation in sentence.citations]

    def render(self) -> str:
        """For people: the id, a sentence a line with the numbers of its notes, the notes, what is to be doubted, and
        the next best."""
        lines = [self.id]
        for sentence in self.sentences:
            lines.append(f"  {sentence.text} {''.join(f'[{number}]' for number in self.numbered(sentence))}".rstrip())
        for number, note in enumerate(self.notes, 1):
            lines.append(f'    [{number}] {note.name}, "{shortened(note.quote)}" chars {note.start}-{note.end}')
        if self.support is not None:
            doubted = f"; in no source: {', '.join(span.text for span in self.unsupported)}" if self.unsupported else ""
            lines.append(f"    support {self.support:.0f} of 100{doubted}")
        lines += [f"    warning: {warning}" for warning in self.warnings]
        lines += [f"  next best: {other.summary or '(empty)'}" for other in self.alternatives]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """In a notebook: sentences light up the passages that they cite."""
        return fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """As ``raysum summarize`` prints it: ``alternatives`` only where there are any."""
        return self.model_dump(exclude=None if self.alternatives else {"alternatives"})


@dataclass(frozen=True)
class NoSummary:
    """A cluster without a summary, and the error."""

    id: str
    error: str

    def to_dict(self) -> dict[str, str]:
        """``id`` and ``error``."""
        return asdict(self)

    def render(self) -> str:
        return f"{self.id}\n    error: {self.error}"


def name_of(cluster: Any, number: int) -> Any:
    """Return the id or title of a raw cluster for messages, or its ``number`` if it has neither."""
    given = cluster if isinstance(cluster, Mapping) else {}
    return given.get("id") or given.get("title") or number


def attempted(work: Callable[[Mapping[str, Any], int], T], cluster: Mapping[str, Any], number: int) -> T | NoSummary:
    """What ``work`` makes of a raw cluster, or why it makes nothing; ``number`` names a cluster without an id."""
    try:
        return work(cluster, number)
    except UserError as error:
        return NoSummary(str(name_of(cluster, number)), str(error))


class Summaries(list[Summary | NoSummary]):
    """Those of several clusters, as the command line prints them."""

    @property
    def problem(self) -> str:
        """How many clusters have none, and why the first; empty where all have one."""
        failed = [one for one in self if isinstance(one, NoSummary)]
        if not failed:
            return ""
        return f"{len(failed)} of {len(self)} clusters have no summary; the first of them: {failed[0].error}"

    def render(self) -> str:
        """For people: each warning or error of the first three clusters that have it; of more, how many at the end."""
        had, parts = Counter[str](), []
        for summary in self:
            if isinstance(summary, NoSummary):
                reason = f"error: {summary.error.partition(': ')[2] or summary.error}"
                had[reason] += 1
                parts += [summary.render()] if had[reason] <= _WARNED else []
                continue
            kinds = {f"warning: {warning.partition(':')[0]}": warning for warning in summary.warnings}
            told = [warning for kind, warning in kinds.items() if had[kind] < _WARNED]
            had.update([*kinds])
            parts.append(summary.model_copy(update={"warnings": told}).render())
        more = {kind: count - _WARNED for kind, count in had.items() if count > _WARNED}
        return "\n".join([*parts, *(f"{kind}: {count} more (see --json)" for kind, count in more.items())])


def _located(citation: Citation, places: Sequence[tuple[int, str]]) -> Citation:
    before = bisect_right([start for start, _ in places], citation.start)
    return citation.model_copy(update={"place": places[before - 1][1]}) if before else citation


def _place(citation: Citation) -> tuple[int, int, int]:
    return citation.document, citation.start, citation.end
