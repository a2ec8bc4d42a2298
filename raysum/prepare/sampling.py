"""Samples of the train split, read before the rows are made: text for the vocabulary, and repeated paragraphs.

Each source is sampled by one function call, on Ray by one task, so the driver of a large corpus parses no rows.
"""

import heapq
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np

from raysum.errors import UserError
from raysum.prepare.cluster import IDS, Cluster, read_cluster
from raysum.prepare.config import PrepareConfig, hash_of
from raysum.prepare.paragraphs import Paragraph, mark, paragraphs_of
from raysum.runtime.failures import Failure
from raysum.runtime.progress import bar, say
from raysum.sources.find import RawSource, in_groups
from raysum.sources.record import Record, Rejected
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.sentence_piece import Vocabulary

_SAMPLE_CHARACTERS = 1000  # of training text for each piece: 32,000 pieces train in some 5 s of one core
_EXAMPLE_CHARACTERS = 20_000  # of one example, at most, so that a few huge clusters cannot fill the sample
_BOILERPLATE_CLUSTERS = 5000  # sampled; with 525 paragraphs each they take half a minute and 50 MB
_MIN_CLUSTERS = 5  # that contain a boilerplate paragraph
_MAX_MARKS = 2000  # most frequent paragraphs of boilerplate: 40 kB of the recipe
_Found = TypeVar("_Found")


class TextSample:
    """A sample of examples to train ``size`` pieces, in bounded memory.

    It holds the examples with the smallest hashes of their ids, until it has 1,000 characters per piece. So it covers
    the corpus evenly, does not depend on its order, and can be merged from samples of the corpus's parts.
    """

    def __init__(self, size: int):
        self._budget, self._num_characters = size * _SAMPLE_CHARACTERS, 0
        self.heap: list[tuple[float, str, str]] = []  # (negative hash, id, text), the largest hash on top

    def add(self, id: str, texts: Iterable[str]) -> None:
        self._push((-hash_of(id), id, "\n".join(texts)[:_EXAMPLE_CHARACTERS]))

    def update(self, other: "TextSample") -> None:
        """Add the examples of another sample of the same size."""
        for example in other.heap:
            self._push(example)

    def lines(self) -> list[str]:
        """Return the lines of the sampled texts that are not empty, in the order of the hashes."""
        return [line for *_, text in sorted(self.heap, reverse=True) for line in text.splitlines() if line.strip()]

    def _push(self, example: tuple[float, str, str]) -> None:
        heapq.heappush(self.heap, example)
        self._num_characters += len(example[2])
        while self._num_characters - len(self.heap[0][2]) >= self._budget:
            self._num_characters -= len(heapq.heappop(self.heap)[2])


def train_vocabulary(sources: list[RawSource], config: PrepareConfig, how: Normalization, on_ray: bool) -> Vocabulary:
    """Train the vocabulary of ``config`` on a sample of the train split. Raises UserError if no cluster is readable."""
    sample, first_problem = TextSample(config.vocab_size), ""
    found = _each_source(partial(_sample_text, config=config), sources, on_ray)
    with bar(total=sum(source.size for source in sources), label="vocabulary", unit="B") as progress:
        for source, (part, problem) in zip(sources, found, strict=True):
            sample.update(part)
            first_problem = first_problem or problem
            progress.update(source.size)
    if first_problem and not sample.heap:
        raise UserError(f"no cluster of the train split can be read; the first problem is {first_problem}")
    vocabulary = Vocabulary.train((normalize(line, how) for line in sample.lines()), config.vocab_size)
    if len(vocabulary) < config.vocab_size:
        say(f"The corpus has text for only {len(vocabulary)} of {config.vocab_size} pieces: the vocabulary is smaller")
    return vocabulary


