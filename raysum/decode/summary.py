"""The result of a summarizer, also over HTTP: the text, its sentences, and the passages that each sentence cites."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from raysum.decode.page import fragment, shortened
from raysum.errors import UserError
from raysum.sources.documents.file_positions import Origin, file_span
from raysum.sources.record import Record, Rejected

T = TypeVar("T")
Cited = TypeVar("Cited", "Sentence", "Headline", "Claim")

_OPTIONAL = ("alternatives", "headline", "themes", "disagreements", "predicted")  # of a summary
_MOST_EQUAL = 3  # clusters that show the same warning or error


class Citation(BaseModel, frozen=True):
    document: int = Field(description="the number of the document in the cluster, from 0")
    paragraph: int = Field(description="the number of the paragraph in that document, from 0")
    weight: float = Field(description="its weight in the sentence; the weights of a sentence sum to 1")
    source: str | None = Field(None, description="name of the document")
    quote: str = Field("", description="the passage of that paragraph that is most similar to the sentence")
    start: int = Field(0, description="start of the quote in the document, in characters")
    end: int = Field(0, description="end of the quote, exclusive")
    is_extracted: bool = Field(
        False,
        description="whether start and end count in the text that was extracted from a file, such as the paragraphs of "
        "a PDF, and not in the document as it is",
    )
    file_start: int | None = Field(
        None, description="start of the quote in the characters of an extracted Markdown, HTML or e-mail file, if known"
    )
    file_end: int | None = Field(None, description="end of the quote in that file, exclusive")
    place: str | None = Field(
        None, description="the page, heading, slide, cell, time or speaker of the quote, if the document has any"
    )

    @classmethod
    def of(
        cls, row: Mapping[str, Any], number: int, weight: float, start: int = 0, end: int | None = None
    ) -> "Citation":
        """Return a citation of the characters ``start`` to ``end`` of paragraph or sentence ``number`` of a row."""
        document, before = int(row["document"][number]), int(row["char_start"][number])
        quote = row["text"][number][start:end]
        return cls(
            document=document,
            paragraph=int(row["paragraph"][number]),
            weight=weight,
            source=row["source"][document],
            quote=quote,
            start=before + start,
            end=before + start + len(quote),
        )

    @property
    def name(self) -> str:
        """The location for people: the document, and the page or heading."""
        names = dict.fromkeys((self.source or f"document {self.document + 1}", self.place))
        return ", ".join(filter(None, names))

    @property
    def passage(self) -> tuple[int, int, int]:
        return self.document, self.start, self.end

    def located(self, document: Mapping[str, Any]) -> "Citation":
        """Return the citation with its place, its characters in the file, and whether the ``document`` is extracted.

        The place is the last of its ``Origin`` that begins before the quote.
        """
        places, pieces, is_extracted = Origin.of(document)
        before = bisect_right([start for start, _ in places], self.start)
        place = places[before - 1][1] if before else self.place
        span = file_span(pieces, self.start, self.end, self.quote) or (None, None)
        update = {"place": place, "is_extracted": is_extracted, "file_start": span[0], "file_end": span[1]}
        return self.model_copy(update=update)

    @property
    def characters(self) -> str:
        """The position of the quote for people: in the file if it is known, otherwise in the extracted text."""
        if self.file_start is not None:
            return f"chars {self.file_start}-{self.file_end}"
        return f"chars {self.start}-{self.end}{' of the extracted text' * self.is_extracted}"


class Span(BaseModel, frozen=True):
    start: int = Field(description="first character, from 0")
    end: int = Field(description="the character after the last")
    text: str


class Sentence(BaseModel, frozen=True):
    text: str
    start: int = Field(0, description="its first character in the summary, from 0")
    end: int = Field(0, description="the character after its last")
    citations: list[Citation] = Field(description="in falling weight")
    support: float | None = Field(
        None,
        description="share (0 to 1) of its names, numbers and other words (names and numbers count three times) "
        "that are in the title or the cited paragraphs, or in any paragraph if it cites none; null without such words",
    )
    unsupported: list[Span] = Field(
        [], description="its names and numbers that are neither in the title nor in the sources"
    )


class Alternative(BaseModel, frozen=True):
    """Another summary that the search found."""

    summary: str
    score: float


class Headline(BaseModel, frozen=True):
    text: str
    citations: list[Citation] = Field(description="the heading, or the sentence that it shortens")


class Theme(BaseModel, frozen=True):
    label: str = Field(description="its most characteristic words")
    sentences: list[int] = Field(description="numbers of the summary's sentences, from 0")


class Claim(BaseModel, frozen=True):
    """What documents say that others contradict."""

    value: str
    citations: list[Citation]


class Disagreement(BaseModel, frozen=True):
    """A statement for which documents have different numbers."""

    subject: str = Field(description="a sentence, with […] instead of the number")
    claims: list[Claim]


class Summary(BaseModel, frozen=True):
    """A summary with citations, support and warnings."""

    id: str
    summary: str
    sentences: list[Sentence]
    attention: list[float] = Field(
        description="share of the attention of each ranked paragraph, best rank first; 0 for those that were not read"
    )
    predicted: list[float] = Field([], description="the same as the attention predictor expects it, if the run has one")
    score: float = Field(description="the score in the search: log-probability normalized by length, plus the terms")
    support: float | None = Field(None, description="support of all sentences together, 0 to 100")
    unsupported: list[Span] = Field([], description="those of its sentences, by their positions in the summary")
    warnings: list[str] = Field([], description="reasons not to trust it: differences from the training data")
    alternatives: list[Alternative] = Field([], description="the next best summaries, if n_best is above 1")

    headline: Headline | None = Field(None, description="the headline, if it is asked for and found")
    themes: list[Theme] = Field([], description="its sentences by theme, if they are asked for")
    disagreements: list[Disagreement] = Field([], description="where the documents disagree, if it is asked for")

    @property
    def notes(self) -> list[Citation]:
        """Return the cited passages, each once: note 1, note 2, and so on, first those of the sentences."""
        claims = [claim for disagreement in self.disagreements for claim in disagreement.claims]
        parts: list[Sentence | Headline | Claim] = [*self.sentences, *filter(None, [self.headline]), *claims]
        return list({citation.passage: citation for part in parts for citation in part.citations}.values())

    def located(self, cluster: Mapping[str, Any]) -> "Summary":
        """Return the summary with the place of each citation in the raw ``cluster``."""
        numbered = enumerate(cluster.get("documents") or ())
        documents = {n: document for n, document in numbered if isinstance(document, Mapping)}

        def located(part: Cited) -> Cited:
            cited = [citation.located(documents.get(citation.document, {})) for citation in part.citations]
            return part.model_copy(update={"citations": cited})

        found = [each.model_copy(update={"claims": [*map(located, each.claims)]}) for each in self.disagreements]
        head = self.headline and located(self.headline)
        sentences = [*map(located, self.sentences)]
        return self.model_copy(update={"sentences": sentences, "headline": head, "disagreements": found})

    def numbered(self, part: Sentence | Headline | Claim) -> list[int]:
        """Return the numbers of the notes to one of its sentences or to a part of its outline, from 1."""
        passages = [note.passage for note in self.notes]
        return [passages.index(citation.passage) + 1 for citation in part.citations]

    def render(self) -> str:
        """Return text for people: the id, the sentences with numbers of notes, the notes, warnings and alternatives."""
        lines = [self.id, *([f"  {self._with_notes(self.headline)}", ""] if self.headline else [])]
        for theme in self.themes or [Theme(label="", sentences=[*range(len(self.sentences))])]:
            lines += [f"  {theme.label}:"] if theme.label else []
            mark = "  - " if self.themes else "  "
            lines += [mark + self._with_notes(self.sentences[number]) for number in theme.sentences]
        lines += ["  documents disagree:"] * bool(self.disagreements)
        for disagreement in self.disagreements:
            lines.append(f"  - {disagreement.subject}")
            lines += [f"      {claim.value}: {self._with_notes(claim)}" for claim in disagreement.claims]
        for number, note in enumerate(self.notes, 1):
            lines.append(f'    [{number}] {note.name}, "{shortened(note.quote)}" {note.characters}')
        if self.support is not None:
            doubted = f"; in no source: {', '.join(span.text for span in self.unsupported)}" if self.unsupported else ""
            lines.append(f"    support {self.support:.0f} of 100{doubted}")
        lines += [f"    warning: {warning}" for warning in self.warnings]
        lines += [f"  next best: {other.summary or '(empty)'}" for other in self.alternatives]
        return "\n".join(lines)

    def _with_notes(self, part: Sentence | Headline | Claim) -> str:
        """Return the text of a part with the numbers of its notes, of a claim the names of its documents."""
        names = ", ".join(dict.fromkeys(citation.name for citation in part.citations))
        numbers = "".join(f"[{number}]" for number in self.numbered(part))
        return f"{names if isinstance(part, Claim) else part.text} {numbers}".rstrip()

    def _repr_html_(self) -> str:
        """Return HTML for a notebook. A sentence under the mouse highlights the passages that it cites."""
        return fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the values that ``raysum summarize`` prints, with alternatives and outline only if there are any."""
        return self.model_dump(exclude={name for name in _OPTIONAL if not getattr(self, name)})


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


