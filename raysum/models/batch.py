"""A batch of examples: packed source paragraphs, padded targets, and the encoder's output.

S source tokens, P paragraphs, B examples, M most paragraphs of an example, N most tokens of a paragraph, K target
length, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

AnyMemory = TypeVar("AnyMemory", bound="Memory")

# The attention to the source that a call returns: none, by paragraph [..., M] (true), by paragraph for some layers
# (numbered from 0), or by token [..., M, N].
AttentionRequest = bool | frozenset[int] | Literal["tokens"]


class Layout:
    """The indices of packed tokens and paragraphs in padded arrays. Indices are long; masks are true where real."""

    def __init__(self, lengths: Tensor, counts: Tensor):
        """``lengths`` [P] are the tokens of each paragraph, ``counts`` [B] the paragraphs of each example."""
        device = lengths.device
        paragraphs, examples = torch.arange(len(lengths), device=device), torch.arange(len(counts), device=device)
        self.counts: tuple[int, ...] = tuple(counts.tolist())
        self.paragraph_example = torch.repeat_interleave(examples, counts)  # [P]
        self.rank = paragraphs - (counts.cumsum(0) - counts)[self.paragraph_example]  # [P] 0 = best
        self.sizes = torch.zeros_like(counts).index_add(0, self.paragraph_example, lengths)  # [B] tokens
        self.token_paragraph = torch.repeat_interleave(paragraphs, lengths)  # [S]
        self.token_example = self.paragraph_example[self.token_paragraph]  # [S]
        tokens = torch.arange(len(self.token_paragraph), device=device)
        self.token_position = tokens - (lengths.cumsum(0) - lengths)[self.token_paragraph]  # [S] in its paragraph
        self.token_offset = tokens - (self.sizes.cumsum(0) - self.sizes)[self.token_example]  # [S] in its example
        longest, widest, largest = int(lengths.max()), int(counts.max()), int(self.sizes.max())
        self.token_mask = torch.arange(longest, device=device) < lengths[:, None]  # [P, N]
        self.source_mask = torch.arange(largest, device=device) < self.sizes[:, None]  # [B, Smax]
        self.paragraph_mask = torch.arange(widest, device=device) < counts[:, None]  # [B, M]
        self.in_paragraphs = self.token_paragraph * longest + self.token_position  # [S] index into flat [P * N]
        self.in_source = self.token_example * largest + self.token_offset  # [S] index into flat [B * Smax]
        self.in_examples = self.paragraph_example * widest + self.rank  # [P] index into flat [B * M]
        self.grid_mask = scatter_padded(self.token_mask, self.in_examples, len(counts), widest)  # [B, M, N]
        self.in_grid = self.in_examples[self.token_paragraph] * longest + self.token_position  # [S] into [B * M * N]

    def to_source(self, values: Tensor) -> Tensor:
        """Return [B, Smax, ...] from ``values`` [S, ...] of tokens."""
        return scatter_padded(values, self.in_source, *self.source_mask.shape)

    def to_grid(self, values: Tensor) -> Tensor:
        """Return [B, M * N, ...] from ``values`` [S, ...] of tokens."""
        examples, paragraphs, length = self.grid_mask.shape
        return scatter_padded(values, self.in_grid, examples, paragraphs * length)

    def to_examples(self, values: Tensor) -> Tensor:
        """Return [B, M, ...] from ``values`` [P, ...] of paragraphs."""
        return scatter_padded(values, self.in_examples, *self.paragraph_mask.shape)


@dataclass(frozen=True)
class Source:
    """The paragraphs of B examples without padding, best rank first, example after example.

    ``ids`` [S]; ``lengths`` [P], the tokens of each paragraph (>= 1); ``counts`` [B], the paragraphs of each example
    (>= 1); ``graph`` [B, M, M], edge weights between paragraphs, or None; ``titles`` [B], the number of tokens up to
    the end of the title, with its mark and all marks before it (0 = no title), or None if no example has one.
    """

    ids: Tensor
    lengths: Tensor
    counts: Tensor
    graph: Tensor | None = None
    titles: Tensor | None = None

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.lengths, self.counts)

    def is_text(self, marks: SpecialTokens, joined: bool = False) -> Tensor:
        """Return [S]: false for ``marks`` around texts, after titles and, if paragraphs are ``joined``, between them.

        A mark that ends a title or a paragraph may also occur in texts (a colon, for example), so its position decides.
        """
        around = {marks.pad, marks.start, marks.end, *marks.prefix, *marks.suffix, *marks.joined_end}
        is_text = ~torch.isin(self.ids, self.ids.new_tensor([*around]))
        layout = self.layout
        if self.titles is not None:
            title_ends = layout.sizes.cumsum(0) - layout.sizes + self.titles
            is_text[_mark_positions(self.ids, marks.title_end, title_ends[self.titles > 0])] = False
        if joined and marks.paragraph_end:
            is_last = layout.rank == self.counts[layout.paragraph_example] - 1
            ends = self.lengths.cumsum(0) - is_last * len(marks.joined_end)
            is_text[_mark_positions(self.ids, marks.paragraph_end, ends)] = False
        return is_text

    def select(self, examples: Sequence[int]) -> "Source":
        """Return only ``examples``, ascending."""
        layout, chosen = self.layout, torch.tensor(examples, device=self.ids.device)
        most = int(self.counts[chosen].max())
        return Source(
            ids=self.ids[torch.isin(layout.token_example, chosen)],
            lengths=self.lengths[torch.isin(layout.paragraph_example, chosen)],
            counts=self.counts[chosen],
            graph=None if self.graph is None else self.graph[chosen, :most, :most],
            titles=None if self.titles is None else self.titles[chosen],
        )

    def restrict(
        self, chosen: Sequence[Sequence[int]], marks: SpecialTokens = PUBLISHED, joined: bool = False
    ) -> "Source":
        """Return only the paragraphs ``chosen`` (ascending) of each example.

        The first chosen paragraph gets the title and, if paragraphs are ``joined``, the opening marks; then the last
        one gets the closing marks.
        """
        opening, between = len(marks.prefix), len(marks.paragraph_end)
        titles = [0] * len(self.counts) if self.titles is None else self.titles.tolist()
        examples = iter(self.ids.split(self.lengths.tolist()))
        ids: list[Tensor] = []
        for ranks, count, title in zip(chosen, self.layout.counts, titles, strict=True):
            all_paragraphs = [next(examples) for _ in range(count)]
            paragraphs = [all_paragraphs[rank] for rank in ranks]
            if ranks[0] != 0 and (title or joined):
                head = all_paragraphs[0][: title or opening]
                paragraphs[0] = torch.cat([head, paragraphs[0][0 if joined else opening :]])
            if joined and ranks[-1] != count - 1:
                last = paragraphs[-1][: len(paragraphs[-1]) - between]
                paragraphs[-1] = torch.cat([last, last.new_tensor(marks.joined_end)])
            ids += paragraphs
        counts = self.counts.new_tensor([len(ranks) for ranks in chosen])
        graph = None
        if self.graph is not None:
            graph = self.graph.new_zeros(len(chosen), *[int(counts.max())] * 2)
            for part, whole, ranks in zip(graph, self.graph, chosen, strict=True):
                index = torch.tensor(ranks, device=whole.device)
                part[: len(ranks), : len(ranks)] = whole[index[:, None], index]
        return Source(torch.cat(ids), self.lengths.new_tensor([*map(len, ids)]), counts, graph, self.titles)

    def split(self, max_tokens: int) -> list["Source"]:
        """Return parts of neighbouring examples: each has at most ``max_tokens`` tokens, or one longer example."""
        parts, room = list[list[int]](), 0
        for example, size in enumerate(self.layout.sizes.tolist()):
            if size > room:
                parts.append([])
                room = max_tokens
            parts[-1].append(example)
            room -= size
        return [self.select(examples) for examples in parts]


def _mark_positions(ids: Tensor, mark: Sequence[int], ends: Tensor) -> Tensor:
    """Return the positions in ``ids`` [S] of the tokens of ``mark`` that directly precede ``ends``."""
    positions = ends[ends >= len(mark), None] - torch.arange(len(mark), 0, -1, device=ids.device)
    return positions[(ids[positions] == ids.new_tensor(mark)).all(-1)].flatten()


@dataclass(frozen=True)
class Batch:
    """Sources with their targets: ``target`` [B, K + 1] is start ... end, padded."""

    source: Source
    target: Tensor


@dataclass(frozen=True)
class Memory:
    """The encoder's output ``tokens`` [S, D], and ``phi`` [B, M, D] if the model pools paragraphs itself.

    ``text`` [S] marks the tokens that count in the reported attention; None counts all.
    """

    source: Source
    tokens: Tensor
    phi: Tensor | None
    text: Tensor | None = field(default=None, kw_only=True)

    @classmethod
    def concatenate(cls, source: Source, parts: Sequence["Memory"]) -> "Memory":
        """Return the memory of ``source``, which was encoded in parts."""
        widest = source.layout.paragraph_mask.shape[1]
        phi = [pad(part.phi, (0, 0, 0, widest - part.phi.shape[1])) for part in parts if part.phi is not None]
        text = [part.text for part in parts if part.text is not None]
        tokens = torch.cat([part.tokens for part in parts])
        return cls(source, tokens, torch.cat(phi) if phi else None, text=torch.cat(text) if text else None)

    @property
    def paragraph_mask(self) -> Tensor:
        """[B, M], true = a real paragraph."""
        return self.source.layout.paragraph_mask

    @property
    def token_mask(self) -> Tensor:
        """[B, M, N], true = a real token, to which attention counts."""
        layout = self.source.layout
        if self.text is None:
            return layout.grid_mask
        return layout.to_grid(self.text).view_as(layout.grid_mask)

    def select(self: "AnyMemory", examples: Sequence[int]) -> "AnyMemory":
        """Return the memory of ``examples``, ascending."""
        source = self.source.select(examples)
        chosen = torch.tensor(examples, device=self.tokens.device)
        is_chosen = torch.isin(self.source.layout.token_example, chosen)
        phi = None if self.phi is None else self.phi[chosen, : int(source.counts.max())]
        text = None if self.text is None else self.text[is_chosen]
        return replace(self, source=source, tokens=self.tokens[is_chosen], phi=phi, text=text)


def move(batch: Any, device: torch.device) -> Any:
    """Return a dataclass of tensors or of such dataclasses on ``device``; copies from pinned memory do not block."""
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{field.name: move(getattr(batch, field.name), device) for field in fields(batch)})
    if batch is None or device.type == "cpu":
        return batch
    return batch.pin_memory().to(device, non_blocking=True)


def scatter_padded(values: Tensor, index: Tensor, rows: int, columns: int) -> Tensor:
    """Return [rows, columns, ...]: packed ``values`` [S, ...] at ``index`` of the flat array, zeros elsewhere."""
    return _Scattered.apply(values, index, rows * columns).view(rows, columns, *values.shape[1:])


class _Scattered(torch.autograd.Function):
    """``index_copy`` into zeros. Unlike torch's, it does not keep ``values`` for backward, which does not need them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index)
        return values.new_zeros(size, *values.shape[1:]).index_copy_(0, index, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None
