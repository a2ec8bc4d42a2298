"""Transformer-XL (Dai et al. 2019): recurrence over segments, and relative positions.

The source is read in segments of ``segment`` tokens; the target starts a segment of its own. At each layer a segment
attends to itself and to the ``memory`` states before it, through which no gradient flows (section 3.2). A token thus
depends on states of the layer below at places that are known beforehand, so all segments of the source are computed
side by side, layer by layer. Keys of the memory are projected again from states without gradient: the projection still
learns from them, as in the paper.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Asked, Layout, SourceKeys
from raysum.models.kernels.attention import masked_softmax, merge_heads, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.packing import scatter_padded
from raysum.models.kernels.pieces import pieces, recompute
from raysum.models.layers import Projection, sinusoids
from raysum.models.specs.txl import TxlSpec
from raysum.models.systems.prefix import (
    Own,
    PrefixMemory,
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


class TransformerXL(PrefixModel):
    """Tokens have no position codes of their own: distances act in the attention."""

    def __init__(self, spec: TxlSpec):
        bias = PositionBias(spec)
        super().__init__(spec, [lambda: RelativeAttention(spec, bias)] * spec.layers, spec.source_loss)
        self.bias = bias
        self.segment = spec.segment

    def decode(self, tokens: Tensor, memory: PrefixMemory, attention: Asked = False) -> tuple[Tensor, Tensor | None]:
        part, rest = tokens[:, : self.segment], tokens[:, self.segment :]
        x, kept, total = self.dropout(self.embedding(part)), [], None
        for layer, keys in zip(self._layers(), memory.keys, strict=True):
            if rest.shape[1]:
                kept.append(layer.attention.remember(layer.around_attention.enter(x), keys))
            x, share = layer(x, keys, bool(attention))
            total = share if total is None else total + share
        hidden = self.norm(x)
        if not rest.shape[1]:
            return hidden, total
        later, later_total = self.decode(rest, replace(memory, keys=tuple(kept)), attention)
        both = None if total is None or later_total is None else torch.cat([total, later_total], 1)
        return torch.cat([hidden, later], 1), both

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        return self.embedding(tokens)


class PositionBias(nn.Module):
    """u and v of section 3.3, which stand for the query where its position should not matter; one for all layers."""

    def __init__(self, spec: TxlSpec):
        super().__init__()
        self.content = nn.Parameter(torch.zeros(spec.heads, spec.width // spec.heads))
        self.position = nn.Parameter(torch.zeros(spec.heads, spec.width // spec.heads))

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """[B, H, Q, dh] -> the queries of contents and of distances, scaled."""
        scale = query.shape[-1] ** -0.5
        return (query + self.content[:, None]) * scale, (query + self.position[:, None]) * scale


@dataclass(frozen=True)
class Distances:
    """W_kR R: codes [H, L, dh] of the distances 0 to L - 1, the same for all examples."""

    codes: Tensor


@dataclass(frozen=True)
class Recall(SourceKeys):
    """The memory of the target's next segment: the states just before it."""

    key: Tensor  # [B, H, R, dh]
    value: Tensor
    mask: Tensor  # [B, R]
    rank: Tensor  # [B, R] paragraphs, M for target tokens
    paragraph_mask: Tensor  # [B, M]
    distances: Distances


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
        self.shared = (bias,)  # in a tuple, as it belongs to the model and not to each layer

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, Recall]:
        rows = cut(layout, self.segment)
        kv = self.source(x)
        past = self._without_gradient(x, kv)
        before = torch.arange(-min(self.memory, int(rows.offset.max())), 0, device=x.device)
        remembered = past[(rows.first[:, None] + before).clamp(min=0)]
        own = scatter_padded(torch.cat([self.query(x), kv], 1), rows.index, len(rows), rows.width)
        query, key, value = split_heads(own, self.heads, 3)
        old_key, old_value = split_heads(remembered, self.heads, 2)
        reached = (before >= -rows.offset[:, None])[:, None]  # [rows, 1, memory]
        distances = self._distances(x)
        context, _ = self._attend(
            query, torch.cat([old_key, key], 2), torch.cat([old_value, value], 2), reached, distances
        )
        index, mask = last_tokens(layout, lengths(layout).clamp(max=self.memory))
        old_key, old_value = kept_heads(past[index], self.heads)
        recall = Recall(
            layout.counts, old_key, old_value, mask, ranks(layout, index, mask), layout.paragraph_mask, distances
        )
        return self.out(merge_heads(context).flatten(0, 1).index_select(0, rows.index)), recall

    def newest(self, keys: Recall, beams: int) -> None:
        return None

    def remember(self, x: Tensor, keys: Recall) -> Recall:
        """The memory after a segment x [B, Q, D] of the target."""
        key, value = split_heads(self._without_gradient(x), self.heads, 2)
        paragraphs = keys.paragraph_mask.shape[1]
        parts = (
            torch.cat([keys.key, key], 2)[:, :, -self.memory :],
            torch.cat([keys.value, value], 2)[:, :, -self.memory :],
            F.pad(keys.mask, (0, x.shape[1]), value=True)[:, -self.memory :],
            F.pad(keys.rank, (0, x.shape[1]), value=paragraphs)[:, -self.memory :],
        )
        return replace(keys, key=parts[0], value=parts[1], mask=parts[2], rank=parts[3])

    def forward(self, x: Tensor, keys: Recall, attention: bool, turn: Turn | None) -> tuple[Tensor, Tensor | None]:
        (query,) = split_heads(self.query(x), self.heads, 1)
        key, value = split_heads(self.source(x), self.heads, 2)
        if turn is None:
            key, value = torch.cat([keys.key, key], 2), torch.cat([keys.value, value], 2)
            context, weights = self._attend(query, key, value, keys.mask[:, None], keys.distances, attention)
        else:
            context, weights = self._step(query, Own.of(key, value, turn), keys)
        share = by_paragraph(weights, keys.rank, keys.paragraph_mask.shape[1]) if attention else None
        return self.out(merge_heads(context)), share

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        reached: Tensor,
        distances: Distances,
        attention: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Queries [N, H, Q, dh] to a memory and themselves, [N, H, R + Q, dh]; ``reached`` [N, 1, R] of the memory.

        Some rows at a time, made again for backward: [N, H, Q, R + Q] never exists at once.
        """
        content, position = self.shared[0](query)
        seen, queries = key.shape[2], query.shape[2]
        codes = distances.codes[:, :seen].flip(1)
        parts = []
        for rows in _bounded(len(query), query.shape[1] * queries * seen, query.device):
            one = content[rows], position[rows], key[rows], value[rows], codes, reached[rows]
            parts.append(recompute(self._piece, *one, random=bool(self.dropout.active)))
        contexts, weights = zip(*parts, strict=True)
        return torch.cat(contexts), torch.cat(weights)

    def _piece(
        self, content: Tensor, position: Tensor, key: Tensor, value: Tensor, codes: Tensor, reached: Tensor
    ) -> tuple[Tensor, Tensor]:
        queries, seen = content.shape[2], key.shape[2]
        causal = torch.ones(queries, seen, dtype=torch.bool, device=key.device).tril(seen - queries)
        mask = causal & F.pad(reached, (0, queries), value=True)
        scores = content @ key.transpose(-1, -2) + shift(position @ codes.transpose(-1, -2))
        weights = masked_softmax(scores, mask[:, None])
        context = self.dropout(weights).to(value.dtype) @ value
        return context, weights[..., : seen - queries].mean(1)

    def _step(self, query: Tensor, own: Own, keys: Recall) -> tuple[Tensor, Tensor]:
        content, position = self.shared[0](query)
        now, remembered = int(own.query[0]), keys.key.shape[2]
        start = now // self.segment * self.segment - self.memory  # the first place of the target that is still seen
        places = torch.arange(-remembered, 0, device=query.device).expand(len(query), -1)
        by_distance = position @ keys.distances.codes.transpose(-1, -2)

        def scores(key: Tensor, place: Tensor) -> Tensor:
            found = content @ key.transpose(-1, -2)
            distance = (now - place).clamp(max=by_distance.shape[-1] - 1)  # what lies beyond is masked
            return found + by_distance.gather(-1, distance[:, None, None].expand_as(found))

        return blend(
            (scores(keys.key, places), scores(own.key, own.place)),
            ((keys.mask & (places >= start))[:, None, None], own.mask & (own.place >= start)[:, None, None]),
            (keys.value, own.value),
            self.dropout,
        )

    def _without_gradient(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Keys and values of states that get no gradient; ``known`` are those with gradient."""
        return self.source(x.detach()) if known is None or torch.is_grad_enabled() else known

    def _distances(self, x: Tensor) -> Distances:
        places = torch.arange(self.memory + self.segment, device=x.device)
        codes = self.position(sinusoids(places, x.shape[-1], self.sinusoid).to(x.dtype))
        return Distances(split_heads(codes[None], self.heads, 1)[0][0])


def shift(scores: Tensor) -> Tensor:
    """[..., Q, T] by distance T - 1 to 0 -> by place: row i moves left by Q - 1 - i (the paper's appendix B).

    What moves in from the right lies after the query.
    """
    queries, seen = scores.shape[-2:]
    flat = F.pad(scores, (0, 1)).flatten(-2)
    return flat[..., queries - 1 : queries - 1 + queries * seen].unflatten(-1, (queries, seen))


def _bounded(rows: int, elements: int, device: torch.device) -> Iterator[slice]:
    return (part for part, _ in pieces([1] * rows, elements, device))
