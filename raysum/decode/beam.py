"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs of at most N tokens. A model implements `StepModel`.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.blocking import block_ngrams, block_recent, block_sequences, penalize_repetition
from raysum.decode.graphs import on_device
from raysum.decode.grounding.constraint import Constraint, ConstraintState
from raysum.decode.hypotheses import FinishedHypotheses, Hypothesis, LiveHypotheses
from raysum.decode.scores import Term, length_norm
from raysum.models.batch import AttentionRequest
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

Result = TypeVar("Result")
IsCancelled = Callable[[int], bool]  # whether the request for the example with this index was cancelled

CHUNK = 128  # candidates under one maximum; 64 is equally fast


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
    - ``groups``: so many consecutive examples are groups of one diverse beam search (:func:`_best_in_groups`).
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
    is_ranked_later: bool
    searches: int

    @property
    def length(self) -> int:
        """The number of tokens of the live hypotheses."""
        return self.live.tokens.shape[-1] - 1

    def shared_ids(self, example: int) -> list[int]:
        """Return the ids, without the start, with which every hypothesis begins that can become the best one."""
        found, (first, last) = list[list[int]](), (example * self.searches, (example + 1) * self.searches)
        for index, number in enumerate(self.live.history.examples.tolist()):
            if first <= number < last:
                found += self.live.whole_ids(index)
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

    With ``early_stopping`` the search is that of transformers: :func:`_is_over` decides when an example stops, and only
    its R best finished hypotheses are kept.
    """
    mask, beams, is_ranked_later = memory.paragraph_mask, settings.num_beams, any(term.final for term in terms)
    watch: AttentionRequest = "tokens" if any(term.by_token for term in terms) else bool(terms)
    steering = [term for term in terms if not term.final]
    rules = _Rules(settings, options, mask)
    names = ConstraintState(options.constraint, beams) if options.constraint else None
    model = on_device(model, mask.device)
    state, live = model.start(memory, beams), LiveHypotheses.start(mask, beams, options.marks.start, names)
    most = None if settings.early_stopping is None else beams
    is_cancelled, penalty = options.is_cancelled, settings.diversity_penalty
    finished = FinishedHypotheses(len(mask), mask.device, options.marks.end, most)
    interval, is_live = _interval(settings, options, mask.device), mask.new_ones(len(mask), dtype=torch.bool)
    for length in range(1, settings.max_length + 1):
        examples = live.history.examples
        logits, weights = model.step(live.tokens[..., -1].flatten(), state, attention=watch)
        if weights is not None:
            live.history.add(weights.unflatten(0, live.log_prob.shape))
        log_probs, eos, stuck = rules.candidates(logits, live)
        norm = length_norm(settings, length)
        bonus = sum((term.value(live.history) for term in steering), torch.zeros_like(live.log_prob))
        parent, token, log_prob = _best_in_groups(log_probs, norm * bonus, examples, options.groups, penalty)
        parent_bonus = bonus.gather(1, parent)
        score, eos_score = log_prob / norm + parent_bonus, eos / norm + bonus

        better = torch.cat((eos_score, score), 1)[:, None] > eos_score[..., None]
        ends = (eos > -torch.inf) & (stuck | (better.sum(-1) < beams)) & is_live[:, None]
        if interval > 1 or ends.any():
            finished.add(live, ends, eos, eos_score, closed=True)
        live.extend(parent, token, log_prob)
        alive = (log_prob > -torch.inf) & is_live[:, None]
        if length == settings.max_length:
            finished.add(live, alive, log_prob, score)
            break
        state.reorder(parent)
        is_live = alive.any(-1) & ~_is_over(settings, finished, examples, log_prob, parent_bonus, length)
        if length % interval:
            continue
        if is_cancelled and any(cancelled := [is_cancelled(example) for example in examples.tolist()]):
            stopped = torch.tensor(cancelled, device=mask.device)
            finished.add(live, alive & stopped[:, None], log_prob, score)
            is_live &= ~stopped
        kept = finished.collect(is_live)
        if not all(kept):
            index = torch.tensor([number for number, one in enumerate(kept) if one], device=mask.device)
            if not len(index):
                break
            state.keep(index)
            live.keep(index)
            is_live = is_live[index]
        yield SearchStep(live, finished, is_ranked_later, options.searches)
    return finished


def _interval(settings: DecodeConfig, options: SearchOptions, device: torch.device) -> int:
    """Return after how many steps the host reads what has finished: 1 on a CPU, otherwise 8, because it waits for it.

    Examples that are over are extended until then, without effect. It is also 1 if each step needs the host: for the
    names of a constraint, or finished hypotheses in ``early_stopping``.
    """
    is_simple = settings.early_stopping in (None, True) or settings.num_beams == 1
    return 8 if device.type != "cpu" and is_simple and not options.constraint else 1


def _is_over(
    settings: DecodeConfig, finished: FinishedHypotheses, examples: Tensor, log_prob: Tensor, bonus: Tensor, length: int
) -> Tensor:
    """Return [B]: whether each example ends. It does with R finished hypotheses, however good the live ones are.

    If ``early_stopping`` is false or "never" and there are several beams, a live hypothesis must also be unable to beat
    the worst of the R best finished ones. Its bound is its score if it ended here (false), or at the best possible
    length ("never"), with no further loss of probability.
    """
    has_enough = finished.count[examples] >= settings.num_beams
    if settings.early_stopping in (None, True) or settings.num_beams == 1:
        return has_enough
    reach = settings.max_length if settings.early_stopping == "never" else length
    bound = (log_prob / length_norm(settings, reach) + bonus).amax(-1)
    return has_enough & (bound <= finished.worst(examples))


class _Rules:
    """The tokens that may extend the hypotheses of a search, by its settings and options."""

    def __init__(self, settings: DecodeConfig, options: SearchOptions, mask: Tensor):
        """``mask`` [B, M]: the real paragraphs of the examples."""
        self._settings, self._marks, source = settings, options.marks, options.source
        self._commas = torch.tensor(options.exempt, dtype=torch.long, device=mask.device)
        # The blocked sequences [B, 1, N, size] of each size: bad words, and n-grams of the source.
        words, size = settings.bad_words_ids, settings.encoder_no_repeat_ngram_size
        by_size = [[word for word in words if len(word) == length] for length in {*map(len, words)}]
        self._blocked = [torch.tensor(same, device=mask.device).expand(len(mask), 1, -1, -1) for same in by_size]
        if source is not None and 0 < size <= source.shape[1]:
            self._blocked.append(source.unfold(1, size, 1)[:, None])
        # The tokens [B] that hypotheses must have, by position from 1; padding if an example is free there.
        begin = () if options.prompt is None else options.marks.target_prefix
        if settings.forced_bos_token_id is not None:
            begin = (settings.forced_bos_token_id, *begin[1:])
        starts = torch.tensor(begin, dtype=torch.long, device=mask.device).expand(len(mask), -1)
        prompt = starts if options.prompt is None else torch.cat((starts, options.prompt), 1)
        self._forced = dict(enumerate(prompt.unbind(1), 1))
        if settings.forced_eos_token_id is not None:
            self._forced[settings.max_length] = starts.new_full((len(mask),), settings.forced_eos_token_id)

    def candidates(self, logits: Tensor, live: LiveHypotheses) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of hypotheses extended by each token, [B, R, V], and by EOS, [B, R]; -inf if
        blocked.

        The third result, [B, R], is true for hypotheses without a candidate. EOS is -inf in [B, R, V]; in [B, R] it is
        -inf up to the minimum length and inside a name, unless there is no other candidate. Tokens that continue a name
        are never repetitions. As in transformers, the penalty for repetition applies to logits if there is one beam,
        otherwise to log-probabilities.
        """
        settings, tokens, names, end = self._settings, live.tokens, live.names, self._marks.end
        length, scores = tokens.shape[-1], logits.float().view(*live.log_prob.shape, -1)
        if scores.shape[1] == 1:
            penalize_repetition(scores, tokens, settings.repetition_penalty)
        log_probs = scores.log_softmax(-1)
        if scores.shape[1] > 1:
            penalize_repetition(log_probs, tokens, settings.repetition_penalty)
        log_probs += live.log_prob[..., None]
        for sequences in self._blocked:
            block_sequences(log_probs, tokens, sequences[live.history.examples])
        eos = log_probs[..., end].clone()
        log_probs[..., end] = -torch.inf
        continued = names.mask(log_probs) if names else None
        separator = None if settings.block_across_sentences else self._marks.sentence_end
        block_ngrams(log_probs, tokens, settings.no_repeat_ngram_size, separator)
        block_recent(log_probs, tokens, settings.no_repeat_last, self._commas)
        if continued:
            log_probs.view(-1).scatter_(0, *continued)
        stuck = log_probs.amax(-1) == -torch.inf
        if length <= settings.min_length:
            eos = eos.masked_fill(~stuck, -torch.inf)
        elif names:
            eos = eos.masked_fill(~(stuck | names.whole), -torch.inf)
        if length in self._forced:
            self._force(log_probs, eos, live.log_prob, self._forced[length][live.history.examples])
            stuck = log_probs.amax(-1) == -torch.inf
        return log_probs, eos, stuck

    def _force(self, log_probs: Tensor, eos: Tensor, log_prob: Tensor, token: Tensor) -> None:
        """Allow only ``token`` [B], at no cost, except where it is padding."""
        is_forced, is_end = (token != self._marks.pad)[:, None], (token == self._marks.end)[:, None]
        log_probs.masked_fill_(is_forced[..., None], -torch.inf)
        eos.masked_fill_(is_forced, -torch.inf).copy_(torch.where(is_end, log_prob, eos))
        index = token[:, None, None].expand(*log_prob.shape, 1)
        allowed = torch.where(is_forced & ~is_end, log_prob, log_probs.gather(2, index)[..., 0])
        log_probs.scatter_(2, index, allowed[..., None])


