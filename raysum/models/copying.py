"""The copy gate: the next token is drawn from the vocabulary or copied from the source (See et al. 2017, eq. 8-9).

B examples, H heads, Q target positions (or beams), M paragraphs, N tokens of a paragraph, T = M * N, V vocabulary size,
D width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.recomputation import by_chunks
from raysum.models.keys import WordAttention
from raysum.models.layers import xavier_linear

_LEAST = 1e-20  # weight of source words, or a divisor: logarithm, quotient and their gradients must be finite


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
        self.gate = xavier_linear(spec.width, 1)
        self.onward = xavier_linear(spec.width, spec.copy_heads)

    def forward(self, logits: Tensor, hidden: Tensor, words: WordAttention, tokens: Tensor) -> Tensor:
        """Return log p(y) [B, Q, V] in float32 from the vocabulary's logits [B, Q, V] and states [B, Q, D]."""
        score = self.gate(hidden).float()
        weights = self._by_chunks(_weights, hidden, words, tokens) * score.neg().sigmoid()
        generated = logits.softmax(-1, dtype=torch.float32) * score.sigmoid()
        mixed = generated.scatter_add(-1, words.keys.ids[:, None].expand_as(weights), weights)
        return mixed.clamp_min(torch.finfo(torch.float32).tiny).log()

    def odds(self, hidden: Tensor, words: WordAttention, tokens: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        """Return log g, and the log of the copying term of p(gold) / g, [B, Q] each, for ``smoothed_cross_entropy``."""
        score = self.gate(hidden).squeeze(-1).float()
        copied = self._by_chunks(_weight_of, hidden, words, tokens, gold).clamp_min(_LEAST).log()
        return F.logsigmoid(score), copied - score

    def _by_chunks(
        self, function: Callable[..., Tensor], hidden: Tensor, words: WordAttention, tokens: Tensor, *more: Tensor
    ) -> Tensor:
        """Return a function of the first heads, without keeping [B, H, Q, T]."""
        onward, keys = self.onward(hidden).transpose(1, 2), words.keys
        heads = slice(onward.shape[1])
        share = None if words.share is None else words.share[:, heads]
        arrays = words.query[:, heads], keys.by_head[:, heads], share, keys.mask, keys.ids, tokens, onward, keys.text
        elements = arrays[0].shape[1] * arrays[0].shape[2] * keys.ids.shape[1]
        return by_chunks(function, *arrays, *more, elements=elements, random=False)


def _weights(*arrays: Any) -> Tensor:
    """Return [B, Q, T], the mean over heads; ``onward`` [B, H, Q] is added for words that follow ``tokens`` [B, Q]."""
    query, key, share, mask, ids, tokens, onward, text = arrays
    before = F.pad(ids.view_as(mask)[..., :-1], (1, 0), value=-1)  # the id before each word in its paragraph
    follows = (tokens[:, None, :, None, None] == before[:, None, None]).to(onward.dtype)
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).unflatten(-1, mask.shape[1:])
    scores = scores + onward[..., None, None] * follows
    weights = masked_softmax(scores, mask[:, None, None])
    weights = (weights if share is None else weights * share[..., None]).mean(1).flatten(2)
    if text is None:
        return weights
    weights = weights * text.flatten(1)[:, None]
    return weights / weights.sum(-1, keepdim=True).clamp_min(_LEAST)


def _weight_of(*inputs: Tensor) -> Tensor:
    """Return [B, Q]: the sum of :func:`_weights` over the words with the last of the ``inputs``, ids [B, Q]."""
    *arrays, targets = inputs
    return (_weights(*arrays) * (arrays[4][:, None] == targets[..., None])).sum(-1)