def readable(record: Record) -> dict[str, Any] | NoSummary:
    """Return the raw cluster of a record, or why it is none."""
    try:
        return record.cluster()
    except Rejected as reason:
        return NoSummary(record.id, f"{record.where}: {reason}")


def name_of(cluster: Any, number: int) -> Any:
    """Return the id or title of a raw cluster for messages, or its ``number`` if it has neither."""
    values = cluster if isinstance(cluster, Mapping) else {}
    return values.get("id") or values.get("title") or number


def attempted(work: Callable[[Mapping[str, Any], int], T], cluster: Mapping[str, Any], number: int) -> T | NoSummary:
    """Return the result of ``work`` for a raw cluster, or a NoSummary with its error (default name: ``number``)."""
    try:
        return work(cluster, number)
    except UserError as error:
        return NoSummary(str(name_of(cluster, number)), str(error))


class Summaries(list[Summary | NoSummary]):
    """The summaries of several clusters, as the command line prints them."""

    @property
    def problem(self) -> str:
        """Return how many clusters have no summary, with the first error; empty if all have one."""
        failed = [item for item in self if isinstance(item, NoSummary)]
        if not failed:
            return ""
        return f"{len(failed)} of {len(self)} clusters have no summary; the first of them: {failed[0].error}"

    def render(self) -> str:
        """Return text for people. Three clusters show an equal warning or error; the end has the number of others."""
        shown, parts = Counter[str](), []
        for summary in self:
            if isinstance(summary, NoSummary):
                reason = f"error: {summary.error.partition(': ')[2] or summary.error}"
                shown[reason] += 1
                parts += [summary.render()] if shown[reason] <= _MOST_EQUAL else []
                continue
            kinds = {f"warning: {warning.partition(':')[0]}": warning for warning in summary.warnings}
            warnings = [warning for kind, warning in kinds.items() if shown[kind] < _MOST_EQUAL]
            shown.update([*kinds])
            parts.append(summary.model_copy(update={"warnings": warnings}).render())
        more = {kind: count - _MOST_EQUAL for kind, count in shown.items() if count > _MOST_EQUAL}
        return "\n".join([*parts, *(f"{kind}: {count} more (see --json)" for kind, count in more.items())])
