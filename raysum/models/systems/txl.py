"""Transformer-XL (Dai et al. 2019): recurrence over segments, and relative positions.

The source is read in segments of ``segment`` tokens; the target starts a new segment. In each layer a segment attends
to itself and to the ``memory`` states before it, through which no gradient flows (section 3.2). The positions of these
states are known in advance, so all segments of the source are computed in parallel, layer by layer. Keys of the memory
are projected again from states without gradient; as in the paper, the projection still learns from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Layout
from raysum.models.kernels.attention import masked_softmax, merge_heads, split_heads
from raysum.models.kernels.dropout import Dropout, drop
from raysum.models.kernels.recomputation import by_chunks
from raysum.models.keys import StepContext
from raysum.models.layers import Attended, Projection, sinusoids
from raysum.models.systems.prefix import PrefixKeys, PrefixModel, Rows, TargetKeys, attend_jointly, last_tokens
from raysum.models.systems.specs import TxlSpec


class TransformerXL(PrefixModel):
    """Tokens have no position codes; the attention uses distances."""

    def __init__(self, spec: TxlSpec):
        bias = PositionBias(spec)
        super().__init__(spec, [lambda: RelativeAttention(spec, bias)] * spec.layers, spec.source_loss)
        self.bias = bias

    def decode_and_point(self, tokens: Tensor, memory: Any, attention: AttentionRequest = False) -> Attended:
        """Decode segment after segment; the layers remember earlier segments in ``later``."""
        memory = replace(memory, keys=tuple(replace(keys, later=[]) for keys in memory.keys))
        decode, parts = super().decode_and_point, tokens.split(self.spec.segment, 1)
        hidden, shares, _ = zip(*(decode(part, memory, attention) for part in parts), strict=True)
        return torch.cat(hidden, 1), torch.cat(shares, 1) if attention else None, None

    def _embed(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor:
        return self.embedding(tokens)


class PositionBias(nn.Module):
    """u and v of section 3.3, which replace the query where its position should not matter; shared by all layers."""

    def __init__(self, spec: TxlSpec):
        super().__init__()
        self.content = nn.Parameter(torch.zeros(spec.heads, spec.width // spec.heads))
        self.position = nn.Parameter(torch.zeros(spec.heads, spec.width // spec.heads))

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled queries of contents and of distances from [B, H, Q, dh]."""
        scale = query.shape[-1] ** -0.5
        return (query + self.content[:, None]) * scale, (query + self.position[:, None]) * scale


@dataclass(frozen=True)
class SegmentMemory(PrefixKeys):
    """The memory of the target's first segment: the states just before it."""

    codes: tuple[Tensor]  # W_kR R [H, L, dh] of the distances 0 to L - 1; in a tuple, because all examples share it
    later: list[Tensor]  # states [B, Q, D] of the target's segments so far, without gradient


