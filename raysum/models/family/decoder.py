"""Decoder layers: masked self-attention and FFN around the letter that reads the source."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from raysum.models.family.parallel import FlatAttention, ParallelAttention
from raysum.models.family.vertical import VerticalAttention
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import FeedForward, Projection, Residual, attend, merge_heads, split_heads
from raysum.models.memory import Memory, SourceKeys, Watch
from raysum.models.specs import TransformerSpec

DECODER_LETTERS: dict[str, type[FlatAttention] | type[ParallelAttention] | type[VerticalAttention]] = {
    "F": FlatAttention,
    "P": ParallelAttention,
    "V": VerticalAttention,
}

# Adds one step's keys and values [B, H, R, dh] to a cache; returns all so far and the mask of a beam's own past.
Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, a letter's attention to the source, feed-forward network."""

    def __init__(self, spec: TransformerSpec, cross: Callable[[Any], Any]):
        """``cross(spec)`` is the attention to the source, with ``read`` and ``forward`` as in family.parallel."""
        super().__init__()
        self.attention = CausalSelfAttention(spec)
        self.around_attention = Residual(spec.width, spec.norm, spec.dropout)
        self.cross = cross(spec)
        self.around_cross = Residual(spec.width, spec.norm, spec.dropout)
        self.ffn = FeedForward(spec.width, spec.ffn, spec.ffn_dropout)
        self.around_ffn = Residual(spec.width, spec.norm, spec.dropout)

    def read(self, memory: Memory) -> SourceKeys:
        """What this layer keeps of the source."""
        return self.cross.read(memory)

    def forward(
        self, x: Tensor, keys: SourceKeys, attention: Watch, extend: Extend | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, K, D] all target positions, or with ``extend`` the newest token of each beam, [B, R, D].

        Returns the new x and, if asked for, the attention to paragraphs [B, K or R, M] or tokens [B, K or R, M, N].
        """
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), extend))
        read, share = self.cross(self.around_cross.enter(x), keys, attention)
        x = self.around_cross.leave(x, read)
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x))), share


class CausalSelfAttention(nn.Module):
    """Each target position attends to itself and those before it."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.heads = spec.heads
        self.qkv = Projection(spec.width, 3)
        self.out = Projection(spec.width)
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, extend: Extend | None = None) -> Tensor:
        query, key, value = split_heads(self.qkv(x), self.heads, 3)
        if extend is None:
            return self.out(merge_heads(attend(query, key, value, causal=True, dropout=self.dropout.active)))
        return self.out(merge_heads(attend(query, *extend(key, value), dropout=self.dropout.active)))
