"""Random rows of a preset's own sizes: how fast a model is depends on sizes, not on words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysum import systems
from raysum.bench.machine import timed
from raysum.config.sections import Config
from raysum.data.rows import Row
from raysum.models.special_ids import BOS, EOS, SENTENCE_END


@dataclass(frozen=True)
class Search:
    """A beam search with random weights, in which no summary ends before it has ``length`` tokens."""

    preset: str
    config: Config
    dtype: str
    threads: int
    batch: int
    beams: int
    length: int
    repeats: int

    def source(self) -> Any:
        return batch(self.config, self.batch, self.length).source

    def row(self, run: Callable[[], Any]) -> dict[str, Any]:
        """What was searched, and how fast: ``run`` is the search, and the fastest of ``repeats`` counts."""
        seconds = min(timed(run) for _ in range(self.repeats))
        return {
            "preset": self.preset,
            "dtype": self.dtype,
            "threads": self.threads,
            "batch": self.batch,
            "beams": self.beams,
            "examples_per_s": self.batch / seconds,
            "tokens_per_s": self.batch * self.length / seconds,
            "seconds": seconds,
        }


def batch(config: Config, examples: int, target_tokens: int, paragraphs: int | None = None, seed: int = 0) -> Any:
    """``examples`` with full paragraphs and targets of ``target_tokens`` tokens after BOS, as the model reads them.

    ``config.source`` limits them; ``paragraphs`` replaces its ``max_paragraphs`` and lifts its ``max_tokens``.
    """
    changes: dict[str, Any] = {"max_paragraphs": paragraphs, "max_tokens": None} if paragraphs else {}
    limits = config.source.model_copy(update={"target_tokens": target_tokens + 1, **changes})
    spec: Any = config.model
    random = np.random.default_rng(seed)
    sizes = limits.max_paragraphs, limits.paragraph_tokens, target_tokens
    kind = systems.kind(spec)
    return kind.collate(kind.pack([_row(random, spec.vocabulary, *sizes) for _ in range(examples)], limits))


def _row(random: np.random.Generator, vocabulary: int, paragraphs: int, tokens: int, target_tokens: int) -> Row:
    edges = np.indices((paragraphs, paragraphs)).reshape(2, -1)
    return {
        "ids": random.integers(SENTENCE_END + 1, vocabulary, paragraphs * tokens),
        "title_tokens": 0,
        "paragraph_offsets": np.arange(paragraphs + 1) * tokens,
        "target_ids": np.array([BOS, *random.integers(SENTENCE_END + 1, vocabulary, target_tokens - 1), EOS]),
        "graph_row": edges[0],
        "graph_col": edges[1],
        "graph_value": random.random(edges.shape[1]),
        "text": [""] * paragraphs,
        "summary": "",
        "labels": random.integers(2, size=paragraphs),
    }
