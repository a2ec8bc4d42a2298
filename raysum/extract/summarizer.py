"""Extraction: raw text to some of its sentences, cited to the character. Needs neither torch nor Ray."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum import systems
from raysum.config.base import with_settings
from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.config.problems import changed, validate
from raysum.config.sections import LoadConfig
from raysum.decode.summary import Citation, NoSummary, Sentence, Summary, attempted, name_of
from raysum.errors import UserError
from raysum.extract.selection import Length, take
from raysum.extract.source_texts import SourceTexts
from raysum.extract.systems import Extractive, TrainedExtractive
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.passages import MAX_SENTENCES, passages
from raysum.runs.folder import Run
from raysum.sources.record import Rejected

if TYPE_CHECKING:
    from raysum.decode.summarizer import Summarizer

_NO_SPACE_AFTER = "。！？｡」』"  # marks at the end of sentences


@with_settings(DecodeConfig, ExtractConfig)
def load(
    run: str, checkpoint: str = "best", *, device: str | None = None, dtype: str | None = None, **decode: Any
) -> "Extractor | Summarizer":
    """Return a trained run, or ``lexrank``, ``lead`` or ``mmr``, ready to summarize raw text in this process, without
    Ray.

    ``checkpoint`` is ``best``, ``latest``, a step, or ``average:3``: the mean weights of the three best. ``device`` and
    ``dtype`` are as in :meth:`Summarizer.load`. Settings replace those of the run, which are the defaults. ``words``,
    ``sentences`` and ``redundancy`` apply to extractive systems and runs.
    Raises UserError if ``run`` is not a run folder with a complete checkpoint.

    >>> raysum.load("runs/pht").summarize("Florence", ["text of a document", "text of another"]).summary
    """
    values = {"checkpoint": checkpoint, "decode": decode} | ({} if dtype is None else {"dtype": dtype})
    return summarizer_of(run, validate(values, None, LoadConfig), device)


def summarizer_of(name: str, config: LoadConfig, device: str | None = None) -> "Extractor | Summarizer":
    """Return the summarizer of the run or system ``name``. Raises UserError if it lacks a setting of ``config``."""
    if extracts(name):
        return Extractor.of(name, config)
    run = Run.resolve(name)
    if run.config.model.extracts:
        return Extractor.trained(run, config, device)
    if unused := [key for key in ExtractConfig.model_fields if key in config.decode]:
        known = ", ".join(systems.extractive_names())
        raise UserError(
            f"{unused[0]} is for {known} and runs that extract; for this run, use --set max_length (tokens)"
        )
    from raysum.decode.summarizer import Summarizer

    return Summarizer.of(name, config, device)


def extracts(name: str | Path) -> bool:
    """Return whether ``name`` is an extractive system and not a folder."""
    return str(name) in systems.extractive_names() and not Path(name).exists()


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
                raise UserError(
                    f"{key}={getattr(config, key)} is for trained runs, and {name} is not trained; leave it out"
                )
        system = systems.extractive(name)
        return cls(system, changed(ExtractConfig(**system.settings), config.decode))

    @classmethod
    def trained(cls, run: Run, config: LoadConfig, device: str | None = None) -> "Extractor":
        """Return the extractive ``run``. Raises UserError if it lacks a setting of ``config``."""
        return cls(TrainedExtractive(run, config, device), changed(run.extract, config.decode))

    def choose(self, changes: Mapping[str, Any]) -> ExtractConfig:
        """Return the settings with ``changes``. Raises UserError if one is unknown or out of bounds."""
        return changed(self.settings, changes)

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
        return [
            attempted(lambda cluster, number: self.extract(cluster, self.settings, number), cluster, number)
            for number, cluster in enumerate(clusters, 1)
        ]

    def extract(self, cluster: Mapping[str, Any], settings: ExtractConfig, number: int = 1) -> Summary:
        """Summarize a raw cluster. A UserError names it by id, title or ``number``."""
        try:
            checked = read_cluster(cluster)
            if self.system.needs_reference and not checked.summaries:
                raise Rejected(f"{self.name} chooses by a reference, and it has no summary")
            prepared = self.system.row(cluster)
            summary = extracted_summary(self.system, settings, prepared or passage_row(checked)).located(cluster)
        except Rejected as reason:
            raise UserError(f"cluster {name_of(cluster, number)!r} cannot be summarized: {reason}") from None
        if not prepared or len(prepared["text"]) < MAX_SENTENCES:
            return summary
        warnings = [*summary.warnings, f"only the first {MAX_SENTENCES} sentences are read"]
        return summary.model_copy(update={"warnings": warnings})


def passage_row(cluster: Cluster) -> dict[str, Any]:
    """Return the columns of a row of kind extraction that :func:`extracted_summary` reads.

    Raises Rejected if there is no sentence.
    """
    if not (found := passages(cluster)):
        raise Rejected("no sentence in the documents")
    values = zip(*found, strict=True)
    columns = dict(zip(("document", "paragraph", "char_start", "char_end", "text"), values, strict=True))
    names, summary = [name for name, _ in cluster.documents], next(iter(cluster.summaries), "")
    return {"id": cluster.id, "title": cluster.title, "source": names, "summary": summary, **columns}


def extracted_summary(system: Extractive, settings: ExtractConfig, row: Mapping[str, Any]) -> Summary:
    """Return the summary of a row of kind extraction by the sentences that ``system`` takes, in their order.

    A summary that is longer than ``settings`` allow has a warning.
    """
    source = SourceTexts.of(row, system.readable if settings.readable is None else settings.readable)
    chosen, length = sorted(take(system, source, settings)), Length.of(settings, source)
    sentences, whole = list[Sentence](), ""
    for number, text in zip(chosen, source.printed(chosen), strict=True):
        whole += " " * (whole != "" and whole[-1] not in _NO_SPACE_AFTER)
        numbers = [number, *source.same_content(number)]
        cited = [Citation.of(row, each, 1 / len(numbers)) for each in numbers]
        span = {"start": len(whole), "end": len(whole) + len(text)}
        sentences.append(Sentence(text=text, citations=cited, support=1.0, **span))
        whole += text
    size = length.count(whole)
    too_long = f"no sentence has {length.limit} {length.unit} or fewer: this one has {size}"
    return Summary(
        id=row["id"],
        summary=whole,
        sentences=sentences,
        attention=[],
        score=0.0,
        support=100.0,
        warnings=[too_long] if size > length.limit else [],
    )
