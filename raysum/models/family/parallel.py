"""Letter P: paragraph attention beside the word attention that it weights, and the paragraph embeddings Phi.

PHT eq. 7-9, and eq. 2-6. B examples, Q queries, M paragraphs, N tokens of a paragraph, P paragraphs in all, S tokens
in all, H heads, D width.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raysum.models.batch import Layout, Memory, Source
from raysum.models.family.packed_words import PackedWords
from raysum.models.family.spec import FamilySpec, TransformerSpec
from raysum.models.kernels.attention import fuse, masked_softmax, split_heads
from raysum.models.kernels.dropout import Dropout
from raysum.models.keys import WordAttention, WordKeys
from raysum.models.layers import (
    EPSILON,
    Attention,
    FeedForward,
    HeadValues,
    Projection,
    Residual,
    pool,
    sinusoids,
)

Keys = TypeVar("Keys", bound="GridKeys")


@dataclass(frozen=True)
class GridKeys(WordKeys):
    """Words, paragraph after paragraph. The keys are [B, H, dh, T]."""

    paragraph_mask: Tensor  # [B, M]
    packed: PackedWords | None

    @classmethod
    def of(cls: type[Keys], memory: Memory, words: Attention, *more: Tensor) -> Keys:
        """Return the keys of ``memory``, in the memory layouts that suit their products.

        Five queries of each of 64 heads of 64, 3,000 tokens, 2 threads: 3.1 ms, instead of 4.4 with keys [B, H, T, dh].
        """
        layout = memory.source.layout
        projected = words.source(memory.tokens)
        key, value = split_heads(layout.to_grid(projected), words.heads, 2)
        grid = key.transpose(-1, -2).contiguous(), value.contiguous(), layout.grid_mask
        text = None if memory.text is None else memory.token_mask
        ids = layout.to_grid(memory.source.ids)
        packed = PackedWords.of(projected, words.heads, layout)
        return cls(layout.chunk_counts, *grid, ids, layout.paragraph_mask, packed, *more, text=text)

    @property
    def by_head(self) -> Tensor:
        return self.key.transpose(-1, -2)


@dataclass(frozen=True)
class ParallelKeys(GridKeys):
    paragraph_key: Tensor  # [B, H, M, dh]
    paragraph_value: Tensor


class ParallelAttention(nn.Module):
    """P: attention to paragraph embeddings, which weight a word attention (PHT eq. 7-9); returns the sum of both."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.paragraphs = Attention(spec)
        self.words = Attention(spec)
        self.dropout = Dropout(spec.attention_dropout)

    def project_source(self, memory: Memory) -> ParallelKeys:
        return ParallelKeys.of(memory, self.words, *self.paragraph_keys(memory))

    def paragraph_keys(self, memory: Memory) -> tuple[Tensor, ...]:
        """Return keys and values of the paragraphs, [B, H, M, dh] each."""
        assert memory.phi is not None, "a model with P layers pools paragraphs"
        return split_heads(self.paragraphs.source(memory.phi), self.paragraphs.heads, 2)

    def forward(self, x: Tensor, keys: Any) -> tuple[Tensor, WordAttention]:
        query, words = self.paragraphs.queries(x), self.words.queries(x)
        scores = query @ keys.paragraph_key.transpose(-1, -2) * query.shape[-1] ** -0.5
        weights = masked_softmax(scores, keys.paragraph_mask[:, None, None, :])
        share = weights.mean(1)
        over_paragraphs = self.dropout(weights).to(query.dtype) @ keys.paragraph_value
        if keys.packed is None:
            mask = keys.mask.flatten(1)
            over_words = fuse(words, keys.by_head, keys.value, share, mask, keys.counts, self.dropout.active)
        else:
            over_words = keys.packed.fused(words, share[:, None], self.dropout.active)
        # a position's weights sum to 1, so the output projection may follow their sum
        output = self.paragraphs.merged(over_paragraphs) + self.words.merged(over_words)
        return output, WordAttention(words, share[:, None], keys)


class ParagraphPooling(nn.Module):
    """The paragraph embeddings Phi of PHT with their rank code (eq. 2-6), for decoders with P layers.

    Its norms follow the sums for any ``spec.norm``; the code has an additional one after W3 (before eq. 5).
    """

    def __init__(self, spec: FamilySpec):
        super().__init__()
        paper = spec.form == "paper"
        self.sinusoid = spec.sinusoid
        self.pool = ScoredHeads(spec)
        self.merge = Projection(spec.width, bias=not paper)
        self.dropout = Dropout(spec.dropout)
        self.norm = nn.Identity() if paper else nn.LayerNorm(spec.width, EPSILON)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec, norm="post")

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """Return Phi [B, M, D] from x [S, D]; rows of padding paragraphs contain only their rank code."""
        layout = source.layout
        phi = self.norm(self.dropout(self.merge(self.pool(x, layout))))
        phi = self.around_ffn.leave(phi, self.ffn(phi))
        padded = layout.to_examples(phi)
        ranks = torch.arange(padded.shape[1], device=padded.device)
        return padded + sinusoids(ranks, padded.shape[2], self.sinusoid).to(padded.dtype)


class ScoredHeads(HeadValues):
    """PHT eq. 2-3: heads of W1 x, weighted by their product with a vector W2.

    The code scales the products by dh^-0.5 and has one W2 per head, the paper one W2 for all heads and no scale.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__(spec.width, spec.pooling_heads, bias=spec.form == "code")
        self.paper, size = spec.form == "paper", spec.width // spec.pooling_heads
        self.scorer = nn.Parameter(torch.empty(1 if self.paper else self.heads, size))
        nn.init.normal_(self.scorer, std=0.05)  # the code's; it never trains it, here it is trained
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:  # type: ignore[override]
        """Return [P, D] from x [S, D]."""
        weight = self.weight.unflatten(0, (self.heads, -1))
        scale = 1.0 if self.paper else weight.shape[1] ** -0.5
        # W2 (W1 x + b) = (W2 W1) x + a constant that the softmax cancels
        folded = torch.einsum("he,hed->hd", self.scorer.expand(self.heads, -1), weight) * scale
        return pool(x, nn.functional.linear(x, folded), layout, self.dropout, super().forward).flatten(1)