def find_boilerplate(sources: list[RawSource], config: PrepareConfig, on_ray: bool) -> list[str] | None:
    """Report and return the marks of the boilerplate paragraphs; None if the config keeps boilerplate."""
    if config.boilerplate is None:
        return None
    separator, most = config.paragraph_separator, -(-_BOILERPLATE_CLUSTERS // len(sources))

    def sample(source: RawSource) -> Iterator[list[Paragraph]]:
        clusters = (cluster for _, cluster in _train_clusters(source, config) if isinstance(cluster, Cluster))
        return ([*paragraphs_of(cluster, separator)] for cluster in islice(clusters, most))

    def marks_of(source: RawSource) -> list[np.ndarray]:
        return [paragraph_marks(paragraph.words for paragraph in paragraphs) for paragraphs in sample(source)]

    marks = boilerplate(chain.from_iterable(_each_source(marks_of, sources, on_ray)), config.boilerplate)
    message = f"{len(marks)} paragraphs are boilerplate: they are in at least {config.boilerplate:.2%} of the clusters"
    if marks:
        paragraphs = chain.from_iterable(chain.from_iterable(map(sample, sources)))
        commonest = next(paragraph.text for paragraph in paragraphs if mark(paragraph.words) == marks[0])
        message += f", most often {reprlib.repr(commonest)}"
    say(message)
    return marks


def boilerplate(clusters: Iterable[np.ndarray], share: float) -> list[str]:
    """Return the marks that are in at least a ``share`` (0 to 1) of the clusters, and in at least five clusters.

    ``clusters`` are the results of :func:`paragraph_marks`. The most frequent come first, at most 2,000.
    """
    parts = list(clusters)
    marks, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MAX_MARKS]
    return [f"{marks[at]:016x}" for at in order if counts[at] >= max(_MIN_CLUSTERS, share * len(parts))]


def paragraph_marks(cluster: Iterable[Sequence[str]]) -> np.ndarray:
    """Return the distinct marks of a cluster's paragraphs, which are lists of words, as numbers."""
    return np.unique(np.array([int(mark(words), 16) for words in cluster], np.uint64))


def _each_source(work: Callable[[RawSource], _Found], sources: Iterable[RawSource], on_ray: bool) -> Iterator[_Found]:
    """Yield ``work(source)`` of each source in order, with one task per CPU at a time ``on_ray``, each for a group."""
    if not on_ray:
        yield from map(work, sources)
        return
    import ray

    def run(group: list[RawSource]) -> list[_Found] | Failure:
        try:
            return [*map(work, group)]
        except Exception as error:
            return Failure.of(error)

    task, remaining = ray.remote(num_cpus=1)(run), iter(in_groups(sources))
    pending = deque(map(task.remote, islice(remaining, max(1, int(ray.cluster_resources()["CPU"])))))
    while pending:
        found: Any = ray.get(pending.popleft())
        pending.extend(map(task.remote, islice(remaining, 1)))
        if isinstance(found, Failure):
            found.throw()
        yield from found


def _sample_text(source: RawSource, config: PrepareConfig) -> tuple[TextSample, str]:
    """Return a sample of a source's text, and the first problem of clusters that are not readable."""
    sample, first_problem = TextSample(config.vocab_size), ""
    for record, cluster in _train_clusters(source, config):
        if isinstance(record.raw, dict) and IDS in record.raw:
            raise UserError(f"{source.name} holds ids, which need their own vocabulary: add --vocab FILE.model")
        if isinstance(cluster, Rejected):
            first_problem = first_problem or f"{record.where}: {cluster}"
        elif cluster:
            sample.add(cluster.id, [cluster.title, *cluster.summaries, *(text for _, text in cluster.documents)])
    return sample, first_problem


def _train_clusters(source: RawSource, config: PrepareConfig) -> Iterator[tuple[Record, Cluster | Rejected | None]]:
    """Yield each record with its cluster or the reason of its rejection; None if it is in another split."""
    for found in source.records():
        split, record = config.split_record(found, source.split)
        try:
            cluster = read_cluster(record.cluster())
        except Rejected as reason:
            yield record, reason
            continue
        yield record, cluster if split == "train" else None
