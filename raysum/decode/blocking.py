"""Blocked and penalized tokens. Each function changes the scores of all hypotheses in place."""

import torch
from torch import Tensor


def block_ngrams(scores: Tensor, tokens: Tensor, size: int, separator: int | None = None) -> None:
    """Block every token that would complete an n-gram of ``size`` tokens that its hypothesis already contains.

    ``scores`` [..., V] rate the tokens after the hypotheses ``tokens`` [..., T]; blocked ones become -inf. N-grams with
    ``separator`` do not count: the end of one sentence and the beginning of the next are no repetition.
    """
    if 0 < size <= tokens.shape[-1]:
        ngrams = tokens.unfold(-1, size, 1)  # [..., T - size + 1, size]
        block_sequences(scores, tokens, ngrams, None if separator is None else (ngrams != separator).all(-1))


def block_sequences(scores: Tensor, tokens: Tensor, sequences: Tensor, counted: Tensor | None = None) -> None:
    """Block every token that would complete one of ``sequences`` [..., N, size], if it is ``counted`` [..., N]."""
    before = tokens.shape[-1] - sequences.shape[-1] + 1
    if before >= 0:
        matches = (sequences[..., :-1] == tokens[..., None, before:]).all(-1)
        matches = matches if counted is None else matches & counted
        _block(scores, sequences[..., -1].expand_as(matches), matches)


def penalize_repetition(scores: Tensor, tokens: Tensor, penalty: float) -> None:
    """Multiply negative scores of tokens that a hypothesis contains by ``penalty``, and divide the others by it.

    Keskar et al. (2019), CTRL.
    """
    if penalty != 1:
        repeated = scores.gather(-1, tokens)
        scores.scatter_(-1, tokens, torch.where(repeated < 0, repeated * penalty, repeated / penalty))


def block_recent(scores: Tensor, tokens: Tensor, last: int, exempt: Tensor) -> None:
    """Block the ``last`` tokens of each hypothesis, not counting the ids ``exempt`` [E].

    PHT paper, section 5.2: "block two tokens (except commas) before the current step"; its code skips commas.
    """
    if last:
        counted = ~torch.isin(tokens, exempt)
        remaining = counted.flip(-1).cumsum(-1).flip(-1)  # counted tokens from each position to the end
        _block(scores, tokens, counted & (remaining <= last))


def _block(scores: Tensor, candidates: Tensor, blocked: Tensor) -> None:
    """Set ``blocked`` candidates to -inf without waiting for the device: the others take the minimum with +inf."""
    limits = torch.where(blocked, -torch.inf, torch.inf).to(scores.dtype)
    scores.scatter_reduce_(-1, candidates, limits, "amin")
