"""GraphSum (Li et al. 2020): a graph between paragraphs guides the attention of encoder and decoder.

The encoder has local layers, multi-head pooling to a vector per paragraph, and layers between paragraphs with a
Gaussian bias of the scores: attention stays near the graph. In the decoder each head finds a central paragraph and
attends to paragraphs near it in the graph (global); this scales its attention to the words of each paragraph
(local).

Where paper and published code (PaddlePaddle/Research, ACL2020-GraphSum) differ, this follows the code: layers are
pre-norm, the centre lies between two ranks, with interpolated rows of the graph (the paper uses an integer), and
``form`` selects the bias. Unlike in the code, padding paragraphs do not count in the range of the centre.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.batch import Memory, Source
from raysum.models.family.parallel import ParallelAttention, ParallelKeys
from raysum.models.generator import Generator, final_norm, output_layer
from raysum.models.kernels.attention import fuse, masked_softmax
from raysum.models.kernels.dropout import Dropout
from raysum.models.keys import WordAttention
from raysum.models.layers import (
    EPSILON,
    DecoderLayer,
    HeadValues,
    Projection,
    TransformerBlock,
    pool,
    positions_2d,
    xavier_linear,
)
from raysum.models.systems.specs import GraphSumSpec


class GraphSum(Generator):
    """The model. The global attention of a position, summed over paragraphs, is the number of decoder layers."""

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

    def run_encoder(self, source: Source) -> Memory:
        """Run the encoder. Raises UserError if the source has no graph."""
        bias = gaussian_bias(similarities(source), self.spec)
        layout, spec = source.layout, self.spec
        x = self.embedding(source.ids)
        x = self.dropout(x + torch.cat(positions_2d(layout, spec.width, spec.sinusoid), -1).to(x.dtype))
        for layer in self.encoder:
            x = layer(x, layout.by_paragraph)
        vectors = self.pooling(x, source)
        for layer in self.graph:
            vectors = layer(vectors, layout.by_example, bias[:, None])
        return Memory(source, self.encoder_norm(x), layout.to_examples(self.graph_norm(vectors)))


def similarities(source: Source) -> Tensor:
    """Return [B, M, M]: the graph, in [0, 1], with 1 on the diagonal. Raises UserError if there is none."""
    if source.graph is None:
        raise UserError(
            "GraphSum needs a graph between paragraphs, but the source has none: prepare the data with graphs"
        )
    graph = source.graph.float().clamp(0, 1)
    return graph.masked_fill(torch.eye(graph.shape[1], dtype=torch.bool, device=graph.device), 1.0)


def gaussian_bias(similarity: Tensor, spec: GraphSumSpec) -> Tensor:
    """Return the bias of a score for a paragraph of similarity g: 0 at g = 1, and lower for smaller g."""
    if spec.form == "paper":
        return (similarity.square() - 1) / (2 * spec.sigma**2)
    return -(1 - similarity).square() / (2 * (spec.sigma / 2) ** 2)


class ParagraphVectors(nn.Module):
    """Multi-head pooling (HT eq. 13-15) of normalized tokens; one matrix joins the heads."""

    def __init__(self, spec: GraphSumSpec):
        super().__init__()
        self.norm = nn.LayerNorm(spec.width, EPSILON)
        self.score = xavier_linear(spec.width, spec.heads)
        self.value = HeadValues(spec.width, spec.heads)
        self.out = Projection(spec.width)
        self.dropout = Dropout(spec.attention_dropout)

    def forward(self, x: Tensor, source: Source) -> Tensor:
        """Return [P, D] from x [S, D]."""
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

    def project_source(self, memory: Memory) -> HierarchicalKeys:
        return HierarchicalKeys.of(memory, self.words, *self.paragraph_keys(memory), similarities(memory.source))

    def forward(self, x: Tensor, keys: HierarchicalKeys) -> tuple[Tensor, WordAttention]:
        query, words = self.paragraphs.queries(x), self.words.queries(x)
        query = query * query.shape[-1] ** -0.5
        near = self.centre(query, keys.similarity, keys.paragraph_mask.sum(1))
        scores = query @ keys.paragraph_key.transpose(-1, -2) + gaussian_bias(near, self.spec)
        weights = masked_softmax(scores, keys.paragraph_mask[:, None, None, :])
        dropped = self.dropout(weights)
        over_paragraphs = dropped.to(query.dtype) @ keys.paragraph_value
        over_words = self._over_words(words, keys, dropped)
        both = torch.cat([self.paragraphs.merged(over_paragraphs), self.words.merged(over_words)], -1)
        return self.merge(both), WordAttention(words, weights, keys)

    def _over_words(self, words: Tensor, keys: HierarchicalKeys, share: Tensor) -> Tensor:
        """Return [B, H, Q, dh] of queries ``words``. ``share`` is [B, H, Q, M]."""
        if keys.packed is not None:
            return keys.packed.fused(words, share, self.dropout.active)
        return fuse(  # each head is an example here, because it has its own weights of paragraphs
            words.flatten(0, 1)[:, None],
            keys.by_head.flatten(0, 1)[:, None],
            keys.value.flatten(0, 1)[:, None],
            share.flatten(0, 1),
            keys.mask.flatten(1).repeat_interleave(self.words.heads, 0),
            keys.counts,
            self.dropout.active,
        ).view_as(words)


class Centre(nn.Module):
    """The central paragraph of each head, a position between the first and the last rank."""

    def __init__(self, size: int):
        super().__init__()
        self.hidden = xavier_linear(size, size)
        self.score = xavier_linear(size, 1, bias=False)

    def forward(self, query: Tensor, similarity: Tensor, counts: Tensor) -> Tensor:
        """Return the centre's similarities [B, H, Q, M] from [B, H, Q, dh], [B, M, M], and ``counts`` [B]."""
        last = (counts - 1)[:, None, None]
        centre = last * self.score(self.hidden(query).tanh()).squeeze(-1).float().sigmoid()
        below = centre.detach().floor().long()
        part = (centre - below)[..., None]
        return _rows(similarity, below) * (1 - part) + _rows(similarity, torch.minimum(below + 1, last)) * part


def _rows(matrix: Tensor, index: Tensor) -> Tensor:
    """Return [B, H, Q, M]: the rows ``index`` [B, H, Q] of ``matrix`` [B, M, M]."""
    flat = index.flatten(1)[..., None].expand(-1, -1, matrix.shape[2])
    return matrix.gather(1, flat).view(*index.shape, -1)
