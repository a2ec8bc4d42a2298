"""Decoder-only models: the source is a prefix of the target, read once, and what is kept of it serves all beams.

B examples, S source tokens in all, R source places that a layer keeps, Q queries (target positions, or the beams of an
example in decoding), T target places, H heads, M paragraphs. BOS separates source and target.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Layout, Memory, Source, SourceKeys
from raysum.models.generator import Generator, final_norm, output_layer
from raysum.models.kernels.attention import masked_softmax, split_heads
from raysum.models.kernels.cache import StepContext
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import Attended, FeedForward, Residual
from raysum.models.specs.family import TransformerSpec


@dataclass(frozen=True)
class PrefixKeys(SourceKeys):
    """Places of the source that the target attends to; each stands for c tokens, of paragraphs ``rank`` (M: none)."""

    key: Tensor  # [B, H, R, dh]
    value: Tensor
    mask: Tensor  # [B, R]
    rank: Tensor  # [B, R, c]
    length: Tensor  # [B] tokens of the source
    paragraphs: int  # M

    @classmethod
    def of(cls, kv: Tensor, mask: Tensor, tokens: Tensor, layout: Layout, heads: int, **more: Any) -> "PrefixKeys":
        """kv [B, R, 2 * D], laid out once as every decoding step reads it, and which ``tokens`` [B, R, c] of S."""
        key, value = (part.contiguous() for part in split_heads(kv, heads, 2))
        most = layout.paragraph_mask.shape[1]
        rank = layout.rank[layout.token_paragraph][tokens].masked_fill(~mask[..., None], most)
        return cls(layout.counts, key, value, mask, rank, layout.sizes, most, **more)


@dataclass(frozen=True)
class PrefixMemory(Memory):
    keys: tuple[PrefixKeys, ...]  # one a layer

    def select(self, examples: Sequence[int]) -> "PrefixMemory":
        index = torch.tensor(examples, device=self.tokens.device)
        return replace(super().select(examples), keys=tuple(keys.keep(index) for keys in self.keys))


@dataclass(frozen=True)
class Own:
    """The target's own keys and values [B, H, T, dh], and whose past they are: mask [B or 1, 1, Q, T].

    ``place`` [B or 1, T] is the position of each in the target, ``query`` [Q] that of the queries.
    """

    key: Tensor
    value: Tensor
    mask: Tensor
    place: Tensor
    query: Tensor

    @classmethod
    def of(cls, key: Tensor, value: Tensor, turn: StepContext) -> "Own":
        """From those of all positions [B, H, K, dh]; in a decoding step from those of each beam's newest token."""
        count = key.shape[2]
        if turn.cache is None:
            place = torch.arange(count, device=key.device)
            return cls(key, value, (place <= place[:, None])[None, None], place[None], place)
        key, value, mask = turn.cache.append(turn.layer, key, value)
        return cls(key, value, mask, turn.cache.place, turn.cache.place[0, -count:])


class PrefixLayer(nn.Module):
    """An attention and a feed-forward network, for the source and then for the target.

    ``attention.read(x [S, D], layout)`` gives its output for source tokens and what it keeps of them;
    ``attention(x [B, Q, D], keys, turn)`` its output for target tokens, and their weights [B, Q, R] of source places,
    the mean over heads.
    """

    def __init__(self, spec: TransformerSpec, attention: nn.Module):
        super().__init__()
        self.attention: Any = attention
        self.around_attention = Residual(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec)

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, PrefixKeys]:
        y, keys = self.attention.read(self.around_attention.enter(x), layout)
        return self._finish(x, y), keys

    def forward(self, x: Tensor, keys: PrefixKeys, attention: AttentionRequest, turn: StepContext) -> Attended:
        """x [B, K, D] all target positions, or in a decoding step the newest token of each beam, [B, R, D]."""
        y, weights = self.attention(self.around_attention.enter(x), keys, turn)
        return self._finish(x, y), by_paragraph(weights, keys) if attention else None, None

    def _finish(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.around_attention.leave(x, y)
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x)))


