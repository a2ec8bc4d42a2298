"""The systems that are compared: a trained run, the run with swapped sources, and extractive systems (as served, and as
in the papers)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum import systems
from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.config.sections import LoadConfig
from raysum.data.rows import Row
from raysum.decode.citations import annotated
from raysum.decode.domain_shift import figures
from raysum.decode.summary import Summary
from raysum.errors import UserError
from raysum.extract.summarizer import WORDS, Extractor, extracted_summary, passages_of, take
from raysum.extract.systems import Extractive, Source
from raysum.prepare.row_builder import as_sentences
from raysum.runtime.progress import say
from raysum.text.sentences import sentence_spans

if TYPE_CHECKING:
    from raysum.decode.summarizer import Summarizer

_TERMS = ("beta", "extractive", "structural_coverage", "gnmt_coverage")  # weights of score terms


@dataclass(frozen=True)
class Trained:
    """A run's model: batched beam search, as `raysum summarize` does it. ``weights`` are of the terms it tries."""

    name: str
    summarizer: "Summarizer"
    settings: DecodeConfig
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def how(self) -> str:
        """The description for people."""
        weights = [f"{key} {value:g}" for key in _TERMS if (value := getattr(self.settings, key))]
        return ", ".join([f"beam search with {self.settings.num_beams} beams", *weights])

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        """Return one summary for each row; ``others`` are rows of other clusters, one for each row."""
        return self.summarizer.summarize_rows(rows, self.settings)


@dataclass(frozen=True)
class Watched(Trained):
    """A run that collects in ``seen`` the figures for :func:`raysum.decode.domain_shift.learn`."""

    seen: list[dict[str, float]] = field(default_factory=list)

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        found = super().summarize(rows, others)
        self.seen.extend(figures(one.support, one.attention) for one in found)
        return found


class Swapped(Trained):
    """The control: the same model with the row's own title but another cluster's paragraphs.

    What it still scores comes from the language and the title, not from reading.
    """

    @property
    def how(self) -> str:
        return f"control: {super().how}, over another cluster's sources under the own title"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        found = super().summarize([swap(row, other) for row, other in zip(rows, others, strict=True)], others)
        return [annotated(row, [part.text for part in one.sentences]) for row, one in zip(rows, found, strict=True)]


def swap(row: Row, other: Row) -> Row:
    """Return ``row`` with the paragraphs of ``other`` after its own title pieces."""
    own, foreign = row["title_tokens"], other["title_tokens"]
    given: Any = row
    mixed: Any = other | {key: given[key] for key in ("id", "title", "title_tokens", "summary", "target_ids", "extra")}
    mixed["ids"] = np.concatenate((row["ids"][:own], other["ids"][foreign:]))
    for offsets in ("paragraph_offsets", "sentence_offsets"):
        mixed[offsets] = mixed[offsets].copy()
        mixed[offsets][1:] += own - foreign
    return mixed


@dataclass(frozen=True)
class Extracted:
    """A system that extracts, as `raysum summarize` and `raysum serve` do it: whole sentences of what a row has of its
    documents, in their order."""

    system: Extractive
    settings: ExtractConfig = ExtractConfig()

    @classmethod
    def named(cls, name: str, config: LoadConfig | None = None) -> "Extracted":
        """The system ``name``, as it is served or, with the name of a paper's baseline, as in the papers.

        Raises UserError for a setting that it does not have.
        """
        extractor = Extractor.of(name.removesuffix(systems.PAPER), config or LoadConfig())
        kind = PaperBaseline if name in systems.paper_baseline_names() else cls
        if kind is PaperBaseline and extractor.settings.sentences:
            raise UserError(f"{name} is cut at a number of words: leave out sentences, or evaluate {extractor.name}")
        return kind(extractor.system, extractor.settings)

    @property
    def name(self) -> str:
        return self.system.name

    @property
    def how(self) -> str:
        """The description for people."""
        limits = [f"{count} {name}" for name in ("sentences", "words") if (count := getattr(self.settings, name))]
        redundancy = self.system.redundancy if self.settings.redundancy is None else self.settings.redundancy
        rule = "" if redundancy == 1 else f", redundancy {redundancy}"
        return f"whole sentences, the best first, {' and '.join(limits) or f'{WORDS} words'} at most{rule}"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        """One summary for each row."""
        return [self._summary(row) for row in rows]

    def _summary(self, row: Row) -> Summary:
        read = as_sentences(row)
        found, name, sources, reference = passages_of(read), row["id"], row["source"], row["summary"]
        return extracted_summary(
            self.system, self.settings, found, name=name, sources=sources, reference=reference, row=read
        )


