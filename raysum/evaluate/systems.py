"""The compared systems: a trained run, the run with swapped sources, and extractive systems (as served, or as in the
papers)."""

from collections.abc import Iterator, Mapping, Sequence
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
from raysum.extract.selection import WORDS, take
from raysum.extract.source_texts import SourceTexts
from raysum.extract.summarizer import Extractor, extracted_summary
from raysum.extract.systems import Extractive
from raysum.prepare.row_builder import as_sentences
from raysum.runtime.progress import say
from raysum.text.sentences import sentence_spans

if TYPE_CHECKING:
    from raysum.decode.summarizer import Summarizer

_NONE = -1  # no paragraph
_TERMS = ("beta", "extractive", "structural_coverage", "gnmt_coverage")  # weights of score terms


@dataclass(frozen=True)
class Trained:
    """A run's model with batched beam search, as in `raysum summarize`. ``weights`` are those of its score terms.

    ``seen`` collects the figures of its summaries for :func:`raysum.decode.domain_shift.learn`.
    """

    name: str
    summarizer: "Summarizer"
    settings: DecodeConfig
    weights: Mapping[str, float] = field(default_factory=dict)
    seen: list[dict[str, float]] = field(default_factory=list)

    @property
    def how(self) -> str:
        """The description for people."""
        weights = [f"{key} {value:g}" for key in _TERMS if (value := getattr(self.settings, key))]
        rounded = [self.summarizer.dtype] if self.summarizer.dtype != "fp32" else []
        return ", ".join([f"beam search with {self.settings.num_beams} beams", *weights, *rounded])

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        """Return one summary for each row; ``others`` are rows of other clusters, one for each row."""
        summaries = self.summarizer.summarize_rows(rows, self.settings)
        self.seen.extend(figures(summary.support, summary.attention) for summary in summaries)
        return summaries


class Swapped(Trained):
    """The control: the same model with the row's own title but another cluster's paragraphs.

    Its scores come from the language and the title only.
    """

    @property
    def how(self) -> str:
        return f"control: {super().how}, over another cluster's sources under the own title"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        summaries = super().summarize([*map(swap, rows, others)], others)
        texts = ([sentence.text for sentence in summary.sentences] for summary in summaries)
        return [*map(annotated, rows, texts)]


def swap(row: Row, other: Row) -> Row:
    """Return ``row`` with the paragraphs of ``other`` after its own title pieces."""
    own, foreign = row["title_tokens"], other["title_tokens"]
    values: Any = row
    mixed: Any = other | {key: values[key] for key in ("id", "title", "title_tokens", "summary", "target_ids", "extra")}
    mixed["ids"] = np.concatenate((row["ids"][:own], other["ids"][foreign:]))
    for offsets in ("paragraph_offsets", "sentence_offsets"):
        mixed[offsets] = mixed[offsets].copy()
        mixed[offsets][1:] += own - foreign
    return mixed


