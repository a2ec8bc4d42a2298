"""GraphSum (Li et al. 2020): a graph between paragraphs leads the encoder's and the decoder's attention.

The encoder has local layers, one vector a paragraph by multi-head pooling, and layers between paragraphs whose scores
carry a Gaussian bias: attention stays near the graph. In the decoder each head finds a central paragraph and attends to
paragraphs near it in the graph (global); its attention to the words of each paragraph is scaled by that (local).

Where paper and published code (PaddlePaddle/Research, ACL2020-GraphSum) differ, this is the code: layers are pre-norm,
the centre is a place between two ranks whose rows of the graph are interpolated (the paper takes an integer), and
``form`` chooses the bias. Paragraphs that are padding do not count in the centre's range, as they do in the code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.batch import AttentionRequest, Memory, Source, scatter_padded
from raysum.models.family.parallel import ParallelAttention, ParallelKeys, paragraph_keys
from raysum.models.generator import EncoderDecoder, final_norm, output_layer
from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.fusion import fuse, token_shares
from raysum.models.layers import (
    EPSILON,
    Attended,
    DecoderLayer,
    HeadValues,
    Projection,
    TransformerBlock,
    pool,
    positions_2d,
    xavier_linear,
)
from raysum.models.specs.summarizers import GraphSumSpec


class GraphSum(EncoderDecoder):
    """The paragraph attention of a position, that of the global attention, sums to the number of decoder layers."""

    def __init__(self, spec: GraphSumSpec):
        super().__init__(spec)
        self.encoder = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.local_layers))
        self.encoder_norm = final_norm(spec)
        self.pooling = ParagraphVectors(spec)
        self.graph = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.graph_layers))
        self.graph_norm = final_norm(spec)
        self.decoder = nn.ModuleList(DecoderLayer(spec, HierarchicalAttention) for _ in range(spec.decoder_layers))
        self.decoder_norm = final_norm(spec)
        self.output = output_layer(spec)

    def read(self, source: Source) -> Memory:
        """Raises UserError when the source has no graph."""
        bias = gaussian_bias(similarities(source), self.spec)
        layout, spec = source.layout, self.spec
        x = self.embedding(source.ids)
        x = self.dropout(x + torch.cat(positions_2d(layout, spec.width, spec.sinusoid), -1).to(x.dtype))
        for layer in self.encoder:
            x = layer(x, layout.in_paragraphs, layout.token_mask)
        vectors = self.pooling(x, source)
        for layer in self.graph:
            vectors = layer(vectors, layout.in_examples, layout.paragraph_mask, bias[:, None])
        phi = scatter_padded(self.graph_norm(vectors), layout.in_examples, *layout.paragraph_mask.shape)
        return Memory(source, self.encoder_norm(x), phi)


def similarities(source: Source) -> Tensor:
    """[B, M, M]: the graph, in [0, 1], 1 between a paragraph and itself. Raises UserError when there is none."""
    if source.graph is None:
        raise UserError(
            "GraphSum needs a graph between paragraphs, and the source has none; prepare the data with graphs"
        )
    graph = source.graph.float().clamp(0, 1)
    return graph.masked_fill(torch.eye(graph.shape[1], dtype=torch.bool, device=graph.device), 1.0)


def gaussian_bias(similarity: Tensor, spec: GraphSumSpec) -> Tensor:
    """What is added to a score for a paragraph of similarity g: 0 at g = 1, falling with it."""
    if spec.form == "paper":
        return (similarity.square() - 1) / (2 * spec.sigma**2)
    return -(1 - similarity).square() / (2 * (spec.sigma / 2) ** 2)


class ParagraphVectors(nn.Module):
    """Multi-head pooling (HT eq. 13-15) of normed tokens; one matrix joins the heads."""

    def __init__(self, spec: GraphSumSpec):
        super().__init__()
        self.norm = nn.LayerNorm(spec.width, EPSILON)
        self.score = xavier_linear(spec.width, spec.heads)
        self.value = HeadValues(spec.width, spec.heads)
        self.out = Projection(spec.width)
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """x [S, D] -> [P, D]."""
        x = self.norm(x)
        pooled = pool(x, self.score(x), source.layout, self.dropout, self.value)
        return self.dropout(self.out(pooled.flatten(1)))


@dataclass(frozen=True)
class HierarchicalKeys(ParallelKeys):
    similarity: Tensor  # [B, M, M]


class HierarchicalAttention(ParallelAttention):
    """Global attention to paragraphs near a central one, local attention to words scaled by it, and both joined."""

    def __init__(self, spec: GraphSumSpec):
        super().__init__(spec)
        self.spec = spec
        self.centre = Centre(spec.width // spec.heads)
        self.merge = xavier_linear(2 * spec.width, spec.width)

    def read(self, memory: Memory) -> ParallelKeys:
        own = paragraph_keys(memory, self.paragraphs)
        return HierarchicalKeys.of(memory, self.words, **own, similarity=similarities(memory.source))

    def forward(  # type: ignore[override]
        self, x: Tensor, keys: HierarchicalKeys, attention: AttentionRequest
    ) -> Attended:
        query, words = self.paragraphs.queries(x), self.words.queries(x)
        query, key = query * query.shape[-1] ** -0.5, keys.key.transpose(-1, -2)
        near = self.centre(query, keys.similarity, keys.paragraph_mask.sum(1))
        scores = query @ keys.paragraph_key.transpose(-1, -2) + gaussian_bias(near, self.spec)
        weights = masked_softmax(scores, keys.paragraph_mask[:, None, None, :])
        dropped = self.dropout(weights)
        over_paragraphs = dropped.to(query.dtype) @ keys.paragraph_value
        heads = self.words.heads
        over_words = fuse(  # heads have their own weights of paragraphs, so each is an example here
            words.flatten(0, 1)[:, None],
            key.flatten(0, 1)[:, None],
            keys.value.flatten(0, 1)[:, None],
            dropped.flatten(0, 1),
            keys.mask.repeat_interleave(heads, 0),
            tuple(count for count in keys.counts for _ in range(heads)),
            self.dropout.active,
        ).view_as(over_paragraphs)
        both = torch.cat([self.paragraphs.merged(over_paragraphs), self.words.merged(over_words)], -1)
        share = weights.mean(1)
        if attention == "tokens":
            share = token_shares(words, key, weights, keys.mask.unflatten(1, (share.shape[2], -1)))
        return self.merge(both), share if attention else None, None


class Centre(nn.Module):
    """The central paragraph of each head: a place between the first and the last rank."""

    def __init__(self, size: int):
        super().__init__()
        self.hidden = xavier_linear(size, size)
        self.score = xavier_linear(size, 1, bias=False)

    def forward(self, query: Tensor, similarity: Tensor, counts: Tensor) -> Tensor:
        """Queries [B, H, Q, dh], similarity [B, M, M], counts [B] -> similarities to the centre [B, H, Q, M]."""
        last = (counts - 1)[:, None, None]
        centre = last * self.score(self.hidden(query).tanh()).squeeze(-1).float().sigmoid()
        below = centre.detach().floor().long()
        part = (centre - below)[..., None]
        return _rows(similarity, below) * (1 - part) + _rows(similarity, torch.minimum(below + 1, last)) * part


def _rows(matrix: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [B, H, Q] of ``matrix`` [B, M, M] -> [B, H, Q, M]."""
    flat = index.flatten(1)[..., None].expand(-1, -1, matrix.shape[2])
    return matrix.gather(1, flat).view(*index.shape, -1)
