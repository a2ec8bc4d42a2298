"""Extraction: raw text to some of its sentences, cited to the character. Needs neither torch nor Ray."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum import systems
from raysum.config.decoding import ExtractConfig
from raysum.config.problems import did_you_mean, validate
from raysum.config.sections import LoadConfig
from raysum.decode.summary import Citation, NoSummary, Sentence, Summary, attempted, name_of
from raysum.errors import UserError
from raysum.extract.systems import Extractive, SourceTexts, Taken
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.passages import MAX_SENTENCES, Passage, passages
from raysum.runs.folder import Run
from raysum.sources.record import Rejected
from raysum.text.tfidf import count_words

if TYPE_CHECKING:
    from raysum.data.rows import Row

WORDS = 100  # of a summary
_TOLERANCE = 1.2  # times the limit of words that the only sentence of a summary may have, if none is shorter
_TRIES = 1000  # consecutive texts that are too long; then the summary is full


class Extractor:
    """A system or a trained run that summarizes a raw cluster by some of its sentences, in their order.

    >>> raysum.load("lexrank").summarize("Florence", ["text of a document", "text of another"], words=50).summary
    """

    def __init__(self, system: Extractive, settings: ExtractConfig):
        self.system, self.settings, self.name = system, settings, system.name

    @classmethod
    def of(cls, name: str, config: LoadConfig) -> "Extractor":
        """Return the system ``name``. Raises UserError if it lacks a setting of ``config``."""
        for key in ("checkpoint", "dtype"):
            if getattr(config, key) != LoadConfig.model_fields[key].default:
                raise UserError(f"{key}={getattr(config, key)} is for trained runs; nothing is trained of {name}")
        system = systems.extractive(name)
        return cls(system, extract_settings(ExtractConfig(**system.settings).changed(config.decode)))

    @classmethod
    def trained(cls, run: Run, config: LoadConfig, device: str | None = None) -> "Extractor":
        """Return the extractive ``run``. Raises UserError if it lacks a setting of ``config``."""
        from raysum.extract.trained import TrainedExtractive

        return cls(TrainedExtractive(run, config, device), extract_settings(run.extract.changed(config.decode)))

    def choose(self, changes: Mapping[str, Any]) -> ExtractConfig:
        """Return the settings with ``changes``. Raises UserError if one is unknown or out of bounds."""
        return extract_settings(self.settings.changed(changes))

    def summarize(
        self, title: str = "", documents: list[str | dict[str, str]] | None = None, **settings: Any
    ) -> Summary:
        """Summarize one cluster; a document is its text, or ``{"source": name, "text": text}``.

        ``settings`` of :class:`ExtractConfig` replace those of ``load``. Raises UserError if there is no sentence.
        """
        return self.extract({"title": title, "documents": documents}, self.choose(settings))

    def summarize_many(self, clusters: Iterable[Mapping[str, Any]], progress: bool = False) -> list[Summary]:
        """Summarize raw clusters (``title``, ``documents`` or ``paragraphs``, ``id``), in their order.

        Raises UserError with the name of the first cluster without a sentence.
        """
        return [self.extract(cluster, self.settings, number) for number, cluster in enumerate(clusters, 1)]

    def summarize_each(
        self, clusters: Iterable[Mapping[str, Any]], progress: bool = False
    ) -> list[Summary | NoSummary]:
        """Summarize raw clusters, with a :class:`NoSummary` for each cluster without a sentence."""

        def summarize(cluster: Mapping[str, Any], number: int) -> Summary:
            return self.extract(cluster, self.settings, number)

        return [attempted(summarize, cluster, number) for number, cluster in enumerate(clusters, 1)]

    def extract(self, cluster: Mapping[str, Any], settings: ExtractConfig, number: int = 1) -> Summary:
        """Summarize a raw cluster. A UserError names it by id, title or ``number``."""
        try:
            return self._extract(read_cluster(cluster), settings).located(cluster)
        except Rejected as reason:
            raise UserError(f"cluster {name_of(cluster, number)!r} cannot be summarized: {reason}") from None

    def _extract(self, cluster: Cluster, settings: ExtractConfig) -> Summary:
        reference = next((summary for summary in cluster.summaries if summary.strip()), "")
        if self.system.needs_reference and not reference:
            raise Rejected(f"{self.name} chooses by a reference, and it has no summary")
        row = self.system.row(cluster.raw)
        sentences = passages(cluster) if row is None else passages_of(row)
        if not sentences:
            raise Rejected("no sentence in the documents")
        names = [name for name, _ in cluster.documents]
        options: dict[str, Any] = {"name": cluster.id, "sources": names, "reference": reference, "row": row}
        summary = extracted_summary(self.system, settings, sentences, **options)
        if row is None or len(sentences) < MAX_SENTENCES:
            return summary
        warnings = [*summary.warnings, f"only the first {MAX_SENTENCES} sentences are read"]
        return summary.model_copy(update={"warnings": warnings})


def extracts(name: str | Path) -> bool:
    """Return whether ``name`` is an extractive system and not a folder."""
    return str(name) in systems.extractive_names() and not Path(name).exists()


def extract_settings(values: Mapping[str, Any]) -> ExtractConfig:
    """Return the validated settings. Raises UserError if a key is unknown or a value is out of bounds."""
    if unknown := [key for key in values if key not in ExtractConfig.model_fields]:
        known = ", ".join(ExtractConfig.model_fields)
        near = did_you_mean(unknown[0], ExtractConfig.model_fields)
        raise UserError(f"{unknown[0]} is not a setting of extractive systems; {near}use one of {known}")
    return validate(dict(values), None, ExtractConfig)


def take(system: Extractive, source: SourceTexts, settings: ExtractConfig, whole: bool = True) -> list[int]:
    """Return the numbers of the texts that ``system`` takes, in its order, within the limits of ``settings``.

    A text is skipped if it repeats one that is taken (cross-sentence subsumption as in MEAD, Radev et al., 2004, by
    cosine, or by trigrams, Paulus et al., 2018), or if it has more words than the limit still allows. If every text
    has more words than the limit, the best of those up to 20 % above it is taken; if there is none, the shortest.
    Unless ``whole``, no text is too long, and words are separated by spaces: the caller cuts the last text.
    """
    redundancy = system.redundancy if settings.redundancy is None else settings.redundancy
    limit, most = most_words(settings), settings.sentences or len(source.texts)
    taken, left = Taken(source), limit
    too_long: list[int] = []
    for number in system.ordered(source, taken, redundancy):
        length = count_words(source.texts[number]) if whole else len(source.texts[number].split())
        if whole and length > left:
            too_long.append(number)
            if len(too_long) >= _TRIES and taken.numbers:
                break
        elif not taken.repeats(number, redundancy):
            taken.numbers.append(number)
            left, too_long = left - length, []
            if left <= 0 or len(taken.numbers) == most:
                break
    if not taken.numbers and too_long:
        lengths = {number: count_words(source.texts[number]) for number in too_long}
        best = next((number for number, length in lengths.items() if length <= _TOLERANCE * limit), None)
        return [min(lengths, key=lengths.__getitem__) if best is None else best]
    return taken.numbers


def most_words(settings: ExtractConfig) -> int:
    """Return the most words of a summary."""
    return settings.words or (sys.maxsize if settings.sentences else WORDS)


def passages_of(row: "Row") -> list[Passage]:
    """Return the sentences of a row of kind extraction."""
    columns = (row["document"], row["paragraph"], row["char_start"], row["char_end"], row["text"])
    return [
        Passage(int(d), int(p), int(start), int(end), text, True)
        for d, p, start, end, text in zip(*columns, strict=True)
    ]


def extracted_summary(
    system: Extractive,
    settings: ExtractConfig,
    passages: Sequence[Passage],
    *,
    name: str,
    sources: Sequence[str],
    reference: str = "",
    row: Any = None,
) -> Summary:
    """Return the summary of the cluster ``name`` made of the ``passages`` that ``system`` takes, in their order.

    ``sources`` are the names of the documents. A summary of more words than ``settings`` allow has a warning.
    """
    source = SourceTexts(
        [passage.text for passage in passages], [passage.document for passage in passages], reference, row
    )
    chosen = [passages[number] for number in sorted(take(system, source, settings))]
    sentences = [
        Sentence(text=passage.text, citations=[_citation(sources, passage)], support=1.0) for passage in chosen
    ]
    text = re.sub(r"(?<=[。！？｡」』]) ", "", " ".join(sentence.text for sentence in sentences))
    limit, length = most_words(settings), sum(count_words(passage.text) for passage in chosen)
    too_long = f"no sentence has {limit} words or fewer: this one has {length}"
    return Summary(
        id=name,
        summary=text,
        sentences=sentences,
        attention=[],
        score=0.0,
        support=100.0,
        warnings=[too_long] if length > limit else [],
    )


def _citation(sources: Sequence[str], passage: Passage) -> Citation:
    return Citation(
        document=passage.document,
        paragraph=passage.paragraph,
        weight=1.0,
        source=sources[passage.document],
        quote=passage.quote,
        start=passage.start,
        end=passage.end,
    )
