"""Blocks shared by the models. B examples, S tokens in all, T tokens in a row, H heads, D width, dh = D / H."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Layout, SourceKeys, scatter_padded
from raysum.models.kernels.attention import attend, masked_softmax, merge_heads, split_heads
from raysum.models.kernels.cache import StepContext
from raysum.models.kernels.dropout import Dropout, drop
from raysum.models.kernels.linear import Linear
from raysum.models.kernels.pointing import Pointer
from raysum.models.specs.backbone import PLAIN, Backbone
from raysum.models.specs.family import TransformerSpec
from raysum.models.specs.scorers import PredictorSpec

# The result, its attention to the source where that was asked for, and how it points where its keys have ids.
Attended = tuple[Tensor, Tensor | None, Pointer | None]

EPSILON = 1e-6  # of every LayerNorm, as in both published codes


def backbone_of(spec: Any) -> Backbone:
    """How the layers of ``spec`` are made."""
    return getattr(spec, "backbone", None) or PLAIN


def head_width(spec: Any) -> int:
    """dh."""
    return backbone_of(spec).head_width or spec.width // spec.heads


def norm_layer(spec: Any) -> nn.Module:
    made = backbone_of(spec)
    return (nn.RMSNorm if made.norm == "rms" else nn.LayerNorm)(spec.width, made.eps)


class Projection(Linear):
    """Several matrices side by side, computed in one product; each starts as its own Xavier-uniform matrix."""

    def __init__(self, width: int, parts: int = 1, bias: bool = True, outputs: int | None = None):
        """Each matrix is [outputs, width], square by default."""
        self.parts = parts
        super().__init__(width, parts * (outputs or width), bias)

    def reset_parameters(self) -> None:
        for part in self.weight.chunk(self.parts):
            nn.init.xavier_uniform_(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def silenced(*layers: nn.Linear) -> None:
    """Let linear layers give 0 at first."""
    for layer in layers:
        nn.init.zeros_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class Matrix(nn.Module):
    """The matrix and bias of a projection, for modules that do not apply it to their input as it is."""

    def __init__(self, width: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        nn.init.xavier_uniform_(self.weight)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers around a ReLU, or around what a backbone has there."""

    def __init__(self, spec: TransformerSpec | PredictorSpec):
        super().__init__()
        made = backbone_of(spec)
        self.activation, self.gated = made.activation, made.gated
        if made.gated:
            self.inner: nn.Linear = Projection(spec.width, 2, made.bias, spec.ffn)
        else:
            self.inner = xavier_linear(spec.width, spec.ffn, made.bias)
        self.outer = xavier_linear(spec.ffn, spec.width, made.bias)
        self.dropout = Dropout(spec.ffn_dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        if self.activation == "relu" and not self.gated:
            return self.outer(drop(hidden, self.dropout.active, relu=True))
        hidden, *others = hidden.chunk(1 + self.gated, -1)
        hidden = ACTIVATIONS[self.activation](hidden)
        for other in others:
            hidden = hidden * other
        return self.outer(self.dropout(hidden))


class Residual(nn.Module):
    """The way into and out of a sub-layer, ``leave(x, sublayer(enter(x)))``: norm before it, or after the sum."""

    def __init__(self, spec: TransformerSpec | PredictorSpec, norm: str | None = None):
        super().__init__()
        self.norm = norm_layer(spec)
        self.dropout = Dropout(spec.dropout)
        self.pre = (norm or spec.norm) == "pre"

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        total = x + self.dropout(y)
        return total if self.pre else self.norm(total)


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward network (HT eq. 11-12) over packed rows."""

    def __init__(self, spec: TransformerSpec | PredictorSpec):
        super().__init__()
        self.attention = PackedSelfAttention(spec)
        self.around_attention = Residual(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec)

    def forward(
        self, x: Tensor, index: Tensor, mask: Tensor, bias: Tensor | None = None, wanted: Tensor | None = None
    ) -> Tensor:
        """x [S, D]; token s stands at flat place ``index[s]`` of rows that attend within themselves, mask [rows, T].

        ``bias`` [rows or 1, H or 1, T, T] is added to the scores. Where only some tokens are ``wanted``, the result is
        of these.
        """
        y = self.attention(self.around_attention.enter(x), index, mask, bias, wanted)
        x = self.around_attention.leave(x if wanted is None else x.index_select(0, wanted), y)
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x)))


class SelfAttention(nn.Module):
    """What every multi-head self-attention is made of."""

    def __init__(self, spec: TransformerSpec | PredictorSpec):
        super().__init__()
        made, inner = backbone_of(spec), spec.heads * head_width(spec)
        self.heads = spec.heads
        self.qkv = Projection(spec.width, 3, made.bias, inner)
        self.out = Projection(inner, 1, made.bias, spec.width)
        self.dropout = Dropout(spec.attention_dropout)
        self.scaled = made.scaled_scores

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """[B, T, 3 dh H] -> query, key and value, [B, H, T, dh] each."""
        query, key, value = split_heads(x, self.heads, 3)
        return _unscaled(query, self.scaled), key, value


def _unscaled(query: Tensor, scaled: bool) -> Tensor:
    """So that scores divided by dh^0.5 are as if they were not, where they are not ``scaled``."""
    return query if scaled else query * query.shape[-1] ** 0.5


class PackedSelfAttention(SelfAttention):
    """Multi-head self-attention whose linear layers see real tokens only; rows are padded just for the attention."""

    def forward(
        self, x: Tensor, index: Tensor, mask: Tensor, bias: Tensor | None, wanted: Tensor | None = None
    ) -> Tensor:
        query, key, value = self.split(scatter_padded(self.qkv(x), index, *mask.shape))
        context = attend(query, key, value, mask[:, None, None, :], dropout=self.dropout.active, bias=bias)
        places = index if wanted is None else index.index_select(0, wanted)
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, places))


class Attention(nn.Module):
    """The projections of a multi-head attention from one sequence to another."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        made, inner = backbone_of(spec), spec.heads * head_width(spec)
        self.heads, self.scaled = spec.heads, made.scaled_scores
        self.query = Projection(spec.width, 1, made.bias, inner)
        self.source = Projection(spec.width, 2, made.bias, inner)
        self.out = Projection(inner, 1, made.bias, spec.width)

    def queries(self, x: Tensor) -> Tensor:
        """[B, Q, D] -> [B, H, Q, dh]."""
        return _unscaled(split_heads(self.query(x), self.heads, 1)[0], self.scaled)

    def merged(self, context: Tensor) -> Tensor:
        """[B, H, Q, dh] -> [B, Q, D]."""
        return self.out(merge_heads(context))


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, a letter's attention to the source, feed-forward network."""

    def __init__(self, spec: TransformerSpec, cross: Callable[[Any], Any]):
        """``cross(spec)`` is the attention to the source, with ``read`` and ``forward`` as in models.family.model."""
        super().__init__()
        self.attention = CausalSelfAttention(spec)
        self.around_attention = Residual(spec)
        self.cross = cross(spec)
        self.around_cross = Residual(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec)

    def forward(self, x: Tensor, keys: SourceKeys, attention: AttentionRequest, turn: StepContext) -> Attended:
        """x [B, K, D] all target positions, or in a decoding step the newest token of each beam, [B, R, D].

        Returns the new x and, if asked for, the attention to paragraphs [B, K or R, M] or tokens [B, K or R, M, N].
        """
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), turn))
        read, share, pointer = self.cross(self.around_cross.enter(x), keys, attention)
        x = self.around_cross.leave(x, read)
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x))), share, pointer


