"""What is minimized: modules that turn a batch into a loss sum; sums and counts are reduced apart and divided once.

T real target positions, V vocabulary, D width; other letters as in raysum.models.batch.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysum.models.batch import BOS, PAD, Batch, Source
from raysum.models.generator import Generator
from raysum.models.systems.ranker import Ranker, RankingBatch
from raysum.stream.kinds.collate import AlignmentBatch

_CHUNK = 256  # target positions whose [V] scores exist at one time: 256 x 32,000 in fp32 are 33 MB


class LanguageModelling(nn.Module):
    """Cross-entropy of the target given the source; label-smoothed in training mode, plain NLL in evaluation mode.

    In training mode models with a ``source_loss`` predict the source's tokens too, so weighted.
    """

    def __init__(self, model: Generator, smoothing: float):
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> Tensor:
        """The sum over all predicted tokens (PAD is none) of :func:`smoothed_cross_entropy`, a scalar in fp32."""
        memory = self.model.encode(batch.source)
        hidden, _ = self.model.decode(batch.target[:, :-1], memory)
        gold = batch.target[:, 1:]
        real = gold != PAD
        loss = self._cross_entropy(hidden[real], gold[real])
        if self.training and self.model.source_loss:
            loss = loss + self.model.source_loss * self._cross_entropy(memory.tokens, following(batch.source))
        return loss

    def _cross_entropy(self, hidden: Tensor, gold: Tensor) -> Tensor:
        output = self.model.embedding if self.model.output is None else self.model.output
        smoothing = self.smoothing if self.training else 0.0
        return smoothed_cross_entropy(hidden, output.weight, output.bias, gold, smoothing)


def following(source: Source) -> Tensor:
    """[S] the token after each source token; BOS, where the target begins, after an example's last."""
    last = source.layout.source_mask.sum(1).cumsum(0) - 1
    return source.ids.roll(-1).index_fill(0, last, BOS)


class AttentionPrediction(nn.Module):
    """Squared error of predicted against true paragraph attention, over real paragraphs (PHT paper, section 4.2.1)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: AlignmentBatch) -> Tensor:
        """The sum over real paragraphs, a scalar in fp32."""
        predicted = self.model(batch.embeddings.to(next(self.parameters()).dtype), batch.mask)
        return (predicted.float() - batch.label).square()[batch.mask].sum()


class ParagraphRanking(nn.Module):
    """Cross entropy between predicted scores and ROUGE-2 recall of paragraphs (HT, section 3.1)."""

    def __init__(self, model: Ranker):
        super().__init__()
        self.model = model

    def forward(self, batch: RankingBatch) -> Tensor:
        """The sum over paragraphs, a scalar in fp32."""
        scores = self.model(batch.titles, batch.source).float()
        return functional.binary_cross_entropy_with_logits(scores, batch.recall, reduction="sum")


def objective_of(model: nn.Module, smoothing: float) -> nn.Module:
    """The objective that trains ``model``; it holds it as ``.model``."""
    if isinstance(model, Generator):
        return LanguageModelling(model, smoothing)
    return ParagraphRanking(model) if isinstance(model, Ranker) else AttentionPrediction(model)


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, smoothing: float
) -> Tensor:
    """Sum over T of ``-sum_v q(v) log p(v)`` with ``p = softmax(hidden W' + bias)``; [T, D], [V, D], [V], [T] -> [].

    ``q`` is HT's published code's: ``1 - smoothing`` on the gold id, 0 on PAD, ``smoothing / (V - 2)`` on each other.
    That code's KL(q, p) is this minus the entropy of q, a constant: ``T * smoothing_entropy(V, smoothing)``.
    [T, V] never exists at once: scores and gradients are computed chunk by chunk in the forward pass.
    """
    return _SmoothedCrossEntropy.apply(hidden, weight, bias, gold, smoothing, torch.is_grad_enabled())


def smoothing_entropy(vocabulary: int, smoothing: float) -> float:
    """Entropy of the smoothed target distribution: cross-entropy minus KL divergence, for each predicted token."""
    q = torch.tensor([1 - smoothing] + [smoothing / (vocabulary - 2)] * (vocabulary - 2), dtype=torch.float64)
    return float(torch.special.entr(q).sum())


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gold: Tensor,
        smoothing: float,
        differentiate: bool,
    ) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        matrix = weight.to(dtype)
        spread = smoothing / (len(weight) - 2)
        loss = torch.zeros((), device=hidden.device)
        grad_hidden = torch.zeros_like(hidden) if differentiate else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if differentiate else None
        grad_bias = torch.zeros_like(weight[:, 0], dtype=torch.float32) if differentiate and bias is not None else None
        for start in range(0, len(gold), _CHUNK):
            rows, target = hidden[start : start + _CHUNK].to(dtype), gold[start : start + _CHUNK, None]
            log_p = functional.linear(rows, matrix, None if bias is None else bias.to(dtype)).float()
            log_p -= log_p.logsumexp(1, keepdim=True)
            log_gold = log_p.gather(1, target)
            loss -= (1 - smoothing) * log_gold.sum()
            if smoothing:
                loss -= spread * (log_p.sum() - log_gold.sum() - log_p[:, PAD].sum())
            if grad_hidden is None or grad_weight is None:
                continue
            difference = log_p.exp_().sub_(spread)  # becomes p - q
            difference[:, PAD] += spread
            difference.scatter_add_(1, target, torch.full_like(log_gold, smoothing + spread - 1))
            if grad_bias is not None:
                grad_bias += difference.sum(0)
            narrow = difference.to(dtype)
            grad_hidden[start : start + _CHUNK] = narrow @ matrix
            grad_weight += narrow.T @ rows
        ctx.grads = (grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        pairs = zip(ctx.grads, ctx.dtypes, strict=True)
        return *((None if g is None else (g * grad).to(dtype)) for g, dtype in pairs), None, None, None
