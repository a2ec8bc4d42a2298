"""Letter G: paragraphs are pooled, attend to each other, and their context is added to their tokens (HT eq. 13-24).

B examples, P paragraphs, M most paragraphs of an example, S tokens in all, H heads, D width, dh = D / H.
"""

import torch
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.batch import Layout, Source
from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import (
    EPSILON,
    FeedForward,
    HeadLinear,
    HeadValues,
    Projection,
    Residual,
    pool,
    xavier_linear,
    zero_init,
)


class GlobalLayer(nn.Module):
    """HT eq. 13-23.

    The code continues from x + context; the paper's residual connection skips the context (eq. 22-23). In a model with
    a backbone, its norms always precede sub-layers, and it starts as the identity.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.paper, self.pre = spec.form == "paper", spec.norm == "pre" or spec.backbone is not None
        self.norm = nn.Identity() if self.paper and not self.pre else nn.LayerNorm(spec.width, EPSILON)
        self.pooling = MultiHeadPooling(spec)
        self.attention = InterParagraphAttention(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec, norm="pre" if self.pre else "post")
        if spec.backbone is not None:
            zero_init(self.attention.out, self.ffn.outer)

    def forward(self, x: Tensor, source: Source, bias: Tensor | None = None) -> Tensor:
        heads = self.pooling(self.norm(x) if self.pre else x, source.layout)
        context = self.attention(heads, source).index_select(0, source.layout.token_paragraph)
        informed = x + context
        if not self.paper:
            x = informed = informed if self.pre else self.norm(informed)
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(informed)))


class MultiHeadPooling(nn.Module):
    """HT eq. 13-16. The paper has W_c and no biases, its code biases and no W_c. All heads share one LayerNorm."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        paper, heads = spec.form == "paper", spec.pooling_heads
        size = spec.width // heads
        self.score = xavier_linear(spec.width, heads, bias=not paper)
        self.value = HeadValues(spec.width, heads, bias=not paper)
        self.combine = HeadLinear(heads, size, size) if paper else nn.Identity()
        self.norm = nn.LayerNorm(size, EPSILON)
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Return [P, H, dh] from x [S, D]."""
        return self.norm(self.combine(pool(x, self.score(x), layout, self.dropout, self.value)))


class InterParagraphAttention(nn.Module):
    """HT eq. 17-21, and eq. 24 for the first ``graph_heads`` heads, which use the rows of a given graph as weights.

    The code has one projection for all heads, biases, scaled scores and dropout; the paper has a projection for each
    head.
    """

    def __init__(self, spec: FamilySpec):
        super().__init__()
        paper, heads = spec.form == "paper", spec.pooling_heads
        size = spec.width // heads
        self.graph_heads = spec.graph_heads
        self.scale = 1.0 if paper else size**-0.5
        self.qkv = HeadLinear(heads, size, 3 * size) if paper else Projection(size, 3)
        self.out = Projection(spec.width, bias=not paper)
        self.attention_dropout = Dropout(spec.attention_dropout)
        self.dropout = Dropout(0.0 if paper else spec.dropout)

    def forward(self, heads: Tensor, source: Source) -> Tensor:
        """Return the context [P, D] of heads [P, H, dh]."""
        layout = source.layout
        query, key, value = layout.to_examples(self.qkv(heads)).transpose(1, 2).chunk(3, -1)  # [B, H, M, dh] each
        learned = slice(self.graph_heads, None)
        scores = query[:, learned] @ key[:, learned].transpose(-1, -2) * self.scale
        weights = masked_softmax(scores, layout.paragraph_mask[:, None, None, :])
        if self.graph_heads:
            graph = graph_weights(source)[:, None].expand(-1, self.graph_heads, -1, -1)
            weights = torch.cat([graph.to(weights.dtype), weights], 1)
        context = self.attention_dropout(weights).to(value.dtype) @ value
        packed = context.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, layout.in_examples)
        return self.dropout(self.out(packed))


def graph_weights(source: Source) -> Tensor:
    """Return [B, M, M]: the rows of the graph over real paragraphs, normalized to sum 1, or 0 without edges."""
    if source.graph is None:
        raise UserError(
            "model.graph_heads needs a graph between paragraphs, but the source has none: "
            "prepare the data with graphs, or set model.graph_heads=0"
        )
    mask = source.layout.paragraph_mask
    graph = source.graph.float() * (mask[:, :, None] & mask[:, None, :])
    return graph / graph.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
