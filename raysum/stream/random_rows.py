"""Random rows as large as a config allows, as the speed and memory of a model depend on sizes alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raysum import systems
from raysum.config.decoding import SourceConfig
from raysum.config.sections import Config
from raysum.data.rows import Row
from raysum.tokenizers.special_tokens import PUBLISHED, SPECIAL_PIECES


def has_random_rows(spec: systems.Spec) -> bool:
    """Return whether ``spec`` is trained on columns of :func:`random_row`."""
    row = random_row(np.random.default_rng(), 100, [1], 2)
    return not spec.TRAINER and set(systems.kind(spec).columns) <= row.keys()


def batch_of(config: Config, examples: int, target_tokens: int, seed: int = 0) -> Any:
    """Return a batch of ``examples`` as large as ``config.source`` allows, with targets of ``target_tokens``."""
    kind = systems.kind(config.model)
    return kind.collate(kind.pack(random_rows(config, examples, target_tokens, seed), limits_of(config, target_tokens)))


def limits_of(config: Config, target_tokens: int) -> SourceConfig:
    """Return the source limits for targets of ``target_tokens`` tokens after the start."""
    return config.source.model_copy(update={"target_tokens": target_tokens + 1})


def random_rows(config: Config, count: int, target_tokens: int, seed: int) -> list[Row]:
    """Return ``count`` rows as large as ``config.source`` allows, with targets of ``target_tokens``."""
    random, source = np.random.default_rng(seed), config.source
    sizes = [source.paragraph_tokens] * source.max_paragraphs
    return [random_row(random, getattr(config.model, "vocabulary", 100), sizes, target_tokens) for _ in range(count)]


def random_row(random: np.random.Generator, vocabulary: int, sizes: Sequence[int], target_tokens: int) -> Row:
    """Return random tokens: paragraphs of ``sizes``, each with an edge to every other."""
    paragraphs, marks, first = len(sizes), PUBLISHED, len(SPECIAL_PIECES)
    edges = np.indices((paragraphs, paragraphs)).reshape(2, -1)
    return {
        "id": "",
        "ids": random.integers(first, vocabulary, sum(sizes)),
        "title_tokens": 0,
        "paragraph_offsets": np.concatenate([[0], np.cumsum(sizes)]),
        "target_ids": np.array([marks.start, *random.integers(first, vocabulary, target_tokens - 1), marks.end]),
        "graph_row": edges[0],
        "graph_col": edges[1],
        "graph_value": random.random(edges.shape[1]),
        "text": [""] * paragraphs,
        "summary": "",
        "labels": random.integers(2, size=paragraphs),
    }
