"""The public face of extraction: raw text to sentences of it, cited to the character. Needs neither torch nor Ray."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum import systems
from raysum.config.problems import validate
from raysum.config.sections import ExtractConfig, LoadConfig
from raysum.decode.summary import Citation, Sentence, Summary
from raysum.errors import UserError
from raysum.extract.passages import Passage, passages
from raysum.extract.systems import Extractive, Source, Taken
from raysum.metrics.tfidf import count_words
from raysum.prepare.pipeline import Cluster, read_cluster
from raysum.prepare.sources.record import Rejected

if TYPE_CHECKING:
    from raysum.decode.summarizer import Summarizer

WORDS, REDUNDANCY = 100, 0.7  # of a summary; cosine above which a sentence says what another one said
_TRIES = 1000  # texts in succession that are too long for what is left: the summary is full then


class Extractor:
    """An extractive system that summarizes raw clusters in sentences of theirs, which stand in the sources' order.

    >>> raysum.load("lexrank").summarize("Florence", ["text of a document", "text of another"], words=50).summary
    """

    def __init__(self, system: Extractive, settings: ExtractConfig):
        self.system, self.settings, self.name = system, settings, system.name

    @classmethod
    def of(cls, name: str, config: LoadConfig) -> "Extractor":
        """The system ``name``. Raises UserError for a setting that it does not have."""
        for key in ("checkpoint", "dtype"):
            if getattr(config, key) != LoadConfig.model_fields[key].default:
                raise UserError(f"{key}={getattr(config, key)} is for trained runs; nothing is trained of {name}")
        return cls(systems.extractive(name), extract_settings(config.decode))

    def choose(self, changes: Mapping[str, Any]) -> ExtractConfig:
        """The settings with ``changes``. Raises UserError where one is unknown or out of bounds."""
        return extract_settings(self.settings.model_dump() | dict(changes))

    def summarize(
        self, title: str = "", documents: list[str | dict[str, str]] | None = None, **settings: Any
    ) -> Summary:
        """The summary of one cluster; a document is its text, or ``{"source": name, "text": text}``.

        ``settings`` are those of :class:`ExtractConfig`, in place of what was loaded.
        Raises UserError where no sentence can be taken.
        """
        return self.extract({"title": title, "documents": documents}, self.choose(settings))

    def summarize_many(self, clusters: Iterable[Mapping[str, Any]], progress: bool = False) -> list[Summary]:
        """The summaries of raw clusters (``title``, ``documents`` or ``paragraphs``, ``id``), in their order.

        Raises UserError naming the first cluster of which no sentence can be taken.
        """
        return [self.extract(cluster, self.settings, number) for number, cluster in enumerate(clusters, 1)]

    def extract(self, cluster: Mapping[str, Any], settings: ExtractConfig, number: int = 1) -> Summary:
        """The summary of a raw cluster; ``number`` names it in the UserError if it has neither id nor title."""
        try:
            return self._extract(read_cluster(cluster), settings)
        except Rejected as reason:
            given = cluster if isinstance(cluster, Mapping) else {}
            name = given.get("id") or given.get("title") or number
            raise UserError(f"cluster {name!r} cannot be summarized: {reason}") from None

    def _extract(self, cluster: Cluster, settings: ExtractConfig) -> Summary:
        reference = next((summary for summary in cluster.summaries if summary.strip()), "")
        if self.system.needs_reference and not reference:
            raise Rejected(f"{self.name} chooses by a reference, and it has no summary")
        found = passages(cluster)
        if not found:
            raise Rejected("no sentence in the documents")
        source = Source([p.text for p in found], [p.document for p in found], reference)
        limit = WORDS if settings.words is None else settings.words
        redundancy = REDUNDANCY if settings.redundancy is None else settings.redundancy
        chosen = sorted(take(self.system, source, limit, redundancy))
        if not chosen:
            raise Rejected(f"none of its sentences has {limit} words or fewer; the shortest has {_shortest(source)}")
        return _write_up(cluster, [found[place] for place in chosen])


def extracts(name: str | Path) -> bool:
    """Whether ``name`` is a system that extracts, not a folder called so."""
    return str(name) in systems.extractive_names() and not Path(name).exists()


def load(name: str, checkpoint: str = "best", **settings: Any) -> "Extractor | Summarizer":
    """What :func:`raysum.load` gives."""
    if extracts(name):
        return Extractor.of(name, validate({"checkpoint": checkpoint, "decode": settings}, None, LoadConfig))
    from raysum.decode.summarizer import Summarizer

    return Summarizer.load(name, checkpoint=checkpoint, **settings)


def summarizer_of(name: str, config: LoadConfig) -> "Extractor | Summarizer":
    """The run or system ``name`` as ``config`` says. Raises UserError where it does not have such a setting."""
    if extracts(name):
        return Extractor.of(name, config)
    for key in ExtractConfig.model_fields:
        if key in config.decode:
            known = ", ".join(systems.extractive_names())
            raise UserError(f"{key} is for {known}; of a trained run, --set max_length tells the most tokens")
    from raysum.decode.summarizer import Summarizer

    return Summarizer.of(name, config)


def extract_settings(values: Mapping[str, Any]) -> ExtractConfig:
    """Raises UserError naming what is unknown or out of bounds."""
    if unknown := [key for key in values if key not in ExtractConfig.model_fields]:
        known = ", ".join(ExtractConfig.model_fields)
        raise UserError(f"{unknown[0]} is no setting of what takes sentences as they are, which has {known}")
    return validate(dict(values), None, ExtractConfig)


def take(system: Extractive, source: Source, most: int, redundancy: float) -> list[int]:
    """Numbers of whole texts, in the order of ``system``, that have ``most`` words together, at most.

    What is nearer than ``redundancy`` to a text that is taken is passed over (cross-sentence subsumption as in MEAD,
    Radev et al., 2004, by cosine); so is what is too long for the words left.
    """
    taken, left, too_long = Taken(source), most, 0
    for number in system.order(source, taken):
        length = count_words(source.texts[number])
        if length > left:
            too_long += 1
            if too_long == _TRIES and taken.numbers:
                break
        elif redundancy == 1 or taken.nearness()[number] <= redundancy:
            taken.numbers.append(number)
            left, too_long = left - length, 0
    return taken.numbers


def _shortest(source: Source) -> int:
    return min(map(count_words, source.texts))


def _write_up(cluster: Cluster, chosen: Sequence[Passage]) -> Summary:
    sentences = [
        Sentence(text=passage.text, citations=[_citation(cluster, passage)], support=1.0) for passage in chosen
    ]
    text = re.sub(r"(?<=[。！？｡」』]) ", "", " ".join(sentence.text for sentence in sentences))
    return Summary(id=cluster.id, summary=text, sentences=sentences, attention=[], score=0.0, support=100.0)


def _citation(cluster: Cluster, passage: Passage) -> Citation:
    return Citation(
        document=passage.document,
        paragraph=passage.paragraph,
        weight=1.0,
        source=cluster.documents[passage.document][0],
        quote=passage.quote,
        start=passage.start,
        end=passage.end,
    )
