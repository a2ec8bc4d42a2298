"""What finished summaries attended to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from raysum.decode.scores import shares
from raysum.models.special_ids import BOS, PAD


@torch.inference_mode()
def attention_of(model: Any, memory: Any, summaries: Sequence[Sequence[Sequence[int]]]) -> list[list[np.ndarray]]:
    """The attention of each token of a summary, a [K, M] for each summary, rows summing to one.

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
