"""Scoring speed, compared with the package `rouge-score`, which gives the same figures."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from pydantic import Field

from raysum.bench.machine import measure
from raysum.bench.result import BenchResult, Row, alone
from raysum.config.base import Section
from raysum.errors import UserError
from raysum.examples.factbook import corpus
from raysum.metrics import rouge
from raysum.prepare.cluster import read_cluster
from raysum.runtime.progress import bar
from raysum.sources.find import find_sources
from raysum.sources.record import Rejected
from raysum.text.sentences import sentence_spans

_BLOCK = 100  # pairs scored in turn by each package, so that both run under the same load
Pair = tuple[str, str]


class RougeBench(Section):
    data: list[str] = Field([], description="files of clusters with summaries; default: generated ones")
    words: list[int] = Field([140, 20], min_length=1, description="most words of both texts")
    pairs: int = Field(400, gt=0)
    repeats: int = Field(2, gt=0, description="repetitions; the fastest counts")


def bench_rouge(settings: RougeBench) -> BenchResult:
    """Return a row for each length: the first words of a cluster, scored against its summary.

    Each sentence is a line; the protocol is google. Raises UserError if no cluster has a summary.
    """
    machine = measure(1, ["fp32"])
    rows = [alone(rouge_row, settings, words) for words in bar(settings.words, label="bench rouge", unit="row")]
    return BenchResult("rouge", machine, rows)


def rouge_row(settings: RougeBench, words: int) -> Row:
    """Return the figures of one length, measured in this process."""
    from rouge_score.rouge_scorer import RougeScorer

    pairs = [(_cut(text, words), _cut(summary, words)) for text, summary in islice(_texts(settings), settings.pairs)]
    if not pairs:
        raise UserError(f"no cluster of {', '.join(settings.data)} has documents and a summary: name other files")
    theirs = RougeScorer(rouge.METRICS, use_stemmer=True)
    ours_s = theirs_s = different = 0.0
    for start in range(0, len(pairs), _BLOCK):
        texts, summaries = map(list, zip(*pairs[start : start + _BLOCK], strict=True))
        seconds, own_scores = _fastest(partial(rouge.score, texts, summaries), settings.repeats)
        ours_s += seconds
        seconds, expected = _fastest(partial(_each, theirs.score, summaries, texts), settings.repeats)
        theirs_s += seconds
        for row, scores in zip(own_scores.to_dict("records"), expected, strict=True):
            different += any(row[metric] != 100 * scores[metric].fmeasure for metric in rouge.METRICS)
    return {
        "words": words,
        "pairs": len(pairs),
        "threads": 1,
        "pairs_per_s": len(pairs) / ours_s,
        "rouge_score_pairs_per_s": len(pairs) / theirs_s,
        "times_rouge_score": theirs_s / ours_s,
        "different": int(different),
        "seconds": ours_s,
    }


def _each(score: Callable[..., Any], *texts: list[str]) -> list[Any]:
    return [*map(score, *texts)]


def _fastest(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def _texts(settings: RougeBench) -> Iterator[Pair]:
    """Yield the text of each cluster's documents, and its summary."""
    for raw in _clusters(settings):
        try:
            cluster = read_cluster(raw)
        except Rejected:
            continue
        if cluster.summaries:
            yield " ".join(text for _, text in cluster.documents), cluster.summaries[0]


def _clusters(settings: RougeBench) -> Iterator[dict[str, Any]]:
    if not settings.data:
        return corpus.generate("test", settings.pairs)
    records = chain.from_iterable(source.records() for source in find_sources(settings.data))
    return (record.raw for record in records if not record.problem)


def _cut(text: str, words: int) -> str:
    text = " ".join(text.split()[:words])
    return "\n".join(text[start:end] for start, end in sentence_spans(text))
