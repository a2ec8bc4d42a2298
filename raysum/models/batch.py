"""A batch of examples: packed source paragraphs and padded targets, and the special ids they use.

S tokens of all paragraphs, P paragraphs, B examples, M most paragraphs of an example, N most tokens of a paragraph,
K target length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

# Special ids of the published WikiSum vocabulary; vocabularies trained by raysum have the same.
TITLE_END, BOS, EOS, PAD, PARAGRAPH_END, SENTENCE_END = 3, 4, 5, 6, 7, 8


@dataclass(frozen=True)
class Layout:
    """Where packed tokens and paragraphs lie in padded arrays. All index tensors are long, masks true = real."""

    token_paragraph: Tensor  # [S] which of the P paragraphs
    token_position: Tensor  # [S] position within its paragraph
    token_example: Tensor  # [S] which of the B examples
    token_offset: Tensor  # [S] position within its example's tokens
    paragraph_example: Tensor  # [P]
    rank: Tensor  # [P] 0 = best
    token_mask: Tensor  # [P, N]
    source_mask: Tensor  # [B, Smax]
    paragraph_mask: Tensor  # [B, M]
    in_paragraphs: Tensor  # [S] index into the flat [P * N]
    in_source: Tensor  # [S] index into the flat [B * Smax]
    in_examples: Tensor  # [P] index into the flat [B * M]
    grid_mask: Tensor  # [B, M, N]
    in_grid: Tensor  # [S] index into the flat [B * M * N]
    counts: tuple[int, ...]  # paragraphs of each of the B examples


@dataclass(frozen=True)
class Source:
    """Paragraphs of B examples without padding: best rank first, example by example.

    ``ids`` [S], ``lengths`` [P] tokens of each paragraph (all >= 1), ``counts`` [B] paragraphs of each example
    (all >= 1), ``graph`` [B, M, M] edge weights between paragraphs or None.
    """

    ids: Tensor
    lengths: Tensor
    counts: Tensor
    graph: Tensor | None = None

    @classmethod
    def pack(cls, examples: Sequence[Sequence[Sequence[int]]]) -> "Source":
        """From token ids by example and paragraph; empty paragraphs are left out, so they take no rank."""
        kept = [[list(paragraph) for paragraph in example if len(paragraph)] for example in examples]
        return cls(
            ids=torch.tensor([token for example in kept for paragraph in example for token in paragraph]),
            lengths=torch.tensor([len(paragraph) for example in kept for paragraph in example]),
            counts=torch.tensor([len(example) for example in kept]),
        )

    @property
    def num_examples(self) -> int:
        return len(self.counts)

    @cached_property
    def layout(self) -> Layout:
        lengths, counts, device = self.lengths, self.counts, self.ids.device
        paragraphs, examples = torch.arange(len(lengths), device=device), torch.arange(len(counts), device=device)
        paragraph_example = torch.repeat_interleave(examples, counts)
        rank = paragraphs - (counts.cumsum(0) - counts)[paragraph_example]
        token_paragraph = torch.repeat_interleave(paragraphs, lengths)
        tokens = torch.arange(len(self.ids), device=device)
        token_position = tokens - (lengths.cumsum(0) - lengths)[token_paragraph]
        token_example = paragraph_example[token_paragraph]
        sizes = torch.zeros_like(counts).index_add(0, paragraph_example, lengths)
        token_offset = tokens - (sizes.cumsum(0) - sizes)[token_example]
        longest, widest, largest = int(lengths.max()), int(counts.max()), int(sizes.max())
        token_mask = torch.arange(longest, device=device) < lengths[:, None]
        in_examples = paragraph_example * widest + rank
        return Layout(
            token_paragraph=token_paragraph,
            token_position=token_position,
            token_example=token_example,
            token_offset=token_offset,
            paragraph_example=paragraph_example,
            rank=rank,
            token_mask=token_mask,
            source_mask=torch.arange(largest, device=device) < sizes[:, None],
            paragraph_mask=torch.arange(widest, device=device) < counts[:, None],
            in_paragraphs=token_paragraph * longest + token_position,
            in_source=token_example * largest + token_offset,
            in_examples=in_examples,
            grid_mask=scatter_padded(token_mask, in_examples, len(counts), widest),
            in_grid=in_examples[token_paragraph] * longest + token_position,
            counts=tuple(counts.tolist()),
        )

    def select(self, examples: Sequence[int]) -> "Source":
        """Only ``examples``, ascending."""
        layout, chosen = self.layout, torch.tensor(examples, device=self.ids.device)
        most = int(self.counts[chosen].max())
        return Source(
            ids=self.ids[torch.isin(layout.token_example, chosen)],
            lengths=self.lengths[torch.isin(layout.paragraph_example, chosen)],
            counts=self.counts[chosen],
            graph=None if self.graph is None else self.graph[chosen, :most, :most],
        )

    def parts(self, tokens: int) -> list["Source"]:
        """Neighbouring examples together, a part of at most ``tokens`` tokens, or of one example that has more."""
        found: list[list[int]] = []
        room = 0
        for example, size in enumerate(self.layout.source_mask.sum(1).tolist()):
            if size > room:
                found.append([])
                room = tokens
            found[-1].append(example)
            room -= size
        return [self.select(examples) for examples in found]

    def to(self, device: torch.device | str) -> "Source":
        graph = None if self.graph is None else self.graph.to(device)
        return replace(
            self, ids=self.ids.to(device), lengths=self.lengths.to(device), counts=self.counts.to(device), graph=graph
        )


@dataclass(frozen=True)
class Batch:
    """Sources with their targets: ``target`` [B, K + 1] is BOS ... EOS, padded with PAD."""

    source: Source
    target: Tensor

    def to(self, device: torch.device | str) -> "Batch":
        return Batch(self.source.to(device), self.target.to(device))


def scatter_padded(values: Tensor, index: Tensor, rows: int, columns: int) -> Tensor:
    """[S, ...] -> [rows, columns, ...]: packed values put at ``index`` of the flat array, zeros elsewhere."""
    return _Scattered.apply(values, index, rows * columns).view(rows, columns, *values.shape[1:])


class _Scattered(torch.autograd.Function):
    """``index_copy`` into zeros; that of torch keeps ``values`` for backward, which needs none of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index)
        return values.new_zeros(size, *values.shape[1:]).index_copy_(0, index, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None
