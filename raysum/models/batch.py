"""A batch of examples: packed source paragraphs, padded targets, and the encoder's output.

S source tokens, P paragraphs, B examples, M most paragraphs of an example, N most tokens of a paragraph, K target
length, D width.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

AnyMemory = TypeVar("AnyMemory", bound="Memory")

_ALIGNED = 16  # bytes: where each tensor of a copied batch begins

# The attention to the source that a call returns: none, by paragraph [..., M] (true), by paragraph for some layers
# (numbered from 0), or by token [..., M, N].
AttentionRequest = bool | frozenset[int] | Literal["tokens"]


@dataclass(frozen=True)
class Rows:
    """Where packed values are in padded rows, of which each attends within itself."""

    index: Tensor  # [S] into flat [rows * T]
    mask: Tensor  # [rows, T] true for the values, which begin each row
    starts: Tensor | None  # [rows + 1] int32, the first value of each row, and S; None if values include padding

    @classmethod
    def padded(cls, mask: Tensor) -> "Rows":
        """Return the rows of values at all positions, rows * T, of which ``mask`` are real."""
        return cls(torch.arange(mask.numel(), device=mask.device), mask, None)


class Layout:
    """The indices of packed tokens and paragraphs in padded arrays. Indices are long; masks are true where real.

    Its integers and shapes are known to the host, so a model that uses only these never waits for its GPU.
    """

    def __init__(self, lengths: Tensor, counts: Tensor):
        """``lengths`` [P] are the tokens of each paragraph, ``counts`` [B] the paragraphs of each example."""
        device = lengths.device
        paragraphs, examples = torch.arange(len(lengths), device=device), torch.arange(len(counts), device=device)
        self.counts: tuple[int, ...] = tuple(counts.tolist())  # [B] paragraphs
        self.paragraph_example = torch.repeat_interleave(examples, counts)  # [P]
        self.sizes = torch.zeros_like(counts).index_add(0, self.paragraph_example, lengths)  # [B] tokens
        self.tokens: tuple[int, ...] = tuple(self.sizes.tolist())  # [B]
        self.paragraph_starts = starts(lengths)  # [P + 1] tokens before each paragraph, int32
        self.source_starts = starts(self.sizes)  # [B + 1] tokens before each example, int32
        self.example_starts = starts(counts)  # [B + 1] paragraphs before each example, int32
        self.rank = paragraphs - self.example_starts[self.paragraph_example]  # [P] 0 = best
        self.token_paragraph = torch.repeat_interleave(paragraphs, lengths)  # [S]
        self.token_example = self.paragraph_example[self.token_paragraph]  # [S]
        tokens = torch.arange(len(self.token_paragraph), device=device)
        self.token_position = tokens - self.paragraph_starts[self.token_paragraph]  # [S] in its paragraph
        self.token_offset = tokens - self.source_starts[self.token_example]  # [S] in its example
        longest, widest, largest = int(lengths.max()), int(counts.max()), int(self.sizes.max())
        self.token_mask = torch.arange(longest, device=device) < lengths[:, None]  # [P, N]
        self.source_mask = torch.arange(largest, device=device) < self.sizes[:, None]  # [B, Smax]
        self.paragraph_mask = torch.arange(widest, device=device) < counts[:, None]  # [B, M]
        self.in_paragraphs = self.token_paragraph * longest + self.token_position  # [S] index into flat [P * N]
        self.in_source = self.token_example * largest + self.token_offset  # [S] index into flat [B * Smax]
        self.in_examples = self.paragraph_example * widest + self.rank  # [P] index into flat [B * M]
        self.grid_mask = scatter_padded(self.token_mask, self.in_examples, len(counts), widest)  # [B, M, N]
        self.in_grid = self.in_examples[self.token_paragraph] * longest + self.token_position  # [S] into [B * M * N]

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """The counts for :func:`recomputation.chunks`; empty in torch.compile, whose graph must not depend on them."""
        return () if torch.compiler.is_compiling() else self.counts

    @property
    def first_token(self) -> Tensor:
        """[B]: the index of each example's first token."""
        return self.source_starts[:-1].long()

    @property
    def by_paragraph(self) -> Rows:
        """The rows of tokens that attend within their paragraph."""
        return Rows(self.in_paragraphs, self.token_mask, self.paragraph_starts)

    @property
    def by_source(self) -> Rows:
        """The rows of tokens that attend to their whole source."""
        return Rows(self.in_source, self.source_mask, self.source_starts)

    @property
    def by_example(self) -> Rows:
        """The rows of paragraphs that attend within their example."""
        return Rows(self.in_examples, self.paragraph_mask, self.example_starts)

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

    @cached_property
    def known_globals(self) -> dict[tuple[int, ...], tuple[int, int]]:
        """The results of :meth:`count_globals`."""
        return {}

    def count_globals(self, marks: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of global tokens of all examples, and the most of one: its first, and those in ``marks``.

        The first call counts on the host. Where it came before the layers, torch.compile finds numbers.
        """
        if not marks:
            return len(self.counts), 1
        if marks not in self.known_globals:
            tokens = np.array(self.layout.tokens)
            first = tokens.cumsum() - tokens
            is_global = np.isin(self.ids.cpu().numpy(), marks)
            is_global[first] = True
            counts = np.add.reduceat(is_global, first, dtype=np.int64)
            self.known_globals[marks] = int(counts.sum()), int(counts.max())
        return self.known_globals[marks]

    def is_text(self, marks: SpecialTokens, joined: bool = False) -> Tensor:
        """Return [S]: false for ``marks`` around texts, after titles and, if paragraphs are ``joined``, between them.

        A mark that ends a title or a paragraph may also occur in texts (a colon, for example), so its position decides.
        """
        layout, is_mark = self.layout, torch.zeros_like(self.ids, dtype=torch.bool)
        for mark in {marks.pad, marks.start, marks.end, *marks.prefix, *marks.suffix, *marks.joined_end}:
            is_mark |= self.ids == mark
        if self.titles is not None:
            title_ends = torch.where(self.titles > 0, layout.first_token + self.titles, 0)
            is_mark |= _precedes(self.ids, marks.title_end, title_ends)
        if joined and marks.paragraph_end:
            is_last = layout.rank == self.counts[layout.paragraph_example] - 1
            ends = self.lengths.cumsum(0) - is_last * len(marks.joined_end)
            is_mark |= _precedes(self.ids, marks.paragraph_end, ends)
        return ~is_mark

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


def _precedes(ids: Tensor, mark: Sequence[int], ends: Tensor) -> Tensor:
    """Return [S]: true for the tokens of ``mark`` in ``ids`` [S] that directly precede one of ``ends``."""
    positions = (ends[:, None] - torch.arange(len(mark), 0, -1, device=ids.device)).clamp_min(0)
    is_here = ends >= len(mark)
    for number, token in enumerate(mark):
        is_here = is_here & (ids[positions[:, number]] == token)
    hits = is_here[:, None].expand_as(positions).flatten()
    return torch.zeros_like(ids).index_add(0, positions.flatten(), hits.to(ids.dtype)) > 0


@dataclass(frozen=True)
class Batch:
    """Sources with their targets: ``target`` [B, K + 1] is start ... end, padded.

    ``predicted`` are the indices of the tokens to predict, all but padding, in the flat ``target[:, 1:]``; None: they
    are still to be found, for which a GPU must wait.
    """

    source: Source
    target: Tensor
    predicted: Tensor | None = None


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


def predicted_tokens(target: Tensor, pad: int) -> Tensor:
    """Return the indices in the flat ``target[:, 1:]`` of all tokens but padding."""
    return (target[:, 1:] != pad).flatten().nonzero().squeeze(1)


def move(batch: Any, device: torch.device) -> Any:
    """Return a dataclass of tensors or of such dataclasses on ``device``, with the layouts of its sources."""
    return batch if device.type == "cpu" else copied(batch, device)


def copied(batch: Any, device: torch.device) -> Any:
    """Do :func:`move`: one copy of all tensors.

    If ``device`` is a GPU, nothing waits for the copy, from pinned memory on a stream of its own, but computations that
    follow. A host that runs ahead so copies a batch while the GPU computes the one before.
    """
    tensors = list[Tensor]()

    def noted(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _replaced(batch, noted)
    ends = list(accumulate(-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors))
    host = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")

    def views(bytes_: Tensor) -> list[Tensor]:
        parts = zip(tensors, [0, *ends], strict=False)
        return [bytes_[start : start + one.nbytes].view(one.dtype).view(one.shape) for one, start in parts]

    for view, tensor in zip(views(host), tensors, strict=True):
        view.copy_(tensor)
    if device.type == "cuda":
        stream, current = _copies(device), torch.cuda.current_stream(device)
        with torch.cuda.stream(stream):
            moved = host.to(device, non_blocking=True)
        current.wait_stream(stream)
        moved.record_stream(current)
    else:
        moved = host.to(device)
    there = iter(views(moved))
    return _replaced(batch, lambda _: next(there))


@cache
def _copies(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _replaced(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a dataclass with ``function`` of each tensor in it and, for sources, in their layouts."""
    if isinstance(value, Tensor):
        return function(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    new = replace(value, **{field.name: _replaced(getattr(value, field.name), function) for field in fields(value)})
    if isinstance(value, Source):
        layout = copy(value.layout)
        vars(layout).update({name: function(one) for name, one in vars(layout).items() if isinstance(one, Tensor)})
        vars(new).update(known_globals=value.known_globals, layout=layout)  # where ``cached_property`` keeps them
    return new


def starts(sizes: Tensor) -> Tensor:
    """Return [rows + 1]: the sum of the ``sizes`` [rows] before each row, and of all, int32."""
    return pad(sizes.cumsum(0, dtype=torch.int32), (1, 0))


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
