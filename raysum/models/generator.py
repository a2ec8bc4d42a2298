"""What every summarizing model is: it encodes a source, continues a target token by token, and learns from targets.

B examples, K target length, R beams of an example, M paragraphs, N tokens of a paragraph, V vocabulary, D width.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Batch, Memory, Source, SourceKeys, scatter_padded
from raysum.models.kernels.cache import Cache, StepContext
from raysum.models.kernels.cross_entropy import smoothed_cross_entropy
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.linear import linear
from raysum.models.kernels.pointing import Pointer
from raysum.models.layers import Attended, DecoderLayer, backbone_of, norm_layer, sinusoids, xavier_linear
from raysum.models.specs.family import TransformerSpec
from raysum.tokenizers.special_tokens import SpecialTokens, marks_of

_PART = 4096  # source tokens encoded together on a CPU when nothing is kept for backward


class TokenEmbedding(nn.Module):
    """The embedding of source and target, or of one (``Backbone.source_embedding``); when tied, the output layer too.

    Both uses go through ``forward``, so that ZeRO-3 gathers the matrix for either. From a normal start of deviation
    D^-0.5 embeddings times sqrt(D) have unit scale beside the sinusoids, and tied logits unit variance.
    On a copying task (LL/PP, width 64, 250 steps) the loss was 0.4 so, and 3.2 from HT's code's Xavier-uniform start.
    """

    def __init__(self, spec: TransformerSpec, is_output: bool):
        """``is_output``: the output layer is this embedding, so it has the bias of the logits."""
        super().__init__()
        made = backbone_of(spec)
        self.weight = nn.Parameter(torch.empty(spec.vocabulary, spec.width))
        self.bias = output_bias(spec) if is_output else None
        self.scale = math.sqrt(spec.width) if made.embedding_scaled else 1.0
        self.frozen = None if made.padding_trained else marks_of(spec).pad
        if spec.embedding_start == "xavier":
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.normal_(self.weight, std=spec.width**-0.5)

    def forward(self, x: Tensor, output: bool = False) -> Tensor:
        """Token ids [...] -> [..., D] times sqrt(D), or with ``output`` hidden states [..., D] -> logits [..., V]."""
        if output:
            return linear(x, self.weight, self.bias)
        return F.embedding(x, self.weight, self.frozen) * self.scale


@dataclass
class State:
    """A batch in decoding: B examples with R beams each; row b * R + r is beam r of example b."""

    keys: Sequence[SourceKeys]  # one a layer
    beams: int
    cache: Cache = field(repr=False)

    def reorder(self, parent: Tensor) -> None:
        """Beams go on from beams ``parent`` [B, R] of their example; source keys are shared, so they stay."""
        self.cache.reorder(parent)

    def keep(self, examples: Tensor) -> None:
        """Only the examples ``examples`` [B'] go on."""
        self.keys = [keys.keep(examples) for keys in self.keys]
        self.cache.keep(examples)


class Generator(nn.Module):
    """The face of all summarizing models.

    ``forward`` is teacher-forced training; ``start`` and ``step`` decode with a cache and give the same numbers.
    Attention to the source, where it is asked for, is the mean over heads, summed over (some) layers: to paragraphs
    [..., M], or with ``"tokens"`` to the tokens of each, [..., M, N], where the system ``attends_to_tokens``.
    """

    source_loss = 0.0  # weight in training of the source tokens' own prediction, for models that predict them

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec: Any = spec
        self.embedding = TokenEmbedding(spec, spec.tied_output)
        self.dropout = Dropout(spec.dropout)
        self.output: nn.Linear | None = None

    def forward(self, source: Source, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] of the token after each of ``tokens`` [B, K]."""
        hidden, _ = self.decode(tokens, self.encode(source))
        return self.logits(hidden)

    @abstractmethod
    def encode(self, source: Source) -> Memory:
        """Raises UserError where the source lacks what the model needs (a graph)."""

    def decode(
        self, tokens: Tensor, memory: Memory, attention: AttentionRequest = False
    ) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: tokens [B, K], the start first -> hidden states [B, K, D] before the output layer.

        With ``attention`` also that to the source [B, K, ...]. Padding at the end of a row changes nothing before.
        """
        hidden, total, _ = self.decode_and_point(tokens, memory, attention)
        return hidden, total

    def decode_and_point(self, tokens: Tensor, memory: Memory, attention: AttentionRequest = False) -> Attended:
        """:meth:`decode`, and how the last layer points at source tokens where there is a copy gate."""
        keys, places = self._keys(memory), torch.arange(tokens.shape[1], device=tokens.device)
        x = self._embed(tokens, self._begin(keys) + places, tokens.shape[1])
        return self._through(self.dropout(x), keys, attention, biases=self._distances(places, places))

    def start(self, memory: Memory, beams: int) -> State:
        """Begin decoding ``beams`` hypotheses of each example; they share what is kept of its source."""
        keys = [*self._keys(memory)]
        return State(keys, beams, Cache(len(keys), memory.paragraph_mask, beams))

    def step(self, tokens: Tensor, state: State, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]:
        """Feed the newest token of every beam [B * R]; returns logits of the next [B * R, V], and this step's attention
        to the source [B * R, ...] if asked for."""
        state.cache.advance()
        tokens, places = tokens.view(-1, state.beams), state.cache.place
        x = self._embed(tokens, self._begin(state.keys) + places[0, -1], state.cache.length)
        biases = self._distances(places[:, -1:], places)
        x, total, pointer = self._through(x, state.keys, attention, state.cache, biases)
        logits = self._scored(self.logits(x.flatten(0, 1)), x, pointer, tokens)
        return logits, None if total is None else total.flatten(0, 1)

    def _scored(self, logits: Tensor, hidden: Tensor, pointer: Pointer | None, tokens: Tensor) -> Tensor:
        """What a step returns: the logits [B * R, V] as they are."""
        return logits

    @abstractmethod
    def _stack(self) -> tuple[Iterable[Any], nn.Module]:
        """The layers that the target goes through, and what follows the last one."""

    @abstractmethod
    def _keys(self, memory: Any) -> Iterable[SourceKeys]:
        """What each of these layers keeps of the source, one after the other."""

    def _begin(self, keys: Any) -> Tensor | int:
        """The place of the start."""
        return 0

    def _embed(self, tokens: Tensor, places: Tensor, length: int) -> Tensor:
        """Tokens [B, K] at ``places``, which are below ``length`` -> [B, K, D]."""
        x = self.embedding(tokens)
        return x + sinusoids(places, x.shape[-1], self.spec.sinusoid).to(x.dtype)

    def _distances(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        """For each layer, the bias of the scores of target positions [..., Q] at others [..., T]: [..., H, Q, T]."""
        return repeat(None)

    def _through(
        self,
        x: Tensor,
        keys: Iterable[SourceKeys],
        attention: AttentionRequest,
        cache: Cache | None = None,
        biases: Iterable[Tensor | None] = repeat(None),
    ) -> Attended:
        layers, norm = self._stack()
        total = pointer = None
        pairs = zip(layers, keys, strict=True)
        for number, ((layer, kept), bias) in enumerate(zip(pairs, biases, strict=False)):
            asked = number in attention if isinstance(attention, frozenset) else attention
            x, share, pointer = layer(x, kept, asked, StepContext(number, cache, bias))
            total = share if total is None else total if share is None else total + share
        return norm(x), total, pointer

    def paragraphs(self, memory: Memory) -> Tensor:
        """Paragraph embeddings [B, M, D] for an attention predictor: Phi with its rank code (PHT eq. 6), if there is.

        Of other models the mean of each paragraph's tokens with such a code: nothing has to be trained for it, and the
        layers of the predictor follow it.
        """
        if memory.phi is not None:
            return memory.phi
        source, layout = memory.source, memory.source.layout
        sums = memory.tokens.new_zeros(len(source.lengths), memory.tokens.shape[1])
        means = sums.index_add(0, layout.token_paragraph, memory.tokens) / source.lengths[:, None]
        padded = scatter_padded(means.to(sums.dtype), layout.in_examples, *layout.paragraph_mask.shape)
        ranks = torch.arange(padded.shape[1], device=padded.device)
        return padded + sinusoids(ranks, padded.shape[2], "interleaved").to(padded.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return self.embedding(hidden, output=True) if self.output is None else self.output(hidden)


class EncoderDecoder(Generator):
    """What models with an encoder share: they ``read`` a source, and decode by layers around attention to it."""

    decoder: nn.ModuleList
    decoder_norm: nn.Module

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

    def _stack(self) -> tuple[Iterable[Any], nn.Module]:
        return self.decoder, self.decoder_norm

    def _keys(self, memory: Memory) -> Iterable[SourceKeys]:
        return (cast(DecoderLayer, layer).cross.read(memory) for layer in self.decoder)


class LanguageModelling(nn.Module):
    """Cross-entropy of the target given the source; label-smoothed in training mode, plain NLL in evaluation mode.

    In training mode models with a ``source_loss`` predict the source's tokens too, so weighted: their share is in the
    gradient and not in the value, which stays that of the target alone, as in evaluation mode.
    """

    def __init__(self, model: Generator, smoothing: float):
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> Tensor:
        """The sum over all predicted tokens (padding is none) of ``smoothed_cross_entropy``, a scalar in fp32."""
        memory = self.model.encode(batch.source)
        loss = self.target_loss(memory, batch.target[:, :-1], batch.target[:, 1:])
        if self.training and self.model.source_loss:
            gold = following(batch.source, marks_of(self.model.spec))
            source = self.model.source_loss * self._cross_entropy(memory.tokens, gold)
            loss = loss + (source - source.detach())
        return loss

    def target_loss(self, memory: Memory, tokens: Tensor, gold: Tensor) -> Tensor:
        hidden, _ = self.model.decode(tokens, memory)
        real = gold != marks_of(self.model.spec).pad
        return self._cross_entropy(hidden[real], gold[real])

    def _cross_entropy(self, hidden: Tensor, gold: Tensor, odds: Tensor | None = None) -> Tensor:
        output = self.model.embedding if self.model.output is None else self.model.output
        smoothing, pad = self.smoothing if self.training else 0.0, marks_of(self.model.spec).pad
        return smoothed_cross_entropy(hidden, output.weight, output.bias, gold, smoothing, odds, pad=pad)


def following(source: Source, marks: SpecialTokens) -> Tensor:
    """[S] the token after each source token; the start of the target after an example's last."""
    last = source.layout.sizes.cumsum(0) - 1
    return source.ids.roll(-1).index_fill(0, last, marks.start)


def final_norm(spec: TransformerSpec, last: bool = False) -> nn.Module:
    """After the last layer of the encoder, or ``last`` of the decoder: pre-norm layers leave their sum as it is."""
    made = backbone_of(spec)
    norm = norm_layer(spec) if spec.norm == "pre" else nn.Identity()
    more: list[nn.Module] = [Dropout(spec.dropout)] if made.final_dropout else []
    more += [Scaled(spec.width**-0.5)] if last and made.output_scaled else []
    return nn.Sequential(norm, *more) if more else norm


class Scaled(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def output_bias(spec: TransformerSpec) -> nn.Parameter | None:
    """Of the logits [V]."""
    how = backbone_of(spec).output_bias
    return None if how == "none" else nn.Parameter(torch.zeros(spec.vocabulary), requires_grad=how == "trained")


def output_layer(spec: TransformerSpec) -> nn.Linear | None:
    """None where the embedding serves."""
    if spec.tied_output:
        return None
    layer = xavier_linear(spec.width, spec.vocabulary)
    layer.register_parameter("bias", output_bias(spec))
    return layer
