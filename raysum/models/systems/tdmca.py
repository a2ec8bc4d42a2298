"""T-DMCA: the Transformer decoder with memory-compressed attention (Liu et al. 2018, section 4.2.4).

Source and target are one sequence. Its layers attend in turn inside blocks (L), and to keys and values of the whole
past that a strided convolution has compressed (M). As in tensor2tensor, where the paper is silent: pre-norm, a token
sees a compressed group only when all of it is past, and everyone sees the first token as it is, so that the first
group has something to see. Order of projection and convolution: the paper's (tensor2tensor convolves first).
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Layout, SourceKeys
from raysum.models.kernels.attention import attend, merge_heads, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.packing import scatter_padded
from raysum.models.layers import Projection, sinusoids, xavier_linear
from raysum.models.specs.tdmca import TdmcaSpec
from raysum.models.systems.prefix import (
    Own,
    PrefixModel,
    Turn,
    blend,
    by_paragraph,
    cut,
    kept_heads,
    last_tokens,
    lengths,
    ranks,
)


class Tdmca(PrefixModel):
    """Positions count through source and target."""

    def __init__(self, spec: TdmcaSpec):
        super().__init__(spec, [partial(ATTENTIONS[letter], spec) for letter in spec.layers], spec.source_loss)

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x + sinusoids(places, x.shape[-1], self.spec.sinusoid).to(x.dtype)


@dataclass(frozen=True)
class BlockKeys(SourceKeys):
    key: Tensor  # [B, H, R, dh] of the source's last block, where the target goes on
    value: Tensor
    mask: Tensor  # [B, R]
    rank: Tensor  # [B, R] paragraphs
    filled: Tensor  # [B] tokens in that block
    paragraph_mask: Tensor  # [B, M]


class BlockAttention(nn.Module):
    """L: a token attends to those of its block of the sequence, up to itself."""

    def __init__(self, spec: TdmcaSpec):
        super().__init__()
        self.heads, self.block = spec.heads, spec.block
        self.qkv = Projection(spec.width, 3)
        self.out = Projection(spec.width)
        self.dropout = Dropout(spec.attention_dropout)

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, BlockKeys]:
        qkv, rows = self.qkv(x), cut(layout, self.block)
        query, key, value = split_heads(scatter_padded(qkv, rows.index, len(rows), rows.width), self.heads, 3)
        context = attend(query, key, value, causal=True, dropout=self.dropout.active)
        filled = lengths(layout) % self.block
        index, mask = last_tokens(layout, filled)
        key, value = kept_heads(qkv[:, x.shape[1] :][index], self.heads)
        keys = BlockKeys(layout.counts, key, value, mask, ranks(layout, index, mask), filled, layout.paragraph_mask)
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, rows.index)), keys

    def newest(self, keys: BlockKeys, beams: int) -> None:
        return None

    def forward(self, x: Tensor, keys: BlockKeys, attention: bool, turn: Turn | None) -> tuple[Tensor, Tensor | None]:
        query, key, value = split_heads(self.qkv(x), self.heads, 3)
        own = Own.of(key, value, turn)
        block = (keys.filled[:, None] + own.query) // self.block  # [B, Q], 0 = the source's last
        same = block[..., None] == ((keys.filled[:, None] + own.place) // self.block)[:, None]
        query = query * query.shape[-1] ** -0.5
        context, weights = blend(
            (query @ keys.key.transpose(-1, -2), query @ own.key.transpose(-1, -2)),
            (keys.mask[:, None, None] & (block == 0)[:, None, :, None], own.mask & same[:, None]),
            (keys.value, own.value),
            self.dropout,
        )
        share = by_paragraph(weights, keys.rank, keys.paragraph_mask.shape[1]) if attention else None
        return self.out(merge_heads(context)), share


@dataclass(frozen=True)
class CompressedKeys(SourceKeys):
    key: Tensor  # [B, H, 1 + G, dh]: the first token, then the groups that the source completes
    value: Tensor
    mask: Tensor  # [B, 1 + G]
    rank: Tensor  # [B, (1 + G) * c] paragraphs of their tokens
    filled: Tensor  # [B] tokens in the group that is not complete
    last: Tensor  # [B, c - 1, 2 D] keys and values of the last tokens, before the convolution
    paragraph_mask: Tensor  # [B, M]


class CompressedAttention(nn.Module):
    """M: attention to keys and values of which a convolution of width and stride c makes one of c.

    In the paragraph attention a group's weight is shared equally by its tokens; groups that reach into the target
    count as target.
    """

    def __init__(self, spec: TdmcaSpec):
        super().__init__()
        self.heads, self.compression = spec.heads, spec.compression
        self.qkv = Projection(spec.width, 3)
        self.compress_key = xavier_linear(spec.compression * spec.width, spec.width)
        self.compress_value = xavier_linear(spec.compression * spec.width, spec.width)
        self.out = Projection(spec.width)
        self.dropout = Dropout(spec.attention_dropout)

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, CompressedKeys]:
        width, c = x.shape[1], self.compression
        sizes = lengths(layout)
        query, kv = self.qkv(x).split([width, 2 * width], -1)
        first = (sizes.cumsum(0) - sizes)[:, None]
        groups = int(sizes.max()) // c
        index = (first + torch.arange(groups * c, device=x.device)).clamp(max=len(x) - 1)
        complete = torch.arange(groups, device=x.device) < (sizes // c)[:, None]
        compressed = self._compress(kv[index].unflatten(1, (groups, c)))
        key, value = kept_heads(torch.cat([kv[first], compressed], 1), self.heads)

        padded = scatter_padded(query, layout.in_source, *layout.source_mask.shape)
        places = torch.arange(padded.shape[1], device=x.device)
        past = torch.arange(groups + 1, device=x.device) * c <= places[:, None]
        (query,) = split_heads(padded, self.heads, 1)
        context = attend(query, key, value, past, dropout=self.dropout.active)

        tokens = torch.cat([first.expand(-1, c), index], 1)
        mask = F.pad(complete, (1, 0), value=True)
        last, _ = last_tokens(layout, torch.full_like(sizes, c - 1))
        keys = CompressedKeys(
            counts=layout.counts,
            key=key,
            value=value,
            mask=mask,
            rank=ranks(layout, tokens, mask.repeat_interleave(c, 1)),
            filled=sizes % c,
            last=kv[last],
            paragraph_mask=layout.paragraph_mask,
        )
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, layout.in_source)), keys

    def newest(self, keys: CompressedKeys, beams: int) -> Tensor:
        """Keys and values of each beam's last c - 1 tokens [B, R, c - 1, 2 D]: the start of groups to come."""
        return keys.last[:, None].expand(-1, beams, -1, -1)

    def forward(
        self, x: Tensor, keys: CompressedKeys, attention: bool, turn: Turn | None
    ) -> tuple[Tensor, Tensor | None]:
        width, c = x.shape[2], self.compression
        query, kv = self.qkv(x).split([width, 2 * width], -1)
        # the c tokens up to each one are compressed: a group where they end one, else masked
        if turn is None:
            windows = torch.cat([keys.last, kv], 1).unfold(1, c, 1).transpose(2, 3)
        else:
            before = turn.state.newest[turn.layer]
            assert before is not None
            windows = torch.cat([before, kv[:, :, None]], 2)
            turn.state.newest[turn.layer] = windows[:, :, 1:]
        key, value = split_heads(self._compress(windows), self.heads, 2)
        own = Own.of(key, value, turn)
        ends = (keys.filled[:, None] + own.place) % c == c - 1  # [B, T]
        past = own.place[:, None] < own.query[:, None]  # [B, Q, T]
        (query,) = split_heads(query, self.heads, 1)
        query = query * query.shape[-1] ** -0.5
        context, weights = blend(
            (query @ keys.key.transpose(-1, -2), query @ own.key.transpose(-1, -2)),
            (keys.mask[:, None, None], own.mask & ends[:, None, None] & past[:, None]),
            (keys.value, own.value),
            self.dropout,
        )
        share = None
        if attention:
            spread = (weights / c).repeat_interleave(c, 2)
            share = by_paragraph(spread, keys.rank, keys.paragraph_mask.shape[1])
        return self.out(merge_heads(context)), share

    def _compress(self, groups: Tensor) -> Tensor:
        """Keys and values of c tokens [..., c, 2 D] -> those of the group [..., 2 D]."""
        key, value = groups.chunk(2, -1)
        return torch.cat([self.compress_key(key.flatten(-2)), self.compress_value(value.flatten(-2))], -1)


ATTENTIONS: dict[str, type[BlockAttention] | type[CompressedAttention]] = {
    "L": BlockAttention,
    "M": CompressedAttention,
}
