"""The encoder-decoder family: a model is two strings of layer letters."""

from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from raysum.models.batch import Source
from raysum.models.family.decoder import DECODER_LETTERS, DecoderLayer
from raysum.models.family.encoder import ENCODER_LAYERS
from raysum.models.family.pooling import ParagraphPooling
from raysum.models.generator import Generator, final_norm, output_layer
from raysum.models.kernels.cache import Cache, State
from raysum.models.layers import sinusoids
from raysum.models.memory import Memory, Watch
from raysum.models.specs import Seq2SeqSpec, TransformerSpec

_PART = 4096  # source tokens encoded together on a CPU when nothing is kept for backward


class EncoderDecoder(Generator):
    """What models with an encoder share: they ``read`` a source, and decode by layers around attention to it."""

    decoder: nn.ModuleList
    decoder_norm: nn.Module

    def __init__(self, spec: TransformerSpec):
        super().__init__(spec)
        self.sinusoid = spec.sinusoid

    @abstractmethod
    def read(self, source: Source) -> Memory:
        """The encoder. Raises UserError where the source lacks what the model needs (a graph)."""

    def encode(self, source: Source) -> Memory:
        """:meth:`read`; without gradients on a CPU a few examples at a time, whose arrays stay near the processor.

        Measured on 16 examples of 24 paragraphs of 100 tokens, HT, 2 threads: 3.9 s against 6.2 s all at once.
        """
        if torch.is_grad_enabled() or source.ids.device.type != "cpu":
            return self.read(source)
        return Memory.joined(source, [self.read(part) for part in source.parts(_PART)])

    def decode(self, tokens: Tensor, memory: Memory, attention: Watch = False) -> tuple[Tensor, Tensor | None]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self._target(tokens, positions))
        total = None
        for layer in self._layers():
            x, share = layer(x, layer.read(memory), attention)
            total = share if total is None else total + share
        return self.decoder_norm(x), total

    def start(self, memory: Memory, beams: int) -> State:
        keys = [layer.read(memory) for layer in self._layers()]
        return State(keys, beams, Cache(len(keys), memory.paragraph_mask, beams), self.scorer())

    def step(self, tokens: Tensor, state: State, attention: Watch = False) -> tuple[Tensor, Tensor | None]:
        cache = state.cache
        position = torch.tensor(cache.length, device=tokens.device)
        x = self._target(tokens.view(-1, state.beams), position)
        cache.advance()
        total = None
        for index, (layer, keys) in enumerate(zip(self._layers(), state.keys, strict=True)):
            x, share = layer(x, keys, attention, partial(cache.append, index))
            total = share if total is None else total + share
        logits = state.logits(self.decoder_norm(x).flatten(0, 1))
        return logits, None if total is None else total.flatten(0, 1)

    def _layers(self) -> Iterable[DecoderLayer]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def _target(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x + sinusoids(positions, x.shape[-1], self.sinusoid).to(x.dtype)


class Seq2Seq(EncoderDecoder):
    """HT, PHT, VHT, the flat Transformer and every mixture of their layers.

    The paragraph attention of a position sums to the number of decoder layers.
    """

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__(spec)
        self.spec = spec
        self.encoder = nn.ModuleList(ENCODER_LAYERS[letter](spec) for letter in spec.encoder)
        self.decoder = nn.ModuleList(DecoderLayer(spec, DECODER_LETTERS[letter]) for letter in spec.decoder)
        self.encoder_norm = final_norm(spec)
        self.decoder_norm = final_norm(spec)
        self.pooling = ParagraphPooling(spec) if "P" in spec.decoder else None
        self.output = output_layer(spec)

    def read(self, source: Source) -> Memory:
        """Raises UserError when ``graph_heads`` are set and the source has no graph."""
        x = self.embedding(source.ids)
        x = self.dropout(x + self._source_positions(source).to(x.dtype))
        for layer in self.encoder:
            x = layer(x, source)
        x = self.encoder_norm(x)
        return Memory(source, x, None if self.pooling is None else self.pooling(x, source))

    def _source_positions(self, source: Source) -> Tensor:
        """[S, D]: the position of each token (HT eq. 7-9)."""
        layout, spec = source.layout, self.spec
        if spec.positions == "flat":
            table = _table(layout.source_mask.shape[1], spec.width, spec.sinusoid, source.ids.device)
            return table[layout.token_offset]
        if spec.positions == "paragraph":
            table = _table(layout.token_mask.shape[1], spec.width, spec.sinusoid, source.ids.device)
            return table[layout.token_position]
        token, rank = positions_2d(source, spec.width, spec.sinusoid)
        return torch.cat([token, rank] if spec.form == "code" else [rank, token], -1)


def positions_2d(source: Source, width: int, form: str) -> tuple[Tensor, Tensor]:
    """The codes of each token's place in its paragraph and of its paragraph's rank, [S, width / 2] each."""
    layout, table = source.layout, partial(_table, width=width // 2, form=form, device=source.ids.device)
    token = table(layout.token_mask.shape[1])[layout.token_position]
    return token, table(layout.paragraph_mask.shape[1])[layout.rank[layout.token_paragraph]]


def _table(length: int, width: int, form: str, device: torch.device) -> Tensor:
    return sinusoids(torch.arange(length, device=device), width, form)
