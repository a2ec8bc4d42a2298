"""The terms of a hypothesis' score besides its log-probability: each is one number a beam, computed from attention.

Attention weights never depend on the token that a step chooses, so a term is the same for all candidates of a beam.
B examples still decoded, R beams, M paragraphs of at most N tokens. Everything here is fp32 whatever the model computes
in.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig

FLOOR = 1e-6  # of an attention share, or sum: log 0 must not end a hypothesis


def length_norm(settings: DecodeConfig, length: int) -> float:
    """What the log-probability of ``length`` tokens (EOS counts) is divided by.

    ``gnmt``: ((5 + n) / 6)^p (Wu et al. 2016, eq. 14); ``length``: n^p (PHT eq. 17 with p = 1); ``none``: 1.
    """
    base = {"gnmt": (5 + length) / 6, "length": float(length), "none": 1.0}[settings.length_normalization]
    return base**settings.length_penalty


@dataclass
class History:
    """What the live hypotheses have attended to, as running sums: it does not grow with the length.

    ``examples`` [B] their numbers in the whole batch, ``total`` [B, R, M] attention summed over steps (each step's sums
    to one), ``overlap`` [B, R] the sum over steps of sum_p min(a_t,p, sum_{t' < t} a_t',p), ``steps`` their number, or
    that of each hypothesis [B, R]. ``by_token`` [B, R, M, N] is ``total`` by token, where that is watched.
    """

    examples: Tensor
    total: Tensor
    overlap: Tensor
    steps: int | Tensor = 0
    by_token: Tensor | None = None

    def add(self, attention: Tensor) -> None:
        """One step's attention, summed over layers as the models give it: [B, R, M], or by token [B, R, M, N]."""
        if attention.dim() == 4:
            words = shares(attention.flatten(2)).view_as(attention)
            self.by_token = words if self.by_token is None else self.by_token + words
            attention = words.sum(-1)
        step = shares(attention)
        self.overlap = self.overlap + torch.minimum(step, self.total).sum(-1)
        self.total = self.total + step
        self.steps += 1

    def reorder(self, parent: Tensor) -> None:
        """Continue the beams ``parent`` [B, R] of each example."""
        self.total = self.total.gather(1, parent[..., None].expand_as(self.total))
        self.overlap = self.overlap.gather(1, parent)
        if self.by_token is not None:
            self.by_token = self.by_token[torch.arange(len(parent), device=parent.device)[:, None], parent]

    def keep(self, index: Tensor) -> None:
        """Keep only the examples at ``index`` [B']."""
        self.examples, self.total, self.overlap = self.examples[index], self.total[index], self.overlap[index]
        if self.by_token is not None:
            self.by_token = self.by_token[index]


def shares(attention: Tensor) -> Tensor:
    """Attention [..., M] in fp32, divided by its sum over them (PHT eq. 15 when summed over steps before)."""
    attention = attention.float()
    return attention / attention.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


class Term(Protocol):
    """One named summand of the score. ``final``: it ranks finished hypotheses only and does not steer the search.

    ``by_token``: it reads the attention to every token, not only to paragraphs.
    """

    by_token: ClassVar[bool] = False

    @property
    def final(self) -> bool: ...

    def __call__(self, history: History) -> Tensor:
        """[B, R], its weight included."""
        ...


@dataclass(frozen=True)
class AttentionAlignment(Term):
    """``beta`` x attAlign (PHT eq. 17-18): the sum over real paragraphs of log max(min(eta, eta_hat), 1e-6).

    ``predicted`` [B, M] is eta_hat, summing to one over real paragraphs (``mask`` [B, M]): predicted attention, or the
    extractive probabilities of a learned ranker. ``beta`` is a number or one for each example [B]. ``mean`` divides by
    the number of paragraphs. One paragraph alone scores 0.
    """

    predicted: Tensor
    mask: Tensor
    beta: float | Tensor
    mean: bool = False
    final: bool = False

    def __call__(self, history: History) -> Tensor:
        predicted, mask = self.predicted[history.examples, None].float(), self.mask[history.examples, None]
        logs = torch.minimum(shares(history.total), predicted).clamp_min(FLOOR).log()
        score = logs.masked_fill(~mask, 0.0).sum(-1)
        count = mask.sum(-1)
        score = score.masked_fill(count < 2, 0.0)
        beta = self.beta[history.examples, None] if isinstance(self.beta, Tensor) else self.beta
        return beta * (score / count if self.mean else score)


@dataclass(frozen=True)
class StructuralCoverage(Term):
    """``gamma`` x the mean over steps of strCov (PHT eq. 13), 1 for a step that attends to new paragraphs only."""

    gamma: float
    final: bool = False

    def __call__(self, history: History) -> Tensor:
        steps = torch.as_tensor(history.steps, device=history.overlap.device).clamp_min(1)
        return self.gamma * (1 - history.overlap / steps)


@dataclass(frozen=True)
class GnmtCoverage(Term):
    """``weight`` x cp (PHT eq. 11; Wu et al. 2016, eq. 15): the sum over real source tokens of log min(a, 1).

    a is the attention to the token, summed over steps, here at least 1e-6; ``mask`` [B, M, N] real tokens.
    """

    by_token: ClassVar[bool] = True
    weight: float
    mask: Tensor
    final: bool = True

    def __call__(self, history: History) -> Tensor:
        assert history.by_token is not None, "the search was told to watch tokens"
        logs = history.by_token.clamp(FLOOR, 1.0).log()
        return self.weight * logs.masked_fill(~self.mask[history.examples, None], 0.0).sum((-2, -1))


def terms(
    settings: DecodeConfig,
    memory: Any,
    predicted: Tensor | None = None,
    extracted: Tensor | None = None,
    beta: float | Tensor | None = None,
) -> list[Term]:
    """The terms that ``settings`` ask for, over the paragraphs and tokens of ``memory``.

    ``predicted`` [B, M] is the predicted attention, needed if beta > 0; ``extracted`` [B, M] are the extractive
    probabilities, likewise. ``beta`` replaces that of the settings: a number, or one for each example [B].
    """
    mean, final = settings.alignment_reduction == "mean", settings.alignment_when == "final"
    found: list[Term] = []
    for weight, eta_hat in ((settings.beta if beta is None else beta, predicted), (settings.extractive, extracted)):
        if torch.as_tensor(weight).any():
            assert eta_hat is not None, "alignment needs predicted attention, or extractive probabilities"
            found.append(AttentionAlignment(eta_hat, memory.paragraph_mask, weight, mean, final))
    if settings.structural_coverage:
        found.append(StructuralCoverage(settings.structural_coverage, settings.structural_when == "final"))
    if settings.gnmt_coverage:
        found.append(GnmtCoverage(settings.gnmt_coverage, memory.token_mask, settings.coverage_when == "final"))
    return found
