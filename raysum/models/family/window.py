"""Letter W: LED's attention to a window of the flat sequence, and of a few global tokens to all.

Beltagy et al. 2020, sections 3.1 and 7, as its published code: a token sees those up to half a window away and all
global ones, by the same projections; a global token sees all tokens by projections of its own, and stands in no window.

B examples, S packed tokens, T tokens of a row, G most global tokens of an example, H heads, C half a window.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from raysum.models.batch import Source, scatter_padded
from raysum.models.kernels.attention import attend, masked_softmax, split_heads
from raysum.models.kernels.dropout import drop
from raysum.models.kernels.pieces import pieces, recompute
from raysum.models.layers import FeedForward, Projection, Residual, SelfAttention
from raysum.models.specs.family import FamilySpec


class WindowLayer(nn.Module):
    """W: windowed self-attention and feed-forward network."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.attention = WindowAttention(spec)
        self.around_attention = Residual(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec)

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), source))
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x)))


class WindowAttention(SelfAttention):
    """Global are an example's first token and those of the ids that the specification names."""

    def __init__(self, spec: FamilySpec):
        super().__init__(spec)
        assert spec.backbone is not None
        self.reach = spec.backbone.window // 2
        self.global_ids = spec.backbone.global_ids
        self.global_query = Projection(spec.width)
        self.global_source = Projection(spec.width, 2)

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """x [S, D] -> [S, D]."""
        layout = source.layout
        shape = layout.source_mask.shape
        found = layout.token_offset == 0
        for mark in self.global_ids:
            found = found | (source.ids == mark)
        seen_by_all = scatter_padded(found, layout.in_source, *shape)
        places = pad_sequence([row.nonzero().flatten() for row in seen_by_all], batch_first=True, padding_value=-1)
        query, key, value = self.split(scatter_padded(self.qkv(x), layout.in_source, *shape))
        context = self._windows(query, key, value, layout.source_mask, seen_by_all, places)

        key, value = split_heads(scatter_padded(self.global_source(x), layout.in_source, *shape), self.heads, 2)
        (query,) = split_heads(scatter_padded(self.global_query(x[found]), *_rows(places)), self.heads, 1)
        mask = layout.source_mask[:, None, None, :]
        above = attend(query, key, value, mask, dropout=self.dropout.active)
        example, number = (places >= 0).nonzero(as_tuple=True)
        context = context.index_put((example, places[example, number]), above.transpose(1, 2)[example, number])
        return self.out(context.flatten(2).flatten(0, 1).index_select(0, layout.in_source))

    def _windows(self, *arrays: Tensor) -> Tensor:
        """[B, T, H, dh], a few examples at a time, made again for backward."""
        query, places = arrays[0], arrays[-1]
        elements = query.shape[1] * query.shape[2] * (3 * self.reach + places.shape[1])
        rate = self.dropout.active
        function = partial(_in_windows, self.reach, rate)
        parts = (rows for rows, _ in pieces([1] * len(query), elements, query.device))
        found = [recompute(function, *(one[rows] for one in arrays), random=bool(rate)) for rows in parts]
        return torch.cat(found).transpose(1, 2)


def _rows(places: Tensor) -> tuple[Tensor, int, int]:
    """Where the global tokens, one example after the other, stand in the flat [B * G], and B and G."""
    return (places.flatten() >= 0).nonzero().flatten(), *places.shape


def _in_windows(half: int, dropout: float, *arrays: Tensor) -> Tensor:
    """Query, key and value [B, H, T, dh], masks [B, T] of real and of global tokens, places [B, G] -> [B, H, T, dh]."""
    query, key, value, real, seen_by_all, places = arrays
    tokens = query.shape[2]
    room = -tokens % half
    blocks = F.pad(query, (0, 0, 0, room)).unflatten(2, (-1, half))  # [B, H, n, C, dh]
    near_key, near_value = (_around(one, half, room) for one in (key, value))  # [B, H, n, dh, 3 C]
    in_window = F.pad(real & ~seen_by_all, (half, half + room)).unfold(1, 3 * half, half)  # [B, n, 3 C]
    step = torch.arange(3 * half, device=query.device) - half - torch.arange(half, device=query.device)[:, None]
    mask = in_window[:, None, :, None] & (step.abs() <= half)

    index = places.clamp_min(0)[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[3])
    global_key, global_value = key.gather(2, index)[:, :, None], value.gather(2, index)[:, :, None]
    is_global = (places >= 0)[:, None, None, None].expand(-1, -1, *mask.shape[2:4], -1)
    scores = torch.cat([blocks @ global_key.transpose(-1, -2), blocks @ near_key], -1) * query.shape[-1] ** -0.5
    weights = drop(masked_softmax(scores, torch.cat([is_global, mask], -1)), dropout).to(value.dtype)
    above, near = weights.split([places.shape[1], 3 * half], -1)
    context = above @ global_value + near @ near_value.transpose(-1, -2)
    return context.flatten(2, 3)[:, :, :tokens]


def _around(x: Tensor, half: int, room: int) -> Tensor:
    """[B, H, T, dh] -> [B, H, n, dh, 3 C]: each block with its neighbours."""
    return F.pad(x, (0, 0, half, half + room)).unfold(2, 3 * half, half)
