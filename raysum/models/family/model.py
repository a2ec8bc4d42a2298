"""The encoder-decoder family: a model is two strings of layer letters. Here S, L and F; G, P and V have a file each.

An encoder letter maps packed tokens [S, D] of a Source to new ones. A decoder letter has ``read(memory)``, its keys and
values of the source, made once an example, and ``forward``, which attends to them with queries [B, Q, D]: the target
positions of an example in training, its beams in decoding. It returns what it read [B, Q, D] and, only when asked for,
its attention in float32: the mean over its heads, before dropout, by paragraph [B, Q, M] or by token [B, Q, M, N]; the
former is the latter summed over the paragraph's tokens. In pretrained models much of it falls on marks, which stand for
no text: it is 0 there, and not shared out among the others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Memory, Source, SourceKeys, scatter_padded
from raysum.models.copying import CopyGate
from raysum.models.family.entry import Entry
from raysum.models.family.gated import GatedParallel, GatedVertical
from raysum.models.family.interparagraph import GlobalLayer
from raysum.models.family.parallel import ParagraphPooling, ParallelAttention
from raysum.models.family.vertical import VerticalAttention
from raysum.models.family.window import WindowLayer
from raysum.models.generator import EncoderDecoder, TokenEmbedding, final_norm, output_layer
from raysum.models.kernels.attention import attend, masked_softmax, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.pointing import Pointer
from raysum.models.layers import Attended, Attention, DecoderLayer, TransformerBlock, position_codes, positions_2d
from raysum.models.specs.family import FamilySpec


class Family(EncoderDecoder):
    """HT, PHT, VHT, the flat Transformer and every mixture of their layers.

    The paragraph attention of a position sums to the number of decoder layers; of pretrained ones to less, by what
    falls on marks.
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
        self.entry = Entry(spec, spec.backbone) if spec.backbone else None
        has_own = spec.backbone is not None and spec.backbone.source_embedding
        self.source_embedding = TokenEmbedding(spec, is_output=False) if has_own else None
        self.gate: CopyGate | None = CopyGate(spec) if spec.copy_heads else None

    def forward(self, source: Source, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] of the token after each of ``tokens`` [B, K]; with a copy gate log-probabilities."""
        hidden, _, pointer = self.decode_and_point(tokens, self.encode(source))
        return self._scored(self.logits(hidden).flatten(0, 1), hidden, pointer, tokens).view(*tokens.shape, -1)

    def _scored(self, logits: Tensor, hidden: Tensor, pointer: Pointer | None, tokens: Tensor) -> Tensor:
        if self.gate is None or pointer is None:
            return logits
        return self.gate(logits.view(*hidden.shape[:2], -1), hidden, pointer, tokens).flatten(0, 1)

    def _keys(self, memory: Memory) -> Iterator[SourceKeys]:
        for number, layer in enumerate(self.decoder, 1):
            keys = cast(DecoderLayer, layer).cross.read(memory)
            last = number == len(self.decoder)
            yield replace(keys, ids=self.gate.words(memory.source)) if self.gate is not None and last else keys

    def read(self, source: Source) -> Memory:
        """Raises UserError when ``graph_heads`` are set and the source has no graph, or is too long for the model."""
        x = (self.embedding if self.source_embedding is None else self.source_embedding)(source.ids)
        if self.entry is None:
            x = x + self._source_positions(source).to(x.dtype)
        else:
            x = self.entry.source(x, source.layout)
        x = self.dropout(x)
        for layer, bias in zip(self.encoder, self._source_biases(source), strict=True):
            x = layer(x, source, bias)
        x = self.encoder_norm(x)
        phi = None if self.pooling is None else self.pooling(x, source)
        is_pretrained, spec = self.entry is not None, self.spec
        return Memory(source, x, phi, text=source.is_text(spec.marks, spec.joins_paragraphs) if is_pretrained else None)

    def _source_biases(self, source: Source) -> Iterator[Tensor | None]:
        """For each encoder layer, the bias of its scores, [1, H, T, T]; layers that share a table share it, too."""
        lengths = {"L": source.layout.token_mask.shape[1], "S": source.layout.source_mask.shape[1]}
        biases: dict[str, Tensor | None] = {}
        number = 0  # of the pretrained layer
        for letter in self.spec.encoder:
            if self.entry is not None and letter in lengths and (letter not in biases or self.entry.by_layer):
                biases[letter] = self.entry.source_bias(lengths[letter], number)
            yield biases.get(letter)
            number += letter != "G"

    def _embed(self, tokens: Tensor, places: Tensor, length: int) -> Tensor:
        if self.entry is None:
            return super()._embed(tokens, places, length)
        return self.entry.target(self.embedding(tokens), places, length)

    def _distances(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        distances = None if self.entry is None else self.entry.target_distances
        if distances is None:
            return repeat(None)
        if not distances.by_layer:
            return repeat(distances(queries, keys))
        return (distances(queries, keys, layer) for layer in range(len(self.decoder)))

    def _source_positions(self, source: Source) -> Tensor:
        """[S, D]: the position of each token (HT eq. 7-9)."""
        layout, spec = source.layout, self.spec
        if spec.positions == "flat":
            return position_codes(layout.token_offset, layout.source_mask.shape[1], spec.width, spec.sinusoid)
        if spec.positions == "paragraph":
            return position_codes(layout.token_position, layout.token_mask.shape[1], spec.width, spec.sinusoid)
        token, rank = positions_2d(layout, spec.width, spec.sinusoid)
        return torch.cat([token, rank] if spec.form == "code" else [rank, token], -1)


class FlatLayer(nn.Module):
    """S: self-attention over all tokens of an example."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.block = TransformerBlock(spec)

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        return self.block(x, source.layout.in_source, source.layout.source_mask, bias)


