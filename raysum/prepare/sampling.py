"""Samples of the train split, read before the rows are made: text for the vocabulary, and repeated paragraphs.

Each source is sampled by one function call, on Ray by one task, so the driver of a large corpus parses no rows.
"""

import reprlib
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np

from raysum.errors import UserError
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.config import PrepareConfig
from raysum.prepare.paragraphs import Paragraph, paragraphs_of
from raysum.prepare.repeated import boilerplate, mark, paragraph_marks
from raysum.prepare.row_builder import IDS
from raysum.runtime.progress import bar, say
from raysum.sources.find import RawSource
from raysum.sources.record import Record, Rejected
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.sentence_piece import TextSample, Vocabulary

_BOILERPLATE_CLUSTERS = 5000  # sampled; with 525 paragraphs each they take half a minute and 50 MB
_Found = TypeVar("_Found")


def train_vocabulary(sources: list[RawSource], config: PrepareConfig, how: Normalization, on_ray: bool) -> Vocabulary:
    """Train the vocabulary of ``config`` on a sample of the train split. Raises UserError if no cluster is readable."""
    sample, readable, first_problem = TextSample(config.vocab_size), False, ""
    found = _each_source(partial(_sample_text, config=config), sources, on_ray)
    with bar(total=sum(source.size for source in sources), label="vocabulary", unit="B") as progress:
        for source, (part, is_readable, problem) in zip(sources, found, strict=True):
            sample.update(part)
            readable, first_problem = readable or is_readable, first_problem or problem
            progress.update(source.size)
    if first_problem and not readable:
        raise UserError(f"no cluster of the train split can be read; the first problem is {first_problem}")
    vocabulary = Vocabulary.train((normalize(line, how) for line in sample.lines()), config.vocab_size)
    if len(vocabulary) < config.vocab_size:
        say(f"The corpus has text for only {len(vocabulary)} of {config.vocab_size} pieces: the vocabulary is smaller")
    return vocabulary


def find_boilerplate(sources: list[RawSource], config: PrepareConfig, on_ray: bool) -> list[str] | None:
    """Report and return the marks of the boilerplate paragraphs; None if the config keeps boilerplate."""
    if config.boilerplate is None:
        return None
    sample = partial(_sample_paragraphs, config=config, most=-(-_BOILERPLATE_CLUSTERS // len(sources)))
    marks = boilerplate(
        chain.from_iterable(_each_source(partial(_sample_marks, sample=sample), sources, on_ray)), config.boilerplate
    )
    message = f"{len(marks)} paragraphs are boilerplate: they are in at least {config.boilerplate:.2%} of the clusters"
    if marks:
        paragraphs = chain.from_iterable(chain.from_iterable(map(sample, sources)))
        commonest = next(paragraph.text for paragraph in paragraphs if mark(paragraph.words) == marks[0])
        message += f", most often {reprlib.repr(commonest)}"
    say(message)
    return marks


def _each_source(work: Callable[[RawSource], _Found], sources: Iterable[RawSource], on_ray: bool) -> Iterator[_Found]:
    """Yield ``work(source)`` of each source in order, with one task per CPU at a time ``on_ray``."""
    if not on_ray:
        yield from map(work, sources)
        return
    import ray

    task: Any = ray.remote(num_cpus=1)(_reported)
    pending = deque[Any]()
    for source in sources:
        if len(pending) >= ray.cluster_resources()["CPU"]:
            yield _result(ray.get(pending.popleft()))
        pending.append(task.remote(work, source))
    while pending:
        yield _result(ray.get(pending.popleft()))


def _reported(work: Callable[[RawSource], _Found], source: RawSource) -> tuple[_Found | None, str, str]:
    """Return the result, the message of a UserError, and the traceback of another error.

    Ray cannot send an exception with invalid Unicode in its text and would wait forever.
    """
    try:
        return work(source), "", ""
    except UserError as error:
        return None, str(error), ""
    except Exception:
        return None, "", traceback.format_exc()


def _result(reported: tuple[_Found | None, str, str]) -> _Found:
    found, problem, fault = reported
    if problem:
        raise UserError(problem)
    if fault:
        raise RuntimeError(f"a task of prepare failed:\n{fault}")
    return found  # type: ignore[return-value]  # only a failure has none


def _sample_text(source: RawSource, config: PrepareConfig) -> tuple[TextSample, bool, str]:
    """Return a sample of a source's text, whether a cluster is readable, and the first problem of the others."""
    sample, readable, first_problem = TextSample(config.vocab_size), False, ""
    for record, cluster in _train_clusters(source, config):
        if isinstance(record.raw, dict) and IDS in record.raw:
            raise UserError(f"{source.name} holds ids, which need their own vocabulary: add --vocab FILE.model")
        if isinstance(cluster, Rejected):
            first_problem = first_problem or f"{record.where}: {cluster}"
        elif cluster:
            readable = True
            sample.add(cluster.id, [cluster.title, *cluster.summaries, *(text for _, text in cluster.documents)])
    return sample, readable, first_problem


def _train_clusters(source: RawSource, config: PrepareConfig) -> Iterator[tuple[Record, Cluster | Rejected | None]]:
    """Yield each record with its cluster or the reason of its rejection; None if it is in another split."""
    for record in source.records():
        try:
            cluster = read_cluster(record.cluster())
        except Rejected as reason:
            yield record, reason
            continue
        yield record, cluster if config.choose_split(record, source.split) == "train" else None


def _sample_paragraphs(source: RawSource, config: PrepareConfig, most: int) -> Iterator[list[Paragraph]]:
    """Yield the paragraphs of the first ``most`` clusters of the train split."""
    clusters = (cluster for _, cluster in _train_clusters(source, config) if isinstance(cluster, Cluster))
    for cluster in islice(clusters, most):
        yield [*paragraphs_of(cluster, config.paragraph_separator)]


def _sample_marks(source: RawSource, sample: Callable[[RawSource], Iterator[list[Paragraph]]]) -> list[np.ndarray]:
    return [paragraph_marks(paragraph.words for paragraph in paragraphs) for paragraphs in sample(source)]
