"""Letters P and V that start as a pretrained cross-attention.

Attention over all tokens (F) is a softmax over paragraphs, of the logits l_m of the sums of their tokens' exponentials,
times a softmax inside each. A gate for each head, 0 at first, adds the paragraph attention to these logits. The
additional context goes through an output projection that returns 0 at first.

B examples, Q queries, M paragraphs, N tokens of a paragraph, H heads, D width.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.batch import Memory
from raysum.models.family.packed_words import LOWEST
from raysum.models.family.parallel import GridKeys, ParallelAttention, ParallelKeys
from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.dropout import Dropout, drop
from raysum.models.kernels.recomputation import by_chunks
from raysum.models.keys import WordAttention
from raysum.models.layers import Attention, norm_layer, sinusoids, zero_init


class GatedParallel(ParallelAttention):
    """P: the logit of paragraph m is (1 - g) l_m + g log share_m: F if g = 0, PHT eq. 9 if g = 1."""

    def __init__(self, spec: FamilySpec):
        super().__init__(spec)
        self.gate = nn.Parameter(torch.zeros(spec.heads))
        zero_init(self.paragraphs.out)

    def forward(self, x: Tensor, keys: ParallelKeys) -> tuple[Tensor, WordAttention]:
        query, words = self.paragraphs.queries(x), self.words.queries(x)
        scores = query @ keys.paragraph_key.transpose(-1, -2) * query.shape[-1] ** -0.5
        is_real = keys.paragraph_mask[:, None, None, :]
        logs = torch.where(is_real, scores.float(), LOWEST).log_softmax(-1)
        over_paragraphs = self.dropout(logs.exp()).to(x.dtype) @ keys.paragraph_value
        share = logs.logsumexp(1, keepdim=True)  # of the mean over heads, except for a constant
        gate = self.gate[None, :, None, None].expand(len(x), -1, -1, -1)
        if keys.packed is None:
            context, weights = _by_chunks(_mixed, words, keys, share, gate, dropout=self.dropout.active)
        else:
            contexts, logs = keys.packed.contexts(words, self.dropout.active)
            weights = masked_softmax((1 - gate) * logs + gate * share, is_real)
            context = torch.einsum("bhqm,bhqme->bhqe", weights.to(contexts.dtype), contexts)
        output = self.paragraphs.merged(over_paragraphs) + self.words.merged(context)
        return output, WordAttention(words, weights, keys)


class GatedVertical(nn.Module):
    """V: the logit of paragraph m is l_m + g e_m, where e_m is VHT's score for the context of its words (eq. 11-13).

    That context goes through the pretrained output projection, gets its rank code and is normalized.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.sinusoid = spec.sinusoid
        self.words, self.contexts = Attention(spec), Attention(spec)
        self.norm = norm_layer(spec)
        self.gate = nn.Parameter(torch.zeros(spec.heads))
        self.dropout = Dropout(spec.attention_dropout)
        zero_init(self.contexts.out)

    def project_source(self, memory: Memory) -> GridKeys:
        return GridKeys.of(memory, self.words)

    def forward(self, x: Tensor, keys: GridKeys) -> tuple[Tensor, WordAttention]:
        words, query = self.words.queries(x), self.contexts.queries(x)
        if keys.packed is None:
            context, logs = _by_chunks(_contexts, words, keys, dropout=self.dropout.active)
        else:
            context, logs = keys.packed.contexts(words, self.dropout.active)
        paragraphs = self.words.out(context.permute(0, 2, 3, 1, 4).flatten(3))  # [B, Q, M, D]
        ranks = torch.arange(paragraphs.shape[2], device=x.device)
        paragraphs = self.norm(paragraphs + sinusoids(ranks, paragraphs.shape[-1], self.sinusoid).to(paragraphs.dtype))
        heads = self.contexts.source(paragraphs).unflatten(-1, (2, self.words.heads, -1))
        key, value = heads.unbind(-3)  # [B, Q, M, H, dh]
        scores = torch.einsum("bhqe,bqmhe->bhqm", query, key) * query.shape[-1] ** -0.5
        logits = logs + self.gate[:, None, None] * scores.float()
        weights = masked_softmax(logits, keys.paragraph_mask[:, None, None, :])
        mixed = torch.einsum("bhqm,bhqme->bhqe", weights.to(context.dtype), context)
        over_paragraphs = torch.einsum("bhqm,bqmhe->bhqe", weights.to(value.dtype), value)
        output = self.contexts.merged(over_paragraphs) + self.words.merged(mixed)
        return output, WordAttention(words, weights, keys)


def _by_chunks(function: Any, words: Tensor, keys: GridKeys, *more: Tensor, dropout: float) -> Any:
    arrays = words, keys.key, keys.value, keys.mask, *more
    elements = words.shape[1] * words.shape[2] * keys.ids.shape[1]
    return by_chunks(partial(function, dropout), *arrays, elements=elements, random=bool(dropout))


def _softmax_in_paragraphs(query: Tensor, key: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax inside paragraphs [B, H, Q, M, N], and l_m [B, H, Q, M]."""
    scores = (query @ key * query.shape[-1] ** -0.5).float().unflatten(-1, mask.shape[1:])
    scores = torch.where(mask[:, None, None], scores, LOWEST)
    logs = scores.logsumexp(-1)
    return (scores - logs[..., None]).exp(), logs


def _contexts(dropout: float, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the word contexts of each paragraph [B, H, Q, M, dh], and l_m."""
    query, key, value, mask = inputs
    within, logs = _softmax_in_paragraphs(query, key, mask)
    used = drop(within, dropout).to(value.dtype)
    return torch.einsum("bhqmn,bhmne->bhqme", used, value.unflatten(2, mask.shape[1:])), logs


def _mixed(dropout: float, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return contexts [B, H, Q, dh] and paragraph weights [B, H, Q, M]. The inputs end with log share and gate."""
    query, key, value, mask, share, gate = inputs
    within, logs = _softmax_in_paragraphs(query, key, mask)
    weights = masked_softmax((1 - gate) * logs + gate * share, mask.any(-1)[:, None, None])
    used = drop(within * weights[..., None], dropout).flatten(3).to(value.dtype)
    return used @ value, weights
