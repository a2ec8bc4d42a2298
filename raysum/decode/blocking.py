"""Tokens that may not follow hypotheses, or less likely: each function changes the scores of all hypotheses at once."""

import torch
from torch import Tensor


def block_ngrams(scores: Tensor, tokens: Tensor, size: int, separator: int | None = None) -> None:
    """Write -inf over every token that would complete an n-gram of ``size`` tokens which its hypothesis already holds.

    ``scores`` [..., V] are of what may follow the hypotheses ``tokens`` [..., T]. N-grams that hold ``separator`` do
    not count: how one sentence ends and the next begins is no repetition.
    """
    if 0 < size <= tokens.shape[-1]:
        ngrams = tokens.unfold(-1, size, 1)  # [..., T - size + 1, size]
        block_sequences(scores, tokens, ngrams, None if separator is None else (ngrams != separator).all(-1))


def block_sequences(scores: Tensor, tokens: Tensor, sequences: Tensor, counted: Tensor | None = None) -> None:
    """Write -inf over every token that would complete one of ``sequences`` [..., N, size], if it is ``counted``
    [..., N]."""
    before = tokens.shape[-1] - sequences.shape[-1] + 1
    if before >= 0:
        begun = (sequences[..., :-1] == tokens[..., None, before:]).all(-1)
        begun = begun if counted is None else begun & counted
        _block(scores, sequences[..., -1].expand_as(begun), begun)


def penalize_repetition(scores: Tensor, tokens: Tensor, penalty: float) -> None:
    """Multiply the scores of tokens that a hypothesis has by ``penalty`` if they are negative, else divide them by it
    (Keskar et al. 2019, CTRL)."""
    if penalty != 1:
        found = scores.gather(-1, tokens)
        scores.scatter_(-1, tokens, torch.where(found < 0, found * penalty, found / penalty))


def block_recent(scores: Tensor, tokens: Tensor, last: int, exempt: Tensor) -> None:
    """Likewise over every token that is one of its hypothesis' ``last`` tokens, not counting the ids ``exempt`` [E].

    PHT paper, section 5.2: "block two tokens (except commas) before the current step"; its code skips commas.
    """
    if last:
        counted = ~torch.isin(tokens, exempt)
        behind = counted.flip(-1).cumsum(-1).flip(-1)  # how many are counted from each token on
        _block(scores, tokens, counted & (behind <= last))


def _block(scores: Tensor, candidates: Tensor, blocked: Tensor) -> None:
    """This never waits for the device: what is not blocked is scattered too, as +inf under a minimum."""
    limits = torch.where(blocked, -torch.inf, torch.inf).to(scores.dtype)
    scores.scatter_reduce_(-1, candidates, limits, "amin")
