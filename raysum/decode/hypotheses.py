"""The hypotheses of a search: those that it extends, and the finished ones. B examples of R beams each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from raysum.decode.grounding.constraint import ConstraintState
from raysum.decode.scores import History, Term


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: ``ids`` without the start token, with EOS last unless truncated at the maximum length.

    Hypotheses are ranked by ``score``: ``log_prob`` normalized by length, plus the terms. If a hypothesis ended inside
    a name, it was ``cut`` before the name, and ranks after all others. ``sums`` are those of its ``History``.
    """

    ids: list[int]
    score: float
    log_prob: float
    cut: bool = False
    sums: tuple[Tensor, ...] = field(default=(), compare=False, repr=False)

    def rank(self) -> tuple[bool, float]:
        return self.cut, -self.score


@dataclass
class LiveHypotheses:
    """The hypotheses that a search extends.

    ``tokens`` [B, R, T] have the start token; ``log_prob`` [B, R] is -inf for an empty beam; ``names`` are the states
    of a constraint.
    """

    tokens: Tensor
    log_prob: Tensor
    history: History
    names: ConstraintState | None

    @classmethod
    def start(cls, mask: Tensor, beams: int, token: int, names: ConstraintState | None) -> "LiveHypotheses":
        """Return one hypothesis of ``token`` for each example; ``mask`` [B, M] are the real paragraphs."""
        history = History.start(len(mask), beams, mask.shape[1], mask.device)
        log_prob = torch.full_like(history.overlap, -torch.inf)
        log_prob[:, 0] = 0.0
        return cls(torch.full((*log_prob.shape, 1), token, device=mask.device), log_prob, history, names)

    def extend(self, parent: Tensor, token: Tensor, log_prob: Tensor) -> None:
        """Continue the beams ``parent`` [B, R] of each example by ``token`` [B, R]."""
        tokens = self.tokens.gather(1, parent[..., None].expand_as(self.tokens))
        self.tokens, self.log_prob = torch.cat((tokens, token[..., None]), -1), log_prob
        self.history.reorder(parent)
        if self.names:
            self.names.advance(parent, token)

    def whole_ids(self, index: int) -> list[list[int]]:
        """Return the ids of each hypothesis of the example at ``index``, without the start and an unfinished name."""
        is_live = self.log_prob[index] > -torch.inf
        ids = self.tokens[index, :, 1:][is_live].tolist()
        ends = self.names.complete[index][is_live].tolist() if self.names else [self.tokens.shape[-1]] * len(ids)
        return [each[: end - 1] for each, end in zip(ids, ends, strict=True)]

    def keep(self, index: Tensor) -> None:
        """Keep only the examples at ``index`` [B']."""
        self.tokens, self.log_prob = self.tokens[index], self.log_prob[index]
        self.history.keep(index)
        if self.names:
            self.names.keep(index)


@dataclass(frozen=True)
class _Added:
    """Hypotheses of live examples [B', R] at one step; those ``chosen`` have finished."""

    examples: Tensor  # [B']
    sums: tuple[Tensor, ...]
    is_closed: bool
    columns: tuple[Tensor, ...]  # [B', R] each: chosen, log-probability, score, length in whole words
    tokens: Tensor  # [B', R, T]