class PaperBaseline(Extracted):
    """A system that extracts, as in the papers' tables: paragraphs, the best first (Lead with the title before them),
    cut at the reference's length in words, unless ``settings`` have another length."""

    @property
    def name(self) -> str:
        return f"{self.system.name}{systems.PAPER}"

    @property
    def how(self) -> str:
        length = f"{self.settings.words} words" if self.settings.words else "as long as the reference"
        return f"{self.system.how}, {length}"

    def _summary(self, row: Row) -> Summary:
        """In sentences, each cited to its paragraph; every text starts a new one."""
        read = as_sentences(row) if self.system.reads_sentences else row
        source = Source(read["text"], reference=row["summary"], row=read)
        words = self.settings.words or len(row["summary"].split())
        redundancy = 1.0 if self.settings.redundancy is None else self.settings.redundancy
        settings = ExtractConfig.model_construct(words=words, sentences=None, redundancy=redundancy)
        taken = take(self.system, source, settings, whole=False)
        texts: list[tuple[str, int | None]] = [(source.texts[number], _place(row, read, number)) for number in taken]
        return _cited(row, [*_cut([(row["title"], None)] * self.system.opens_with_title + texts, words)])


def _cut(texts: Iterable[tuple[str, int | None]], words: int) -> Iterator[tuple[str, int | None]]:
    """The sentences of ``texts``, each with the paragraph of its text, up to that many ``words``."""
    for text, place in texts:
        for start, end in sentence_spans(text):
            kept = text[start:end].split()[:words]
            words -= len(kept)
            if kept:
                yield " ".join(kept), place


def _cited(row: Row, found: Sequence[tuple[str, int | None]]) -> Summary:
    """The summary of ``row`` in sentences that cite a paragraph each, or none."""
    paid = np.zeros((len(found), len(row["text"])))
    for weights, (_, place) in zip(paid, found, strict=True):
        if place is not None:
            weights[place] = 1
    return annotated(row, [text for text, _ in found], [*paid], "attention")


def _place(row: Row, read: Row, number: int) -> int | None:
    """The paragraph of ``row`` that holds the text of that number in ``read``: the row, or its sentences."""
    if read is row:
        return number
    text, document = read["text"][number], read["document"][number]
    held = (m for m, one in enumerate(row["text"]) if row["document"][m] == document and text in one)
    return next(held, None)


System = Trained | Extracted


# Weights of a strategy's term, where the run has chosen none: the paper searches beta from 0.2 to 1; its code has 10
# for structural coverage.
WEIGHT, COVERAGE = 0.4, 10.0


def strategies(summarizer: "Summarizer") -> Iterator[Trained]:
    """The decoding strategies of the PHT paper's Table 2: ``plain`` beam search, then one with each term.

    Weights are the run's own where it has some; extProb goes with beta otherwise, as in the paper, where it has another
    eta_hat and nothing else. GNMT's coverage and compression are in no row. What is left out is said on stderr.
    """
    run, searcher = summarizer.settings, summarizer.searcher
    beta = run.beta or WEIGHT
    weights = {
        "structural_coverage": run.structural_coverage or COVERAGE,
        "extractive": run.extractive or beta,
        "beta": beta,
    }
    lacking = {}
    if searcher.ranker is None:
        lacking["extProb"] = "a learned ranker (`raysum train ranker data=DATA out=RANKER`, then --set ranker=RANKER)"
    if searcher.predictor is None:
        lacking["attAlign"] = f"an attention predictor (`raysum train alignment run={summarizer.name} data=DATA`)"
    plain = run.model_copy(update={**dict.fromkeys(weights, 0.0), "gnmt_coverage": 0.0, "keep_paragraphs": None})
    yield Trained("plain", summarizer, plain)
    for name, (key, weight) in zip(("strCov", "extProb", "attAlign"), weights.items(), strict=True):
        if name in lacking:
            say(f"without the row {name}: it needs {lacking[name]}")
        else:
            yield Trained(name, summarizer, plain.model_copy(update={key: weight}), {key: weight})