class RelativeAttention(nn.Module):
    """Section 3.3: (q + u) k + (q + v) W_kR R_(i-j), without biases."""

    def __init__(self, spec: TxlSpec, bias: PositionBias):
        super().__init__()
        self.heads, self.segment, self.memory = spec.heads, spec.segment, spec.memory
        self.sinusoid = spec.sinusoid
        self.query = Projection(spec.width, bias=False)
        self.source = Projection(spec.width, 2, bias=False)
        self.position = Projection(spec.width, bias=False)
        self.out = Projection(spec.width, bias=False)
        self.dropout = Dropout(spec.attention_dropout)
        self.shared = (bias,)  # in a tuple, so that it is a parameter of the model only

    def project_source(self, x: Tensor, layout: Layout) -> tuple[Tensor, PrefixKeys]:
        rows, kv = Rows(layout, self.segment), self.source(x)
        past = self.source(x.detach()) if torch.is_grad_enabled() else kv  # memory has no gradient
        distances = torch.arange(self.memory + self.segment, device=x.device)
        codes = self.position(sinusoids(distances, x.shape[-1], self.sinusoid).to(x.dtype))
        codes = split_heads(codes[None], self.heads, 1)[0][0]
        longest = layout.source_mask.shape[1]
        before = torch.arange(-min(self.memory, (longest - 1) // self.segment * self.segment), 0, device=x.device)
        old = split_heads(past[(rows.first[:, None] + before).clamp(min=0)], self.heads, 2)
        query, *new = split_heads(rows.pad(torch.cat([self.query(x), kv], 1)), self.heads, 3)
        context, _ = self._attend(query, old, new, before >= -rows.offset[:, None], codes)
        index, mask = last_tokens(layout, layout.sizes.clamp(max=self.memory), min(longest, self.memory))
        memory = SegmentMemory.of(past[index], mask, index[..., None], layout, self.heads, codes=(codes,), later=[])
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, rows.index)), memory

    def forward(self, x: Tensor, keys: SegmentMemory, step: StepContext) -> tuple[Tensor, Tensor]:
        (query,) = split_heads(self.query(x), self.heads, 1)
        key, value = split_heads(self.source(x), self.heads, 2)
        if step.cache is not None:
            context, weights = self._step(query, TargetKeys.of(key, value, step), keys, step.cache.length - 1)
            return self.out(merge_heads(context)), weights
        old, mask, dropped = [keys.key, keys.value], keys.mask, 0
        if keys.later:
            past = split_heads(self.source(torch.cat(keys.later, 1)[:, -self.memory :]), self.heads, 2)
            old = [torch.cat(both, 2)[:, :, -self.memory :] for both in zip(old, past, strict=True)]
            mask = F.pad(mask, (0, past[0].shape[2]), value=True)[:, -self.memory :]
            dropped = keys.key.shape[2] + past[0].shape[2] - mask.shape[1]  # source positions that are out of reach
        keys.later.append(x.detach())
        context, weights = self._attend(query, old, [key, value], mask, keys.codes[0])
        return self.out(merge_heads(context)), F.pad(weights[..., : keys.key.shape[2] - dropped], (dropped, 0))

    def _attend(
        self, query: Tensor, old: Sequence[Tensor], new: Sequence[Tensor], reached: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return contexts and weights of queries [N, H, Q, dh] to a memory and to their own segment.

        ``old`` are the memory's keys and values [N, H, R, dh], valid if ``reached`` [N, R]; ``new`` those of the
        segment. [N, H, Q, R + Q] never exists at once.
        """
        key, value = (torch.cat(both, 2) for both in zip(old, new, strict=True))
        content, position = self.shared[0](query)
        seen, queries = key.shape[2], query.shape[2]
        elements = query.shape[1] * queries * seen
        arrays = content, position, key, value, codes[None, :, :seen].flip(2), reached
        return by_chunks(self._chunk, *arrays, elements=elements, random=bool(self.dropout.active))

    def _chunk(
        self, content: Tensor, position: Tensor, key: Tensor, value: Tensor, codes: Tensor, reached: Tensor
    ) -> tuple[Tensor, Tensor]:
        queries, seen = content.shape[2], key.shape[2]
        causal = torch.ones(queries, seen, dtype=torch.bool, device=key.device).tril(seen - queries)
        mask = causal & F.pad(reached[:, None], (0, queries), value=True)
        scores = content @ key.transpose(-1, -2) + shift(position @ codes.transpose(-1, -2))
        weights = masked_softmax(scores, mask[:, None])
        context = drop(weights, self.dropout.active).to(value.dtype) @ value
        return context, weights[..., : seen - queries].mean(1)

    def _step(self, query: Tensor, own: TargetKeys, keys: SegmentMemory, now: int) -> tuple[Tensor, Tensor]:
        content, position = self.shared[0](query)
        remembered = keys.key.shape[2]
        start = now // self.segment * self.segment - self.memory  # the first visible position of the target
        positions = torch.arange(-remembered, 0, device=query.device).expand(len(query), -1)
        by_distance = position @ keys.codes[0].transpose(-1, -2)

        def scores(key: Tensor, position: Tensor) -> Tensor:
            by_content = content @ key.transpose(-1, -2)
            distance = (now - position).clamp(max=by_distance.shape[-1] - 1)  # larger distances are masked
            return by_content + by_distance.gather(-1, distance[:, None, None].expand_as(by_content))

        masks = (keys.mask & (positions >= start))[:, None, None], own.mask & (own.position >= start)[:, None, None]
        return attend_jointly(
            (scores(keys.key, positions), scores(own.key, own.position)), masks, keys, own, self.dropout
        )


def shift(scores: Tensor) -> Tensor:
    """Return scores [..., Q, T] by position from scores by distance T - 1 to 0 (the paper's appendix B).

    Row i moves left by Q - 1 - i. Entries that move in from the right are after the query.
    """
    queries, seen = scores.shape[-2:]
    flat = F.pad(scores, (0, 1)).flatten(-2)
    return flat[..., queries - 1 : queries - 1 + queries * seen].unflatten(-1, (queries, seen))