def _best_in_groups(
    log_probs: Tensor, offset: Tensor, examples: Tensor, groups: int, penalty: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return :func:`_best` for each group after the other, each with the penalties of the groups before it.

    Diverse beam search (Vijayakumar et al. 2018, eq. 4) with Hamming diversity: a token loses ``penalty`` for each
    hypothesis of earlier groups that adds it at this step. Penalties stay in the log-probability; EOS has none.
    Group g of an example is the one of ``examples`` [B] that is g modulo ``groups``.
    """
    if groups == 1:
        return _best(log_probs, offset)
    parts = [torch.zeros_like(offset, dtype=dtype) for dtype in (torch.long, torch.long, log_probs.dtype)]
    added = log_probs.new_zeros(int(examples.max()) // groups + 1, log_probs.shape[-1])  # hypotheses by example, token
    for group in range(groups):
        rows = (examples % groups == group).nonzero().squeeze(1)
        example = examples[rows] // groups
        best = _best(log_probs[rows] - penalty * added[example, None], offset[rows])
        for part, values in zip(parts, best, strict=True):
            part[rows] = values
        _, token, values = best
        index = example[:, None].expand_as(token)
        added.index_put_((index, token), (values > -torch.inf).to(added.dtype), accumulate=True)
    parent, token, log_prob = parts
    return parent, token, log_prob


def _best(log_probs: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return beam, token and log-probability [B, R] of the R best candidates by ``log_probs + offset``, best first.

    ``log_probs`` [B, R, V], ``offset`` [B, R]. The best candidates are in the R chunks with the highest maxima, so only
    these are sorted: 8 times as fast as a top-k over all (CPU, 16 examples of 5 x 32,000 candidates).
    """
    beams, vocabulary = log_probs.shape[1:]
    parts = log_probs.split(vocabulary // CHUNK * CHUNK or vocabulary, -1)
    maxima = torch.cat([part.unflatten(-1, (-1, min(CHUNK, part.shape[-1]))).amax(-1) for part in parts], -1)
    chunks = (maxima + offset[..., None]).flatten(1).topk(beams).indices
    beam, first = chunks // maxima.shape[-1], chunks % maxima.shape[-1] * CHUNK
    token = (first[..., None] + torch.arange(CHUNK, device=first.device)).flatten(1)
    beam = beam.repeat_interleave(CHUNK, 1)
    outside = token >= vocabulary
    token = token.clamp_max(vocabulary - 1)
    values = log_probs.flatten(1).gather(1, beam * vocabulary + token).masked_fill(outside, -torch.inf)
    chosen = (values + offset.gather(1, beam)).topk(beams).indices
    return beam.gather(1, chosen), token.gather(1, chosen), values.gather(1, chosen)
