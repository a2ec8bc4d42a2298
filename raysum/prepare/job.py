"""`raysum prepare`: write a complete dataset folder from sources, or nothing."""

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
from raysum.models.systems.specs import BertSpec
from raysum.prepare.config import PrepareConfig
from raysum.prepare.resume import begin, can_resume, is_begun, job_of
from raysum.prepare.sampling import find_boilerplate, train_vocabulary
from raysum.prepare.shards import write_shards
from raysum.prepare.upload import is_staged, publish, staging_folder
from raysum.runs.folder import Run
from raysum.runtime.progress import say
from raysum.runtime.remote import local
from raysum.runtime.remote_lock import leased
from raysum.runtime.rendering import Shown
from raysum.runtime.session import optional_session
from raysum.runtime.storage import new_folder
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import RawSource, find_sources
from raysum.sources.published import unpaired
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    pass

_SAMPLE_ROWS = 1000  # that check the user's description of their shape
_SMALL = 8 << 20  # bytes of text that one core prepares in about 8 s, the start time of Ray


@dataclass(frozen=True)
class PrepareResult(Shown):
    """The new dataset, and the time it took."""

    dataset: Dataset
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return ``data`` (the path), ``seconds``, ``rows_in``, ``rows``, ``rejected`` by reason, ``splits``,
        ``pieces`` and ``words_kept``, a share of the sources' words."""
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
    """Make the dataset ``out`` from files and folders of raw clusters; large ones are prepared on Ray, if it starts.

    Without ``vocab``, a vocabulary is trained on the train split, and ``normalize`` defaults to its normalization.
    A run as ``ranker`` provides both, and is stored beside the vocabulary. ``map`` may be a dict:
    ``{"documents": ["r1", "r2"]}``. ``valid`` and ``test`` are shares of the clusters without a named split; the hashes
    of their ids decide, and up to 8 MiB of text the numbers are exact. The complete ``out`` appears at once. The same
    call resumes a killed one.
    Raises UserError for a mistake in sources or settings, and then makes nothing.

    >>> raysum.prepare(["clusters.jsonl"], "data", max_paragraphs=10).dataset.rows("train")
    """
    started, config = time.monotonic(), section_of(PrepareConfig, {**settings, "out": str(out)})
    ranker = Run.open(config.ranker) if config.ranker_is_run else None
    pieces = config.vocab or (ranker and ranker.vocabulary)
    vocabulary = load_tokenizer(pieces, config.language) if pieces else None
    if vocabulary and vocabulary.pieces == BertSpec.PIECES and config.kind != "extraction":
        raise UserError(f"{config.vocab} is the vocabulary of a BERT, which labels sentences: add --kind extraction")
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    mapping = config.mapping  # it collects the fields that the rows have
    raw_sources = find_sources(paths, mapping)
    _report_unused(raw_sources, mapping)
    for message in unpaired(Path(path).expanduser() for path in paths):
        say(message)
    for source in raw_sources:
        if local(source.name) == local(config.out):
            raise UserError(f"{config.out} is a source; choose another --out")
    is_small = sum(source.size for source in raw_sources) <= _SMALL
    if is_small and (config.valid or config.test):
        unnamed = (source for source in raw_sources if source.split is None)
        config = config.drawn(record for source in unnamed for record in source.records())
    out_folder = local(config.out)
    staging = staging_folder(out_folder)
    job = job_of(raw_sources, config, __version__, " ".join(_identity(vocabulary, ranker)) or "trained")
    with leased(out_folder):
        if not is_staged(staging, job):
            with (
                new_folder(staging, partial(can_resume, job=job)) as folder,
                optional_session(config.address, config.address is not None or not is_small) as on_ray,
            ):
                writer = _writer(folder, raw_sources, config, vocabulary, ranker, on_ray)
                begin(folder, job)
                rejected_file = out_folder.with_name(f"{out_folder.name}.{REJECTED}")
                write_shards(raw_sources, writer, config, rejected_file, on_ray)
        publish(staging, job)
    return PrepareResult(Dataset.open(config.out), time.monotonic() - started)


def _writer(
    folder: Path,
    sources: list[RawSource],
    config: PrepareConfig,
    given: Tokenizer | None,
    ranker: Run | None,
    on_ray: bool,
) -> DatasetWriter:
    """Return the writer of the dataset in ``folder``; train a vocabulary if none is ``given``."""
    how = config.normalize or (given.suggested_normalization() if given else "none")
    ranker_sha256 = None
    if ranker and given:
        from raysum.prepare.learned import keep_ranker  # loads torch

        how = config.normalize or read_recipe(ranker.recipe, str(ranker.path)).normalize
        ranker_sha256 = keep_ranker(ranker, given, folder)
    if given is not None:
        vocabulary = given
    elif is_begun(folder):
        vocabulary = load_tokenizer(folder / VOCABULARY)
    else:
        vocabulary = train_vocabulary(sources, config, how, on_ray)
    recipe = config.recipe(vocabulary.sha256, how, ranker_sha256, find_boilerplate(sources, config, on_ray))
    return DatasetWriter(folder, config.kind, recipe, vocabulary)


def _report_unused(sources: list[RawSource], mapping: FieldMapping) -> None:
    """Report each setting of ``mapping`` that has no effect in the first rows."""
    if mapping.unused_options():
        sampled = sum(1 for _ in islice(chain.from_iterable(source.records() for source in sources), _SAMPLE_ROWS))
        rows = f"the {sampled} rows looked at" if sampled == _SAMPLE_ROWS else "any row"
        for problem in mapping.unused_options():
            say(f"{problem} in {rows}")
        if message := mapping.joined_summaries():
            say(message)


def _identity(vocabulary: Tokenizer | None, ranker: Run | None) -> Iterator[str]:
    """Yield the identities of the vocabulary and of the ranker's weights."""
    if vocabulary:
        yield vocabulary.sha256
    if ranker:
        weights = ranker.checkpoint().weights.stat()
        yield f"{weights.st_size} {weights.st_mtime_ns}"
