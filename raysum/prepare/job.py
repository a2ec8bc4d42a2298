"""`raysum prepare`: sources and choices in, a complete dataset folder out, or nothing."""

import reprlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum import __version__
from raysum.config.loading import section_of
from raysum.config.signatures import with_settings
from raysum.data.dataset import REJECTED, VOCABULARY, Dataset
from raysum.data.recipe import read_recipe
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.models.specs.scorers import BertSpec
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.config import PrepareConfig
from raysum.prepare.paragraphs import Paragraph, paragraphs_of
from raysum.prepare.repeated import boilerplate, mark
from raysum.prepare.resume import begin, can_resume, is_begun, job_of
from raysum.prepare.row_builder import IDS
from raysum.prepare.shards import size_of, write_shards
from raysum.prepare.upload import is_made, making, publish
from raysum.runs.folder import Run
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import local
from raysum.runtime.remote_lock import leased
from raysum.runtime.rendering import Shown
from raysum.runtime.session import optional_session
from raysum.runtime.storage import new_folder
from raysum.sources.find import RawSource, find_sources
from raysum.sources.pairs import unpaired
from raysum.sources.record import Record, Rejected
from raysum.sources.shape import Shape
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.sentence_piece import Vocabulary, sample_texts
from raysum.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tqdm import tqdm

_LOOKED = 1000  # rows, for what a user says of their shape
_COUNTED = 5000  # clusters of which boilerplate is learned: with 525 paragraphs each it takes half a minute and 50 MB
_SMALL = 8 << 20  # bytes of text: one core prepares them in some 8 s, which Ray would take to start


@dataclass(frozen=True)
class PrepareResult(Shown):
    """The dataset that was made, and how long it took."""

    dataset: Dataset
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """``data`` (the path), ``seconds``, ``rows_in``, ``rows``, ``rejected`` by reason, ``splits``, ``pieces``, and
        ``words_kept``, a share of the sources' words."""
        manifest = self.dataset.manifest
        return {
            "data": self.dataset.place,
            "seconds": round(self.seconds, 2),
            **{name: manifest[name] for name in ("rows_in", "rows", "rejected", "words_kept")},
            "splits": {split: self.dataset.rows(split) for split in self.dataset.splits},
            "pieces": manifest["pieces"],
        }

    def render(self) -> str:
        return "\n".join(f"{key}: {value}" for key, value in self.to_dict().items())


@with_settings(PrepareConfig)
def prepare(sources: str | Path | Iterable[str | Path], out: str | Path, **settings: Any) -> PrepareResult:
    """Make the dataset ``out`` of files and folders of raw clusters: large ones on Ray, if it starts.

    Without ``vocab`` one is trained on the train split, ``normalize`` is by default what the vocabulary needs; a run as
    ``ranker`` brings both, and is kept beside the vocabulary. ``map`` may be a dict: ``{"documents": ["r1", "r2"]}``.
    ``valid`` and ``test`` are the shares of clusters of no named split that are held out, by their hashed ids; of up to
    8 MiB of text the numbers are exact. ``out`` appears complete, by
    renaming. The same call goes on where a killed one was.
    Raises UserError for a mistake in sources or settings; nothing is then made.

    >>> raysum.prepare(["clusters.jsonl"], "data", max_paragraphs=10).dataset.rows("train")
    """
    began, config = time.monotonic(), section_of(PrepareConfig, {**settings, "out": str(out)})
    ranker = Run.open(config.ranker) if config.ranker_is_run else None
    pieces = config.vocab or (ranker and ranker.vocabulary)
    given = Tokenizer.load(pieces, config.language) if pieces else None
    if given and given.pieces == BertSpec.PIECES and config.kind != "extraction":
        raise UserError(f"{config.vocab} is a bert's, which labels sentences: give --kind extraction, too")
    shape = config.shape
    named = [sources] if isinstance(sources, str | Path) else list(sources)
    found = find_sources(named, shape)
    _say_idle(found, shape)
    for told in unpaired(Path(name).expanduser() for name in named):
        say(told)
    for source in found:
        if local(source.name) == local(config.out):
            raise UserError(f"{config.out} is a source; choose another --out")
    is_small = sum(source.size for source in found) <= _SMALL
    if is_small and (config.valid or config.test):
        config = config.drawn(record for source in found if source.split is None for record in source.records())
    path = local(config.out)
    place, job = making(path), job_of(found, config, __version__, " ".join(_given(given, ranker)) or "trained")
    with leased(path):
        if not is_made(place, job):
            with new_folder(place, partial(can_resume, job=job)) as folder:
                writer = _writer(folder, found, config, given, ranker)
                begin(folder, job)
                with optional_session(config.address, config.address is not None or not is_small) as on_ray:
                    write_shards(found, writer, config, path.with_name(f"{path.name}.{REJECTED}"), on_ray)
        publish(place, job)
    return PrepareResult(Dataset.open(config.out), time.monotonic() - began)


