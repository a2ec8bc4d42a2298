"""Preparation speed for clusters of WikiSum's shape on one core, compared with plain SentencePiece."""

import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from sentencepiece import SentencePieceProcessor

from raysum.bench.base import Bench, Number, Row
from raysum.bench.inputs import clusters
from raysum.bench.machine import Machine, cpu_timed
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.metrics.labels import rouge2_recalls
from raysum.prepare.config import PrepareConfig
from raysum.prepare.shards import write_shards
from raysum.sources.find import find_sources
from raysum.text.sentences import quick_sentence_spans
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.tokenizer import Tokenizer

_WIKISUM = 1_650_000  # clusters
_DOCUMENTS, _OF_DOCUMENT, _SUMMARY = 35, 15, 85  # documents of a cluster, paragraphs of a document, words of a summary
_WORDS = (12, 30, 45, 60)  # fewest words of paragraphs; with the last sentence about 54, which are 70 tokens
_SENTENCES = 50_000  # of real text, from which clusters are composed
_COMPARED, _REPEATED = 525, 20  # paragraphs with a ROUGE-2 recall, and repetitions of ours


class PrepareBench(Bench):
    """A row for each number of kept paragraphs: read, clean, rank, encode and write, in CPU seconds."""

    NAME: ClassVar[str] = "prepare"
    data: list[str] = Field([], description="files of clusters with the sentences to use; default: generated ones")
    vocab: str | None = Field(None, description="a SentencePiece model; default: train one of `pieces`")
    pieces: int = Field(32000, gt=100, description="size of the trained vocabulary")
    clusters: int = Field(100, gt=0, description="clusters to prepare")
    max_paragraphs: list[Number] = Field([40, 1000], min_length=1, description="paragraphs to keep of a cluster's 525")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        return [(most,) for most in self.max_paragraphs]

    def row(self, _: Machine, most: int) -> Row:
        """Return the figures for ``most`` kept paragraphs, measured in this process with a warm word cache."""
        sentences = [*islice(self._sentences(), _SENTENCES)]
        if not sentences:
            raise UserError(f"no cluster of {', '.join(self.data)} has documents")
        vocabulary = load_tokenizer(self.vocab) if self.vocab else Vocabulary.train(sentences, self.pieces)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "corpus.jsonl"
            texts = _write(file, sentences, self.clusters)
            for name in ("warm", "data"):
                seconds, _ = cpu_timed(_prepare, file, Path(scratch) / name, vocabulary, most)
            summary = json.loads(file.read_text().partition("\n")[0])["summary"]
        recall, theirs = _recall_seconds(texts[:_COMPARED], summary)
        bare, ids = cpu_timed(SentencePieceProcessor(model_proto=vocabulary.model).encode, texts)
        ours, _ = cpu_timed(vocabulary.encode_all, texts)
        tokens, cluster_seconds = sum(map(len, ids)), seconds / self.clusters
        return {
            "max_paragraphs": most,
            "clusters": self.clusters,
            "tokens_of_a_cluster": tokens / self.clusters,
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

    def _sentences(self) -> Iterator[str]:
        for cluster in clusters(self.data, _SENTENCES):
            lines = chain.from_iterable(text.splitlines() for _, text in cluster.documents)
            yield from (line[start:end] for line in lines for start, end in quick_sentence_spans(line))


def _prepare(file: Path, folder: Path, vocabulary: Tokenizer, most: int) -> None:
    """Run the whole job without Ray."""
    config = PrepareConfig(out=str(folder), max_paragraphs=most)
    folder.mkdir()
    writer = DatasetWriter(folder, config.kind, config.recipe(vocabulary.sha256, "none"), vocabulary)
    write_shards(find_sources([file]), writer, config, folder / "rejected", on_ray=False)


def _recall_seconds(texts: list[str], summary: str) -> tuple[float, float]:
    """Return the CPU seconds of the ROUGE-2 recall of ``summary`` by each of ``texts``: ours and rouge-score's.

    Ours uses cached stems. Both give the same figures.
    """
    from rouge_score.rouge_scorer import RougeScorer

    recalls = rouge2_recalls(texts, summary)
    ours, _ = cpu_timed(lambda: [rouge2_recalls(texts, summary) for _ in range(_REPEATED)])
    scorer = RougeScorer(["rouge2"], use_stemmer=True)
    theirs, expected = cpu_timed(lambda: [scorer.score(summary, text)["rouge2"].recall for text in texts])
    assert recalls.tolist() == expected
    return ours / _REPEATED, theirs


def _write(file: Path, sentences: list[str], count: int) -> list[str]:
    """Write ``count`` clusters of WikiSum's shape; return their paragraphs."""
    draw, texts = random.Random(0), list[str]()

    def text(words: int) -> str:
        paragraph = ""
        while paragraph.count(" ") < words:
            paragraph += " " + draw.choice(sentences)
        return paragraph[1:]

    with file.open("w") as rows:
        for number in range(count):
            parts = [[text(draw.choice(_WORDS)) for _ in range(_OF_DOCUMENT)] for _ in range(_DOCUMENTS)]
            title = " ".join(draw.choice(sentences).split()[:3])
            row = {"id": str(number), "title": title, "documents": ["\n".join(part) for part in parts]}
            rows.write(json.dumps(row | {"summary": text(_SUMMARY)}) + "\n")
            texts += chain.from_iterable(parts)
    return texts
