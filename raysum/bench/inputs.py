"""Random sources and targets of a preset's own sizes: how fast a model is depends on sizes, not on words."""

from typing import Any

import numpy as np
import torch

from raysum.config.sections import Config
from raysum.models.batch import BOS, EOS, SENTENCE_END, Batch, Source


def source(config: Config, examples: int, paragraphs: int | None = None, seed: int = 0) -> Source:
    """``examples`` sources as ``config.source`` cuts them: full paragraphs up to ``max_tokens``.

    ``paragraphs`` in place of ``max_paragraphs``. With a graph where the model needs one.
    """
    spec: Any = config.model
    limits, random = config.source, np.random.default_rng(seed)
    count = paragraphs or limits.max_paragraphs
    if limits.max_tokens is not None and paragraphs is None:
        count = min(count, -(-limits.max_tokens // limits.paragraph_tokens))
    lengths = np.full(count, limits.paragraph_tokens)
    if limits.max_tokens is not None and paragraphs is None:
        lengths[-1] -= max(int(lengths.sum()) - limits.max_tokens, 0)
    ids = random.integers(SENTENCE_END + 1, spec.vocabulary, int(lengths.sum()) * examples)
    graph = torch.rand(examples, count, count, generator=torch.Generator().manual_seed(seed))
    return Source(
        ids=torch.from_numpy(ids),
        lengths=torch.from_numpy(np.tile(lengths, examples)),
        counts=torch.full((examples,), count),
        graph=graph if spec.needs_graph else None,
    )


def batch(config: Config, examples: int, target_tokens: int, paragraphs: int | None = None, seed: int = 0) -> Batch:
    """:func:`source` with targets of ``target_tokens`` tokens after BOS."""
    spec: Any = config.model
    random = np.random.default_rng(seed + 1)
    target = random.integers(SENTENCE_END + 1, spec.vocabulary, (examples, target_tokens + 1))
    target[:, 0], target[:, -1] = BOS, EOS
    return Batch(source(config, examples, paragraphs, seed), torch.from_numpy(target))
