"""The hypotheses that a beam search has finished, and their ranking.

B examples, R beams, M paragraphs of at most N tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from raysum.decode.scores import History, Term, shares
from raysum.models.special_ids import EOS, PAD


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: ``ids`` without BOS, ending in EOS unless cut at the maximum length.

    ``score`` is what ranks it: ``log_prob`` normalized by length, plus the terms. ``attention`` [M] is the share of
    each paragraph in its attention (PHT eq. 15), None where nothing asked for attention.
    """

    ids: list[int]
    score: float
    log_prob: float
    attention: np.ndarray | None


@dataclass
class Finished:
    """Up to 2 R finished hypotheses of every example, which are all there can be; an unused place scores -inf.

    (A search goes on with fewer than R finished ones, and at most R finish in one step.)
    """

    score: Tensor  # [B, 2R] without final terms
    log_prob: Tensor  # [B, 2R]
    tokens: Tensor  # [B, 2R, max_length], PAD behind the end
    length: Tensor  # [B, 2R]
    total: Tensor  # [B, 2R, M] attention summed over steps
    overlap: Tensor  # [B, 2R] see History
    count: Tensor  # [B] how many have finished
    watched: bool
    by_token: Tensor | None = None  # [B, 2R, M, N] see History

    @classmethod
    def start(
        cls, num_examples: int, beams: int, paragraphs: int, longest: int, device: torch.device, watched: bool
    ) -> "Finished":
        empty = torch.full((num_examples, 2 * beams), -torch.inf, device=device)
        return cls(
            score=empty,
            log_prob=empty.clone(),
            tokens=torch.full((num_examples, 2 * beams, longest), PAD, device=device),
            length=torch.zeros_like(empty, dtype=torch.long),
            total=torch.zeros(num_examples, 2 * beams, paragraphs, device=device),
            overlap=torch.zeros_like(empty),
            count=torch.zeros(num_examples, dtype=torch.long, device=device),
            watched=watched,
        )

    def add(
        self, tokens: Tensor, history: History, chosen: Tensor, log_prob: Tensor, score: Tensor, closed: bool
    ) -> None:
        """Take in hypotheses ``tokens`` [B', R, T] of ``history.examples`` where ``chosen`` [B', R].

        ``closed`` puts an EOS behind them.
        """
        rows = history.examples
        if history.by_token is not None and self.by_token is None:
            self.by_token = history.by_token.new_zeros(*self.score.shape, *history.by_token.shape[2:])
        written = pad(tokens[..., 1:], (0, int(closed)), value=EOS)
        length = written.shape[-1]
        found = (
            (self.log_prob, log_prob),
            (self.tokens, pad(written, (0, self.tokens.shape[-1] - length), value=PAD)),
            (self.length, torch.full_like(log_prob, length, dtype=torch.long)),
            (self.total, history.total),
            (self.overlap, history.overlap),
            (self.by_token, history.by_token),
        )
        places = self.score.shape[1]
        ranked, order = torch.cat((self.score[rows], score.masked_fill(~chosen, -torch.inf)), 1).topk(places)
        self.score[rows] = ranked
        for mine, theirs in found:
            if mine is not None and theirs is not None:
                both = torch.cat((mine[rows], theirs), 1)
                mine[rows] = torch.take_along_dim(both, order.view(*order.shape, *[1] * (both.dim() - 2)), 1)
        self.count[rows] += chosen.sum(-1)

    def best(self, n_best: int, ranking: Sequence[Term] = ()) -> list[list[Hypothesis]]:
        """The ``n_best`` of each example by score and the terms ``ranking``, best first."""
        everyone = torch.arange(len(self.score), device=self.score.device)
        history = History(everyone, self.total, self.overlap, self.length, self.by_token)
        scores, order = sum((term(history) for term in ranking), self.score).topk(n_best)
        eta = shares(torch.take_along_dim(self.total, order[..., None], 1)).cpu().numpy()
        columns = (scores, *(column.gather(1, order) for column in (self.log_prob, self.length)))
        tokens = torch.take_along_dim(self.tokens, order[..., None], 1).tolist()
        return [
            [
                Hypothesis(ids[i][:length], score, log_prob, eta[example, i] if self.watched else None)
                for i, (score, log_prob, length) in enumerate(zip(*rows, strict=True))
                if score > -float("inf")
            ]
            for example, (ids, *rows) in enumerate(zip(tokens, *(c.tolist() for c in columns), strict=True))
        ]