class CausalSelfAttention(SelfAttention):
    """Each target position attends to itself and those before it."""

    def forward(self, x: Tensor, turn: StepContext) -> Tensor:
        query, key, value = self.split(self.qkv(x))
        if turn.cache is None:
            context = attend(query, key, value, causal=True, dropout=self.dropout.active, bias=turn.bias)
        else:
            kept = turn.cache.append(turn.layer, key, value)
            context = attend(query, *kept, dropout=self.dropout.active, bias=turn.bias)
        return self.out(merge_heads(context))


class HeadValues(Matrix):
    """The values of an attention, projected after the weighting: head h takes its rows of the matrix."""

    def __init__(self, width: int, heads: int, bias: bool = True):
        super().__init__(width, bias)
        self.heads = heads

    def forward(self, mixed: Tensor, mass: Tensor) -> Tensor:
        """mixed [..., H, D] = weights @ inputs, mass [..., H] = sums of weights -> [..., H, dh]."""
        weight = self.weight.unflatten(0, (self.heads, -1))
        values = torch.einsum("...hd,hed->...he", mixed, weight.to(mixed.dtype))
        if self.bias is None:
            return values
        return values + mass[..., None].to(values.dtype) * self.bias.unflatten(0, (self.heads, -1))


class HeadLinear(nn.Module):
    """A matrix of its own for each head: [..., H, inputs] -> [..., H, outputs]."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs))
        for head in self.weight.detach():
            for part in head.split(inputs):
                nn.init.xavier_uniform_(part)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...hd,hed->...he", x, self.weight.to(x.dtype))


def pool(x: Tensor, scores: Tensor, layout: Layout, dropout: Dropout, values: Callable[..., Tensor]) -> Tensor:
    """Packed x [S, D] -> [P, H, dh]: the ``values`` (HeadValues) of tokens weighted by ``scores`` [S, H]."""
    shape = layout.token_mask.shape
    padded = scatter_padded(scores, layout.in_paragraphs, *shape).transpose(1, 2)
    weights = dropout(masked_softmax(padded, layout.token_mask[:, None, :]))  # [P, H, N]
    mixed = weights.to(x.dtype) @ scatter_padded(x, layout.in_paragraphs, *shape)
    return values(mixed, weights.sum(-1))


def xavier_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer that starts Xavier-uniform with bias 0."""
    layer = Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def sinusoids(positions: Tensor, width: int, form: str) -> Tensor:
    """[...] -> [..., width]: HT eq. 7-8; sines and cosines in turn ("interleaved") or one after the other."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * torch.exp(steps * (-math.log(10000.0) / width))
    waves = angles.sin(), angles.cos()
    return torch.stack(waves, -1).flatten(-2) if form == "interleaved" else torch.cat(waves, -1)


def position_codes(positions: Tensor, length: int, width: int, form: str) -> Tensor:
    """:func:`sinusoids` of many positions [S] below ``length``, each different one computed once."""
    return sinusoids(torch.arange(length, device=positions.device), width, form)[positions]


def positions_2d(layout: Layout, width: int, form: str) -> tuple[Tensor, Tensor]:
    """The codes of each token's place in its paragraph and of its paragraph's rank, [S, width / 2] each."""
    longest, most, ranks = layout.token_mask.shape[1], layout.paragraph_mask.shape[1], layout.rank
    token = position_codes(layout.token_position, longest, width // 2, form)
    return token, position_codes(ranks[layout.token_paragraph], most, width // 2, form)
