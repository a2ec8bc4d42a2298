"""T-DMCA: the Transformer decoder with memory-compressed attention (Liu et al. 2018, section 4.2.4).

Source and target are one sequence. Layers attend inside blocks (L), or to keys and values of the whole past that a
strided convolution compresses (M), after their projection. As in tensor2tensor, layers are pre-norm, a token sees a
compressed group only if it precedes the token entirely, and all tokens see the first token uncompressed, so that the
first group attends to something.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Layout
from raysum.models.kernels.attention import attend, merge_heads, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.keys import StepContext
from raysum.models.layers import Projection, SelfAttention, xavier_linear
from raysum.models.systems.prefix import PrefixKeys, PrefixModel, Rows, TargetKeys, attend_jointly, last_tokens
from raysum.models.systems.specs import TdmcaSpec


class Tdmca(PrefixModel):
    """Positions count through source and target."""

    def __init__(self, spec: TdmcaSpec):
        super().__init__(spec, [partial(ATTENTIONS[letter], spec) for letter in spec.layers], spec.source_loss)


class BlockAttention(SelfAttention):
    """L: a token attends to its block of the sequence, up to itself. The layer keeps the source's last block."""

    def __init__(self, spec: TdmcaSpec):
        super().__init__(spec)
        self.block = spec.block

    def project_source(self, x: Tensor, layout: Layout) -> tuple[Tensor, PrefixKeys]:
        qkv, rows = self.qkv(x), Rows(layout, self.block)
        query, key, value = split_heads(rows.pad(qkv), self.heads, 3)
        context = attend(query, key, value, causal=True, dropout=self.dropout.active)
        index, mask = last_tokens(
            layout, layout.sizes % self.block, max(tokens % self.block for tokens in layout.tokens)
        )
        keys = PrefixKeys.of(qkv[:, x.shape[1] :][index], mask, index[..., None], layout, self.heads)
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, rows.index)), keys

    def forward(self, x: Tensor, keys: PrefixKeys, step: StepContext) -> tuple[Tensor, Tensor]:
        query, key, value = split_heads(self.qkv(x), self.heads, 3)
        own = TargetKeys.of(key, value, step)
        filled = keys.length[:, None] % self.block
        block = (filled + own.query) // self.block  # [B, Q], 0 = the source's last
        same = block[..., None] == ((filled + own.position) // self.block)[:, None]
        masks = keys.mask[:, None, None] & (block == 0)[:, None, :, None], own.mask & same[:, None]
        context, weights = attend_jointly(_scores(query, keys, own), masks, keys, own, self.dropout)
        return self.out(merge_heads(context)), weights


@dataclass(frozen=True)
class CompressedKeys(PrefixKeys):
    """The first token, then the groups that the source completes."""

    last: Tensor  # [B, c - 1, 2 D] keys and values of the last tokens, before the convolution


class CompressedAttention(nn.Module):
    """M: attention to keys and values; a convolution of width and stride c compresses each c of them into one.

    In the reported attention, groups that extend into the target count as target.
    """

    def __init__(self, spec: TdmcaSpec):
        super().__init__()
        self.heads, self.compression = spec.heads, spec.compression
        self.qkv = Projection(spec.width, 3)
        self.compress_key = xavier_linear(spec.compression * spec.width, spec.width)
        self.compress_value = xavier_linear(spec.compression * spec.width, spec.width)
        self.out = Projection(spec.width)
        self.dropout = Dropout(spec.attention_dropout)

    def project_source(self, x: Tensor, layout: Layout) -> tuple[Tensor, PrefixKeys]:
        width, c, sizes = x.shape[1], self.compression, layout.sizes
        query, kv = self.qkv(x).split([width, 2 * width], -1)
        first = layout.first_token[:, None]
        groups = max(layout.tokens) // c
        index = (first + torch.arange(groups * c, device=x.device)).clamp(max=len(x) - 1).unflatten(1, (groups, c))
        complete = torch.arange(groups, device=x.device) < (sizes // c)[:, None]
        compressed = torch.cat([kv[first], self._compress(kv[index])], 1)
        tokens = torch.cat([first[..., None].expand(-1, 1, c), index], 1)
        last, _ = last_tokens(layout, torch.full_like(sizes, c - 1), c - 1)
        mask = F.pad(complete, (1, 0), value=True)
        keys = CompressedKeys.of(compressed, mask, tokens, layout, self.heads, last=kv[last])

        (query,) = split_heads(layout.to_source(query), self.heads, 1)
        positions = torch.arange(query.shape[2], device=x.device)
        past = torch.arange(groups + 1, device=x.device) * c <= positions[:, None]
        context = attend(query, keys.key, keys.value, past, dropout=self.dropout.active)
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, layout.in_source)), keys

    def forward(self, x: Tensor, keys: CompressedKeys, step: StepContext) -> tuple[Tensor, Tensor]:
        width, c = x.shape[2], self.compression
        query, kv = self.qkv(x).split([width, 2 * width], -1)
        # compress the c tokens up to each token; those that are not a complete group are masked
        if step.cache is None:
            windows = torch.cat([keys.last, kv], 1).unfold(1, c, 1).transpose(2, 3)
        else:
            before = step.cache.recent.get(step.layer, keys.last[:, None].expand(-1, x.shape[1], -1, -1))
            windows = torch.cat([before, kv[:, :, None]], 2)
            step.cache.recent[step.layer] = windows[:, :, 1:]
        key, value = split_heads(self._compress(windows), self.heads, 2)
        own = TargetKeys.of(key, value, step)
        ends = (keys.length[:, None] + own.position) % c == c - 1  # [B, T]
        past = own.position[:, None] < own.query[:, None]  # [B, Q, T]
        masks = keys.mask[:, None, None], own.mask & ends[:, None, None] & past[:, None]
        (query,) = split_heads(query, self.heads, 1)
        context, weights = attend_jointly(_scores(query, keys, own), masks, keys, own, self.dropout)
        return self.out(merge_heads(context)), weights

    def _compress(self, groups: Tensor) -> Tensor:
        """Return the keys and values of groups [..., 2 D] from those of their c tokens [..., c, 2 D]."""
        key, value = groups.chunk(2, -1)
        return torch.cat([self.compress_key(key.flatten(-2)), self.compress_value(value.flatten(-2))], -1)


def _scores(query: Tensor, keys: PrefixKeys, own: TargetKeys) -> tuple[Tensor, Tensor]:
    query = query * query.shape[-1] ** -0.5
    return query @ keys.key.transpose(-1, -2), query @ own.key.transpose(-1, -2)


ATTENTIONS = {"L": BlockAttention, "M": CompressedAttention}
