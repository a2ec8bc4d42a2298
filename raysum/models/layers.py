"""Building blocks of the models. B examples, S tokens in all, T tokens in a row, H heads, D width, dh = D / H."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Layout, Memory, Rows, scatter_padded
from raysum.models.family.spec import PLAIN, Backbone, TransformerSpec
from raysum.models.kernels.attention import attend, masked_softmax, merge_heads, packed_heads, split_heads
from raysum.models.kernels.dropout import Dropout, drop
from raysum.models.kernels.linear import Linear
from raysum.models.kernels.packed import attend_packed, has_packed_kernel
from raysum.models.keys import SourceKeys, StepContext, WordAttention
from raysum.models.systems.specs import PredictorSpec

# The output, its attention to the source if requested, and the attention of the last layer to words, if it has one.
Attended = tuple[Tensor, Tensor | None, WordAttention | None]

EPSILON = 1e-6  # of every LayerNorm, as in both published implementations


def backbone_of(spec: Any) -> Backbone:
    """Return how the layers of ``spec`` are built."""
    return getattr(spec, "backbone", None) or PLAIN


def norm_layer(spec: Any) -> nn.Module:
    backbone = backbone_of(spec)
    return (nn.RMSNorm if backbone.norm == "rms" else nn.LayerNorm)(spec.width, backbone.eps)


class Projection(Linear):
    """Several matrices side by side, computed in one product. Each is initialized as its own Xavier-uniform matrix."""

    def __init__(self, width: int, parts: int = 1, bias: bool = True, outputs: int | None = None):
        """Each matrix is [outputs, width], square by default."""
        self.parts = parts
        super().__init__(width, parts * (outputs or width), bias)

    def reset_parameters(self) -> None:
        for part in self.weight.chunk(self.parts):
            nn.init.xavier_uniform_(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def zero_init(*layers: nn.Linear) -> None:
    """Let linear layers return 0 at first."""
    for layer in layers:
        nn.init.zeros_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class Matrix(nn.Module):
    """The matrix and bias of a projection that is not applied directly to the module's input."""

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
    """The position-wise feed-forward network."""

    def __init__(self, spec: TransformerSpec | PredictorSpec):
        super().__init__()
        backbone = backbone_of(spec)
        self.activation, self.gated = backbone.activation, backbone.gated
        if backbone.gated:
            self.inner: nn.Linear = Projection(spec.width, 2, backbone.bias, spec.ffn)
        else:
            self.inner = xavier_linear(spec.width, spec.ffn, backbone.bias)
        self.outer = xavier_linear(spec.ffn, spec.width, backbone.bias)
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
    """A residual connection, ``leave(x, sublayer(enter(x)))``, with the norm before the sub-layer or after the sum."""

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


class AttentionLayer(nn.Module):
    """An attention, in decoders one to the source, and a feed-forward network, each inside a residual connection."""

    def __init__(self, spec: Any, attention: nn.Module, cross: nn.Module | None = None):
        super().__init__()
        self.attention = attention
        self.around_attention = Residual(spec)
        if cross is not None:
            self.cross: Any = cross
            self.around_cross = Residual(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x)))


class TransformerBlock(AttentionLayer):
    """Self-attention and feed-forward network (HT eq. 11-12) over packed rows."""

    def __init__(self, spec: TransformerSpec | PredictorSpec):
        super().__init__(spec, PackedSelfAttention(spec))

    def forward(self, x: Tensor, rows: Rows, bias: Tensor | None = None, selected: Tensor | None = None) -> Tensor:
        """Return the new x [S, D], or only the tokens ``selected``. Scores have ``bias`` [rows or 1, H or 1, T, T]."""
        y = self.attention(self.around_attention.enter(x), rows, bias, selected)
        return self.feed_forward(self.around_attention.leave(x if selected is None else x.index_select(0, selected), y))


