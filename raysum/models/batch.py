"""A batch of examples: packed source paragraphs, padded targets, and what is encoded and kept of the source.

S tokens of all paragraphs, P paragraphs, B examples, M most paragraphs of an example, N most tokens of a paragraph,
K target length, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

Keys = TypeVar("Keys", bound="SourceKeys")
AnyMemory = TypeVar("AnyMemory", bound="Memory")

# Which attention to the source is wanted beside the result: none, by paragraph [..., M] (true), that of some layers
# alone, numbered from 0 on, or by token [..., M, N].
AttentionRequest = bool | frozenset[int] | Literal["tokens"]


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
    sizes: Tensor  # [B] tokens of each example
    counts: tuple[int, ...]  # paragraphs of each example


@dataclass(frozen=True)
class Source:
    """Paragraphs of B examples without padding: best rank first, example by example.

    ``ids`` [S], ``lengths`` [P] tokens of each paragraph (all >= 1), ``counts`` [B] paragraphs of each example
    (all >= 1), ``graph`` [B, M, M] edge weights between paragraphs or None, ``titles`` [B] how many tokens open the
    first paragraph up to the end of the title, its mark and what stands before it included; 0 where an example has
    none, and None where none has one.
    """

    ids: Tensor
    lengths: Tensor
    counts: Tensor
    graph: Tensor | None = None
    titles: Tensor | None = None

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
            sizes=sizes,
            counts=tuple(counts.tolist()),
        )

    def is_text(self, marks: SpecialTokens, joined: bool = False) -> Tensor:
        """[S] whether each token is of a text: false for ``marks`` around texts, behind a title and, of ``joined``
        paragraphs, between them.

        What ends a title or a paragraph may be a piece that texts have too, as a colon: it is told by its place.
        """
        around = {marks.pad, marks.start, marks.end, *marks.prefix, *marks.suffix, *marks.joined_end}
        found = ~torch.isin(self.ids, self.ids.new_tensor([*around]))
        layout = self.layout
        if self.titles is not None:
            behind = layout.sizes.cumsum(0) - layout.sizes + self.titles
            found[_places(self.ids, marks.title_end, behind[self.titles > 0])] = False
        if joined and marks.paragraph_end:
            last = layout.rank == self.counts[layout.paragraph_example] - 1
            found[_places(self.ids, marks.paragraph_end, self.lengths.cumsum(0) - last * len(marks.joined_end))] = False
        return found

    def select(self, examples: Sequence[int]) -> "Source":
        """Only ``examples``, ascending."""
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
        self, kept: Sequence[Sequence[int]], marks: SpecialTokens = PUBLISHED, joined: bool = False
    ) -> "Source":
        """Only the paragraphs ``kept`` (ascending) of each example.

        A title stays: it opens the first paragraph that is kept. Of ``joined`` ones, so does what opens and ends them,
        in place of the mark that ends the last of them.
        """
        opening, between = len(marks.prefix), len(marks.paragraph_end)
        ends = [0, *accumulate(self.lengths.tolist())]
        titles = [0] * len(self.counts) if self.titles is None else self.titles.tolist()
        ids, lengths, before = [], [], 0
        for places, count, title in zip(kept, self.layout.counts, titles, strict=True):
            paragraphs = [self.ids[ends[before + place] : ends[before + place + 1]] for place in places]
            if places[0] != 0 and (title or joined):
                head = self.ids[ends[before] : ends[before] + (title or opening)]
                paragraphs[0] = torch.cat([head, paragraphs[0][0 if joined else opening :]])
            if joined and places[-1] != count - 1:
                paragraphs[-1] = paragraphs[-1][: len(paragraphs[-1]) - between]
                paragraphs[-1] = torch.cat([paragraphs[-1], paragraphs[-1].new_tensor(marks.joined_end)])
            before += count
            ids += paragraphs
            lengths += [len(paragraph) for paragraph in paragraphs]
        counts = self.counts.new_tensor([len(places) for places in kept])
        graph = None
        if self.graph is not None:
            graph = self.graph.new_zeros(len(kept), *[int(counts.max())] * 2)
            for mine, whole, places in zip(graph, self.graph, kept, strict=True):
                chosen = torch.tensor(places, device=whole.device)
                mine[: len(places), : len(places)] = whole[chosen[:, None], chosen]
        return Source(torch.cat(ids), self.lengths.new_tensor(lengths), counts, graph, self.titles)

    def parts(self, tokens: int) -> list["Source"]:
        """Neighbouring examples together, a part of at most ``tokens`` tokens, or of one example that has more."""
        found: list[list[int]] = []
        room = 0
        for example, size in enumerate(self.layout.sizes.tolist()):
            if size > room:
                found.append([])
                room = tokens
            found[-1].append(example)
            room -= size
        return [self.select(examples) for examples in found]


def _places(ids: Tensor, mark: Sequence[int], ends: Tensor) -> Tensor:
    """Where in ``ids`` [S] the tokens of ``mark`` are that stand right before ``ends``."""
    places = ends[ends >= len(mark), None] - torch.arange(len(mark), 0, -1, device=ids.device)
    return places[(ids[places] == ids.new_tensor(mark)).all(-1)].flatten()


@dataclass(frozen=True)
class Batch:
    """Sources with their targets: ``target`` [B, K + 1] is start ... end, padded."""

    source: Source
    target: Tensor


@dataclass(frozen=True)
class Memory:
    """``tokens`` [S, D] are the encoder's output, ``phi`` [B, M, D] there where the model pools paragraphs itself.

    ``text`` [S] tells the tokens to which attention counts; None: to all.
    """

    source: Source
    tokens: Tensor
    phi: Tensor | None
    text: Tensor | None = field(default=None, kw_only=True)

    @classmethod
    def joined(cls, source: Source, parts: Sequence["Memory"]) -> "Memory":
        """That of ``source``, encoded in parts."""
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
        examples, paragraphs, length = layout.grid_mask.shape
        return scatter_padded(self.text, layout.in_grid, examples, paragraphs * length).view_as(layout.grid_mask)

    def select(self: "AnyMemory", examples: Sequence[int]) -> "AnyMemory":
        """That of ``examples`` only, ascending."""
        source = self.source.select(examples)
        chosen = torch.tensor(examples, device=self.tokens.device)
        kept = torch.isin(self.source.layout.token_example, chosen)
        phi = None if self.phi is None else self.phi[chosen, : int(source.counts.max())]
        text = None if self.text is None else self.text[kept]
        return replace(self, source=source, tokens=self.tokens[kept], phi=phi, text=text)


@dataclass(frozen=True)
class SourceKeys:
    """Keys, values and masks of a decoder layer: tensors whose first axis is the example."""

    counts: tuple[int, ...]  # paragraphs of each example
    ids: Tensor | None = field(default=None, kw_only=True)  # of the tokens, where a copy gate will ask for a Pointer
    text: Tensor | None = field(default=None, kw_only=True)  # of the tokens, those to which attention counts

    def keep(self: Keys, index: Tensor) -> Keys:
        """Those of the examples ``index`` [B'] only."""
        kept = {
            each.name: value.index_select(0, index)
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Tensor)
        }
        return replace(self, counts=tuple(self.counts[example] for example in index.tolist()), **kept)


def move(batch: Any, device: torch.device) -> Any:
    """A dataclass of tensors, or of such dataclasses, on ``device``; to CUDA through pinned memory, without waiting."""
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{field.name: move(getattr(batch, field.name), device) for field in fields(batch)})
    if batch is None or device.type == "cpu":
        return batch
    return batch.pin_memory().to(device, non_blocking=True)


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