class PrefixModel(Generator):
    """A stack of layers over source and target. In training the source tokens may be predicted too.

    A layer reaches a part of the source only, or groups of tokens, so attention is by paragraph.
    """

    def __init__(self, spec: TransformerSpec, attentions: Iterable[Callable[[], nn.Module]], source_loss: float):
        super().__init__(spec)
        self.source_loss = source_loss
        self.layers = nn.ModuleList(PrefixLayer(spec, attention()) for attention in attentions)
        self.norm = final_norm(spec)
        self.output = output_layer(spec)

    def encode(self, source: Source) -> PrefixMemory:
        layout = source.layout
        x = self.dropout(self._embed(source.ids, layout.token_offset, layout.source_mask.shape[1]))
        kept = []
        for layer in self.layers:
            x, keys = cast(PrefixLayer, layer).read(x, layout)
            kept.append(keys)
        return PrefixMemory(source, self.norm(x), None, tuple(kept))

    def _stack(self) -> tuple[Iterable[Any], nn.Module]:
        return self.layers, self.norm

    def _keys(self, memory: PrefixMemory) -> Sequence[PrefixKeys]:
        return memory.keys

    def _begin(self, keys: Sequence[PrefixKeys]) -> Tensor:
        return keys[0].length[:, None]


@dataclass(frozen=True)
class Rows:
    """Source tokens of each example cut into rows of ``width`` tokens or fewer."""

    index: Tensor  # [S] place in the flat [rows * width]
    first: Tensor  # [rows] the row's first token, of all S
    offset: Tensor  # [rows] its place in its example
    width: int


def cut_rows(layout: Layout, size: int) -> Rows:
    """Rows of ``size`` tokens, the last one of an example shorter."""
    sizes, width = layout.sizes, min(size, layout.source_mask.shape[1])
    counts = (sizes + size - 1) // size
    before = counts.cumsum(0) - counts
    row = before[layout.token_example] + layout.token_offset // size
    example = torch.repeat_interleave(torch.arange(len(sizes), device=row.device), counts)
    offset = (torch.arange(len(example), device=row.device) - before[example]) * size
    first = (sizes.cumsum(0) - sizes)[example] + offset
    return Rows(row * width + layout.token_offset % size, first, offset, width)


def last_tokens(layout: Layout, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The last ``counts`` [B] tokens of each source, at the end of [B, R]: index into all S, and mask."""
    most = int(counts.max())
    places = torch.arange(-most, 0, device=counts.device)
    index = layout.sizes.cumsum(0)[:, None] + places
    return index.clamp(min=0), places >= -counts[:, None]


def blend(
    scores: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor], keys: PrefixKeys, own: Own, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """One softmax over source and target places, without copying the source's values beside the target's.

    scores [B, H, Q, R] and [B, H, Q, T], masks that broadcast to them.
    Returns the contexts [B, H, Q, dh] and the mean over heads of the weights of source places, [B, Q, R].
    """
    shape = (len(scores[0]), 1, scores[0].shape[2], -1)
    mask = torch.cat([part.expand(shape) for part in masks], -1)
    weights = masked_softmax(torch.cat(scores, -1), mask)
    split = [part.shape[-1] for part in scores]
    over_source, over_target = dropout(weights).to(keys.value.dtype).split(split, -1)
    return over_source @ keys.value + over_target @ own.value, weights[..., : split[0]].mean(1)


def by_paragraph(weights: Tensor, keys: PrefixKeys) -> Tensor:
    """Weights [B, Q, R] of source places, shared equally by their tokens, summed by paragraph -> [B, Q, M]."""
    rank = keys.rank[:, None].expand(-1, weights.shape[1], -1, -1)
    shared = (weights / rank.shape[3])[..., None].expand_as(rank)
    total = weights.new_zeros(*weights.shape[:2], keys.paragraphs + 1)
    return total.scatter_add(2, rank.flatten(2), shared.flatten(2))[..., :-1]
