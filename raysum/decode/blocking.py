"""Tokens that may not repeat: each writes -inf over them, for all hypotheses at once."""

import torch
from torch import Tensor


def block_ngrams(scores: Tensor, tokens: Tensor, size: int, separator: int | None = None) -> None:
    """Write -inf over every token that would complete an n-gram of ``size`` tokens which its hypothesis already holds.

    ``scores`` [..., V] are of what may follow the hypotheses ``tokens`` [..., T]. N-grams that hold ``separator`` do
    not count: how one sentence ends and the next begins is no repetition.
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
