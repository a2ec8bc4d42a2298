"""Decoder-only models: the source is a prefix of the target, read once; all beams share its keys.

B examples, S source tokens in all, R source positions that a layer keeps, Q queries (target positions, or the beams
of an example in decoding), T target positions, H heads, M paragraphs. BOS separates source and target.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Layout, Memory, Source, scatter_padded
from raysum.models.family.spec import TransformerSpec
from raysum.models.generator import Generator, final_norm, output_layer
from raysum.models.kernels.attention import masked_softmax, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.keys import SourceKeys, StepContext
from raysum.models.layers import Attended, AttentionLayer


@dataclass(frozen=True)
class PrefixKeys(SourceKeys):
    """Source positions that the target attends to. Each represents c tokens, of paragraphs ``rank`` (M = none)."""

    key: Tensor  # [B, H, R, dh]
    value: Tensor
    mask: Tensor  # [B, R]
    rank: Tensor  # [B, R, c]
    length: Tensor  # [B] tokens of the source
    paragraphs: int  # M

    @classmethod
    def of(cls, kv: Tensor, mask: Tensor, tokens: Tensor, layout: Layout, heads: int, **more: Any) -> "PrefixKeys":
        """Return the keys of ``kv`` [B, R, 2 * D], which represent ``tokens`` [B, R, c], contiguous for decoding."""
        key, value = (part.contiguous() for part in split_heads(kv, heads, 2))
        most = layout.paragraph_mask.shape[1]
        rank = layout.rank[layout.token_paragraph][tokens].masked_fill(~mask[..., None], most)
        return cls(layout.chunk_counts, key, value, mask, rank, layout.sizes, most, **more)

    def sum_up(self, weights: Tensor) -> Tensor:
        """Return [B, Q, M]: the ``weights`` [B, Q, R], divided among their tokens, summed by paragraph."""
        rank = self.rank[:, None].expand(-1, weights.shape[1], -1, -1)
        shared = (weights / rank.shape[3])[..., None].expand_as(rank)
        total = weights.new_zeros(*weights.shape[:2], self.paragraphs + 1)
        return total.scatter_add(2, rank.flatten(2), shared.flatten(2))[..., :-1]


@dataclass(frozen=True)
class PrefixMemory(Memory):
    keys: tuple[PrefixKeys, ...]  # one a layer

    def select(self, examples: Sequence[int]) -> "PrefixMemory":
        index = torch.tensor(examples, device=self.tokens.device)
        return replace(super().select(examples), keys=tuple(keys.keep(index) for keys in self.keys))


@dataclass(frozen=True)
class TargetKeys:
    """Keys and values of the target."""

    key: Tensor  # [B, H, T, dh]
    value: Tensor
    mask: Tensor  # [B or 1, 1, Q, T]
    position: Tensor  # [B or 1, T] in the target
    query: Tensor  # [Q] positions of the queries

    @classmethod
    def of(cls, key: Tensor, value: Tensor, step: StepContext) -> "TargetKeys":
        """Return the target keys for all positions [B, H, K, dh]; in a decoding step, for each beam's newest token."""
        count = key.shape[2]
        if step.cache is None:
            position = torch.arange(count, device=key.device)
            return cls(key, value, (position <= position[:, None])[None, None], position[None], position)
        key, value, mask = step.cache.append(step.layer, key, value)
        return cls(key, value, mask, step.cache.positions[:, step.cache.past], step.cache.now.expand(count))


class PrefixLayer(AttentionLayer):
    """An attention and a feed-forward network, for the source and then for the target.

    ``attention.project_source(x [S, D], layout)`` returns its output for source tokens and its keys of them.
    ``attention(x [B, Q, D], keys, step)`` returns its output for target tokens and their mean weights [B, Q, R] of
    source positions over heads.
    """

    def project_source(self, x: Tensor, layout: Layout) -> tuple[Tensor, PrefixKeys]:
        y, keys = cast(Any, self.attention).project_source(self.around_attention.enter(x), layout)
        return self.feed_forward(self.around_attention.leave(x, y)), keys

    def forward(self, x: Tensor, keys: PrefixKeys, attention: AttentionRequest, step: StepContext) -> Attended:
        """Return the new x and, if requested, the attention to paragraphs, as ``layers.DecoderLayer`` does."""
        y, weights = self.attention(self.around_attention.enter(x), keys, step)
        x = self.feed_forward(self.around_attention.leave(x, y))
        return x, keys.sum_up(weights) if attention else None, None


class PrefixModel(Generator):
    """A stack of layers over source and target. Training may also predict the source tokens.

    A layer attends to a part of the source or to groups of tokens, so its reported attention is by paragraph.
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
        all_keys = []
        for layer in self.layers:
            x, keys = cast(PrefixLayer, layer).project_source(x, layout)
            all_keys.append(keys)
        return PrefixMemory(source, self.norm(x), None, tuple(all_keys))

    def _target_layers(self) -> tuple[nn.ModuleList, nn.Module]:
        return self.layers, self.norm

    def _sources(self, memory: PrefixMemory) -> Sequence[PrefixKeys]:
        return memory.keys

    _source_keys = _sources

    def _first_position(self, keys: Sequence[PrefixKeys]) -> Tensor:
        return keys[0].length[:, None]


class Rows:
    """Source tokens of each example, cut into rows of ``size`` tokens; an example's last row may be shorter."""

    def __init__(self, layout: Layout, size: int):
        sizes, self.width = layout.sizes, min(size, layout.source_mask.shape[1])
        counts = (sizes + size - 1) // size
        before = counts.cumsum(0) - counts
        total = sum(-(-tokens // size) for tokens in layout.tokens)
        example = torch.arange(len(sizes), device=sizes.device).repeat_interleave(counts, output_size=total)
        self.offset = (
            torch.arange(len(example), device=sizes.device) - before[example]
        ) * size  # [rows] in the example
        self.first = layout.first_token[example] + self.offset  # [rows] the row's first token, of all S
        row = before[layout.token_example] + layout.token_offset // size
        self.index = row * self.width + layout.token_offset % size  # [S] index in the flat [rows * width]

    def pad(self, values: Tensor) -> Tensor:
        """Return [rows, width, ...] from ``values`` [S, ...]."""
        return scatter_padded(values, self.index, len(self.first), self.width)


def last_tokens(layout: Layout, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the index into S, and the mask, of each source's last ``counts`` [B] tokens, right-aligned in [B, most].

    ``most`` is the maximum of ``counts``.
    """
    positions = torch.arange(-most, 0, device=counts.device)
    index = layout.sizes.cumsum(0)[:, None] + positions
    return index.clamp(min=0), positions >= -counts[:, None]


def attend_jointly(
    scores: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor], keys: PrefixKeys, own: TargetKeys, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """Return contexts [B, H, Q, dh] and the mean over heads of the weights of source positions, [B, Q, R].

    One softmax covers source and target positions, without copying the source's values beside the target's.
    ``scores`` are [B, H, Q, R] and [B, H, Q, T]; ``masks`` broadcast to them.
    """
    shape = (len(scores[0]), 1, scores[0].shape[2], -1)
    mask = torch.cat([part.expand(shape) for part in masks], -1)
    weights = masked_softmax(torch.cat(scores, -1), mask)
    split = [part.shape[-1] for part in scores]
    over_source, over_target = dropout(weights).to(keys.value.dtype).split(split, -1)
    return over_source @ keys.value + over_target @ own.value, weights[..., : split[0]].mean(1)
