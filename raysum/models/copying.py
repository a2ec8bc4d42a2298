"""The copy gate: the next token is drawn from the vocabulary or copied from the source (See et al. 2017, eq. 8-9).

B examples, Q target positions (or beams), V vocabulary size, D width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Memory, Source, scatter_padded
from raysum.models.generator import LanguageModelling
from raysum.models.kernels.pointing import Pointer
from raysum.models.layers import xavier_linear
from raysum.models.specs.family import FamilySpec
from raysum.tokenizers.special_tokens import marks_of

_LEAST = 1e-20  # weight of source words: its logarithm and gradient must be finite


class CopyGate(nn.Module):
    """p(y) = g p_vocabulary(y) + (1 - g) sum of a_s over source tokens s with id y.

    a is the cross-attention of the last decoder layer before dropout, the mean over its first ``copy_heads`` heads; g =
    sigmoid(w h + b) of the decoder's last state h (See et al. also use the context and the input). An extension: a
    head's score of a word that follows an occurrence of the last generated token is raised by u h + c, so that names
    continue as in the source. Special tokens of pretrained models are not copied: there, a is the share of words in
    that attention.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.flat = spec.decoder[-1] == "F"
        self.gate = xavier_linear(spec.width, 1)
        self.onward = xavier_linear(spec.width, spec.copy_heads)

    def words(self, source: Source) -> Tensor:
        """Return the ids of source tokens, laid out like the keys of the last layer."""
        layout = source.layout
        if self.flat:
            return scatter_padded(source.ids, layout.in_source, *layout.source_mask.shape)
        examples, paragraphs, length = layout.grid_mask.shape
        return scatter_padded(source.ids, layout.in_grid, examples, paragraphs * length)

    def forward(self, logits: Tensor, hidden: Tensor, pointer: Pointer, tokens: Tensor) -> Tensor:
        """Return log p(y) [B, Q, V] in float32 from the vocabulary's logits [B, Q, V] and states [B, Q, D]."""
        score = self.gate(hidden).float()
        weights = pointer.of_heads(tokens, self.onward(hidden)).weights() * score.neg().sigmoid()
        generated = logits.softmax(-1, dtype=torch.float32) * score.sigmoid()
        mixed = generated.scatter_add(-1, pointer.ids[:, None].expand_as(weights), weights)
        return mixed.clamp_min(torch.finfo(torch.float32).tiny).log()

    def odds(self, hidden: Tensor, pointer: Pointer, tokens: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        """Return log g, and the log of the copying term of p(gold) / g, [B, Q] each, for ``smoothed_cross_entropy``."""
        score = self.gate(hidden).squeeze(-1).float()
        copied = pointer.of_heads(tokens, self.onward(hidden)).weight_of(gold).clamp_min(_LEAST).log()
        return F.logsigmoid(score), copied - score


class Writing(LanguageModelling):
    """Language modelling, by the mixture if the model has a copy gate.

    Then the uniform part of label smoothing is that of the vocabulary's distribution, so it affects neither the gate
    nor the copied words: ``-(1 - e) log p(gold) - e / (V - 2) sum over other y of log p_vocabulary(y)``.
    """

    def target_loss(self, memory: Memory, tokens: Tensor, gold: Tensor) -> Tensor:
        model: Any = self.model
        if model.gate is None:
            return super().target_loss(memory, tokens, gold)
        hidden, _, pointer = model.decode_and_point(tokens, memory)
        real = gold != marks_of(model.spec).pad
        generate, odds = (part[real] for part in model.gate.odds(hidden, pointer, tokens, gold))
        smoothing = self.smoothing if self.training else 0.0
        return self._cross_entropy(hidden[real], gold[real], odds) - (1 - smoothing) * generate.sum()
