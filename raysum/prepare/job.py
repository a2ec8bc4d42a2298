"""`raysum prepare`: write a complete dataset folder from sources, or nothing.

The same command resumes a killed one in its unfinished folder. A dataset for a store is written into the cache and
uploaded, the manifest last; its copy stays in the cache.
"""

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from raysum import __version__
from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.data.dataset import MANIFEST, REJECTED, VOCABULARY, Dataset
from raysum.data.recipe import read_recipe
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.models.systems.specs import BertSpec
from raysum.prepare.config import PrepareConfig
from raysum.prepare.sampling import find_boilerplate, train_vocabulary
from raysum.prepare.shards import NOTE, write_shards
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK
from raysum.runtime.progress import say
from raysum.runtime.remote import is_url, listed, local, upload, url_of, version
from raysum.runtime.remote_lock import leased
from raysum.runtime.rendering import Shown
from raysum.runtime.session import optional_session
from raysum.runtime.storage import check_vacant, new_folder, read_json, write_json, write_text
from raysum.sources.find import RawSource, content_hash, find_sources
from raysum.sources.pairing import unpaired
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.tokenizer import Tokenizer

_SAMPLE_ROWS = 1000  # that check the user's description of their shape
_SMALL = 8 << 20  # bytes of text that one core prepares in about 8 s, the start time of Ray
_JOB = "job.json"  # the inputs of the dataset in an unfinished folder, written after the vocabulary
_UPLOAD = ".made.json"  # the inputs of a complete dataset that is not yet uploaded, beside its folder
_IDLE = {"address", "max_rejected"}  # settings that change no row


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
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    check_out(config.out, paths)
    ranker = Run.open(config.ranker) if config.ranker_is_run else None
    pieces = config.vocab or (ranker and ranker.vocabulary)
    vocabulary = load_tokenizer(pieces, config.language) if pieces else None
    if vocabulary and vocabulary.pieces == BertSpec.PIECES and config.kind != "extraction":
        raise UserError(f"{config.vocab} is the vocabulary of a BERT, which labels sentences: add --kind extraction")
    raw_sources = _find_sources(paths, config)
    is_small = sum(source.size for source in raw_sources) <= _SMALL
    if is_small and (config.valid or config.test):
        unnamed = (source for source in raw_sources if source.split is None)
        config = config.drawn(record for source in unnamed for record in source.records())
    out_folder = local(config.out)
    staging = version(out_folder) if url_of(out_folder) else out_folder  # beside its copies in the cache
    job = _job_of(raw_sources, config, vocabulary, ranker)
    with leased(out_folder):
        if not _is_staged(staging, job):
            with (
                new_folder(staging, partial(_can_resume, job=job)) as folder,
                optional_session(config.address, config.address is not None or not is_small) as on_ray,
            ):
                writer = _writer(folder, raw_sources, config, vocabulary, ranker, on_ray)
                write_text(folder / _JOB, json.dumps(job))
                rejected_file = out_folder.with_name(f"{out_folder.name}.{REJECTED}")
                write_shards(raw_sources, writer, config, rejected_file, on_ray)
                (folder / _JOB).unlink()
        if url_of(staging):
            _publish(staging, job)
    return PrepareResult(Dataset.open(config.out), time.monotonic() - started)


def check_out(out: str, paths: Sequence[str | Path]) -> None:
    """Raises UserError if ``out`` is one of the sources at ``paths``, holds one, or is another existing folder or file.

    A folder on a store is checked when it is written.
    """
    folder, given = local(out), [local(path) for path in paths]
    if folder in given or (folder.is_file() and any(path in folder.parents for path in given)):
        raise UserError(f"{out} is a source; choose another --out")
    if held := [path for path, source in zip(paths, given, strict=True) if folder in source.parents]:
        raise UserError(f"{out} holds the source {held[0]}; choose another --out")
    if not is_url(out):
        check_vacant(folder)