class FinishedHypotheses:
    """The finished hypotheses of each example, all or the ``most`` best by their score without final terms.

    ``count`` [B] stays on the device; the host reads added hypotheses when they are needed, or by :meth:`collect`.
    """

    def __init__(self, num_examples: int, device: torch.device, end: int, most: int | None = None) -> None:
        self.count = torch.zeros(num_examples, dtype=torch.long, device=device)
        self._end, self._most = end, most
        self._added = list[_Added]()
        self._found: list[list[Hypothesis]] = [[] for _ in range(num_examples)]

    def add(self, live: LiveHypotheses, chosen: Tensor, log_prob: Tensor, score: Tensor, closed: bool = False) -> None:
        """Add the ``live`` hypotheses selected by ``chosen`` [B', R]; ``closed`` appends EOS.

        A hypothesis that ends inside a name is cut before that name; it ranks after all others and does not count as
        finished.
        """
        history, names = live.history, live.names
        complete = names.complete if names else torch.full_like(chosen, live.tokens.shape[-1], dtype=torch.long)
        columns = (chosen, log_prob, score, complete)
        self._added.append(_Added(history.examples, history.sums, closed, columns, live.tokens))
        self.count[history.examples] += (chosen & names.whole if names else chosen).sum(-1)

    def collect(self, flags: Tensor | None = None) -> list[bool]:
        """Read the hypotheses that were added, and return ``flags`` [F] as a list: the host waits for a GPU once."""
        flags = self.count[:0] if flags is None else flags
        if not self._added:
            return flags.tolist()
        parts = [flags, *(part for added in self._added for part in (added.examples, *added.columns, added.tokens))]
        read = torch.cat([part.flatten().double() for part in parts]).cpu().numpy()
        bounds = [*accumulate(part.numel() for part in parts)]
        values = iter(np.split(read, bounds[:-1]))
        found = next(values).astype(bool).tolist()
        for added in self._added:
            examples = next(values).astype(int)
            chosen, log_prob, score, complete = (next(values).reshape(len(examples), -1) for _ in added.columns)
            tokens = next(values).reshape(added.tokens.shape).astype(int)
            for row, beam in np.argwhere(chosen).tolist():
                end, ids = int(complete[row, beam]), tokens[row, beam, 1:].tolist()
                is_cut = end < added.tokens.shape[-1]
                ids = [*ids[: end - 1], self._end] if added.is_closed or is_cut else ids
                sums = tuple(part[row, beam].clone() for part in added.sums)
                one = Hypothesis(ids, float(score[row, beam]), float(log_prob[row, beam]), is_cut, sums)
                self._found[examples[row]].append(one)
            if self._most:
                for example in examples:
                    self._found[example] = sorted(self._found[example], key=Hypothesis.rank)[: self._most]
        self._added.clear()
        return found

    def worst(self, examples: Tensor) -> Tensor:
        """Return the score [B'] of the worst of the ``most`` best hypotheses of ``examples`` [B']."""
        self.collect()
        last = (self._found[example][-1:] for example in examples.tolist())
        return torch.tensor([found[0].score if found else -torch.inf for found in last], device=examples.device)

    def candidates(self, first: int, last: int, all_can_win: bool) -> list[Hypothesis]:
        """Return the hypotheses of the examples from ``first`` to ``last`` that can be the best: all, or one."""
        self.collect()
        pool = [one for found in self._found[first:last] for one in found]
        return pool if all_can_win or not pool else [min(pool, key=Hypothesis.rank)]

    def best(self, n_best: int, terms: Sequence[Term] = (), groups: int = 1) -> list[list[Hypothesis]]:
        """Return the ``n_best`` hypotheses of each example by score and the final ones of ``terms``, best first.

        ``groups``: so many consecutive examples are one.
        """
        self.collect()
        pools: list[list[Hypothesis]] = [[] for _ in self._found[::groups]]
        numbers = [number for number, example in enumerate(self._found) for _ in example]
        if every := [*chain.from_iterable(self._found)]:
            parts = zip(*(one.sums for one in every), strict=True)
            total, overlap, by_token = (torch.stack(part)[:, None] for part in parts)
            columns = numbers, [[len(one.ids)] for one in every], [one.score for one in every]
            example, steps, score = (torch.tensor(values, device=self.count.device) for values in columns)
            history = History(example, total, overlap, by_token, steps)  # each as an example of one beam
            final = sum((term.value(history)[:, 0] for term in terms if term.final), score)
            for number, one, value in zip(numbers, every, final.tolist(), strict=True):
                if value > -torch.inf:  # otherwise a term is NaN, because its predictor diverged
                    pools[number // groups].append(replace(one, score=value))
        return [sorted(pool, key=Hypothesis.rank)[:n_best] for pool in pools]
