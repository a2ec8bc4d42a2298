"""Rows of the paragraph ranker: title, paragraphs, and the ROUGE-2 recall of each paragraph."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raysum.config.decoding import SourceConfig
from raysum.data.rows import Row
from raysum.metrics.labels import rouge2_recalls
from raysum.metrics.rouge import unread
from raysum.stream.collators.base import Arrays, Kind, long
from raysum.stream.collators.summarization import cut_source
from raysum.systems import Spec
from raysum.text.cleaning import bigram_recall, bigrams
from raysum.text.tfidf import words
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens, marks_of

if TYPE_CHECKING:
    from raysum.models.systems.paragraph_scorers import RankingBatch


@dataclass(frozen=True)
class Ranking(Kind):
    """The dataset kind of the ranker. Cost: source tokens; weight: paragraphs of an example with a summary.

    The labels are ROUGE-2 recalls (HT, section 3.1), computed here like rouge-score with its stemmer, which is faster
    than storing and reading them. ``max_tokens`` does not apply, because each paragraph is encoded separately.
    """

    dataset_kinds = ("ranking", "summarization")
    columns: ClassVar[tuple[str, ...]] = ("ids", "title_tokens", "paragraph_offsets", "text", "summary")

    marks: SpecialTokens = PUBLISHED

    @classmethod
    def of(cls, spec: Spec) -> "Ranking":
        return cls(marks_of(spec))

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        tokens, paragraphs, target = lengths.astype(np.int64).T
        paragraphs = np.minimum(paragraphs, source.max_paragraphs)
        return np.minimum(tokens, paragraphs * source.paragraph_tokens), np.where(target > 0, paragraphs, 0)

    def cut(self, row: Row, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        return cut_source(row, source.model_copy(update={"max_tokens": None}))

    def pack(self, rows: list[Row], source: SourceConfig) -> Arrays:
        """Return flat ``title``, ``title_lengths`` [B], ``ids`` [S], ``lengths`` [P], ``counts`` [B], ``recall`` [P].

        A missing title, and a first paragraph without text after the title, are only the mark that ends titles.
        """
        mark = np.array(self.marks.title_end, np.int32)
        titles, paragraphs, counts, recall = [], [], [], []
        for row in rows:
            ids, lengths = self.cut(row, source)
            first, *rest = np.split(ids, np.cumsum(lengths)[:-1])
            end = row["title_tokens"]
            titles.append(first[:end] if end else mark)
            paragraphs += [first[end:] if end < len(first) else mark, *rest]
            counts.append(len(lengths))
            recall += _recalls(row["text"][: len(lengths)], row["summary"])
        return {
            "title": np.concatenate(titles, dtype=np.int32),
            "title_lengths": np.array([len(title) for title in titles], np.int32),
            "ids": np.concatenate(paragraphs, dtype=np.int32),
            "lengths": np.array([len(paragraph) for paragraph in paragraphs], np.int32),
            "counts": np.array(counts, np.int32),
            "recall": np.array(recall, np.float32),
        }

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["title"]) + len(arrays["ids"]), len(arrays["recall"])

    def collate(self, arrays: Arrays) -> "RankingBatch":
        import torch

        from raysum.models.batch import Source
        from raysum.models.systems.paragraph_scorers import RankingBatch, Titles

        source = Source(long(arrays["ids"]), long(arrays["lengths"]), long(arrays["counts"]))
        titles = Titles(long(arrays["title"]), long(arrays["title_lengths"]))
        return RankingBatch(titles, source, torch.from_numpy(arrays["recall"]))


def _recalls(texts: list[str], summary: str) -> list[float]:
    """Return the recalls; in scripts that rouge-score does not support, of the words that rank paragraphs."""
    if unread([summary]) is None:
        return rouge2_recalls(texts, summary).tolist()
    summary_bigrams = bigrams(words(summary))
    return [bigram_recall(words(text), summary_bigrams) for text in texts]
