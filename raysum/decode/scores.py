"""Terms of a hypothesis' score besides its log-probability: each is one number for each beam, computed from attention.

Attention weights do not depend on the token that a step chooses, so a term is the same for all candidates of a beam.
B examples still decoded, R beams, M paragraphs of at most N tokens. All values are fp32, even if the model uses bf16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig

FLOOR = 1e-6  # the least attention share or sum: log 0 must not end a hypothesis


def length_norm(settings: DecodeConfig, length: Tensor) -> Tensor:
    """Return the divisor of the log-probability of ``length`` tokens (EOS counts).

    ``gnmt``: ((5 + n) / 6)^p (Wu et al. 2016, eq. 14); ``length``: n^p (PHT eq. 17 with p = 1); ``none``: 1.
    """
    n = length.double()
    base = {"gnmt": (5 + n) / 6, "length": n, "none": torch.ones_like(n)}[settings.length_normalization]
    return (base**settings.length_penalty).float()


@dataclass
class History:
    """Sums of the attention of hypotheses over steps, so their size does not grow with the length.

    ``examples`` [B]: their indices in the whole batch. ``total`` [B, R, M]: attention summed over steps (each step sums
    to one). ``overlap`` [B, R]: the sum over steps of sum_p min(a_t,p, sum_{t' < t} a_t',p). ``by_token`` [B, R, M, N]:
    ``total`` by token, or [B, R, 1, 1] if no term needs it. ``steps`` [1] or [B, R]: their number.
    Arrays change in place, except at the first step by token.
    """

    examples: Tensor
    total: Tensor
    overlap: Tensor
    by_token: Tensor
    steps: Tensor

    @classmethod
    def start(cls, examples: int, beams: int, paragraphs: int, device: torch.device | None = None) -> "History":
        sizes = ((paragraphs,), (), (1, 1))
        total, overlap, by_token = (torch.zeros(examples, beams, *size, device=device) for size in sizes)
        steps = torch.zeros(1, dtype=torch.long, device=device)
        return cls(torch.arange(examples, device=device), total, overlap, by_token, steps)

    def add(self, attention: Tensor) -> None:
        """Add the attention of one step, summed over layers: [B, R, M], or by token [B, R, M, N]."""
        if attention.dim() == 4:
            words = shares(attention.flatten(2)).view_as(attention)
            self.by_token = words if self.by_token.shape != words.shape else self.by_token.add_(words)
            attention = words.sum(-1)
        step = shares(attention)
        self.overlap += torch.minimum(step, self.total).sum(-1)
        self.total += step
        self.steps += 1

    def reorder(self, parent: Tensor) -> None:
        """Continue the beams ``parent`` [B, R] of each example."""
        rows = torch.arange(len(parent), device=parent.device)[:, None]
        for part in self.sums:
            part.copy_(part[rows, parent])

    def keep(self, index: Tensor) -> None:
        """Keep only the examples at ``index`` [B']."""
        self.examples = self.examples[index]
        self.total, self.overlap, self.by_token = (part[index] for part in self.sums)

    @property
    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.total, self.overlap, self.by_token


def shares(attention: Tensor) -> Tensor:
    """Return attention [..., M] in fp32, divided by its sum (PHT eq. 15 if it was summed over steps before)."""
    attention = attention.float()
    return attention / attention.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class Term:
    """One summand of the score: ``value`` returns [B, R], with its weight.

    ``final``: it only ranks finished hypotheses and does not steer the search. ``by_token``: it needs the attention to
    every token, not only to paragraphs.
    """

    value: Callable[[History], Tensor]
    final: bool
    by_token: bool = False


def attention_alignment(
    history: History, predicted: Tensor, mask: Tensor, beta: float | Tensor, mean: bool = False
) -> Tensor:
    """Return ``beta`` x attAlign (PHT eq. 17-18): the sum over real paragraphs of log max(min(eta, eta_hat), 1e-6).

    ``predicted`` [B, M] is eta_hat, summing to one over real paragraphs (``mask`` [B, M]): predicted attention, or the
    extractive probabilities of a learned ranker. ``beta`` is a number or one for each example [B]. ``mean`` divides by
    the number of paragraphs. One paragraph alone scores 0.
    """
    hat, is_real = predicted[history.examples, None].float(), mask[history.examples, None]
    logs = torch.minimum(shares(history.total), hat).clamp_min(FLOOR).log()
    count = is_real.sum(-1)
    score = logs.masked_fill(~is_real, 0.0).sum(-1).masked_fill(count < 2, 0.0)
    weight = beta[history.examples, None] if isinstance(beta, Tensor) else beta
    return weight * (score / count if mean else score)


def structural_coverage(history: History, gamma: float) -> Tensor:
    """Return ``gamma`` x the mean over steps of strCov (PHT eq. 13), 1 for a step with new paragraphs only."""
    return gamma * (1 - history.overlap / history.steps.clamp_min(1))


def gnmt_coverage(history: History, mask: Tensor, weight: float) -> Tensor:
    """Return ``weight`` x cp (PHT eq. 11; Wu et al. 2016, eq. 15): the sum over real source tokens of log min(a, 1).

    a is the attention to the token, summed over steps, here at least 1e-6; ``mask`` [B, M, N] real tokens.
    """
    logs = history.by_token.clamp(FLOOR, 1.0).log()
    return weight * logs.masked_fill(~mask[history.examples, None], 0.0).sum((-2, -1))


def terms(
    settings: DecodeConfig,
    memory: Any,
    predicted: Tensor | None = None,
    extracted: Tensor | None = None,
    beta: float | Tensor | None = None,
) -> list[Term]:
    """Return the terms of ``settings`` for the paragraphs and tokens of ``memory``.

    ``predicted`` [B, M] is the predicted attention, needed if beta > 0; ``extracted`` [B, M] are the extractive
    probabilities, needed if ``settings.extractive`` > 0. ``beta`` replaces that of the settings: a number, or one for
    each example [B].
    """
    mask, mean = memory.paragraph_mask, settings.alignment_reduction == "mean"
    chosen: list[Term] = []
    for weight, hat in ((settings.beta if beta is None else beta, predicted), (settings.extractive, extracted)):
        if torch.as_tensor(weight).any():
            assert hat is not None, "alignment needs predicted attention, or extractive probabilities"
            alignment = partial(attention_alignment, predicted=hat, mask=mask, beta=weight, mean=mean)
            chosen.append(Term(alignment, settings.alignment_when == "final"))
    if gamma := settings.structural_coverage:
        chosen.append(Term(partial(structural_coverage, gamma=gamma), settings.structural_when == "final"))
    if weight := settings.gnmt_coverage:
        coverage = partial(gnmt_coverage, mask=memory.token_mask, weight=weight)
        chosen.append(Term(coverage, settings.coverage_when == "final", by_token=True))
    return chosen
