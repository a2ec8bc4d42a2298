"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs of at most N tokens. A model implements `StepModel`.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.graphs import RepeatedStep, permits_graphs
from raysum.decode.grounding.constraint import Constraint
from raysum.decode.hypotheses import FinishedHypotheses, Hypothesis, LiveHypotheses
from raysum.decode.rules import Rules, best_in_groups
from raysum.decode.scores import Term, length_norm
from raysum.models.batch import AttentionRequest
from raysum.models.layers import backbone_of
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

Result = TypeVar("Result")
IsCancelled = Callable[[int], bool]  # whether the request for the example with this index was cancelled


class StepModel(Protocol):
    """A model that extends hypotheses; ``step`` returns logits [B * R, V] and attention [B * R, M(, N)] or None.

    The state is its cache: ``reorder(parent)`` continues the beams ``parent`` [B, R] of each example, and
    ``keep(examples)`` drops all other examples.
    """

    def start(self, memory: Any, beams: int) -> Any: ...

    def step(self, tokens: Tensor, state: Any, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class SearchOptions:
    """The inputs of a search besides the model, its memory, the settings and the terms.

    - ``exempt``: ids that ``no_repeat_last`` does not block (commas).
    - ``is_cancelled``: if it returns true for an example, the example ends as if at the maximum length.
    - ``prompt`` [B, P]: padded ids after the ``target_prefix`` of ``marks`` with which hypotheses begin. They count in
      the length, and as certain.
    - ``constraint``: the names and numbers that hypotheses may contain.
    - ``source`` [B, S]: padded ids; ``encoder_no_repeat_ngram_size`` blocks their n-grams.
    - ``groups``: so many consecutive examples are groups of one diverse beam search (``best_in_groups``).
    - ``searches``: so many consecutive examples are searches of one example of the caller.
    """

    marks: SpecialTokens = PUBLISHED
    exempt: Sequence[int] = ()
    is_cancelled: IsCancelled | None = None
    prompt: Tensor | None = None
    constraint: Constraint | None = None
    source: Tensor | None = None
    groups: int = 1
    searches: int = 1

    def repeat(self, number: int) -> "SearchOptions":
        """Return the options of ``number`` searches of each example, in consecutive rows."""
        is_cancelled, constraint = self.is_cancelled, self.constraint
        return replace(
            self,
            is_cancelled=is_cancelled and (lambda index: is_cancelled(index // number)),
            prompt=repeat(self.prompt, number),
            constraint=constraint and constraint.repeat(number),
            source=repeat(self.source, number),
            searches=number,
        )


def repeat(values: Tensor | None, number: int) -> Tensor | None:
    """Return each row ``number`` times."""
    return None if values is None else values.repeat_interleave(number, 0)


@dataclass(frozen=True)
class SearchStep:
    """A search after one of its steps; valid until the search continues.

    ``is_ranked_later``: final terms rank finished hypotheses, so any of them can become the best. ``searches`` as in
    :class:`SearchOptions`.
    """

    live: LiveHypotheses
    finished: FinishedHypotheses
    length: int  # tokens of the live hypotheses, without the start
    is_ranked_later: bool
    searches: int

    def shared_ids(self, example: int) -> list[int]:
        """Return the ids, without the start, with which every hypothesis begins that can become the best one."""
        found, (first, last) = list[list[int]](), (example * self.searches, (example + 1) * self.searches)
        for index, number in enumerate(self.live.history.examples.tolist()):
            if first <= number < last:
                found += self.live.whole_ids(index, self.length + 1)
        found += [one.ids for one in self.finished.candidates(first, last, self.is_ranked_later)]
        length = next((n for n, ids in enumerate(zip(*found, strict=False)) if len(set(ids)) > 1), None)
        return min(found, key=len, default=[])[:length]


Steps = Generator[SearchStep, None, Result]


def exhaust(steps: Steps[Result]) -> Result:
    """Return the result of a generator after all its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def beam_search(
    model: StepModel, memory: Any, settings: DecodeConfig, terms: Sequence[Term] = (), **options: Any
) -> list[list[Hypothesis]]:
    """Return the ``settings.n_best`` hypotheses of each example from :func:`search_steps`, best first."""
    steps = search_steps(model, memory, settings, terms, SearchOptions(**options))
    return exhaust(steps).best(settings.n_best, terms)


@torch.inference_mode()
def search_steps(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    terms: Sequence[Term] = (),
    options: SearchOptions = SearchOptions(),  # noqa: B008
) -> Steps[FinishedHypotheses]:
    """Yield after each step, on a GPU mostly after each eighth; return all finished hypotheses, scored by
    log-probability and terms that are not final.

    ``memory`` is the input of ``model.start``, with ``paragraph_mask`` [B, M]. At each step, hypotheses with EOS among
    the R best candidates finish, and the R best others continue. If all candidates of a hypothesis are blocked, it
    finishes too, even below the minimum length. An example stops with R finished hypotheses; at the maximum length
    every live one finishes.

    With ``early_stopping`` the search is that of transformers: ``_Search._is_over`` decides when an example stops, and
    only its R best finished hypotheses are kept.
    """
    search = _Search(model, memory, settings, terms, options)
    try:
        for length in range(1, settings.max_length + 1):
            search.step(length)
            if length == settings.max_length:
                break
            if length % search.interval == 0:
                if not search.drop(length):
                    break
                yield SearchStep(search.live, search.finished, length, search.is_ranked_later, options.searches)
    finally:
        search.graph = None  # it refers to the search, so only a garbage collection would free its memory
    return search.finished


def _interval(device: torch.device) -> int:
    """Return after how many steps the host reads what has finished: 1 on a CPU, otherwise 8, because it waits for it.

    Examples that are over are extended until then, without effect.
    """
    return 1 if device.type == "cpu" else 8


class _Search:
    """The arrays of a search, and its steps, which change them in place, so that usual steps can be one graph.

    ``interval``: after how many steps the host reads what has finished. ``is_ranked_later`` as in :class:`SearchStep`.
    """

    def __init__(
        self, model: StepModel, memory: Any, settings: DecodeConfig, terms: Sequence[Term], options: SearchOptions
    ):
        mask, beams, constraint = memory.paragraph_mask, settings.num_beams, options.constraint
        self._model, self._settings, self._options = model, settings, options
        self._watch: AttentionRequest = "tokens" if any(term.by_token for term in terms) else bool(terms)
        self._steering = [term for term in terms if not term.final]
        self._rules = Rules(settings, options.marks, mask, options.exempt, options.prompt, options.source)
        self.interval, self.is_ranked_later = _interval(mask.device), any(t.final for t in terms)
        names = constraint.states(beams) if constraint else None
        self.live = LiveHypotheses.start(mask, beams, options.marks.start, names)
        most = None if settings.early_stopping is None else beams
        self.finished = FinishedHypotheses(len(mask), mask.device, options.marks.end, most, self.is_ranked_later)
        self.graph: RepeatedStep | None = None
        if self.interval > 1 and options.groups == 1 and permits_graphs(model, mask.device):
            graphed: Any = model
            self._state = graphed.start(memory, beams, is_fixed=True)
            work = partial(self._advance, graphed.extend)
            self.graph = RepeatedStep(work, lambda: (self._state.store, self.live.tokens), graphed, mask.device)
            self._longest = backbone_of(graphed.spec).max_target or settings.max_length  # beyond it the model raises
        else:
            self._state = model.start(memory, beams)

    def step(self, length: int) -> None:
        """Extend hypotheses of ``length`` tokens, the start included. At the maximum length all finish."""
        live, is_last = self.live, length == self._settings.max_length
        live.make_room(length)
        if self.graph is None or is_last or length in self._rules.forced or length > self._longest:
            ended = self._advance(self._model.step, length)
        else:
            self._state.make_room()
            ended = self.graph()
        if ended:
            self.finished.add(ended, length, closed=True)
        if is_last:
            self._finish(live.alive, length + 1)

    def _advance(self, extend: Callable[..., tuple[Tensor, Tensor | None]], length: int = 0) -> tuple[Tensor, ...]:
        """Do a step, and return the hypotheses that it finishes (:meth:`FinishedHypotheses.count_ended`), if any.

        ``length`` is that of the hypotheses, if tokens can be forced there.
        """
        live, settings, finished = self.live, self._settings, self.finished
        logits, weights = extend(live.newest.flatten(), self._state, attention=self._watch)
        if weights is not None:
            live.history.add(weights.unflatten(0, live.log_prob.shape))
        log_probs, eos, stuck = self._rules.candidates(logits, live, self._rules.forced.get(length))
        norm = length_norm(settings, live.length)
        bonus = sum((term.value(live.history) for term in self._steering), torch.zeros_like(live.log_prob))
        groups, penalty = self._options.groups, settings.diversity_penalty
        parent, token, log_prob = best_in_groups(log_probs, norm * bonus, live.history.examples, groups, penalty)
        parent_bonus = bonus.gather(1, parent)
        score, eos_score = log_prob / norm + parent_bonus, eos / norm + bonus

        better = torch.cat((eos_score, score), 1)[:, None] > eos_score[..., None]
        is_ended = (eos > -torch.inf) & (stuck | (better.sum(-1) < settings.num_beams)) & live.is_live[:, None]
        needs_reading = self.interval > 1 or is_ended.any()
        ended = finished.count_ended(live, is_ended, eos, eos_score) if needs_reading else ()
        if weights is not None:
            live.history.reorder(parent)
        live.extend(parent, token, log_prob, parent_bonus)
        self._state.reorder(parent)
        live.is_live.copy_(live.alive.any(-1) & ~self._is_over())
        return ended

    def _is_over(self) -> Tensor:
        """Return [B]: whether each example has R finished hypotheses, so that it ends.

        If ``early_stopping`` is false or "never" and there are several beams, it also needs that no live one can beat
        the worst of the R best finished ones. Its bound is its score if it ended here (false), or at the best possible
        length ("never"), with no further loss of probability.
        """
        live, settings, examples = self.live, self._settings, self.live.history.examples
        has_enough = self.finished.count[examples] >= settings.num_beams
        if settings.early_stopping in (None, True) or settings.num_beams == 1:
            return has_enough
        is_never = settings.early_stopping == "never"
        reach = torch.full_like(live.length, settings.max_length) if is_never else live.length - 1
        bound = live.score(settings, reach).amax(-1)
        return has_enough & (bound <= self.finished.worst(examples))

    def _finish(self, chosen: Tensor, length: int) -> None:
        """Finish the live hypotheses ``chosen`` [B, R], which have ``length`` tokens, without EOS."""
        live = self.live
        score = live.score(self._settings, live.length - 1)
        self.finished.add(self.finished.count_ended(live, chosen, live.log_prob, score), length, closed=False)

    def drop(self, length: int) -> bool:
        """Read what has finished, drop the examples that are over or cancelled, and return whether any remains."""
        live, is_cancelled = self.live, self._options.is_cancelled
        if is_cancelled and any(cancelled := [is_cancelled(one) for one in live.history.examples.tolist()]):
            stopped = torch.tensor(cancelled, device=live.is_live.device)
            self._finish(live.alive & stopped[:, None], length + 1)
            live.is_live &= ~stopped
        kept = self.finished.collect(live.is_live)
        if not any(kept):
            return False
        if not all(kept):
            index = torch.tensor([number for number, one in enumerate(kept) if one], device=live.is_live.device)
            self._state.keep(index)
            live.keep(index)
        return True
