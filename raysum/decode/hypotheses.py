"""The finished hypotheses of a search, and the best of them. B examples of R beams each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from raysum.decode.grounding.constraint import ConstraintState
from raysum.decode.scores import History, Term


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: ``ids`` without the start token, with EOS last unless truncated at the maximum length.

    Hypotheses are ranked by ``score``: ``log_prob`` normalized by length, plus the terms.
    """

    ids: list[int]
    score: float
    log_prob: float


@dataclass(frozen=True)
class _Entry:
    """A hypothesis with its score before final terms, and the sums of its ``History``.

    ``truncated``: it ended inside a name, so it was cut before the name.
    """

    truncated: bool
    hypothesis: Hypothesis
    sums: tuple[Tensor, ...]

    def rank(self) -> tuple[bool, float]:
        return self.truncated, -self.hypothesis.score


class FinishedHypotheses:
    """The finished hypotheses of each example, all or the ``most`` best by their score without final terms."""

    def __init__(self, num_examples: int, device: torch.device, end: int, most: int | None = None) -> None:
        self.count = torch.zeros(num_examples, dtype=torch.long, device=device)  # [B] finished hypotheses
        self._end, self._most = end, most
        self._entries: list[list[_Entry]] = [[] for _ in range(num_examples)]

    def add(
        self,
        tokens: Tensor,
        history: History,
        chosen: Tensor,
        log_prob: Tensor,
        score: Tensor,
        closed: bool,
        constraint: ConstraintState | None = None,
    ) -> None:
        """Add the hypotheses ``tokens`` [B', R, T] of ``history.examples`` selected by ``chosen`` [B', R].

        ``closed`` appends EOS. A hypothesis that ends inside a name by ``constraint`` is cut before that name; it ranks
        after all others and does not count as finished.
        """
        index = chosen.nonzero(as_tuple=True)
        examples, length = history.examples[index[0]].tolist(), tokens.shape[-1]
        ends = constraint.complete[index].tolist() if constraint else [length] * len(examples)
        sums = (part[index] for part in (history.total, history.overlap, history.by_token) if part is not None)
        columns = (part[index].tolist() for part in (tokens[..., 1:], score, log_prob))
        for example, end, ids, value, probability, *own in zip(examples, ends, *columns, *sums, strict=True):
            ids = [*ids[: end - 1], self._end] if closed or end < length else ids
            self._entries[example].append(_Entry(end < length, Hypothesis(ids, value, probability), tuple(own)))
        self.count[history.examples] += (chosen & constraint.whole if constraint else chosen).sum(-1)
        if self._most:
            for example in set(examples):
                self._entries[example] = sorted(self._entries[example], key=_Entry.rank)[: self._most]

    def worst(self, examples: Tensor) -> Tensor:
        """Return the score [B'] of the worst of the ``most`` best hypotheses of ``examples`` [B']."""
        last = [self._entries[example][-1:] for example in examples.tolist()]
        scores = [entries[0].hypothesis.score if entries else -torch.inf for entries in last]
        return torch.tensor(scores, device=examples.device)

    def best(self, n_best: int, terms: Sequence[Term] = (), groups: int = 1) -> list[list[Hypothesis]]:
        """Return the ``n_best`` hypotheses of each example by score and the final ones of ``terms``, best first.

        ``groups``: so many consecutive examples are one.
        """
        entries = [entry for example in self._entries for entry in example]
        ranked: list[list[_Entry]] = [[] for _ in self._entries]
        if entries:
            examples = [number for number, example in enumerate(self._entries) for _ in example]
            steps = [[len(entry.hypothesis.ids)] for entry in entries]
            sums = zip(*(entry.sums for entry in entries), strict=True)
            total, overlap, *by_token = (torch.stack(parts)[:, None] for parts in sums)  # [F, 1, ...], as of one beam
            columns = (examples, steps, [entry.hypothesis.score for entry in entries])
            example, length, score = (torch.tensor(values, device=total.device) for values in columns)
            history = History(example, total, overlap, length, *by_token)
            final = sum((term(history)[:, 0] for term in terms if term.final), score)
            for number, entry, value in zip(examples, entries, final.tolist(), strict=True):
                if value > -torch.inf:  # otherwise a term is NaN, because its predictor diverged
                    hypothesis = replace(entry.hypothesis, score=value)
                    ranked[number].append(replace(entry, hypothesis=hypothesis))
        pooled = [list(chain(*ranked[start : start + groups])) for start in range(0, len(ranked), groups)]
        return [[entry.hypothesis for entry in sorted(example, key=_Entry.rank)[:n_best]] for example in pooled]
