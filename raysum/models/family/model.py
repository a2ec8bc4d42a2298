"""The encoder-decoder family: two strings of layer letters define a model. This file has S, L and F.

An encoder letter maps packed tokens [S, D] of a Source to new ones. A decoder letter has ``project_source(memory)``,
which returns its keys and values of the source, computed once per example, and ``forward``, which attends to them with
queries [B, Q, D]: the target positions of an example in training, its beams in decoding. It returns its output [B, Q,
D] and its attention to words. Pretrained models attend much to special marks; that attention is reported as 0 and not
redistributed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.batch import Memory, Source
from raysum.models.copying import CopyGate
from raysum.models.family.gated import GatedParallel, GatedVertical
from raysum.models.family.interparagraph import GlobalLayer
from raysum.models.family.parallel import ParagraphPooling, ParallelAttention
from raysum.models.family.positions import Positions, PretrainedPositions
from raysum.models.family.spec import FamilySpec
from raysum.models.family.vertical import VerticalAttention
from raysum.models.family.window import WindowLayer
from raysum.models.generator import Generator, TokenEmbedding, final_norm, output_layer
from raysum.models.kernels.attention import attend, packed_heads, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.packed import Places, attend_packed, equal_places, has_packed_kernel
from raysum.models.keys import WordAttention, WordKeys
from raysum.models.layers import Attention, DecoderLayer, TransformerBlock
from raysum.models.traced_step import TracedStep


class Family(Generator):
    """HT, PHT, VHT, the flat Transformer and every mixture of their layers.

    The paragraph attention of a position sums to the number of decoder layers; to less in pretrained models, by the
    attention to marks.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__(spec)
        self.encoder = nn.ModuleList(ENCODER_LETTERS[letter](spec) for letter in spec.encoder)
        letters = DECODER_LETTERS if spec.backbone is None else DECODER_LETTERS | GATED_LETTERS
        self.decoder = nn.ModuleList(DecoderLayer(spec, letters[letter]) for letter in spec.decoder)
        self.encoder_norm = final_norm(spec)
        self.decoder_norm = final_norm(spec, last=True)
        self.pooling = ParagraphPooling(spec) if "P" in spec.decoder else None
        self.output = output_layer(spec)
        self.entry = (Positions if spec.backbone is None else PretrainedPositions)(spec)
        has_source_embedding = spec.backbone is not None and spec.backbone.source_embedding
        self.source_embedding = TokenEmbedding(spec, is_output=False) if has_source_embedding else None
        self.gate = CopyGate(spec) if spec.copy_heads else None

    def run_encoder(self, source: Source) -> Memory:
        """Run the encoder. Raises UserError if the source lacks a graph for ``graph_heads``, or is too long."""
        layout, spec = source.layout, self.spec
        x = (self.embedding if self.source_embedding is None else self.source_embedding)(source.ids)
        x = self.dropout(self.entry.source(x, layout))
        for layer, bias in zip(self.encoder, self.entry.source_biases(layout), strict=True):
            x = layer(x, source, bias)
        x = self.encoder_norm(x)
        phi = None if self.pooling is None else self.pooling(x, source)
        text = source.is_text(spec.marks, spec.joins_paragraphs) if spec.backbone else None
        return Memory(source, x, phi, text=text)

    def trace_steps(self) -> None:
        """Let decoding steps on a CPU be traced from now on, while weights stay as they are.

        Those of subclasses, copy gates, P and V are not, because they may use numbers of Python.
        """
        is_traceable = type(self) is Family and set(self.spec.decoder) == {"F"} and self.gate is None
        self.traced_step = TracedStep() if is_traceable else None

    def _embed(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor:
        return self.entry.target(self.embedding(tokens), positions, length)

    def _position_biases(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        return self.entry.target_biases(queries, keys)


class FlatLayer(nn.Module):
    """S: self-attention over all tokens of an example."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.block = TransformerBlock(spec)

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        return self.block(x, source.layout.by_source, bias)


class LocalLayer(FlatLayer):
    """L: self-attention inside each paragraph (HT eq. 11-12, PHT eq. 1)."""

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        return self.block(x, source.layout.by_paragraph, bias)


@dataclass(frozen=True)
class FlatKeys(WordKeys):
    """Words of the whole source, S = most tokens of an example."""

    position: Tensor  # [B, S] of each token in the flat [M * N]
    grid: tuple[int, int]  # M, N
    packed: tuple[Tensor, Tensor, Places] | None  # keys and values [S, H, dh] without padding, for attend_packed

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """All that a step reads if it reports no attention, for :meth:`of`."""
        return self.key, self.value, self.mask

    @classmethod
    def of(cls, key: Tensor, value: Tensor, mask: Tensor) -> "FlatKeys":
        """Return keys of ``arrays``, without what reports and copying need."""
        missing: Any = None
        return cls((), key, value, mask, missing, missing, (0, 0), None, text=None)

    def arranged(self, weights: Tensor, example: int, by_token: bool) -> Tensor:
        paragraphs, length = self.grid
        columns, index = paragraphs, self.position[example] // length
        if by_token:
            columns, index = paragraphs * length, self.position[example]
        total = weights.new_zeros(len(weights), columns).index_add(1, index, weights[:, 0])
        return total.unflatten(-1, self.grid) if by_token else total


class FlatAttention(nn.Module):
    """F: cross-attention over all source tokens of an example. Its paragraph attention is the sum over their tokens."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.words = Attention(spec)
        self.dropout = Dropout(spec.attention_dropout)

    def project_source(self, memory: Memory) -> FlatKeys:
        """Return padded keys, for decoding, reports and the copy gate, and for training packed ones if a kernel can."""
        layout, heads = memory.source.layout, self.words.heads
        paragraphs, length = layout.grid_mask.shape[1:]
        projected = self.words.source(memory.tokens)
        key, value = (part.contiguous() for part in split_heads(layout.to_source(projected), heads, 2))
        size, packed = key.shape[-1], None
        if torch.is_grad_enabled() and has_packed_kernel(projected, size, own=bool(self.dropout.active)):
            keys, values = packed_heads(projected, heads, 2)
            packed = keys, values, (layout.source_starts, layout.source_mask.shape[1])
        return FlatKeys(
            layout.chunk_counts,
            key,
            value,
            layout.source_mask[:, None],
            layout.to_source(memory.source.ids),
            layout.to_source(layout.in_grid % (paragraphs * length)),
            (paragraphs, length),
            packed,
            text=None if memory.text is None else layout.to_source(memory.text)[:, None],
        )

    def forward(self, x: Tensor, keys: FlatKeys) -> tuple[Tensor, WordAttention]:
        query = self.words.queries(x)
        if keys.packed is None:
            context = attend(query, keys.key, keys.value, keys.mask[:, None], dropout=self.dropout.active)
        else:
            key, value, places = keys.packed
            examples, targets = x.shape[:2]
            queries = equal_places(examples, targets, x.device)
            packed = query.transpose(1, 2).flatten(0, 1)
            flat = attend_packed(packed, key, value, queries, places, self.dropout.active)
            context = flat.unflatten(0, (examples, targets)).transpose(1, 2)
        return self.words.merged(context), WordAttention(query, None, keys)


ENCODER_LETTERS = {"S": FlatLayer, "L": LocalLayer, "G": GlobalLayer, "W": WindowLayer}
DECODER_LETTERS: dict[str, Any] = {"F": FlatAttention, "P": ParallelAttention, "V": VerticalAttention}
GATED_LETTERS: dict[str, Any] = {"P": GatedParallel, "V": GatedVertical}
