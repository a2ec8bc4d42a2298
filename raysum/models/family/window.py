"""Letter W: LED's attention to a window of the flat sequence, and of a few global tokens to all.

As in the published code of Beltagy et al. 2020 (sections 3.1 and 7), a token attends to those up to half a window
away and to all global tokens, with the same projections. A global token attends to all tokens with projections of
its own, and is in no window.

B examples, S packed tokens, T tokens of a row, G most global tokens of an example, H heads, C half a window.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from raysum.models.batch import Source, starts
from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import attend, masked_softmax, packed_heads, split_heads
from raysum.models.kernels.dropout import drop
from raysum.models.kernels.packed import attend_packed, attend_packed_lse, has_packed_kernel
from raysum.models.kernels.recomputation import by_chunks
from raysum.models.layers import AttentionLayer, Projection, SelfAttention


class WindowLayer(AttentionLayer):
    """W: windowed self-attention and feed-forward network."""

    def __init__(self, spec: FamilySpec):
        super().__init__(spec, WindowAttention(spec))

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        y = self.attention(self.around_attention.enter(x), source)
        return self.feed_forward(self.around_attention.leave(x, y))


class WindowAttention(SelfAttention):
    """Windowed self-attention. An example's first token and the specification's ``global_ids`` are global."""

    def __init__(self, spec: FamilySpec):
        super().__init__(spec)
        assert spec.backbone is not None
        self.reach = spec.backbone.window // 2
        self.global_ids = spec.global_ids
        self.global_query = Projection(spec.width)
        self.global_source = Projection(spec.width, 2)

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """Return [S, D] from x [S, D]."""
        is_global = source.layout.token_offset == 0
        for mark in self.global_ids:
            is_global = is_global | (source.ids == mark)
        projected = self.qkv(x)
        packed = has_packed_kernel(projected, projected.shape[-1] // (3 * self.heads), own=True)
        context = (self._packed if packed else self._padded)(x, projected, is_global, source)
        return self.out(context)

    def _packed(self, x: Tensor, projected: Tensor, is_global: Tensor, source: Source) -> Tensor:
        """Return contexts [S, D]. A token's attention to its window and that to global tokens are joined by their mass.

        Each has dropout of its own, which is dropout of their common weights, because the masses have none.
        """
        (number, most), rate = source.count_globals(self.global_ids), self.dropout.active
        rows = source.layout.source_starts, source.layout.source_mask.shape[1]
        numbers = torch.arange(len(x), device=x.device)
        chosen = torch.where(is_global, numbers, len(x)).topk(number, largest=False).values  # ascending
        globals_ = starts(is_global.long())[rows[0].long()], most
        query, key, value = self.split(projected)
        near, near_mass = attend_packed_lse(query, key, value, rows, rows, rate, self.reach, is_global)
        keys, values = key.index_select(0, chosen), value.index_select(0, chosen)
        far, far_mass = attend_packed_lse(query, keys, values, rows, globals_, rate)
        share = (near_mass - far_mass).sigmoid().t()[..., None].to(near.dtype)  # [S, H, 1]
        context = torch.lerp(far, near, share)

        key, value = packed_heads(self.global_source(x), self.heads, 2)
        (query,) = packed_heads(self.global_query(x.index_select(0, chosen)), self.heads, 1)
        over_all = attend_packed(query, key, value, globals_, rows, rate)
        return context.index_copy(0, chosen, over_all).flatten(1)

    def _padded(self, x: Tensor, projected: Tensor, is_global: Tensor, source: Source) -> Tensor:
        layout, tokens = source.layout, source.layout.source_mask.shape[1]
        globals_mask = layout.to_source(is_global)
        _, most = source.count_globals(self.global_ids)
        places = torch.where(globals_mask, torch.arange(tokens, device=x.device), tokens)
        positions = places.topk(most, largest=False).values  # [B, G], ascending; ``tokens`` where there is none
        query, key, value = self.split(layout.to_source(projected))
        elements = query.shape[1] * query.shape[2] * (3 * self.reach + positions.shape[1])
        rate = self.dropout.active
        arrays = query, key, value, layout.source_mask, globals_mask, positions
        windows = by_chunks(partial(_in_windows, self.reach, rate), *arrays, elements=elements, random=bool(rate))
        context = F.pad(windows.transpose(1, 2), (0, 0, 0, 0, 0, 1))  # [B, T + 1, H, dh]

        key, value = split_heads(layout.to_source(self.global_source(x)), self.heads, 2)
        packed = (positions + layout.first_token[:, None]).clamp_max(len(x) - 1)
        (query,) = split_heads(self.global_query(x[packed]), self.heads, 1)
        over_all = attend(query, key, value, layout.source_mask[:, None, None, :], dropout=rate)
        index = positions[..., None, None].expand(-1, -1, *context.shape[2:])
        context = context.scatter(1, index, over_all.transpose(1, 2))[:, :tokens]
        return context.flatten(2).flatten(0, 1).index_select(0, layout.in_source)


def _in_windows(half: int, dropout: float, *arrays: Tensor) -> Tensor:
    """Return [B, H, T, dh] from query, key, value [B, H, T, dh], masks [B, T] (real, global) and positions [B, G].

    A position is T where an example has fewer global tokens.
    """
    query, key, value, is_real, is_global, positions = arrays
    tokens = query.shape[2]
    room = -tokens % half
    blocks = F.pad(query, (0, 0, 0, room)).unflatten(2, (-1, half))  # [B, H, n, C, dh]
    near_key, near_value = (_with_neighbours(array, half, room) for array in (key, value))  # [B, H, n, dh, 3 C]
    in_window = F.pad(is_real & ~is_global, (half, half + room)).unfold(1, 3 * half, half)  # [B, n, 3 C]
    step = torch.arange(3 * half, device=query.device) - half - torch.arange(half, device=query.device)[:, None]
    mask = in_window[:, None, :, None] & (step.abs() <= half)

    index = positions.clamp_max(tokens - 1)[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[3])
    global_key, global_value = key.gather(2, index)[:, :, None], value.gather(2, index)[:, :, None]
    global_mask = (positions < tokens)[:, None, None, None].expand(-1, -1, *mask.shape[2:4], -1)
    scores = torch.cat([blocks @ global_key.transpose(-1, -2), blocks @ near_key], -1) * query.shape[-1] ** -0.5
    weights = drop(masked_softmax(scores, torch.cat([global_mask, mask], -1)), dropout).to(value.dtype)
    over_globals, near = weights.split([positions.shape[1], 3 * half], -1)
    context = over_globals @ global_value + near @ near_value.transpose(-1, -2)
    return context.flatten(2, 3)[:, :, :tokens]


def _with_neighbours(x: Tensor, half: int, room: int) -> Tensor:
    """Return [B, H, n, dh, 3 C]: each block of x [B, H, T, dh] with its neighbours."""
    return F.pad(x, (0, 0, half, half + room)).unfold(2, 3 * half, half)