def _writer(
    folder: Path, found: list[RawSource], config: PrepareConfig, given: Tokenizer | None, ranker: Run | None
) -> DatasetWriter:
    """What makes the dataset in ``folder``, once the vocabulary is trained that was not ``given``."""
    how = config.normalize or (given.suggested_normalization() if given else "none")
    ranker_sha256 = None
    if ranker and given:
        from raysum.prepare.learned import keep_ranker  # loads torch

        how = config.normalize or read_recipe(ranker.recipe, str(ranker.path)).normalize
        ranker_sha256 = keep_ranker(ranker, given, folder)
    former = folder / VOCABULARY if is_begun(folder) else None
    vocabulary = given or (Tokenizer.load(former) if former else _train_vocabulary(found, config, how))
    recipe = config.recipe(vocabulary.sha256, how, ranker_sha256, _boilerplate(found, config))
    return DatasetWriter(folder, config.kind, recipe, vocabulary)


def _say_idle(sources: list[RawSource], shape: Shape) -> None:
    """A line for each setting of ``shape`` that is of no use in the first rows."""
    if shape.idle():
        looked = sum(1 for _ in islice(chain.from_iterable(source.records() for source in sources), _LOOKED))
        for told in shape.idle():
            say(f"{told} in the {looked} rows looked at" if looked == _LOOKED else f"{told} in any row")
        if told := shape.joined_summaries():
            say(told)


def _given(vocabulary: Tokenizer | None, ranker: Run | None) -> Iterator[str]:
    """What tells the vocabulary and the weights of the ranker from others."""
    if vocabulary:
        yield vocabulary.sha256
    if ranker:
        told = ranker.checkpoint().weights.stat()
        yield f"{told.st_size} {told.st_mtime_ns}"


def _train_vocabulary(sources: list[RawSource], config: PrepareConfig, how: Normalization) -> Vocabulary:
    with bar(total=sum(source.size for source in sources), label="vocabulary", unit="B") as shown:
        sample = sample_texts(_train_texts(sources, config, shown), config.pieces)
    vocabulary = Vocabulary.train((normalize(text, how) for text in sample), config.pieces)
    if len(vocabulary) < config.pieces:
        say(f"The corpus gives {len(vocabulary)} pieces, not {config.pieces}: the vocabulary is that small")
    return vocabulary


def _train_texts(
    sources: list[RawSource], config: PrepareConfig, shown: "tqdm[Any]"
) -> Iterator[tuple[str, list[str]]]:
    """Id and texts of each readable cluster of the train split; the others are left to the job, which counts them.

    Raises UserError where there are only others.
    """
    readable, first = False, ""
    for source in sources:
        end = shown.n + source.size
        for record, cluster in _train_clusters(source, config):
            shown.update(min(record.size or size_of(record.raw), end - shown.n))
            if isinstance(record.raw, dict) and IDS in record.raw:
                raise UserError(f"{source.name} holds ids; they need the vocabulary that made them: --vocab FILE.model")
            if isinstance(cluster, Rejected):
                first = first or f"{record.where}: {cluster}"
            elif cluster:
                readable = True
                yield cluster.id, [cluster.title, *cluster.summaries, *(text for _, text in cluster.documents)]
        shown.update(end - shown.n)
    if first and not readable:
        raise UserError(f"no cluster of the train split can be read; the first that cannot is {first}")


def _train_clusters(source: RawSource, config: PrepareConfig) -> Iterator[tuple[Record, Cluster | Rejected | None]]:
    """Each record's cluster, or why it cannot be read; None where it is of another split."""
    for record in source.records():
        try:
            cluster = read_cluster(record.cluster())
        except Rejected as reason:
            yield record, reason
            continue
        yield record, cluster if config.choose_split(record, source.split) == "train" else None


def _boilerplate(sources: list[RawSource], config: PrepareConfig) -> list[str] | None:
    """The marks of the paragraphs that stand in too many clusters, as the config has it; how many is said."""
    if config.boilerplate is None:
        return None
    marks = boilerplate(([p.words for p in found] for found in _counted(sources, config)), config.boilerplate)
    told = f"{len(marks)} paragraphs are boilerplate: they stand in {config.boilerplate:.2%} of the clusters or more"
    if marks:
        one = next(p.text for found in _counted(sources, config) for p in found if mark(p.words) == marks[0])
        told += f", most of all {reprlib.repr(one)}"
    say(told)
    return marks


def _counted(sources: list[RawSource], config: PrepareConfig) -> Iterator[list[Paragraph]]:
    """The paragraphs of each of the first clusters of the train split, as many of each source."""
    for source in sources:
        found = (cluster for _, cluster in _train_clusters(source, config) if isinstance(cluster, Cluster))
        for cluster in islice(found, -(-_COUNTED // len(sources))):
            yield [*paragraphs_of(cluster, config.parted_by)]
