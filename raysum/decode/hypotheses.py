"""The hypotheses of a search: those that it extends, and the finished ones. B examples of R beams each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.grounding.constraint import States
from raysum.decode.scores import History, Term, length_norm

_ROOM = 256  # tokens of hypotheses; doubled when they are more


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: ``ids`` without the start token, with EOS last unless truncated at the maximum length.

    Hypotheses are ranked by ``score``: ``log_prob`` normalized by length, plus the terms. If a hypothesis ended inside
    a name, it was ``cut`` before the name, and ranks after all others. ``sums`` are those of its ``History``, if final
    terms rank it.
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
    """The hypotheses that a search extends, in arrays that change in place until examples leave or room ends.

    ``tokens`` [B, R, L]: the first ``length`` [1] are the start token and the hypothesis, the others repeat the start.
    ``log_prob`` [B, R] is -inf for an empty beam, ``bonus`` [B, R] the sum of the terms that steer. ``alive`` [B, R]:
    the hypotheses that the last step extended; ``is_live`` [B]: whether an example needs more steps. ``names``: the
    states of a constraint.
    """

    tokens: Tensor
    length: Tensor
    log_prob: Tensor
    bonus: Tensor
    alive: Tensor
    is_live: Tensor
    history: History
    names: States | None

    @classmethod
    def start(cls, mask: Tensor, beams: int, token: int, names: States | None) -> "LiveHypotheses":
        """Return one hypothesis of ``token`` for each example; ``mask`` [B, M] are the real paragraphs."""
        history = History.start(len(mask), beams, mask.shape[1], mask.device)
        bonus, log_prob = torch.zeros_like(history.overlap), torch.full_like(history.overlap, -torch.inf)
        log_prob[:, 0] = 0.0
        tokens = torch.full((*bonus.shape, _ROOM), token, device=mask.device)
        length, alive = torch.ones_like(history.steps), log_prob == 0
        return cls(tokens, length, log_prob, bonus, alive, alive.any(-1), history, names)

    @property
    def newest(self) -> Tensor:
        """[B, R]: the last token of each hypothesis."""
        return self.tokens.index_select(-1, self.length - 1)[..., 0]

    def score(self, settings: DecodeConfig, length: Tensor) -> Tensor:
        """Return the scores [B, R] of hypotheses that end with ``length`` [1] tokens and this log-probability."""
        return self.log_prob / length_norm(settings, length) + self.bonus

    def make_room(self, length: int) -> None:
        """Provide room for a token after ``length`` ones."""
        if length == self.tokens.shape[-1]:
            self.tokens = torch.cat((self.tokens, self.tokens[..., :1].expand_as(self.tokens)), -1)

    def extend(self, parent: Tensor, token: Tensor, log_prob: Tensor, bonus: Tensor) -> None:
        """Continue the beams ``parent`` [B, R] of each example by ``token`` [B, R]."""
        tokens = self.tokens.gather(1, parent[..., None].expand_as(self.tokens))
        self.tokens.copy_(tokens).index_copy_(-1, self.length, token[..., None])
        self.length += 1
        self.log_prob.copy_(log_prob)
        self.bonus.copy_(bonus)
        self.alive.copy_((log_prob > -torch.inf) & self.is_live[:, None])
        if self.names:
            self.names.advance(parent, token)

    def whole_ids(self, index: int, length: int) -> list[list[int]]:
        """Return the ids of each hypothesis of ``length`` tokens of the example at ``index``, without the start and an
        unfinished name.
        """
        has_beam = self.log_prob[index] > -torch.inf
        ids = self.tokens[index, :, 1:][has_beam].tolist()
        ends = self.names.complete[index][has_beam].tolist() if self.names else [length] * len(ids)
        return [each[: end - 1] for each, end in zip(ids, ends, strict=True)]

    def keep(self, index: Tensor) -> None:
        """Keep only the examples at ``index`` [B']."""
        self.tokens, self.log_prob, self.bonus = self.tokens[index], self.log_prob[index], self.bonus[index]
        self.alive, self.is_live = self.alive[index], self.is_live[index]
        self.history.keep(index)
        if self.names:
            self.names.keep(index)


@dataclass(frozen=True)
class _Added:
    """Hypotheses of ``length`` tokens of live examples at one step; ``is_closed``: those that finished got EOS."""

    values: tuple[Tensor, ...]  # of FinishedHypotheses.count_ended
    length: int
    is_closed: bool


class FinishedHypotheses:
    """The finished hypotheses of each example, all or the ``most`` best by their score without final terms.

    ``count`` [B] and the scores of the best ones stay on the device; the host reads added hypotheses when they are
    needed, or by :meth:`collect`.
    ``keeps_sums``: final terms need the sums of attention.
    """

    def __init__(
        self, num_examples: int, device: torch.device, end: int, most: int | None = None, keeps_sums: bool = True
    ) -> None:
        self.count = torch.zeros(num_examples, dtype=torch.long, device=device)
        self._best = torch.full((num_examples, most or 0), -torch.inf, device=device)  # scores, descending
        self._end, self._most, self._keeps_sums = end, most, keeps_sums
        self._added = list[_Added]()
        self._found: list[list[Hypothesis]] = [[] for _ in range(num_examples)]

    def count_ended(self, live: LiveHypotheses, ended: Tensor, log_prob: Tensor, score: Tensor) -> tuple[Tensor, ...]:
        """Count the ``live`` hypotheses that ``ended`` [B', R], and return them in arrays for :meth:`add`.

        A hypothesis that ends inside a name is cut before that name; it ranks after all others and does not count as
        finished.
        """
        history, names = live.history, live.names
        complete = names.complete if names else live.length.expand_as(ended)
        whole = ended & names.whole if names else ended
        self.count.index_add_(0, history.examples, whole.sum(-1))
        if self._most:
            best = torch.cat((self._best[history.examples], score.masked_fill(~whole, -torch.inf)), -1)
            self._best.index_copy_(0, history.examples, best.topk(self._most).values)
        columns = torch.stack([column.double() for column in (ended, log_prob, score, complete)], -1)
        values = torch.cat((columns, live.tokens.double()), -1)  # [B', R, 4 + L]
        sums = [part.clone() for part in history.sums] if self._keeps_sums else []
        return history.examples, values, *sums

    def add(self, values: tuple[Tensor, ...], length: int, closed: bool) -> None:
        """Add hypotheses of :meth:`count_ended` with ``length`` tokens; ``closed`` appends EOS."""
        self._added.append(_Added(values, length, closed))

    def collect(self, flags: Tensor | None = None) -> list[bool]:
        """Read the hypotheses that were added, and return ``flags`` [F] as a list: the host waits for a GPU once."""
        flags = self.count[:0] if flags is None else flags
        if not self._added:
            return flags.tolist()
        parts = [flags, *(part for added in self._added for part in added.values[:2])]
        read = torch.cat([part.flatten().double() for part in parts]).cpu().numpy()
        bounds = [*accumulate(part.numel() for part in parts)]
        values = iter(np.split(read, bounds[:-1]))
        found = next(values).astype(bool).tolist()
        for added in self._added:
            examples, rows = next(values).astype(int), next(values).reshape(added.values[1].shape)
            for row, beam in np.argwhere(rows[..., 0]).tolist():
                _, log_prob, score, end, *tokens = rows[row, beam, : 4 + added.length].tolist()
                is_cut, ids = end < added.length, [*map(int, tokens[1 : int(end)])]
                ids += [self._end] if added.is_closed or is_cut else []
                sums = tuple(part[row, beam].clone() for part in added.values[2:])
                self._found[examples[row]].append(Hypothesis(ids, score, log_prob, is_cut, sums))
            if self._most:
                for example in examples:
                    self._found[example] = sorted(self._found[example], key=Hypothesis.rank)[: self._most]
        self._added.clear()
        return found

    def worst(self, examples: Tensor) -> Tensor:
        """Return the score [B'] of the worst of the ``most`` best whole hypotheses of ``examples`` [B'], or -inf."""
        return self._best[examples, -1]

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
            final, scores = [term for term in terms if term.final], [one.score for one in every]
            if final:
                parts = zip(*(one.sums for one in every), strict=True)
                total, overlap, by_token = (torch.stack(part)[:, None] for part in parts)
                columns = numbers, [[len(one.ids)] for one in every], scores
                example, steps, score = (torch.tensor(values, device=self.count.device) for values in columns)
                history = History(example, total, overlap, by_token, steps)  # each as an example of one beam
                scores = sum((term.value(history)[:, 0] for term in final), score).tolist()
            for number, one, value in zip(numbers, every, scores, strict=True):
                if value > -torch.inf:  # otherwise a term is NaN, because its predictor diverged
                    pools[number // groups].append(replace(one, score=value))
        return [sorted(pool, key=Hypothesis.rank)[:n_best] for pool in pools]
