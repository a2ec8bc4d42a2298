"""Blocking of repeated tokens, for all hypotheses at once and on the device they live on.

Both functions write -inf over the blocked candidates of ``scores`` [..., V]; ``tokens`` [..., T] are the hypotheses so
far. Neither waits for the device: what is not blocked is scattered too, as +inf under a minimum.
"""

import torch
from torch import Tensor


def block_ngrams(scores: Tensor, tokens: Tensor, size: int, separator: int | None = None) -> None:
    """Block every token that would complete an n-gram of ``size`` tokens which its hypothesis already holds.

    N-grams that hold ``separator`` do not count: how one sentence ends and the next begins is no repetition.
    """
    length = tokens.shape[-1]
    if not 0 < size <= length:
        return
    ngrams = tokens.unfold(-1, size, 1)  # [..., T - size + 1, size]
    repeated = (ngrams[..., :-1] == tokens[..., None, length - size + 1 :]).all(-1)
    if separator is not None:
        repeated &= (ngrams != separator).all(-1)
    _block(scores, ngrams[..., -1], repeated)


def block_recent(scores: Tensor, tokens: Tensor, last: int, exempt: Tensor) -> None:
    """Block every token that is one of its hypothesis' ``last`` tokens, except the ids ``exempt`` [E].

    PHT paper, section 5.2: "block two tokens (except commas) before the current step".
    """
    if last:
        recent = tokens[..., -last:]
        _block(scores, recent, ~torch.isin(recent, exempt))


def _block(scores: Tensor, candidates: Tensor, blocked: Tensor) -> None:
    limits = torch.where(blocked, -torch.inf, torch.inf).to(scores.dtype)
    scores.scatter_reduce_(-1, candidates, limits, "amin")
