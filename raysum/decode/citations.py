"""Which paragraphs each sentence of a summary rests on: by what it attended to, or by the words it shares with them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from raysum.decode.scores import shares
from raysum.models.batch import BOS, EOS, PAD, SENTENCE_END

MOST = 3  # paragraphs cited for a sentence: more than a reader would check
SHARE = 0.9  # of a sentence's attention that its citations need not exceed


@torch.inference_mode()
def attention(model: Any, memory: Any, summaries: Sequence[Sequence[Sequence[int]]]) -> list[list[np.ndarray]]:
    """Paragraph attention of each token of finished summaries, a [K, M] for each, rows summing to one.

    ``summaries`` are, for each example of ``memory``, the ids of some hypotheses, as many for each. Teacher-forced
    passes, of one hypothesis an example; what is the same for an example is computed once.
    """
    different = [list(dict.fromkeys(map(tuple, hypotheses))) for hypotheses in summaries]
    found: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    for turn in range(max(map(len, different))):
        examples = [example for example, hypotheses in enumerate(different) if turn < len(hypotheses)]
        part = memory if len(examples) == len(different) else memory.select(examples)
        forced = [different[example][turn] for example in examples]
        found |= zip(zip(examples, forced, strict=True), _forced(model, part, forced), strict=True)
    return [[found[example, tuple(ids)] for ids in hypotheses] for example, hypotheses in enumerate(summaries)]


def _forced(model: Any, memory: Any, summaries: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """One pass over one hypothesis for each example of ``memory``."""
    inputs = [torch.tensor([BOS, *ids[:-1]], device=memory.paragraph_mask.device) for ids in summaries]
    _, weights = model.decode(pad_sequence(inputs, batch_first=True, padding_value=PAD), memory, attention=True)
    rows = shares(weights).cpu().numpy()
    return [row[: len(ids)] for row, ids in zip(rows, summaries, strict=True)]


def overall(weights: np.ndarray) -> np.ndarray:
    """The share [M] of each paragraph in the attention ``weights`` [K, M] of a summary (PHT eq. 15)."""
    total = weights.sum(0)
    return total / max(total.sum(), np.finfo(np.float32).tiny)


def sentence_spans(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where each sentence of a summary's ``ids`` begins and ends: they end before ``<Q>`` and EOS."""
    stop = ids.index(EOS) if EOS in ids else len(ids)
    marks = [-1, *(i for i in range(stop) if ids[i] == SENTENCE_END), stop]
    return [(before + 1, after) for before, after in pairwise(marks) if after > before + 1]


def lexical(sentences: Sequence[str], paragraphs: Sequence[str]) -> np.ndarray:
    """Weights [sentences, M]: 1 at the paragraph of highest tf-idf cosine, a row of zeros where no word is shared."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+")
    known = vectorizer.fit_transform(paragraphs)
    similarity = (vectorizer.transform(sentences) @ known.T).toarray()
    best = similarity.max(1, keepdims=True)
    nearest = np.arange(len(paragraphs)) == similarity.argmax(1)[:, None]
    return (nearest & (best > 0)).astype(np.float32)


def cited(weights: np.ndarray) -> list[tuple[int, float]]:
    """Paragraphs of highest ``weights`` [M] and their weights, falling, which sum to one.

    As many as make up nine tenths of the whole, but at most three; none of weight 0.
    """
    order = np.argsort(-weights, kind="stable")[:MOST]
    reached = np.cumsum(weights[order]) >= SHARE * weights.sum()
    chosen = order[: int(reached.argmax()) + 1 if reached.any() else MOST]
    chosen = chosen[weights[chosen] > 0]
    return [(int(index), float(weights[index] / weights[chosen].sum())) for index in chosen]
