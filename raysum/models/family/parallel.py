"""What a decoder layer reads from the source: letters F and P (V has a file of its own).

Each letter has ``read(memory)``, its keys and values of the source, made once an example, and ``forward``, which
attends to them with queries [B, Q, D]: the target positions of an example in training, its beams in decoding.
It returns what it read [B, Q, D] and, only when asked for, its attention in float32: the mean over its heads, before
dropout, by paragraph [B, Q, M] or by token [B, Q, M, N]; the former is the latter summed over the paragraph's tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysum.models.batch import scatter_padded
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.fusion import fuse, keys_and_values, token_shares
from raysum.models.layers import Projection, attend, masked_softmax, merge_heads, split_heads
from raysum.models.memory import Memory, SourceKeys, Watch
from raysum.models.specs import Seq2SeqSpec


class Attention(nn.Module):
    """The projections of a multi-head attention from one sequence to another."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = Projection(width)
        self.source = Projection(width, 2)
        self.out = Projection(width)

    def queries(self, x: Tensor) -> Tensor:
        """[B, Q, D] -> [B, H, Q, dh]."""
        return split_heads(self.query(x), self.heads, 1)[0]

    def merged(self, context: Tensor) -> Tensor:
        """[B, H, Q, dh] -> [B, Q, D]."""
        return self.out(merge_heads(context))


@dataclass(frozen=True)
class FlatKeys(SourceKeys):
    key: Tensor  # [B, H, S, dh], S the most tokens of an example
    value: Tensor
    mask: Tensor  # [B, S]
    place: Tensor  # [B, S] of each token in the flat [M * N]
    grid_mask: Tensor  # [B, M, N]


class FlatAttention(nn.Module):
    """F: cross-attention over all source tokens of an example; its paragraph attention is summed over their tokens."""

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__()
        self.words = Attention(spec.width, spec.heads)
        self.dropout = Dropout(spec.attention_dropout)

    def read(self, memory: Memory) -> FlatKeys:
        layout = memory.source.layout
        padded = scatter_padded(self.words.source(memory.tokens), layout.in_source, *layout.source_mask.shape)
        key, value = (part.contiguous() for part in split_heads(padded, self.words.heads, 2))
        in_example = layout.in_grid % layout.grid_mask[0].numel()
        place = scatter_padded(in_example, layout.in_source, *layout.source_mask.shape)
        return FlatKeys(layout.counts, key, value, layout.source_mask, place, layout.grid_mask)

    def forward(self, x: Tensor, keys: FlatKeys, attention: Watch) -> tuple[Tensor, Tensor | None]:
        query, mask = self.words.queries(x), keys.mask[:, None, None, :]
        share = _share(query, keys, attention == "tokens") if attention else None
        return self.words.merged(attend(query, keys.key, keys.value, mask, dropout=self.dropout.active)), share


def _share(query: Tensor, keys: FlatKeys, by_token: bool) -> Tensor:
    """Mean over heads of the token weights: as they are [B, Q, M, N], or summed by paragraph [B, Q, M].

    One example at a time to bound memory.
    """
    paragraphs, length = keys.grid_mask.shape[1:]
    columns, place = (paragraphs * length, keys.place) if by_token else (paragraphs, keys.place // length)
    shares = []
    for q, key, mask, column in zip(query, keys.key, keys.mask, place, strict=True):
        weights = masked_softmax(q @ key.transpose(-1, -2) * q.shape[-1] ** -0.5, mask).mean(0)
        shares.append(weights.new_zeros(len(weights), columns).index_add(1, column, weights))
    share = torch.stack(shares)
    return share.unflatten(-1, (paragraphs, length)) if by_token else share


@dataclass(frozen=True)
class ParallelKeys(SourceKeys):
    key: Tensor  # [B, H, dh, M * N], paragraph after paragraph
    value: Tensor  # [B, H, M * N, dh]
    mask: Tensor  # [B, M * N]
    paragraph_key: Tensor  # [B, H, M, dh]
    paragraph_value: Tensor
    paragraph_mask: Tensor  # [B, M]


class ParallelAttention(nn.Module):
    """P: attention to paragraph embeddings beside word attention that it weights (PHT eq. 7-9); the sum of both."""

    def __init__(self, spec: Seq2SeqSpec):
        super().__init__()
        self.paragraphs = Attention(spec.width, spec.heads)
        self.words = Attention(spec.width, spec.heads)
        self.dropout = Dropout(spec.attention_dropout)

    def read(self, memory: Memory) -> ParallelKeys:
        layout = memory.source.layout
        examples, paragraphs, length = layout.grid_mask.shape
        grid = scatter_padded(self.words.source(memory.tokens), layout.in_grid, examples, paragraphs * length)
        key, value = keys_and_values(grid, self.words.heads)
        paragraph_key, paragraph_value = split_heads(
            self.paragraphs.source(memory.paragraphs()), self.paragraphs.heads, 2
        )
        mask = layout.grid_mask.flatten(1)
        return ParallelKeys(layout.counts, key, value, mask, paragraph_key, paragraph_value, layout.paragraph_mask)

    def forward(self, x: Tensor, keys: ParallelKeys, attention: Watch) -> tuple[Tensor, Tensor | None]:
        query, words = self.paragraphs.queries(x), self.words.queries(x)
        scores = query @ keys.paragraph_key.transpose(-1, -2) * query.shape[-1] ** -0.5
        weights = masked_softmax(scores, keys.paragraph_mask[:, None, None, :])
        share = weights.mean(1)
        over_paragraphs = self.dropout(weights).to(query.dtype) @ keys.paragraph_value
        key = keys.key.transpose(-1, -2)
        over_words = fuse(words, key, keys.value, share, keys.mask, keys.counts, self.dropout.active)
        if attention == "tokens":
            share = token_shares(words, key, share[:, None], keys.mask.unflatten(1, (share.shape[2], -1)))
        # the weights of a position sum to one, so the output projection may follow their sum
        return self.paragraphs.merged(over_paragraphs) + self.words.merged(over_words), share if attention else None
