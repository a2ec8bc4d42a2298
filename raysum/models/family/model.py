"""The encoder-decoder family: two strings of layer letters define a model. This file has S, L and F.

An encoder letter maps packed tokens [S, D] of a Source to new ones. A decoder letter has ``project_source(memory)``,
which returns its keys and values of the source, computed once per example, and ``forward``, which attends to them with
queries [B, Q, D]: the target positions of an example in training, its beams in decoding. It returns its output [B, Q,
D] and, if requested, its attention in float32: the mean over its heads, before dropout, by paragraph [B, Q, M] or by
token [B, Q, M, N], where the former is the sum of the latter over the paragraph's tokens. Pretrained models attend much
to special marks; that attention is reported as 0 and not redistributed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Memory, Source, SourceKeys, scatter_padded
from raysum.models.copying import CopyGate
from raysum.models.family.gated import GatedParallel, GatedVertical
from raysum.models.family.interparagraph import GlobalLayer
from raysum.models.family.parallel import ParagraphPooling, ParallelAttention
from raysum.models.family.positions import PretrainedPositions
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
        self.entry = PretrainedPositions(spec, spec.backbone) if spec.backbone else None
        has_source_embedding = spec.backbone is not None and spec.backbone.source_embedding
        self.source_embedding = TokenEmbedding(spec, is_output=False) if has_source_embedding else None
        self.gate: CopyGate | None = CopyGate(spec) if spec.copy_heads else None

    def forward(self, source: Source, tokens: Tensor) -> Tensor:
        """Return logits [B, K, V] of the token after each of ``tokens`` [B, K]; log-probabilities with a copy gate."""
        hidden, _, pointer = self.decode_and_point(tokens, self.encode(source))
        return self._step_scores(self.logits(hidden).flatten(0, 1), hidden, pointer, tokens).view(*tokens.shape, -1)

    def _step_scores(self, logits: Tensor, hidden: Tensor, pointer: Pointer | None, tokens: Tensor) -> Tensor:
        if self.gate is None or pointer is None:
            return logits
        return self.gate(logits.view(*hidden.shape[:2], -1), hidden, pointer, tokens).flatten(0, 1)

    def _source_keys(self, memory: Memory) -> Iterator[SourceKeys]:
        for number, layer in enumerate(self.decoder, 1):
            keys = cast(DecoderLayer, layer).cross.project_source(memory)
            is_last = number == len(self.decoder)
            yield replace(keys, ids=self.gate.words(memory.source)) if self.gate is not None and is_last else keys

    def run_encoder(self, source: Source) -> Memory:
        """Run the encoder.

        Raises UserError if ``graph_heads`` are set and the source has no graph, or the source is too long for the
        model.
        """
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
        """Yield the bias of the scores of each encoder layer, [1, H, T, T]. Layers with a common table share it."""
        lengths = {"L": source.layout.token_mask.shape[1], "S": source.layout.source_mask.shape[1]}
        biases: dict[str, Tensor | None] = {}
        number = 0  # of pretrained layers before
        for letter in self.spec.encoder:
            if self.entry is not None and letter in lengths and (letter not in biases or self.entry.by_layer):
                biases[letter] = self.entry.source_bias(lengths[letter], number)
            yield biases.get(letter)
            number += letter != "G"

    def _embed(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor:
        if self.entry is None:
            return super()._embed(tokens, positions, length)
        return self.entry.target(self.embedding(tokens), positions, length)

    def _position_biases(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        distances = None if self.entry is None else self.entry.target_distances
        if distances is None:
            return repeat(None)
        if not distances.by_layer:
            return repeat(distances(queries, keys))
        return (distances(queries, keys, layer) for layer in range(len(self.decoder)))

    def _source_positions(self, source: Source) -> Tensor:
        """Return [S, D]: the position code of each token (HT eq. 7-9)."""
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
    key: Tensor  # [B, H, S, dh], S = most tokens of an example
    value: Tensor
    mask: Tensor  # [B, S]
    position: Tensor  # [B, S] of each token in the flat [M * N]
    grid_mask: Tensor  # [B, M, N]


class FlatAttention(nn.Module):
    """F: cross-attention over all source tokens of an example. Its paragraph attention is the sum over their tokens."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.words = Attention(spec)
        self.dropout = Dropout(spec.attention_dropout)

    def project_source(self, memory: Memory) -> FlatKeys:
        layout = memory.source.layout
        padded = scatter_padded(self.words.source(memory.tokens), layout.in_source, *layout.source_mask.shape)
        key, value = (part.contiguous() for part in split_heads(padded, self.words.heads, 2))
        in_example = layout.in_grid % layout.grid_mask[0].numel()
        position = scatter_padded(in_example, layout.in_source, *layout.source_mask.shape)
        text = memory.text
        text = None if text is None else scatter_padded(text, layout.in_source, *layout.source_mask.shape)
        return FlatKeys(layout.counts, key, value, layout.source_mask, position, layout.grid_mask, text=text)

    def forward(self, x: Tensor, keys: FlatKeys, attention: AttentionRequest) -> Attended:
        query, mask = self.words.queries(x), keys.mask[:, None, None, :]
        share = _share(query, keys, attention == "tokens") if attention else None
        pointer = None
        if keys.ids is not None:
            whole = torch.ones(*x.shape[:2], 1, device=x.device)[:, None]
            pointer = Pointer(query, keys.key, whole, keys.mask[:, None], keys.ids, keys.text)
        output = self.words.merged(attend(query, keys.key, keys.value, mask, dropout=self.dropout.active))
        return output, share, pointer


def _share(query: Tensor, keys: FlatKeys, by_token: bool) -> Tensor:
    """Return the text tokens' weights, mean over heads, by token [B, Q, M, N] or summed by paragraph [B, Q, M].

    It processes one example at a time to bound memory.
    """
    paragraphs, length = keys.grid_mask.shape[1:]
    columns, index = (paragraphs * length, keys.position) if by_token else (paragraphs, keys.position // length)
    shares = []
    for row, (q, key, mask, column) in enumerate(zip(query, keys.key, keys.mask, index, strict=True)):
        weights = masked_softmax(q @ key.transpose(-1, -2) * q.shape[-1] ** -0.5, mask).mean(0)
        weights = weights if keys.text is None else weights * keys.text[row]
        shares.append(weights.new_zeros(len(weights), columns).index_add(1, column, weights))
    share = torch.stack(shares)
    return share.unflatten(-1, (paragraphs, length)) if by_token else share


ENCODER_LETTERS = {"S": FlatLayer, "L": LocalLayer, "G": GlobalLayer, "W": WindowLayer}
DECODER_LETTERS: dict[str, Any] = {"F": FlatAttention, "P": ParallelAttention, "V": VerticalAttention}
GATED_LETTERS: dict[str, Any] = {"P": GatedParallel, "V": GatedVertical}