class LocalLayer(FlatLayer):
    """L: self-attention inside each paragraph (HT eq. 11-12, PHT eq. 1)."""

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        return self.block(x, source.layout.in_paragraphs, source.layout.token_mask, bias)


@dataclass(frozen=True)
class FlatKeys(SourceKeys):
    key: Tensor  # [B, H, S, dh], S the most tokens of an example
    value: Tensor
    mask: Tensor  # [B, S]
    place: Tensor  # [B, S] of each token in the flat [M * N]
    grid_mask: Tensor  # [B, M, N]


class FlatAttention(nn.Module):
    """F: cross-attention over all source tokens of an example; its paragraph attention is summed over their tokens."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.words = Attention(spec)
        self.dropout = Dropout(spec.attention_dropout)

    def read(self, memory: Memory) -> FlatKeys:
        layout = memory.source.layout
        padded = scatter_padded(self.words.source(memory.tokens), layout.in_source, *layout.source_mask.shape)
        key, value = (part.contiguous() for part in split_heads(padded, self.words.heads, 2))
        in_example = layout.in_grid % layout.grid_mask[0].numel()
        place = scatter_padded(in_example, layout.in_source, *layout.source_mask.shape)
        text = memory.text
        text = None if text is None else scatter_padded(text, layout.in_source, *layout.source_mask.shape)
        return FlatKeys(layout.counts, key, value, layout.source_mask, place, layout.grid_mask, text=text)

    def forward(self, x: Tensor, keys: FlatKeys, attention: AttentionRequest) -> Attended:
        query, mask = self.words.queries(x), keys.mask[:, None, None, :]
        share = _share(query, keys, attention == "tokens") if attention else None
        pointer = None
        if keys.ids is not None:
            whole = torch.ones(*x.shape[:2], 1, device=x.device)[:, None]
            pointer = Pointer(query, keys.key, whole, keys.mask[:, None], keys.ids, keys.text)
        read = self.words.merged(attend(query, keys.key, keys.value, mask, dropout=self.dropout.active))
        return read, share, pointer


def _share(query: Tensor, keys: FlatKeys, by_token: bool) -> Tensor:
    """Mean over heads of the text tokens' weights: as they are [B, Q, M, N], or summed by paragraph [B, Q, M].

    One example at a time to bound memory.
    """
    paragraphs, length = keys.grid_mask.shape[1:]
    columns, place = (paragraphs * length, keys.place) if by_token else (paragraphs, keys.place // length)
    shares = []
    for row, (q, key, mask, column) in enumerate(zip(query, keys.key, keys.mask, place, strict=True)):
        weights = masked_softmax(q @ key.transpose(-1, -2) * q.shape[-1] ** -0.5, mask).mean(0)
        weights = weights if keys.text is None else weights * keys.text[row]
        shares.append(weights.new_zeros(len(weights), columns).index_add(1, column, weights))
    share = torch.stack(shares)
    return share.unflatten(-1, (paragraphs, length)) if by_token else share


ENCODER_LETTERS = {"S": FlatLayer, "L": LocalLayer, "G": GlobalLayer, "W": WindowLayer}
DECODER_LETTERS: dict[str, Any] = {"F": FlatAttention, "P": ParallelAttention, "V": VerticalAttention}
GATED_LETTERS: dict[str, Any] = {"P": GatedParallel, "V": GatedVertical}
