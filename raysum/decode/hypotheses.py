"""Hypotheses that have finished, and which of them are the best. B examples of R beams each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysum.decode.grounding.constraint import ConstraintState
from raysum.decode.scores import History, Term


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: ``ids`` without the start token, with EOS last unless cut at the maximum length.

    ``score`` is what ranks it: ``log_prob`` normalized by length, plus the terms.
    """

    ids: list[int]
    score: float
    log_prob: float


@dataclass(frozen=True)
class _Ended:
    """A hypothesis by its score without final terms; ``cut`` where a name that it ended in would begin."""

    cut: bool
    found: Hypothesis
    attended: tuple[Tensor, ...]  # as in a History, of it alone

    def rank(self) -> tuple[bool, float]:
        return self.cut, -self.found.score


class Finished:
    """The finished hypotheses of a search; final terms rank them.

    Of an example all are kept, or the ``most`` best by their score without final terms.
    """

    def __init__(self, num_examples: int, device: torch.device, end: int, most: int | None = None) -> None:
        self.count = torch.zeros(num_examples, dtype=torch.long, device=device)  # [B] how many have finished
        self._end, self._most = end, most
        self._ended: list[list[_Ended]] = [[] for _ in range(num_examples)]

    def add(
        self,
        tokens: Tensor,
        history: History,
        chosen: Tensor,
        log_prob: Tensor,
        score: Tensor,
        closed: bool,
        guided: ConstraintState | None = None,
    ) -> None:
        """Take in hypotheses ``tokens`` [B', R, T] of ``history.examples`` where ``chosen`` [B', R].

        ``closed`` puts an EOS behind them. Those that end inside a name, as ``guided`` says, are cut where it begins;
        they come after all others, and do not count.
        """
        at = chosen.nonzero(as_tuple=True)
        length = tokens.shape[-1]
        ends = guided.complete[at].tolist() if guided else [length] * len(at[0])
        sums = (part[at] for part in (history.total, history.overlap, history.by_token) if part is not None)
        numbers = (part.tolist() for part in (history.examples[at[0]], tokens[at][:, 1:], score[at], log_prob[at]))
        for example, ids, mark, sure, last, *attended in zip(*numbers, ends, *sums, strict=True):
            kept = [*ids[: last - 1], self._end] if closed or last < length else ids
            self._ended[example].append(_Ended(last < length, Hypothesis(kept, mark, sure), tuple(attended)))
        self.count[history.examples] += (chosen & guided.whole if guided else chosen).sum(-1)
        if self._most:
            for example in set(history.examples[at[0]].tolist()):
                self._ended[example] = sorted(self._ended[example], key=_Ended.rank)[: self._most]

    def worst(self, examples: Tensor) -> Tensor:
        """[B'] the score of the last of the ``most`` hypotheses that are kept of ``examples`` [B']."""
        last = [self._ended[example][-1:] for example in examples.tolist()]
        return torch.tensor([some[0].found.score if some else -torch.inf for some in last], device=examples.device)

    def best(self, n_best: int, terms: Sequence[Term] = ()) -> list[list[Hypothesis]]:
        """The ``n_best`` of each example by score and the final ones of ``terms``, best first."""
        ended = [(example, one) for example, some in enumerate(self._ended) for one in some]
        ranked: list[list[_Ended]] = [[] for _ in self._ended]
        if ended:
            examples, ones = zip(*ended, strict=True)
            sums = zip(*(one.attended for one in ones), strict=True)
            total, overlap, *by_token = (torch.stack(parts)[:, None] for parts in sums)  # [F, 1, ...], as of one beam
            steps = [[len(one.found.ids)] for one in ones]
            told = (examples, steps, [one.found.score for one in ones])
            example, length, score = (torch.tensor(values, device=total.device) for values in told)
            history = History(example, total, overlap, length, *by_token)
            whole = sum((term(history)[:, 0] for term in terms if term.final), score)
            for (number, one), mark in zip(ended, whole.tolist(), strict=True):
                if mark > -torch.inf:  # else a term is no number: its predictor diverged
                    final = Hypothesis(one.found.ids, mark, one.found.log_prob)
                    ranked[number].append(_Ended(one.cut, final, one.attended))
        return [[one.found for one in sorted(some, key=_Ended.rank)[:n_best]] for some in ranked]
