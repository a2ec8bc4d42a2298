"""What a decoder layer reads from the source, one small class a letter.

Each letter has ``read(memory)``, its keys and values of the source, made once an example, and ``forward``, which
attends to them with queries [B, Q, D]: the target positions of an example in training, its beams in decoding.
It returns what it read [B, Q, D] and, only when asked for, its paragraph attention [B, Q, M] in float32.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Source, scatter_padded
from raysum.models.dropout import Dropout
from raysum.models.fusion import fuse
from raysum.models.layers import Projection, attend, masked_softmax, merge_heads, split_heads
from raysum.models.specs import Seq2SeqSpec
from raysum.models.vertical import DynamicParagraphs, FoldedQuery, VerticalKeys


@dataclass(frozen=True)
class Memory:
    """An encoded source: ``tokens`` [S, D], and Phi [B, M, D] where the decoder has P layers."""

    source: Source
    tokens: Tensor
    phi: Tensor | None
