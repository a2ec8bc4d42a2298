"""Preparation speed for clusters of WikiSum's shape on one core, compared with plain SentencePiece."""

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import Field
from sentencepiece import SentencePieceProcessor

from raysum.bench.machine import measure
from raysum.bench.result import BenchResult, Row, alone
from raysum.config.base import Section
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.examples.factbook import corpus
from raysum.metrics.labels import rouge2_recalls
from raysum.prepare.cluster import read_cluster
from raysum.prepare.config import PrepareConfig
from raysum.prepare.resume import begin
from raysum.prepare.shards import write_shards
from raysum.runtime.progress import bar
from raysum.sources.find import find_sources
from raysum.sources.record import Rejected
from raysum.text.sentences import quick_sentence_spans
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.tokenizer import Tokenizer

_WIKISUM = 1_650_000  # clusters
_DOCUMENTS, _OF_DOCUMENT, _SUMMARY = 35, 15, 85  # documents of a cluster, paragraphs of a document, words of a summary
_WORDS = (12, 30, 45, 60)  # fewest words of paragraphs; with the last sentence about 54, which are 70 tokens
_SENTENCES = 50_000  # of real text, from which clusters are composed


_COMPARED, _REPEATED = 525, 20  # paragraphs with a ROUGE-2 recall, and repetitions of ours


class PrepareBench(Section):
    data: list[str] = Field([], description="files of clusters with the sentences to use; default: generated ones")
    vocab: str | None = Field(None, description="a SentencePiece model; default: train one of `pieces`")
    pieces: int = Field(32000, gt=100)
    clusters: int = Field(100, gt=0)
    max_paragraphs: list[int] = Field([40, 1000], min_length=1, description="paragraphs to keep of a cluster's 525")


def bench_prepare(settings: PrepareBench) -> BenchResult:
    """Return a row for each number of kept paragraphs: read, clean, rank, encode and write, in CPU seconds.

    Raises UserError if the data have no text.
    """
    machine = measure(1, ["fp32"])
    work = bar(settings.max_paragraphs, label="bench prepare", unit="row")
    return BenchResult("prepare", machine, [alone(prepare_row, settings, most) for most in work])


def prepare_row(settings: PrepareBench, most: int) -> Row:
    """Return the figures for one number of kept paragraphs, measured in this process with a warm word cache."""
    sentences = [*islice(_sentences(settings), _SENTENCES)]
    if not sentences:
        raise UserError(f"no cluster of {', '.join(settings.data)} has documents")
    vocabulary = load_tokenizer(settings.vocab) if settings.vocab else Vocabulary.train(sentences, settings.pieces)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "corpus.jsonl"
        texts = _write(file, sentences, settings.clusters)
        _seconds(file, Path(scratch) / "warm", vocabulary, most)
        seconds = _seconds(file, Path(scratch) / "data", vocabulary, most)
        summary = json.loads(file.read_text().partition("\n")[0])["summary"]
    recall, theirs = _recall_seconds(texts[:_COMPARED], summary)
    bare, tokens = _timed(texts, SentencePieceProcessor(model_proto=vocabulary.model).encode)
    ours, _ = _timed(texts, vocabulary.encode_all)
    cluster_seconds = seconds / settings.clusters
    return {
        "max_paragraphs": most,
        "clusters": settings.clusters,
        "tokens_of_a_cluster": tokens / settings.clusters,
        "clusters_per_s": 1 / cluster_seconds,
        "tokens_per_s": tokens / seconds,
        "wikisum_core_hours": _WIKISUM * cluster_seconds / 3600,
        "sentencepiece_tokens_per_s": tokens / bare,
        "tokenize_times_sentencepiece": bare / ours,
        "all_times_sentencepiece": bare / seconds,
        "rouge2_recalls_per_s": len(texts[:_COMPARED]) / recall,
        "rouge2_recalls_times_rouge_score": theirs / recall,
        "threads": 1,
        "seconds": seconds,
    }


def _seconds(file: Path, folder: Path, vocabulary: Tokenizer, most: int) -> float:
    """Return the CPU seconds of the whole job without Ray; they depend less on other processes than wall time."""
    config = PrepareConfig(out=str(folder), max_paragraphs=most)
    folder.mkdir()
    began = time.process_time()
    writer = DatasetWriter(folder, config.kind, config.recipe(vocabulary.sha256, "none"), vocabulary)
    begin(folder, {})
    write_shards(find_sources([file]), writer, config, folder / "rejected", on_ray=False)
    return time.process_time() - began


def _timed(texts: list[str], encode: Callable[[list[str]], list[list[int]]]) -> tuple[float, int]:
    began = time.process_time()
    ids = encode(texts)
    return time.process_time() - began, sum(map(len, ids))


def _recall_seconds(texts: list[str], summary: str) -> tuple[float, float]:
    """Return the CPU seconds of the ROUGE-2 recall of ``summary`` by each of ``texts``: ours and rouge-score's.

    Ours uses cached stems. Both give the same figures.
    """
    from rouge_score.rouge_scorer import RougeScorer

    rouge2_recalls(texts, summary)
    began = time.process_time()
    for _ in range(_REPEATED):
        recalls = rouge2_recalls(texts, summary)
    ours, scorer = (time.process_time() - began) / _REPEATED, RougeScorer(["rouge2"], use_stemmer=True)
    began = time.process_time()
    expected = [scorer.score(summary, text)["rouge2"].recall for text in texts]
    theirs = time.process_time() - began
    assert recalls.tolist() == expected
    return ours, theirs


def _sentences(settings: PrepareBench) -> Iterator[str]:
    if settings.data:
        clusters: Iterator[dict[str, Any]] = (
            record.raw for source in find_sources(settings.data) for record in source.records()
        )
    else:
        clusters = corpus.generate("test", _SENTENCES)
    for raw in clusters:
        try:
            lines = chain.from_iterable(text.splitlines() for _, text in read_cluster(raw).documents)
        except Rejected:
            continue
        yield from (line[start:end] for line in lines for start, end in quick_sentence_spans(line))


def _write(file: Path, sentences: list[str], clusters: int) -> list[str]:
    """Write ``clusters`` of WikiSum's shape; return their paragraphs."""
    draw, texts = random.Random(0), list[str]()

    def text(words: int) -> str:
        paragraph = ""
        while paragraph.count(" ") < words:
            paragraph += " " + draw.choice(sentences)
        return paragraph[1:]

    with file.open("w") as rows:
        for number in range(clusters):
            parts = [[text(draw.choice(_WORDS)) for _ in range(_OF_DOCUMENT)] for _ in range(_DOCUMENTS)]
            title = " ".join(draw.choice(sentences).split()[:3])
            row = {"id": str(number), "title": title, "documents": ["\n".join(part) for part in parts]}
            rows.write(json.dumps(row | {"summary": text(_SUMMARY)}) + "\n")
            texts += chain.from_iterable(parts)
    return texts
