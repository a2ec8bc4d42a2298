"""Letter V: paragraph attention over word contexts that change with the target position (VHT eq. 11-13).

The word contexts [M, Q, D] of an example exist for a few examples at a time, except over packed words. Their keys and
values are never computed: scores are products of the contexts with queries folded through the key matrix, and the value
matrix follows the weighting. Both are exact, and cost 2 H D instead of 2 D^2 products per context.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.batch import Memory
from raysum.models.family.packed_words import PackedWords
from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import attend, masked_softmax, merge_heads, split_heads
from raysum.models.kernels.dropout import Dropout, drop
from raysum.models.kernels.recomputation import chunks, recompute
from raysum.models.keys import WordAttention, WordKeys
from raysum.models.layers import EPSILON, HeadValues, Matrix, Projection, sinusoids


@dataclass(frozen=True)
class VerticalKeys(WordKeys):
    """Words by paragraph. Keys and values are [B, M, H, N, dh]."""

    packed: PackedWords | None

    @property
    def by_head(self) -> Tensor:
        return self.key.transpose(1, 2).flatten(2, 3)


class VerticalAttention(nn.Module):
    """V: word attention inside each paragraph, then attention over the paragraphs' contexts."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.heads = spec.heads
        self.word_query = Projection(spec.width)
        self.word_source = Projection(spec.width, 2)
        self.contexts = DynamicParagraphs(spec)
        self.query = Projection(spec.width)
        self.key = FoldedKeys(spec.width, spec.heads)
        self.value = HeadValues(spec.width, spec.heads)
        self.out = Projection(spec.width)

    def project_source(self, memory: Memory) -> VerticalKeys:
        layout = memory.source.layout
        projected = self.word_source(memory.tokens)
        grid = layout.to_grid(projected).view(*layout.grid_mask.shape, 2, self.heads, -1)
        key, value = grid.permute(3, 0, 1, 4, 2, 5)
        ids = layout.to_grid(memory.source.ids)
        packed = PackedWords.of(projected, self.heads, layout)
        return VerticalKeys(layout.chunk_counts, key, value, layout.grid_mask, ids, packed, text=None)

    def forward(self, x: Tensor, keys: VerticalKeys) -> tuple[Tensor, WordAttention]:
        (words,) = split_heads(self.word_query(x), self.heads, 1)
        query = self.query(x).unflatten(-1, (self.heads, -1))
        folded, constant = self.key(query * query.shape[-1] ** -0.5)
        mixed, mass, share = self.contexts(words, folded, constant, keys)
        return self.out(self.value(mixed, mass).flatten(-2)), WordAttention(words, share[:, None], keys)


class FoldedKeys(Matrix):
    """The key matrix, applied to the queries: (W z + b) q = z (W^T q) + b q."""

    def __init__(self, width: int, heads: int):
        super().__init__(width)
        self.heads = heads

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return folded queries [B, Q, H, D] and the products with the bias [B, Q, H] from queries [B, Q, H, dh]."""
        assert self.bias is not None
        weight = self.weight.unflatten(0, (self.heads, -1)).to(query.dtype)
        constant = (query.flatten(-2) * self.bias.to(query.dtype)).unflatten(-1, (self.heads, -1)).sum(-1)
        return torch.einsum("bqhe,hed->bqhd", query, weight), constant


class DynamicParagraphs(Matrix):
    """The paragraphs as seen from a target position, and the attention to them.

    Contexts of word attention go through its output projection (this matrix) and get their rank code (eq. 11). The
    code then applies dropout and a norm; the paper does not.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__(spec.width)
        self.sinusoid = spec.sinusoid
        paper = spec.form == "paper"
        self.norm_weight = None if paper else nn.Parameter(torch.ones(spec.width))
        self.norm_bias = None if paper else nn.Parameter(torch.zeros(spec.width))
        self.dropout = Dropout(spec.dropout)
        self.attention_dropout = Dropout(spec.attention_dropout)

    def forward(self, words: Tensor, folded: Tensor, constant: Tensor, keys: VerticalKeys) -> tuple[Tensor, ...]:
        """Return the weighted sums of paragraphs [B, Q, H, D], the sums of weights [B, Q, H], and weights [B, Q, M].

        words [B, H, Q, dh] are the queries of the word attention; folded [B, Q, H, D]; constant [B, Q, H]. The last
        result is the mean of weights over heads, before dropout.
        """
        random = bool(self.dropout.active or self.attention_dropout.active)
        parameters = self.weight, self.bias, self.norm_weight, self.norm_bias
        parts = []
        widest = keys.mask.shape[1]
        contexts = None
        if keys.packed is not None:
            contexts = keys.packed.contexts(words, self.attention_dropout.active)[0].permute(0, 3, 2, 1, 4).flatten(3)
        for rows, most in chunks(keys.counts, widest, words.shape[2] * folded.shape[3], words.device):
            queries = folded[rows], constant[rows], keys.mask[rows, :most], *parameters
            if contexts is not None:
                parts.append(recompute(self._summarize, contexts[rows, :most], *queries, random=random))
                continue
            source = words[rows], keys.key[rows, :most], keys.value[rows, :most]
            parts.append(recompute(self._attend_and_summarize, *source, *queries, random=random))
        mixed, mass, shares = zip(*parts, strict=True)
        share = torch.cat([F.pad(share, (0, widest - share.shape[-1])) for share in shares])
        return torch.cat(mixed), torch.cat(mass), share

    def _attend_and_summarize(self, words: Tensor, key: Tensor, value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        mask = inputs[2]
        query = words[:, None].expand(-1, mask.shape[1], -1, -1, -1).flatten(0, 1)
        key, value, flat_mask = key.flatten(0, 1), value.flatten(0, 1), mask.flatten(0, 1)[:, None, None, :]
        contexts = attend(query, key, value, flat_mask, dropout=self.attention_dropout.active)
        return self._summarize(merge_heads(contexts).unflatten(0, mask.shape[:2]), *inputs)

    def _summarize(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Compute :meth:`forward` for a chunk of word contexts [examples, M, Q, D].

        Its parameters are among the inputs, as ``recompute`` requires. It calls no module: ranks have different numbers
        of chunks, and at ZeRO-3 all must call modules equally often.
        """
        contexts, folded, constant, mask, weight, bias, norm_weight, norm_bias = inputs
        paragraphs = mask.shape[1]
        z = F.linear(contexts, weight, bias)
        ranks = torch.arange(paragraphs, device=z.device)
        z = z + sinusoids(ranks, z.shape[-1], self.sinusoid).to(z.dtype)[:, None]
        if norm_weight is not None:
            z = F.layer_norm(drop(z, self.dropout.active), z.shape[-1:], norm_weight, norm_bias, EPSILON)
        z = z.transpose(1, 2).to(folded.dtype)  # [examples, Q, paragraphs, D]
        scores = folded @ z.transpose(-1, -2) + constant[..., None]
        weights = masked_softmax(scores, mask.any(-1)[:, None, None, :])
        dropped = drop(weights, self.attention_dropout.active).to(z.dtype)
        return dropped @ z, dropped.sum(-1), weights.mean(2)
