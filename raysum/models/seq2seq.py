"""The encoder-decoder family: a model is two strings of layer letters."""

import math
from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Source
from raysum.models.cache import Cache, State
from raysum.models.decoder import DecoderLayer
from raysum.models.dropout import Dropout
from raysum.models.encoder import ENCODER_LAYERS
from raysum.models.layers import EPSILON, sinusoids, xavier_linear
from raysum.models.memory import Memory
from raysum.models.pooling import ParagraphPooling
from raysum.models.specs import Seq2SeqSpec


class TokenEmbedding(nn.Module):
    """The embedding that source and target share; when tied, the output layer too.

    Both uses go through ``forward``, so that ZeRO-3 gathers the matrix for either. It starts normal with deviation
    D^-0.5: embeddings times sqrt(D) then have unit scale beside the sinusoids, and tied logits unit variance.
    On a copying task (LL/PP, width 64, 250 steps) the loss was 0.4 so, and 3.2 from HT's code's Xavier-uniform start.
    """

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.vocabulary, spec.width))
        self.bias = nn.Parameter(torch.zeros(spec.vocabulary)) if spec.tied_output else None
        nn.init.normal_(self.weight, std=spec.width**-0.5)

    def forward(self, x: Tensor, output: bool = False) -> Tensor:
        """Token ids [...] -> [..., D] times sqrt(D), or with ``output`` hidden states [..., D] -> logits [..., V]."""
        if output:
            return F.linear(x, self.weight, self.bias)
        return F.embedding(x, self.weight) * math.sqrt(self.weight.shape[1])


class Seq2Seq(nn.Module):
    """HT, PHT, VHT, the flat Transformer and every mixture of their layers.

    ``forward`` is teacher-forced training; ``start`` and ``step`` decode with a cache and give the same numbers.
    """

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec)
        self.dropout = Dropout(spec.dropout)
        self.encoder = nn.ModuleList(ENCODER_LAYERS[letter](spec) for letter in spec.encoder)
        self.decoder = nn.ModuleList(DecoderLayer(spec, letter) for letter in spec.decoder)
        self.encoder_norm = _final_norm(spec)
        self.decoder_norm = _final_norm(spec)
        self.pooling = ParagraphPooling(spec) if "P" in spec.decoder else None
        self.output = None if spec.tied_output else xavier_linear(spec.width, spec.vocabulary)

    def forward(self, source: Source, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] of the token after each of ``tokens`` [B, K]."""
        hidden, _ = self.decode(tokens, self.encode(source))
        return self.logits(hidden)

    def encode(self, source: Source) -> Memory:
        """Raises UserError when ``graph_heads`` are set and the source has no graph."""
        x = self.embedding(source.ids)
        x = self.dropout(x + self._source_positions(source).to(x.dtype))
        for layer in self.encoder:
            x = layer(x, source)
        x = self.encoder_norm(x)
        return Memory(source, x, None if self.pooling is None else self.pooling(x, source))

    def decode(self, tokens: Tensor, memory: Memory, attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: tokens [B, K], BOS first -> hidden states [B, K, D] before the output layer.

        With ``attention`` also the paragraph attention [B, K, M], summed over layers: rows sum to their number.
        Padding at the end of a row changes nothing before it.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self._target(tokens, positions))
        total = None
        for layer in self._layers():
            x, share = layer(x, layer.read(memory), attention)
            total = share if total is None else total + share
        return self.decoder_norm(x), total

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return self.embedding(hidden, output=True) if self.output is None else self.output(hidden)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] in float32."""
        return self.logits(hidden).log_softmax(-1, dtype=torch.float32)

    def start(self, memory: Memory, beams: int) -> State:
        """Begin decoding ``beams`` hypotheses of each example; they share the example's source keys and values."""
        return State([layer.read(memory) for layer in self._layers()], beams, Cache(len(self.decoder)))

    def step(self, tokens: Tensor, state: State, attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """Feed the newest token of every beam [B * R]; returns logits of the next [B * R, V], and paragraph attention
        of this step [B * R, M] if asked for."""
        cache = state.cache
        position = torch.tensor(cache.length, device=tokens.device)
        x = self._target(tokens.view(-1, state.beams), position)
        cache.advance(x.shape[0], x.shape[1], x.device)
        total = None
        for index, (layer, keys) in enumerate(zip(self._layers(), state.keys, strict=True)):
            x, share = layer(x, keys, attention, partial(cache.append, index))
            total = share if total is None else total + share
        logits = self.logits(self.decoder_norm(x)).flatten(0, 1)
        return logits, None if total is None else total.flatten(0, 1)

    def _layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def _target(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x + sinusoids(positions, self.spec.width, self.spec.sinusoid).to(x.dtype)

    def _source_positions(self, source: Source) -> Tensor:
        """[S, D]: the position of each token (HT eq. 7-9)."""
        layout, spec = source.layout, self.spec
        table = partial(_table, form=spec.sinusoid, device=source.ids.device)
        if spec.positions == "flat":
            return table(layout.source_mask.shape[1], spec.width)[layout.token_offset]
        if spec.positions == "paragraph":
            return table(layout.token_mask.shape[1], spec.width)[layout.token_position]
        token = table(layout.token_mask.shape[1], spec.width // 2)[layout.token_position]
        rank = table(layout.paragraph_mask.shape[1], spec.width // 2)[layout.rank[layout.token_paragraph]]
        return torch.cat([token, rank] if spec.form == "code" else [rank, token], -1)


def _table(length: int, width: int, form: str, device: torch.device) -> Tensor:
    return sinusoids(torch.arange(length, device=device), width, form)


def _final_norm(spec: Seq2SeqSpec) -> nn.Module:
    return nn.LayerNorm(spec.width, EPSILON) if spec.norm == "pre" else nn.Identity()