@dataclass(frozen=True)
class Extracted:
    """An extractive system as in `raysum summarize` and `raysum serve`: whole sentences of the row, in their order.

    ``at_reference``: each summary has at most the number of words of its reference.
    """

    system: Extractive
    settings: ExtractConfig = ExtractConfig()
    at_reference: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)  # of score terms: none

    @classmethod
    def named(cls, name: str, config: LoadConfig | None = None) -> "Extracted":
        """Return the system ``name``: as served, or as in the papers if it is the name of a paper's baseline.

        Raises UserError if it lacks a setting of ``config``.
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
        limits = ["as many words as the reference"] if self.at_reference else limits
        redundancy = self.system.redundancy if self.settings.redundancy is None else self.settings.redundancy
        rule = "" if redundancy == 1 else f", redundancy {redundancy}"
        return f"whole sentences, the best first, {' and '.join(limits) or f'{WORDS} words'} at most{rule}"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        """Return one summary for each row."""
        return [self._summary(row) for row in rows]

    def _summary(self, row: Row) -> Summary:
        changes = {"words": max(1, len(row["summary"].split())), "sentences": None} if self.at_reference else {}
        return extracted_summary(self.system, self.settings.model_copy(update=changes), as_sentences(row))


class PaperBaseline(Extracted):
    """An extractive system as in the papers' tables: paragraphs, the best first (Lead begins with the title).

    It is cut at the number of words of the reference, unless ``settings`` have another length.
    """

    @property
    def name(self) -> str:
        return f"{self.system.name}{systems.PAPER}"

    @property
    def how(self) -> str:
        length = f"{self.settings.words} words" if self.settings.words else "as long as the reference"
        return f"{self.system.how}, {length}"

    def _summary(self, row: Row) -> Summary:
        """Return the summary in sentences, each with a citation of its paragraph; every text begins a new sentence."""
        texts_of = as_sentences(row) if self.system.reads_sentences else row
        source = SourceTexts(texts_of["text"], reference=row["summary"], row=texts_of)
        words = self.settings.words or len(row["summary"].split())
        redundancy = 1.0 if self.settings.redundancy is None else self.settings.redundancy
        settings = ExtractConfig.model_construct(words=words, sentences=None, redundancy=redundancy)
        taken = take(self.system, source, settings, whole=False)
        texts = [(source.texts[number], _paragraph(row, texts_of, number)) for number in taken]
        sentences, attention = list[str](), list[np.ndarray]()
        for text, paragraph in [(row["title"], _NONE)] * self.system.opens_with_title + texts:
            for start, end in sentence_spans(text):
                if chosen := text[start:end].split()[:words]:
                    words -= len(chosen)
                    sentences.append(" ".join(chosen))
                    attention.append((np.arange(len(row["text"])) == paragraph).astype(float))
        return annotated(row, sentences, attention, "attention")


def _paragraph(row: Row, texts_of: Row, number: int) -> int:
    """Return the paragraph of ``row`` with text ``number`` of ``texts_of``, which is the row or its sentences."""
    if texts_of is row:
        return number
    text, document = texts_of["text"][number], texts_of["document"][number]
    pairs = enumerate(zip(row["document"], row["text"], strict=True))
    return next((m for m, (own, paragraph) in pairs if own == document and text in paragraph), _NONE)


System = Trained | Extracted


# Weights of terms, if the run has none: the paper searches beta from 0.2 to 1; its code has 10 for structural coverage.
WEIGHT, COVERAGE = 0.4, 10.0


def strategies(summarizer: "Summarizer") -> Iterator[Trained]:
    """Yield the decoding strategies of the PHT paper's Table 2: ``plain`` beam search, then one with each term.

    Weights are those of the run, if any. The default of extProb is beta, because in the paper they differ only in
    eta_hat. No row has GNMT's coverage or compression. A message names the rows that are left out.
    """
    run = summarizer.settings
    beta = run.beta or WEIGHT
    weights = {
        "structural_coverage": run.structural_coverage or COVERAGE,
        "extractive": run.extractive or beta,
        "beta": beta,
    }
    lacking = {}
    if summarizer.ranker is None:
        lacking["extProb"] = "a learned ranker (`raysum train ranker data=DATA out=RANKER`, then --set ranker=RANKER)"
    if summarizer.predictor is None:
        lacking["attAlign"] = f"an attention predictor (`raysum train alignment run={summarizer.name} data=DATA`)"
    plain = run.model_copy(update={**dict.fromkeys(weights, 0.0), "gnmt_coverage": 0.0, "keep_paragraphs": None})
    yield Trained("plain", summarizer, plain)
    for name, (key, weight) in zip(("strCov", "extProb", "attAlign"), weights.items(), strict=True):
        if name in lacking:
            say(f"without the row {name}: it needs {lacking[name]}")
        else:
            yield Trained(name, summarizer, plain.model_copy(update={key: weight}), {key: weight})
