"""Letters P and V with the weights of a pretrained cross-attention, which they begin as.

Attention over all tokens (F) is a softmax over paragraphs, of the logs l_m of the sums of their tokens' exponentials,
times a softmax inside each. To these logits a gate a head, 0 at first, adds what paragraphs are attended to by; what is
read beside the words goes through an output projection that gives 0 at first.

B examples, Q queries, M paragraphs, N tokens of a paragraph, H heads, D width.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.batch import AttentionRequest, Memory
from raysum.models.family.parallel import ParallelKeys, WordKeys, paragraph_keys
from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.dropout import Dropout, drop
from raysum.models.kernels.fusion import token_shares
from raysum.models.kernels.pieces import pieces, recompute
from raysum.models.kernels.pointing import Pointer
from raysum.models.layers import Attended, Attention, norm_layer, silenced, sinusoids
from raysum.models.specs.family import FamilySpec

_LOWEST = torch.finfo(torch.float32).min / 4  # finite: whole paragraphs may be padding


class GatedParallel(nn.Module):
    """P: the logit of paragraph m is (1 - g) l_m + g log share_m: F where g = 0, PHT eq. 9 where g = 1."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.paragraphs, self.words = Attention(spec), Attention(spec)
        self.gate = nn.Parameter(torch.zeros(spec.heads))
        self.dropout = Dropout(spec.attention_dropout)
        silenced(self.paragraphs.out)

    def read(self, memory: Memory) -> ParallelKeys:
        return ParallelKeys.of(memory, self.words, **paragraph_keys(memory, self.paragraphs))

    def forward(self, x: Tensor, keys: ParallelKeys, attention: AttentionRequest) -> Attended:
        query, words = self.paragraphs.queries(x), self.words.queries(x)
        scores = query @ keys.paragraph_key.transpose(-1, -2) * query.shape[-1] ** -0.5
        real = keys.paragraph_mask[:, None, None, :]
        logs = torch.where(real, scores.float(), _LOWEST).log_softmax(-1)
        read = self.dropout(logs.exp()).to(x.dtype) @ keys.paragraph_value
        share = logs.logsumexp(1, keepdim=True)  # that of the mean over heads, but for a constant
        gate = self.gate[None, :, None, None].expand(len(x), -1, -1, -1)
        context, weights = _by_pieces(_mixed, words, keys, share, gate, dropout=self.dropout.active)
        return self.paragraphs.merged(read) + self.words.merged(context), *_told(words, keys, weights, attention)


class GatedVertical(nn.Module):
    """V: the logit of paragraph m is l_m + g e_m, e_m the score that VHT gives the context of its words (eq. 11-13).

    That context goes through the pretrained output projection, gets its rank code and is normed.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.sinusoid = spec.sinusoid
        self.words, self.contexts = Attention(spec), Attention(spec)
        self.norm = norm_layer(spec)
        self.gate = nn.Parameter(torch.zeros(spec.heads))
        self.dropout = Dropout(spec.attention_dropout)
        silenced(self.contexts.out)

    def read(self, memory: Memory) -> WordKeys:
        return WordKeys.of(memory, self.words)

    def forward(self, x: Tensor, keys: WordKeys, attention: AttentionRequest) -> Attended:
        words, query = self.words.queries(x), self.contexts.queries(x)
        context, logs = _by_pieces(_contexts, words, keys, dropout=self.dropout.active)
        seen = self.words.out(context.permute(0, 2, 3, 1, 4).flatten(3))  # [B, Q, M, D]
        ranks = torch.arange(seen.shape[2], device=x.device)
        seen = self.norm(seen + sinusoids(ranks, seen.shape[-1], self.sinusoid).to(seen.dtype))
        key, value = self.contexts.source(seen).unflatten(-1, (2, self.words.heads, -1)).unbind(-3)  # [B, Q, M, H, dh]
        scores = torch.einsum("bhqe,bqmhe->bhqm", query, key) * query.shape[-1] ** -0.5
        logits = logs + self.gate[:, None, None] * scores.float()
        weights = masked_softmax(logits, keys.paragraph_mask[:, None, None, :])
        mixed = torch.einsum("bhqm,bhqme->bhqe", weights.to(context.dtype), context)
        read = torch.einsum("bhqm,bqmhe->bhqe", weights.to(value.dtype), value)
        return self.contexts.merged(read) + self.words.merged(mixed), *_told(words, keys, weights, attention)


def _told(
    words: Tensor, keys: WordKeys, weights: Tensor, attention: AttentionRequest
) -> tuple[Tensor | None, Pointer | None]:
    """What is asked for of ``weights`` [B, H, Q, M], and how they point where the keys have ids."""
    key, mask = keys.key.transpose(-1, -2), keys.mask.unflatten(1, (weights.shape[-1], -1))
    pointer = None if keys.ids is None else Pointer(words, key, weights, mask, keys.ids, keys.text)
    if not attention:
        return None, pointer
    assert keys.text is not None, "only pretrained models have such layers"
    shares = []
    for *example, text in zip(*(one.split(1) for one in (words, key, weights, mask, keys.text)), strict=True):
        share = token_shares(*example) * text.view_as(example[-1])[:, None]
        shares.append(share if attention == "tokens" else share.sum(-1))
    return torch.cat(shares), pointer


def _by_pieces(function: Any, words: Tensor, keys: WordKeys, *more: Tensor, dropout: float) -> tuple[Tensor, ...]:
    """The two results of ``function``, a few examples at a time, made again for backward."""
    mask = keys.mask.unflatten(1, (keys.paragraph_mask.shape[1], -1))
    arrays = words, keys.key, keys.value, mask, *more
    elements = words.shape[1] * words.shape[2] * mask.shape[2]
    parts = [
        recompute(partial(function, dropout), *(one[rows] for one in arrays), random=bool(dropout))
        for rows, _ in pieces([mask.shape[1]] * len(words), elements, words.device)
    ]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _inside(query: Tensor, key: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax inside paragraphs [B, H, Q, M, N], and l_m [B, H, Q, M]."""
    scores = (query @ key * query.shape[-1] ** -0.5).float().unflatten(-1, mask.shape[1:])
    scores = torch.where(mask[:, None, None], scores, _LOWEST)
    logs = scores.logsumexp(-1)
    return (scores - logs[..., None]).exp(), logs


def _contexts(dropout: float, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What words give in each paragraph [B, H, Q, M, dh], and l_m."""
    query, key, value, mask = inputs
    within, logs = _inside(query, key, mask)
    used = drop(within, dropout).to(value.dtype)
    return torch.einsum("bhqmn,bhmne->bhqme", used, value.unflatten(2, mask.shape[1:])), logs


def _mixed(dropout: float, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Contexts [B, H, Q, dh], and the weights of paragraphs [B, H, Q, M]; the last inputs are log share and gate."""
    query, key, value, mask, share, gate = inputs
    within, logs = _inside(query, key, mask)
    weights = masked_softmax((1 - gate) * logs + gate * share, mask.any(-1)[:, None, None])
    used = drop(within * weights[..., None], dropout).flatten(3).to(value.dtype)
    return used @ value, weights
