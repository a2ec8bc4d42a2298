"""The base of all summarizing models: they encode a source and generate a target token by token.

B examples, K target length, R beams of an example, M paragraphs, N tokens of a paragraph, V vocabulary size, D width.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Batch, Memory, Source, predicted_tokens
from raysum.models.copying import CopyGate
from raysum.models.family.spec import TransformerSpec
from raysum.models.kernels.cross_entropy import smoothed_cross_entropy
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.linear import Int8Embedding, linear
from raysum.models.keys import Cache, SourceKeys, StepContext, WordAttention
from raysum.models.layers import Attended, Objective, backbone_of, norm_layer, sinusoids, xavier_linear
from raysum.models.traced_step import TracedStep
from raysum.tokenizers.special_tokens import marks_of

_MAX_TOKENS = 4096  # source tokens encoded together on a CPU without gradients


class TokenEmbedding(nn.Module):
    """The embedding of source, target or both (``Backbone.source_embedding``); if tied, also the output layer.

    Both uses go through ``forward``, so ZeRO-3 gathers the matrix for either. With a normal initialization of deviation
    D^-0.5, embeddings times sqrt(D) have the scale of the sinusoids, and tied logits have unit variance: after 250
    steps of a copying task the loss was 0.4, compared with 3.2 for the Xavier-uniform initialization of HT's code.
    """

    def __init__(self, spec: TransformerSpec, is_output: bool):
        """``is_output``: this is also the output layer, so it has the bias of the logits."""
        super().__init__()
        backbone = backbone_of(spec)
        self.weight = nn.Parameter(torch.empty(spec.vocabulary, spec.width))
        self.bias = output_bias(spec) if is_output else None
        self.scale = math.sqrt(spec.width) if backbone.embedding_scaled else 1.0
        self.frozen = None if backbone.padding_trained else marks_of(spec).pad
        if spec.embedding_start == "xavier":
            nn.init.xavier_uniform_(self.weight)
        else:
            nn.init.normal_(self.weight, std=spec.width**-0.5)

    def forward(self, x: Tensor, output: bool = False) -> Tensor:
        """Return [..., D] times sqrt(D) for token ids [...], or with ``output`` logits [..., V] for states [..., D]."""
        if output:
            return linear(x, self.weight, self.bias)
        return F.embedding(x, self.weight, self.frozen) * self.scale

    def int8(self) -> nn.Module:
        """Return the embedding in int8, without the output layer."""
        return Int8Embedding(self.weight, self.scale)


class Generator(nn.Module):
    """The interface of all summarizing models; by default an encoder, and decoder layers that attend to its output.

    ``forward`` is teacher-forced training; ``start`` and ``step`` decode with a cache and give the same numbers.
    Attention to the source, if requested, is the mean over heads, summed over (some) layers: to paragraphs [..., M], or
    with ``"tokens"`` to the tokens of each, [..., M, N], if the system ``attends_to_tokens``.
    """

    decoder: nn.ModuleList
    decoder_norm: nn.Module
    source_loss = 0.0  # weight in training of predicting source tokens
    traced_step: TracedStep | None = None

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec: Any = spec
        self.embedding = TokenEmbedding(spec, spec.tied_output)
        self.dropout = Dropout(spec.dropout)
        self.output: nn.Linear | None = None
        self.gate: CopyGate | None = None

    def forward(self, source: Source, tokens: Tensor) -> Tensor:
        """Return logits [B, K, V] of the token after each of ``tokens`` [B, K]; log-probabilities with a copy gate."""
        hidden, _, words = self.decode_and_point(tokens, self.encode(source))
        return self._scores(hidden, words, tokens)

    @abstractmethod
    def run_encoder(self, source: Source) -> Memory:
        """Run the encoder. Raises UserError if the source lacks what the model needs (a graph)."""

    def encode(self, source: Source) -> Memory:
        """Return :meth:`run_encoder`; without gradients on a CPU a few examples at a time, to use its cache.

        Measured on 16 examples of 24 paragraphs of 100 tokens, HT, 2 threads: 3.9 s instead of 6.2 s.
        """
        if torch.is_grad_enabled() or source.ids.device.type != "cpu":
            return self.run_encoder(source)
        return Memory.concatenate(source, [self.run_encoder(part) for part in source.split(_MAX_TOKENS)])

    def decode(
        self, tokens: Tensor, memory: Memory, attention: AttentionRequest = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return hidden states [B, K, D] before the output layer, by teacher forcing.

        ``tokens`` [B, K] begin with the start token. With ``attention`` also return the attention to the source [B, K,
        ...]. Padding at the end of a row changes no earlier position.
        """
        hidden, total, _ = self.decode_and_point(tokens, memory, attention)
        return hidden, total

    def decode_and_point(self, tokens: Tensor, memory: Memory, attention: AttentionRequest = False) -> Attended:
        """Do :meth:`decode`, and also return the last layer's attention to words."""
        sources, positions = self._sources(memory), torch.arange(tokens.shape[1], device=tokens.device)
        x = self._embed(tokens, self._first_position(sources) + positions, tokens.shape[1])
        biases = self._position_biases(positions, positions)
        return self._run_layers(self.dropout(x), sources, attention, biases)

    def start(self, memory: Memory, beams: int, is_fixed: bool = False) -> Cache:
        """Start decoding ``beams`` hypotheses of each example; they share the keys of its source."""
        return Cache(self._source_keys(memory), memory.paragraph_mask, beams, is_fixed)

    def step(self, tokens: Tensor, state: Cache, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the next token [B * R, V], given the newest token of every beam [B * R].

        Also return this step's attention to the source [B * R, ...] if requested.
        """
        state.make_room()
        logits = self.traced_step.logits(self, tokens, state) if self.traced_step and not attention else None
        return self.extend(tokens, state, attention) if logits is None else (logits, None)

    def extend(self, tokens: Tensor, state: Cache, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]:
        """Do what :meth:`step` does after ``state.make_room``."""
        state.advance()
        tokens = tokens.view(state.lineage.shape[:2])
        x = self._embed(tokens, self._first_position(state.keys) + state.now, state.length)
        biases = self._position_biases(state.now.view(1, 1), state.positions[:, state.past])
        x, total, words = self._run_layers(x, state.keys, attention, biases, state)
        return self._scores(x, words, tokens).flatten(0, 1), None if total is None else total.flatten(0, 1)

    def _scores(self, hidden: Tensor, words: WordAttention | None, tokens: Tensor) -> Tensor:
        """Return [B, Q, V]: logits, or log-probabilities with a copy gate, after ``tokens`` [B, Q]."""
        logits = self.logits(hidden)
        return logits if self.gate is None or words is None else self.gate(logits, hidden, words, tokens)

    def _target_layers(self) -> tuple[nn.ModuleList, nn.Module]:
        """Return the layers that process the target, and the module after the last one."""
        return self.decoder, self.decoder_norm

    def _source_keys(self, memory: Any) -> Sequence[SourceKeys]:
        """Return each layer's keys of the source."""
        return [layer.cross.project_source(memory) for layer in cast(Any, self.decoder)]

    def _sources(self, memory: Any) -> Sequence[Any]:
        """Return what each layer reads in teacher forcing: its keys, or the memory that it projects itself."""
        return [memory] * len(self.decoder)

    def _first_position(self, keys: Any) -> Tensor | int:
        """Return the position of the start token."""
        return 0

    def _embed(self, tokens: Tensor, positions: Tensor, length: int) -> Tensor:
        """Return [B, K, D] for tokens [B, K] at ``positions``, which are below ``length``."""
        x = self.embedding(tokens)
        return x + sinusoids(positions, x.shape[-1], self.spec.sinusoid).to(x.dtype)

    def _position_biases(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        """Return for each layer the bias of scores of target positions [..., Q] at others [..., T]: [..., H, Q, T]."""
        return repeat(None)

    def _run_layers(
        self, x: Tensor, sources: Sequence[Any], attention: AttentionRequest, biases: Iterable[Any], cache: Any = None
    ) -> Attended:
        layers, norm = self._target_layers()
        total = words = None
        for number, (layer, source, bias) in enumerate(zip(layers, sources, biases, strict=False)):
            is_requested = number in attention if isinstance(attention, frozenset) else attention
            x, share, words = layer(x, source, is_requested, StepContext(number, cache, bias))
            total = share if total is None else total if share is None else total + share
        return norm(x), total, words

    def paragraphs(self, memory: Memory) -> Tensor:
        """Return paragraph embeddings [B, M, D] for an attention predictor.

        They are Phi with its rank code (PHT eq. 6), if the model pools paragraphs; otherwise the mean of each
        paragraph's tokens with such a code, which needs no training.
        """
        if memory.phi is not None:
            return memory.phi
        source, layout = memory.source, memory.source.layout
        sums = memory.tokens.new_zeros(len(source.lengths), memory.tokens.shape[1])
        means = sums.index_add(0, layout.token_paragraph, memory.tokens) / source.lengths[:, None]
        padded = layout.to_examples(means.to(sums.dtype))
        ranks = torch.arange(padded.shape[1], device=padded.device)
        return padded + sinusoids(ranks, padded.shape[2], "interleaved").to(padded.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [..., V] from [..., D]."""
        return self.embedding(hidden, output=True) if self.output is None else self.output(hidden)


class LanguageModelling(Objective):
    """Cross-entropy of the target given the source: label-smoothed in training mode, plain NLL in evaluation mode.

    In training mode models with a ``source_loss`` also predict the source's tokens, with that weight. Their share
    affects the gradient but not the value, which is that of the target alone, as in evaluation mode.

    With a copy gate, the loss is that of its mixture. The uniform part of label smoothing is then that of the
    vocabulary's distribution, so it affects neither the gate nor the copied words:
    ``-(1 - e) log p(gold) - e / (V - 2) sum over other y of log p_vocabulary(y)``.
    """

    def forward(self, batch: Batch) -> Tensor:
        """Return the sum of ``smoothed_cross_entropy`` over all predicted tokens except padding, a scalar in fp32."""
        memory, source = self.model.encode(batch.source), batch.source
        loss = self._target_loss(memory, batch)
        if self.training and self.model.source_loss:
            last = source.layout.sizes.cumsum(0) - 1  # the start of the target follows it
            gold = source.ids.roll(-1).index_fill(0, last, marks_of(self.model.spec).start)
            source_loss = self.model.source_loss * self._cross_entropy(memory.tokens, gold)
            loss = loss + (source_loss - source_loss.detach())
        return loss

    def _target_loss(self, memory: Memory, batch: Batch) -> Tensor:
        tokens, gold, predicted = batch.target[:, :-1], batch.target[:, 1:], batch.predicted
        if predicted is None:
            predicted = predicted_tokens(batch.target, marks_of(self.model.spec).pad)

        def packed(*arrays: Tensor) -> tuple[Tensor, ...]:
            return tuple(array.flatten(0, 1).index_select(0, predicted) for array in arrays)

        gate = getattr(self.model, "gate", None)  # a model of another package may lack it
        if gate is None:
            hidden, _ = self.model.decode(tokens, memory)
            return self._cross_entropy(*packed(hidden, gold))
        hidden, _, words = self.model.decode_and_point(tokens, memory)
        generate, odds = packed(*gate.odds(hidden, words, tokens, gold))
        hidden, gold = packed(hidden, gold)
        return self._cross_entropy(hidden, gold, odds) - (1 - self.smoothing) * generate.sum()

    def _cross_entropy(self, hidden: Tensor, gold: Tensor, odds: Tensor | None = None) -> Tensor:
        output = self.model.embedding if self.model.output is None else self.model.output
        pad = marks_of(self.model.spec).pad
        return smoothed_cross_entropy(hidden, output.weight, output.bias, gold, self.smoothing, odds, pad=pad)


def final_norm(spec: TransformerSpec, last: bool = False) -> nn.Module:
    """Return the module after the last layer of the encoder or, if ``last``, of the decoder.

    Pre-norm layers do not normalize their sum, so it has a norm; otherwise it is the identity.
    """
    backbone = backbone_of(spec)
    norm = norm_layer(spec) if spec.norm == "pre" else nn.Identity()
    more: list[nn.Module] = [Dropout(spec.dropout)] if backbone.final_dropout else []
    more += [ScaledOutput(spec.width**-0.5)] if last and backbone.output_scaled else []
    return nn.Sequential(norm, *more) if more else norm


class ScaledOutput(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def output_bias(spec: TransformerSpec) -> nn.Parameter | None:
    """Return the bias of the logits [V]."""
    kind = backbone_of(spec).output_bias
    return None if kind == "none" else nn.Parameter(torch.zeros(spec.vocabulary), requires_grad=kind == "trained")


def output_layer(spec: TransformerSpec) -> nn.Linear | None:
    """Return the output layer, or None if it is the embedding."""
    if spec.tied_output:
        return None
    layer = xavier_linear(spec.width, spec.vocabulary)
    layer.register_parameter("bias", output_bias(spec))
    return layer