def _find_sources(paths: list[str | Path], config: PrepareConfig) -> list[RawSource]:
    """Return the sources at ``paths`` and report what they leave unused."""
    mapping = config.mapping  # it collects the fields that the rows have
    sources = find_sources(paths, mapping)
    if mapping.unused_options():
        sampled = sum(1 for _ in islice(chain.from_iterable(source.records() for source in sources), _SAMPLE_ROWS))
        rows = f"the {sampled} rows looked at" if sampled == _SAMPLE_ROWS else "any row"
        for problem in mapping.unused_options():
            say(f"{problem} in {rows}")
        if message := mapping.joined_summaries():
            say(message)
    for message in unpaired(Path(path).expanduser() for path in paths):
        say(message)
    return sources


def _job_of(
    sources: list[RawSource], config: PrepareConfig, vocabulary: Tokenizer | None, ranker: Run | None
) -> dict[str, Any]:
    """Return all inputs of a dataset's rows: files with sizes and times, settings, version, vocabulary and ranker."""
    settings = config.model_dump(mode="json", exclude=_IDLE)
    pieces = vocabulary.sha256 if vocabulary else "trained"
    if ranker:
        weights = ranker.checkpoint().weights.stat()
        pieces += f" {weights.st_size} {weights.st_mtime_ns}"
    return {"version": __version__, "vocabulary": pieces, "settings": settings, "sources": content_hash(sources)}


def _can_resume(folder: Path, job: Mapping[str, Any]) -> bool:
    """Report and return whether an earlier start left a part of this ``job`` in ``folder``."""
    if not (folder / _JOB).is_file():
        return False
    try:
        earlier = read_json(folder / _JOB)
    except UserError:
        earlier = {}
    changed = [name for name in job if not isinstance(earlier, dict) or earlier.get(name) != job[name]]
    if changed:
        say(f"Cannot resume an earlier start with other {' and '.join(changed)}: starting over")
    else:
        shards = len([*folder.glob(f"*{NOTE}")])
        say(f"Resuming with the vocabulary{f' and {shards} finished shards' * (shards > 0)} of an earlier start")
    return not changed


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
    elif (folder / _JOB).exists():
        vocabulary = load_tokenizer(folder / VOCABULARY)
    else:
        vocabulary = train_vocabulary(sources, config, how, on_ray)
    recipe = config.recipe(vocabulary.sha256, how, ranker_sha256, find_boilerplate(sources, config, on_ray))
    return DatasetWriter(folder, config.kind, recipe, vocabulary)


def _is_staged(folder: Path, job: dict[str, Any]) -> bool:
    """Return whether ``folder`` holds the dataset of this ``job`` and only needs the upload; remove any other content.

    Raises UserError if the store already has other files there.
    """
    if (url := url_of(folder)) is None:
        return False
    files = listed(url).keys() - {LOCK}
    if MANIFEST in files:
        raise UserError(f"{url} exists already; remove it or choose another folder")
    job_file = folder.with_name(_UPLOAD)
    is_complete = (folder / MANIFEST).is_file() and job_file.is_file() and read_json(job_file) == job
    if files and not is_complete:
        if "config.yaml" in files:
            raise UserError(f"{url} is a run; choose another folder")
        problem = f"{url} has files but no {MANIFEST}: it is no dataset, or is incomplete"
        raise UserError(f"{problem}; remove it or choose another folder")
    if not is_complete:
        shutil.rmtree(folder, ignore_errors=True)
    return is_complete


def _publish(folder: Path, job: dict[str, Any]) -> None:
    """Upload the dataset in ``folder``. Raises UserError if that fails: the same command then uploads it again."""
    write_json(folder.with_name(_UPLOAD), job)
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    say(f"Uploading {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB to {url_of(folder)}")
    upload(folder, names)
    upload(folder, [MANIFEST])
    cached = version(folder.parent, (folder / MANIFEST).read_bytes())
    shutil.rmtree(cached, ignore_errors=True)
    folder.rename(cached)
    folder.with_name(_UPLOAD).unlink()
