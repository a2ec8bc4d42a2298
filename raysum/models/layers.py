"""Blocks shared by the models. B examples, S tokens in all, T tokens in a row, H heads, D width, dh = D / H."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import scatter_padded
from raysum.models.kernels.attention import dropped_attention
from raysum.models.kernels.dropout import Dropout, dropped_relu

EPSILON = 1e-6  # of every LayerNorm, as in both published codes


def sinusoids(positions: Tensor, width: int, form: str) -> Tensor:
    """[...] -> [..., width]: HT eq. 7-8; sines and cosines in turn ("interleaved") or one after the other."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * torch.exp(steps * (-math.log(10000.0) / width))
    waves = angles.sin(), angles.cos()
    return torch.stack(waves, -1).flatten(-2) if form == "interleaved" else torch.cat(waves, -1)


class Projection(nn.Linear):
    """Several square matrices side by side, computed in one product; each starts as its own Xavier-uniform matrix."""

    def __init__(self, width: int, parts: int = 1, bias: bool = True):
        super().__init__(width, parts * width, bias)

    def reset_parameters(self) -> None:
        for part in self.weight.split(self.in_features):
            nn.init.xavier_uniform_(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Matrix(nn.Module):
    """The matrix and bias of a projection, for modules that do not apply it to their input as it is."""

    def __init__(self, width: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        nn.init.xavier_uniform_(self.weight)


class FeedForward(nn.Module):
    """Two linear layers around a ReLU."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0):
        super().__init__()
        self.inner = xavier_linear(width, hidden)
        self.outer = xavier_linear(hidden, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(dropped_relu(self.inner(x), self.dropout.active))


class Residual(nn.Module):
    """The way into and out of a sub-layer, ``leave(x, sublayer(enter(x)))``: norm before it, or after the sum."""

    def __init__(self, width: int, norm: str, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width, EPSILON)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        total = x + self.dropout(y)
        return total if self.pre else self.norm(total)


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward network (HT eq. 11-12) over packed rows."""

    def __init__(self, width: int, ffn: int, heads: int, norm: str, rates: tuple[float, float, float]):
        """``rates``: dropout of sub-layer outputs, of attention weights, of hidden units of the FFN."""
        super().__init__()
        output, attention, hidden = rates
        self.attention = PackedSelfAttention(width, heads, attention)
        self.around_attention = Residual(width, norm, output)
        self.ffn = FeedForward(width, ffn, hidden)
        self.around_ffn = Residual(width, norm, output)

    def forward(self, x: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        """x [S, D]; token s stands at flat place ``index[s]`` of rows that attend within themselves, mask [rows, T]."""
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), index, mask))
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x)))


class PackedSelfAttention(nn.Module):
    """Multi-head self-attention whose linear layers see real tokens only; rows are padded just for the attention."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.qkv = Projection(width, 3)
        self.out = Projection(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        qkv = scatter_padded(self.qkv(x), index, *mask.shape)
        query, key, value = split_heads(qkv, self.heads, 3)
        context = attend(query, key, value, mask[:, None, None, :], dropout=self.dropout.active)
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, index))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention, [B, H, Q, dh] over [B, H, T, dh]; a row without keys gives zeros."""
    if dropout and query.device.type == "cpu":
        return dropped_attention(query, key, value, mask, causal, dropout)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax of the last axis in float32 where ``mask`` is true, 0 elsewhere and in rows without a true one."""
    if mask is None:
        return scores.softmax(-1, dtype=torch.float32)
    weights = scores.float().masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1)
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def split_heads(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """[B, T, parts * D] -> ``parts`` views [B, H, T, dh]."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, dh] -> [B, T, D]."""
    return x.transpose(1, 2).flatten(2)


def xavier_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer that starts Xavier-uniform with bias 0."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
