"""Multi-head pooling: paragraphs from their tokens. P paragraphs, N tokens of the longest, S tokens in all.

A head's vector is a weighted sum of projected tokens. Both pools below weight the tokens first and project the sum
(the same numbers, as projection is linear), so the projection is done once a paragraph and not once a token.
"""

import torch
from torch import Tensor, nn

from raysum.models.batch import Layout, Source, scatter_padded
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import (
    EPSILON,
    FeedForward,
    Matrix,
    Projection,
    Residual,
    masked_softmax,
    sinusoids,
    xavier_linear,
)
from raysum.models.specs import Seq2SeqSpec


class HeadValues(Matrix):
    """The values of an attention, projected after the weighting: head h takes its rows of the matrix."""

    def __init__(self, width: int, heads: int, bias: bool = True):
        super().__init__(width, bias)
        self.heads = heads

    def forward(self, mixed: Tensor, mass: Tensor) -> Tensor:
        """mixed [..., H, D] = weights @ inputs, mass [..., H] = sums of weights -> [..., H, dh]."""
        weight = self.weight.unflatten(0, (self.heads, -1))
        values = torch.einsum("...hd,hed->...he", mixed, weight.to(mixed.dtype))
        if self.bias is None:
            return values
        return values + mass[..., None].to(values.dtype) * self.bias.unflatten(0, (self.heads, -1))


class HeadLinear(nn.Module):
    """A matrix of its own for each head: [..., H, inputs] -> [..., H, outputs]."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, outputs, inputs))
        for head in self.weight.detach():
            for part in head.split(inputs):
                nn.init.xavier_uniform_(part)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...hd,hed->...he", x, self.weight.to(x.dtype))


def pad_weights(scores: Tensor, layout: Layout, dropout: Dropout) -> Tensor:
    """[S, H] -> [P, H, N]: softmax over the tokens of each paragraph."""
    padded = scatter_padded(scores, layout.in_paragraphs, *layout.token_mask.shape).transpose(1, 2)
    return dropout(masked_softmax(padded, layout.token_mask[:, None, :]))


def mix(weights: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """[P, H, N] weights and packed x [S, D] -> weighted sums [P, H, D]."""
    return weights.to(x.dtype) @ scatter_padded(x, layout.in_paragraphs, *layout.token_mask.shape)


class MultiHeadPooling(nn.Module):
    """HT eq. 13-16. The paper has W_c and no biases, its code biases and no W_c; one LayerNorm serves all heads."""

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__()
        paper, heads = spec.form == "paper", spec.pooling_heads
        size = spec.width // heads
        self.score = xavier_linear(spec.width, heads, bias=not paper)
        self.value = HeadValues(spec.width, heads, bias=not paper)
        self.combine = HeadLinear(heads, size, size) if paper else nn.Identity()
        self.norm = nn.LayerNorm(size, EPSILON)
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """x [S, D] -> [P, H, dh]."""
        weights = pad_weights(self.score(x), layout, self.dropout)
        return self.norm(self.combine(self.value(mix(weights, x, layout), weights.sum(-1))))


class ScoredHeads(Matrix):
    """PHT eq. 2-3: heads of W1 x, weighted by their own product with a vector W2.

    The code scales the products by dh^-0.5 and has one W2 a head, the paper one W2 for all heads and no scale.
    """

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__(spec.width, bias=spec.form == "code")
        self.paper, self.heads = spec.form == "paper", spec.pooling_heads
        size = spec.width // self.heads
        self.scorer = nn.Parameter(torch.empty(1 if self.paper else self.heads, size))
        nn.init.normal_(self.scorer, std=0.05)  # the code's; it never trains it, here it is trained
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """x [S, D] -> [P, D]."""
        weight = self.weight.unflatten(0, (self.heads, -1))
        scale = 1.0 if self.paper else weight.shape[1] ** -0.5
        # W2 (W1 x + b) = (W2 W1) x + a constant that the softmax cancels
        folded = torch.einsum("he,hed->hd", self.scorer.expand(self.heads, -1), weight) * scale
        weights = pad_weights(nn.functional.linear(x, folded), layout, self.dropout)
        mixed = mix(weights, x, layout)
        values = torch.einsum("phd,hed->phe", mixed, weight.to(mixed.dtype)).flatten(1)
        if self.bias is None:
            return values
        mass = weights.sum(-1).to(values.dtype).repeat_interleave(weight.shape[1], 1)
        return values + mass * self.bias


class ParagraphPooling(nn.Module):
    """The paragraph embeddings Phi of PHT with their rank code (eq. 2-6), for decoders with P layers.

    Its norms stand after the sums whatever ``spec.norm`` is; the code has one more after W3 (before eq. 5).
    """

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__()
        paper = spec.form == "paper"
        self.sinusoid = spec.sinusoid
        self.pool = ScoredHeads(spec)
        self.merge = Projection(spec.width, bias=not paper)
        self.dropout = Dropout(spec.dropout)
        self.norm = nn.Identity() if paper else nn.LayerNorm(spec.width, EPSILON)
        self.ffn = FeedForward(spec.width, spec.ffn, spec.ffn_dropout)
        self.around_ffn = Residual(spec.width, "post", spec.dropout)

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """x [S, D] -> Phi [B, M, D]; rows of padding paragraphs hold their rank code alone."""
        layout = source.layout
        phi = self.norm(self.dropout(self.merge(self.pool(x, layout))))
        phi = self.around_ffn.leave(phi, self.ffn(phi))
        padded = scatter_padded(phi, layout.in_examples, *layout.paragraph_mask.shape)
        ranks = torch.arange(padded.shape[1], device=padded.device)
        return padded + sinusoids(ranks, padded.shape[2], self.sinusoid).to(padded.dtype)
