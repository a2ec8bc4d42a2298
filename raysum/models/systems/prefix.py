"""Decoder-only models: the source is a prefix of the target, read once, and what is kept of it serves all beams.

B examples, S source tokens in all, R source places that a layer keeps, Q queries (target positions, or the beams of an
example in decoding), T target places, H heads, M paragraphs. BOS separates source and target.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from raysum.models.batch import Asked, Layout, Memory, Source, SourceKeys
from raysum.models.generator import Generator, State, final_norm, output_layer
from raysum.models.kernels.attention import masked_softmax, split_heads
from raysum.models.kernels.cache import Cache
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import FeedForward, Residual
from raysum.models.specs.family import TransformerSpec


@dataclass(frozen=True)
class PrefixMemory(Memory):
    keys: tuple[SourceKeys, ...]  # one a layer

    def select(self, examples: Sequence[int]) -> "PrefixMemory":
        index = torch.tensor(examples, device=self.tokens.device)
        return replace(super().select(examples), keys=tuple(keys.keep(index) for keys in self.keys))


@dataclass
class PrefixState(State):
    """``lengths`` [B] tokens of each source, ``newest`` [B, R, ...] what layers keep of each beam's last tokens."""

    lengths: Tensor
    newest: list[Tensor | None] = field(repr=False)

    def reorder(self, parent: Tensor) -> None:
        super().reorder(parent)
        rows = torch.arange(len(parent), device=parent.device)[:, None]
        self.newest = [None if kept is None else kept[rows, parent] for kept in self.newest]

    def keep(self, examples: Tensor) -> None:
        super().keep(examples)
        self.lengths = self.lengths[examples]
        self.newest = [None if kept is None else kept[examples] for kept in self.newest]


@dataclass(frozen=True)
class Turn:
    """A layer's part in a decoding step."""

    state: PrefixState
    layer: int


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
    def of(cls, key: Tensor, value: Tensor, turn: Turn | None) -> "Own":
        """From those of all positions [B, H, K, dh]; in a decoding step from those of each beam's newest token."""
        count = key.shape[2]
        if turn is None:
            place = torch.arange(count, device=key.device)
            return cls(key, value, (place <= place[:, None])[None, None], place[None], place)
        cache = turn.state.cache
        key, value, mask = cache.append(turn.layer, key, value)
        return cls(key, value, mask, cache.place, cache.place[0, -count:])


