"""Blocked and penalized tokens. Each function changes the scores of all hypotheses in place.

Hypotheses are the first ``length`` [1] of ``tokens`` [..., L]; the others repeat the start token.
"""

import torch
from torch import Tensor


def block_ngrams(scores: Tensor, tokens: Tensor, length: Tensor, size: int, separator: int | None = None) -> None:
    """Block every token that would complete an n-gram of ``size`` tokens that its hypothesis already contains.

    ``scores`` [..., V] rate the tokens after the hypotheses; blocked ones become -inf. N-grams with ``separator`` do
    not count: the end of one sentence and the beginning of the next are no repetition.
    """
    if 0 < size <= tokens.shape[-1]:
        ngrams = tokens.unfold(-1, size, 1)  # [..., L - size + 1, size]
        counted = torch.arange(size, tokens.shape[-1] + 1, device=tokens.device) <= length
        counted = counted if separator is None else counted & (ngrams != separator).all(-1)
        block_sequences(scores, tokens, length, ngrams, counted)


def block_sequences(
    scores: Tensor, tokens: Tensor, length: Tensor, sequences: Tensor, counted: Tensor | None = None
) -> None:
    """Block every token that would complete one of ``sequences`` [..., N, size], if it is ``counted`` [..., N]."""
    before = sequences.shape[-1] - 1
    matches = length >= before
    if before:
        newest = (length - before + torch.arange(before, device=tokens.device)).clamp(0, tokens.shape[-1] - 1)
        matches = matches & (sequences[..., :-1] == tokens.index_select(-1, newest)[..., None, :]).all(-1)
    matches = matches if counted is None else matches & counted
    _block(scores, sequences[..., -1], matches)


def penalize_repetition(scores: Tensor, tokens: Tensor, penalty: float) -> None:
    """Multiply negative scores of tokens that a hypothesis contains by ``penalty``, and divide the others by it.

    Keskar et al. (2019), CTRL.
    """
    if penalty != 1:
        repeated = scores.gather(-1, tokens)
        scores.scatter_(-1, tokens, torch.where(repeated < 0, repeated * penalty, repeated / penalty))


def block_recent(scores: Tensor, tokens: Tensor, length: Tensor, last: int, exempt: Tensor) -> None:
    """Block the ``last`` tokens of each hypothesis, not counting the ids ``exempt`` [E].

    PHT paper, section 5.2: "block two tokens (except commas) before the current step"; its code skips commas.
    """
    if last:
        counted = ~torch.isin(tokens, exempt) & (torch.arange(tokens.shape[-1], device=tokens.device) < length)
        remaining = counted.flip(-1).cumsum(-1).flip(-1)  # counted tokens from each position to the end
        _block(scores, tokens, counted & (remaining <= last))


def _block(scores: Tensor, candidates: Tensor, blocked: Tensor) -> None:
    """Set ``blocked`` candidates to -inf without waiting for the device: the others take the minimum with +inf."""
    limits = torch.where(blocked, -torch.inf, torch.inf).to(scores.dtype)
    shape = *scores.shape[:-1], candidates.shape[-1]
    scores.scatter_reduce_(-1, candidates.expand(shape), limits.expand(shape), "amin")
