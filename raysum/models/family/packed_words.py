"""Word attention inside paragraphs over packed words, for letters P and V in training on a GPU.

Each target position attends to the words of each paragraph, so the queries of an example belong to each of its
paragraphs. Padded words exist only for reports and the copy gate.

B examples, Q queries, M paragraphs, P paragraphs in all, S words in all, H heads of dh.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raysum.models.batch import Layout
from raysum.models.kernels.attention import packed_heads
from raysum.models.kernels.packed import attend_packed_lse, equal_places, has_packed_kernel
from raysum.models.kernels.recomputation import recompute

LOWEST = torch.finfo(torch.float32).min / 4  # finite, because whole paragraphs may be padding


@dataclass(frozen=True)
class PackedWords:
    key: Tensor  # [S, H, dh]
    value: Tensor
    layout: Layout

    @classmethod
    def of(cls, projected: Tensor, heads: int, layout: Layout) -> "PackedWords | None":
        """Return the halves of ``projected`` [S, 2 * D] in training, if a kernel can read them."""
        if torch.is_grad_enabled() and has_packed_kernel(projected, projected.shape[-1] // (2 * heads), own=True):
            key, value = packed_heads(projected, heads, 2)
            return cls(key, value, layout)
        return None

    def contexts(self, query: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
        """Return the contexts of each paragraph [B, H, Q, M, dh], and the log-sum-exp of its scores [B, H, Q, M].

        Queries are [B, H, Q, dh]. Padding has contexts of 0, and ``LOWEST`` as its log-sum-exp.
        """
        function = partial(_contexts, self.layout, dropout)
        return recompute(function, query, self.key, self.value, random=bool(dropout))

    def fused(self, query: Tensor, share: Tensor, dropout: float) -> Tensor:
        """Return the sum over paragraphs [B, H, Q, dh], weighted by ``share`` [B, H or 1, Q, M]."""
        function = partial(_fused, self.layout, dropout)
        return recompute(function, query, self.key, self.value, share, random=bool(dropout))


def _contexts(layout: Layout, dropout: float, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    paragraphs, targets = len(layout.paragraph_example), query.shape[2]
    rows = _ForParagraphs.apply(query.transpose(1, 2), layout).flatten(0, 1)  # [P * Q, H, dh]
    words = layout.paragraph_starts, layout.token_mask.shape[1]
    context, lse = attend_packed_lse(rows, key, value, equal_places(paragraphs, targets, query.device), words, dropout)
    contexts = layout.to_examples(context.unflatten(0, (paragraphs, targets)))  # [B, M, Q, H, dh]
    logs = layout.to_examples(lse.unflatten(1, (paragraphs, targets)).transpose(0, 1))  # [B, M, H, Q]
    logs = torch.where(layout.paragraph_mask[:, :, None, None], logs, LOWEST)
    return contexts.permute(0, 3, 2, 1, 4), logs.permute(0, 2, 3, 1)


class _ForParagraphs(torch.autograd.Function):
    """Queries [P, ...] of each paragraph from those of its example [B, ...].

    ``index_select`` would add their gradients one after the other, in bf16 and in any order.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return query.index_select(0, layout.paragraph_example)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.to_examples(gradient).sum(1), None


def _fused(layout: Layout, dropout: float, *inputs: Tensor) -> Tensor:
    query, key, value, share = inputs
    contexts, _ = _contexts(layout, dropout, query, key, value)
    return torch.einsum("bhqm,bhqme->bhqe", share.to(contexts.dtype).expand(-1, contexts.shape[1], -1, -1), contexts)