class PrefixLayer(nn.Module):
    """An attention and a feed-forward network, for the source and then for the target.

    ``attention.read(x [S, D], layout)`` gives its output for source tokens and what it keeps of them;
    ``attention(x [B, Q, D], keys, attention, turn)`` its output for target tokens and their paragraph attention.
    """

    def __init__(self, spec: TransformerSpec, attention: nn.Module):
        super().__init__()
        self.attention: Any = attention
        self.around_attention = Residual(spec.width, spec.norm, spec.dropout)
        self.ffn = FeedForward(spec.width, spec.ffn, spec.ffn_dropout)
        self.around_ffn = Residual(spec.width, spec.norm, spec.dropout)

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, SourceKeys]:
        y, keys = self.attention.read(self.around_attention.enter(x), layout)
        return self._finish(x, y), keys

    def forward(
        self, x: Tensor, keys: SourceKeys, attention: bool, turn: Turn | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, K, D] all target positions, or with ``turn`` the newest token of each beam, [B, R, D]."""
        y, share = self.attention(self.around_attention.enter(x), keys, attention, turn)
        return self._finish(x, y), share

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
        x, kept = self.dropout(self._embed(source.ids, layout.token_offset)), []
        for layer in self._layers():
            x, keys = layer.read(x, layout)
            kept.append(keys)
        return PrefixMemory(source, self.norm(x), None, tuple(kept))

    def decode(self, tokens: Tensor, memory: PrefixMemory, attention: Asked = False) -> tuple[Tensor, Tensor | None]:
        places = lengths(memory.source.layout)[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        x, total = self.dropout(self._embed(tokens, places)), None
        for layer, keys in zip(self._layers(), memory.keys, strict=True):
            x, share = layer(x, keys, bool(attention))
            total = share if total is None else total + share
        return self.norm(x), total

    def start(self, memory: PrefixMemory, beams: int) -> PrefixState:
        newest = [layer.attention.newest(keys, beams) for layer, keys in zip(self._layers(), memory.keys, strict=True)]
        cache, sizes = Cache(len(newest), memory.paragraph_mask, beams), lengths(memory.source.layout)
        return PrefixState(memory.keys, beams, cache, self.scorer(), sizes, newest)

    def step(self, tokens: Tensor, state: PrefixState, attention: Asked = False) -> tuple[Tensor, Tensor | None]:
        x = self._embed(tokens.view(-1, state.beams), state.lengths[:, None] + state.cache.length)
        state.cache.advance()
        total = None
        for index, (layer, keys) in enumerate(zip(self._layers(), state.keys, strict=True)):
            x, share = layer(x, keys, bool(attention), Turn(state, index))
            total = share if total is None else total + share
        logits = state.logits(self.norm(x).flatten(0, 1))
        return logits, None if total is None else total.flatten(0, 1)

    def _layers(self) -> Iterable[PrefixLayer]:
        return cast(Iterable[PrefixLayer], self.layers)

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Tokens [...] at ``places`` [...] of source and target together -> [..., D]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rows:
    """Source tokens of each example cut into rows of ``width`` tokens or fewer."""

    index: Tensor  # [S] place in the flat [rows * width]
    first: Tensor  # [rows] the row's first token, of all S
    offset: Tensor  # [rows] its place in its example
    width: int

    def __len__(self) -> int:
        return len(self.first)


def cut(layout: Layout, size: int) -> Rows:
    """Rows of ``size`` tokens, the last one of an example shorter."""
    longest = layout.source_mask.shape[1]
    width = min(size, longest)
    sizes = lengths(layout)
    counts = (sizes + size - 1) // size
    before = counts.cumsum(0) - counts
    row = before[layout.token_example] + layout.token_offset // size
    example = torch.repeat_interleave(torch.arange(len(sizes), device=row.device), counts)
    offset = (torch.arange(len(example), device=row.device) - before[example]) * size
    first = (sizes.cumsum(0) - sizes)[example] + offset
    return Rows(row * width + layout.token_offset % size, first, offset, width)


def lengths(layout: Layout) -> Tensor:
    """[B] tokens of each source."""
    return layout.source_mask.sum(1)


def last_tokens(layout: Layout, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The last ``counts`` [B] tokens of each source, at the end of [B, R]: index into all S, and mask."""
    most = int(counts.max())
    places = torch.arange(-most, 0, device=counts.device)
    index = lengths(layout).cumsum(0)[:, None] + places
    return index.clamp(min=0), places >= -counts[:, None]


def kept_heads(keys: Tensor, heads: int) -> list[Tensor]:
    """[B, R, 2 * D] -> keys and values [B, H, R, dh], laid out so once, as every decoding step reads them."""
    return [part.contiguous() for part in split_heads(keys, heads, 2)]


def ranks(layout: Layout, index: Tensor, mask: Tensor) -> Tensor:
    """The paragraphs of the source tokens ``index``, M where ``mask`` is false."""
    found = layout.rank[layout.token_paragraph][index]
    return found.masked_fill(~mask, layout.paragraph_mask.shape[1])


def blend(
    scores: tuple[Tensor, Tensor],
    masks: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """One softmax over source and target places, without copying the source's values beside the target's.

    scores [B, H, Q, R] and [B, H, Q, T], masks that broadcast to them, values [B, H, R, dh] and [B, H, T, dh].
    Returns the contexts [B, H, Q, dh] and the mean over heads of the weights of source places, [B, Q, R].
    """
    shape = (len(scores[0]), 1, scores[0].shape[2], -1)
    mask = torch.cat([part.expand(shape) for part in masks], -1)
    weights = masked_softmax(torch.cat(scores, -1), mask)
    split = [part.shape[-1] for part in scores]
    dropped = dropout(weights).to(values[0].dtype).split(split, -1)
    return dropped[0] @ values[0] + dropped[1] @ values[1], weights[..., : split[0]].mean(1)


def by_paragraph(weights: Tensor, rank: Tensor, paragraphs: int) -> Tensor:
    """Weights [B, Q, R] of source places summed by their paragraphs ``rank`` [B, R] -> [B, Q, M]; rank M is none."""
    total = weights.new_zeros(*weights.shape[:2], paragraphs + 1)
    return total.scatter_add(2, rank[:, None].expand_as(weights), weights)[..., :paragraphs]