class SelfAttention(nn.Module):
    """The projections of a multi-head self-attention."""

    def __init__(self, spec: TransformerSpec | PredictorSpec):
        super().__init__()
        backbone = backbone_of(spec)
        inner = spec.heads * (backbone.head_width or spec.width // spec.heads)
        self.heads = spec.heads
        self.qkv = Projection(spec.width, 3, backbone.bias, inner)
        self.out = Projection(inner, 1, backbone.bias, spec.width)
        self.dropout = Dropout(spec.attention_dropout)
        self.scaled = backbone.scaled_scores

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return query, key and value: [B, H, T, dh] each from [B, T, 3 dh H], [S, H, dh] from packed [S, 3 dh H]."""
        query, key, value = (split_heads if x.dim() == 3 else packed_heads)(x, self.heads, 3)
        return _unscaled(query, self.scaled), key, value


def _unscaled(query: Tensor, scaled: bool) -> Tensor:
    """Return queries that undo the division of scores by dh^0.5, unless scores are ``scaled``."""
    return query if scaled else query * query.shape[-1] ** 0.5


class PackedSelfAttention(SelfAttention):
    """Multi-head self-attention. Its linear layers process real tokens only.

    Rows are padded for the attention, unless a kernel for packed rows serves it.
    """

    def forward(self, x: Tensor, rows: Rows, bias: Tensor | None, selected: Tensor | None = None) -> Tensor:
        projected, mask, dropout = self.qkv(x), rows.mask, self.dropout.active
        size = projected.shape[-1] // (3 * self.heads)
        if rows.starts is not None and bias is None and has_packed_kernel(projected, size, own=bool(dropout)):
            places = rows.starts, mask.shape[1]
            query, key, value = self.split(projected)
            packed = attend_packed(query, key, value, places, places, dropout).flatten(1)
            return self.out(packed if selected is None else packed.index_select(0, selected))
        query, key, value = self.split(scatter_padded(projected, rows.index, *mask.shape))
        context = attend(query, key, value, mask[:, None, None, :], dropout=dropout, bias=bias)
        index = rows.index if selected is None else rows.index.index_select(0, selected)
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, index))


class Attention(nn.Module):
    """The projections of a multi-head attention from one sequence to another."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        backbone = backbone_of(spec)
        inner = spec.heads * (backbone.head_width or spec.width // spec.heads)
        self.heads, self.scaled = spec.heads, backbone.scaled_scores
        self.query = Projection(spec.width, 1, backbone.bias, inner)
        self.source = Projection(spec.width, 2, backbone.bias, inner)
        self.out = Projection(inner, 1, backbone.bias, spec.width)

    def queries(self, x: Tensor) -> Tensor:
        """Return [B, H, Q, dh] from [B, Q, D]."""
        return _unscaled(split_heads(self.query(x), self.heads, 1)[0], self.scaled)

    def merged(self, context: Tensor) -> Tensor:
        """Return [B, Q, D] from contexts [B, H, Q, dh]."""
        return self.out(merge_heads(context))


class DecoderLayer(AttentionLayer):
    """Self-attention over the target so far, attention to the source, feed-forward network."""

    def __init__(self, spec: TransformerSpec, cross: Callable[[Any], Any]):
        """``cross(spec)`` builds the attention to the source, as described in models.family.model."""
        super().__init__(spec, CausalSelfAttention(spec), cross(spec))

    def forward(
        self, x: Tensor, source: Memory | SourceKeys, attention: AttentionRequest, step: StepContext
    ) -> Attended:
        """Return the new x and, if requested, the attention to paragraphs [..., M] or tokens [..., M, N].

        x is [B, K, D] for all target positions or, in a decoding step, [B, R, D] for the newest token of each beam.
        """
        keys = source if isinstance(source, SourceKeys) else self.cross.project_source(source)
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), step))
        context, words = self.cross(self.around_cross.enter(x), keys)
        x = self.feed_forward(self.around_cross.leave(x, context))
        return x, words.report(attention), words


class CausalSelfAttention(SelfAttention):
    """Self-attention in which each target position attends to itself and earlier positions."""

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        query, key, value = self.split(self.qkv(x))
        if step.cache is None:
            context = attend(query, key, value, causal=True, dropout=self.dropout.active, bias=step.bias)
        else:
            past = step.cache.append(step.layer, key, value)
            context = attend(query, *past, dropout=self.dropout.active, bias=step.bias)
        return self.out(merge_heads(context))


class HeadValues(Matrix):
    """The values of an attention, projected after weighting: head h uses its rows of the matrix."""

    def __init__(self, width: int, heads: int, bias: bool = True):
        super().__init__(width, bias)
        self.heads = heads

    def forward(self, mixed: Tensor, mass: Tensor) -> Tensor:
        """Return [..., H, dh] from mixed [..., H, D] = weights @ inputs and mass [..., H] = sums of weights."""
        weight = self.weight.unflatten(0, (self.heads, -1))
        values = torch.einsum("...hd,hed->...he", mixed, weight.to(mixed.dtype))
        if self.bias is None:
            return values
        return values + mass[..., None].to(values.dtype) * self.bias.unflatten(0, (self.heads, -1))


class HeadLinear(nn.Module):
    """A matrix for each head: [..., H, inputs] -> [..., H, outputs]."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs))
        for head in self.weight.detach():
            for part in head.split(inputs):
                nn.init.xavier_uniform_(part)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...hd,hed->...he", x, self.weight.to(x.dtype))


def pool(x: Tensor, scores: Tensor, layout: Layout, dropout: Dropout, values: Callable[..., Tensor]) -> Tensor:
    """Return [P, H, dh]: ``values`` of packed x [S, D], weighted within paragraphs by ``scores`` [S, H]."""
    shape = layout.token_mask.shape
    padded = scatter_padded(scores, layout.in_paragraphs, *shape).transpose(1, 2)
    weights = dropout(masked_softmax(padded, layout.token_mask[:, None, :]))  # [P, H, N]
    mixed = weights.to(x.dtype) @ scatter_padded(x, layout.in_paragraphs, *shape)
    return values(mixed, weights.sum(-1))


def xavier_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer with Xavier-uniform weights and bias 0."""
    layer = Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def sinusoids(positions: Tensor, width: int, form: str, length: int | None = None) -> Tensor:
    """Return sinusoidal codes [..., width] of positions [...] (HT eq. 7-8).

    ``form``: sines and cosines alternate ("interleaved"), or the sines come first ("halves"). If positions are below
    ``length``, each distinct one is computed once.
    """
    if length is not None:
        return sinusoids(torch.arange(length, device=positions.device), width, form)[positions]
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * torch.exp(steps * (-math.log(10000.0) / width))
    waves = angles.sin(), angles.cos()
    return torch.stack(waves, -1).flatten(-2) if form == "interleaved" else torch.cat(waves, -1)


def positions_2d(layout: Layout, width: int, form: str) -> tuple[Tensor, Tensor]:
    """Return the codes of each token's position in its paragraph and of its paragraph's rank, [S, width / 2] each."""
    token = sinusoids(layout.token_position, width // 2, form, layout.token_mask.shape[1])
    return token, sinusoids(layout.rank[layout.token_paragraph], width // 2, form, layout.paragraph_mask.shape[1])


class Objective(nn.Module):
    """The base of modules that turn a batch into a loss sum; labels are smoothed in training mode only."""

    def __init__(self, model: Any, smoothing: float):
        super().__init__()
        self.model, self.training_smoothing = model, smoothing

    @property
    def smoothing(self) -> float:
        return self.training_smoothing if self.training else 0.0
