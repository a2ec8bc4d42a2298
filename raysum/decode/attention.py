"""The attention of summaries to the paragraphs of their sources, for citations and alignment.

M paragraphs, K tokens of a summary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from raysum import systems
from raysum.config.decoding import DecodeConfig
from raysum.decode.scores import shares
from raysum.errors import UserError
from raysum.models.batch import AttentionRequest
from raysum.tokenizers.special_tokens import SpecialTokens, marks_of


def citing(settings: DecodeConfig, spec: systems.Spec) -> AttentionRequest:
    """Return the layers for citations. Raises UserError if ``spec`` lacks a layer that ``settings`` name."""
    if settings.citing_layers is None:
        return True
    count = spec.attending_layers
    for layer in settings.citing_layers:
        if abs(layer) > count:
            there = f"the {spec.system} has {count}, 1 to {count}" if count else f"a {spec.system} has none to choose"
            raise UserError(f"citing_layers names decoder layer {layer}, and {there}")
    return frozenset(layer % count if layer < 0 else layer - 1 for layer in settings.citing_layers)


@torch.inference_mode()
def attention_of(
    model: Any, memory: Any, summaries: Sequence[Sequence[Sequence[int]]], layers: AttentionRequest = True
) -> list[list[np.ndarray]]:
    """Return the attention [K, M] of the tokens of each summary to the paragraphs; each row sums to one.

    ``summaries`` are the ids of the hypotheses of each example of ``memory``, equally many for each. The passes are
    teacher-forced; equal summaries of an example are computed once. ``layers`` are the layers to read, or all. A row is
    0 if these layers attend to no text, only to special tokens of a pretrained model or beyond their memory.
    """
    different = [list(dict.fromkeys(map(tuple, hypotheses))) for hypotheses in summaries]
    attention: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    marks = marks_of(model.spec)
    for turn in range(max(map(len, different))):
        examples = [example for example, hypotheses in enumerate(different) if turn < len(hypotheses)]
        part = memory if len(examples) == len(different) else memory.select(examples)
        forced = [different[example][turn] for example in examples]
        tokens = pad_ids([torch.tensor([marks.start, *ids[:-1]]) for ids in forced], marks)
        _, weights = model.decode(tokens.to(part.paragraph_mask.device), part, attention=layers)
        for example, ids, rows in zip(examples, forced, shares(weights).cpu().numpy(), strict=True):
            attention[example, ids] = rows[: len(ids)]
    return [[attention[example, tuple(ids)] for ids in hypotheses] for example, hypotheses in enumerate(summaries)]


def pad_ids(rows: Sequence[Tensor], marks: SpecialTokens) -> Tensor:
    """Return ``rows`` of ids as [B, longest]."""
    return pad_sequence([row.long() for row in rows], batch_first=True, padding_value=marks.pad)
