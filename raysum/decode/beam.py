"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs of at most N tokens. A model implements `StepModel`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.blocking import block_ngrams, block_recent, block_sequences, penalize_repetition
from raysum.decode.grounding.constraint import Constraint, ConstraintState
from raysum.decode.hypotheses import FinishedHypotheses, Hypothesis
from raysum.decode.scores import History, Term, length_norm
from raysum.models.batch import AttentionRequest
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

IsCancelled = Callable[[int], bool]  # whether the request for the example with this index was cancelled

CHUNK = 128  # candidates under one maximum; 64 is equally fast


class StepState(Protocol):
    """The model's cache for the hypotheses; ``reorder`` continues the beams ``parent`` [B, R] of each example."""

    def reorder(self, parent: Tensor) -> None: ...

    def keep(self, examples: Tensor) -> None: ...


class StepModel(Protocol):
    """A model that extends hypotheses; ``step`` returns logits [B * R, V] and attention [B * R, M(, N)] or None."""

    def start(self, memory: Any, beams: int) -> StepState: ...

    def step(self, tokens: Tensor, state: Any, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]: ...


def beam_search(
    model: StepModel, memory: Any, settings: DecodeConfig, terms: Sequence[Term] = (), **options: Any
) -> list[list[Hypothesis]]:
    """Return the ``settings.n_best`` hypotheses of each example from :func:`search`, best first."""
    return search(model, memory, settings, terms, **options).best(settings.n_best, terms)


@torch.inference_mode()
def search(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    terms: Sequence[Term] = (),
    *,
    marks: SpecialTokens = PUBLISHED,
    exempt: Sequence[int] = (),
    is_cancelled: IsCancelled | None = None,
    prompt: Tensor | None = None,
    constraint: Constraint | None = None,
    source: Tensor | None = None,
    groups: int = 1,
) -> FinishedHypotheses:
    """Return all finished hypotheses, scored by log-probability and the ``terms`` that are not final.

    At each step, hypotheses with EOS among the R best candidates finish, and the R best others continue. If all
    candidates of a hypothesis are blocked, it finishes too, even below the minimum length. An example stops with R
    finished hypotheses; at the maximum length every live one finishes.

    With ``early_stopping`` the search is that of transformers: :func:`_is_over` decides when an example stops, and only
    its R best finished hypotheses are kept.

    - ``memory``: the input of ``model.start``, with ``paragraph_mask`` [B, M].
    - ``exempt``: ids that ``no_repeat_last`` does not block (commas).
    - ``is_cancelled``: if it returns true for an example, the example ends as if at the maximum length.
    - ``prompt`` [B, P]: padded ids after the ``target_prefix`` of ``marks`` with which hypotheses begin. They count in
      the length, and as certain.
    - ``constraint``: the names and numbers that hypotheses may contain.
    - ``source`` [B, S]: padded ids; ``encoder_no_repeat_ngram_size`` blocks their n-grams.
    - ``groups``: so many consecutive examples are groups of one diverse beam search (:func:`_best_in_groups`).
    """
    num_examples, paragraphs = memory.paragraph_mask.shape
    beams, device = settings.num_beams, memory.paragraph_mask.device
    most = None if settings.early_stopping is None else beams
    watch: AttentionRequest = "tokens" if any(term.by_token for term in terms) else bool(terms)
    steering = [term for term in terms if not term.final]
    commas = torch.tensor(exempt, dtype=torch.long, device=device)
    forced = _forced(settings, marks, prompt, num_examples, device)
    banned = _blocked_sequences(settings, source, num_examples, device)
    state, finished = model.start(memory, beams), FinishedHypotheses(num_examples, device, marks.end, most)
    # The live hypotheses: tokens [B, R, T] with the start token, and log_prob [B, R], which is -inf for an empty beam.
    tokens = torch.full((num_examples, beams, 1), marks.start, device=device)
    log_prob = torch.full((num_examples, beams), -torch.inf, device=device)
    log_prob[:, 0] = 0.0
    history = History(
        examples=torch.arange(num_examples, device=device),
        total=torch.zeros(num_examples, beams, paragraphs, device=device),
        overlap=torch.zeros(num_examples, beams, device=device),
    )
    constraint_state = ConstraintState(constraint, beams) if constraint else None
    for length in range(1, settings.max_length + 1):
        logits, weights = model.step(tokens[..., -1].flatten(), state, attention=watch)
        if weights is not None:
            history.add(weights.view(*log_prob.shape, *weights.shape[1:]))
        blocked = [sequences[history.examples] for sequences in banned]
        log_probs, eos, stuck = _candidates(
            logits, tokens, log_prob, settings, marks, commas, constraint_state, blocked
        )
        if length in forced:
            _force(log_probs, eos, log_prob, forced[length][history.examples], marks)
            stuck = log_probs.amax(-1) == -torch.inf
        norm = length_norm(settings, length)
        bonus = sum((term(history) for term in steering), torch.zeros_like(log_prob))
        if groups == 1:
            parent, token, log_prob = _best(log_probs, norm * bonus)
        else:
            penalty = settings.diversity_penalty
            parent, token, log_prob = _best_in_groups(log_probs, norm * bonus, history.examples, groups, penalty)
        parent_bonus = bonus.gather(1, parent)
        score, eos_score = log_prob / norm + parent_bonus, eos / norm + bonus

        better = torch.cat((eos_score, score), 1)[:, None] > eos_score[..., None]
        ends = (eos > -torch.inf) & (stuck | (better.sum(-1) < beams))
        if ends.any():
            finished.add(tokens, history, ends, eos, eos_score, closed=True, constraint=constraint_state)
        tokens = torch.cat((tokens.gather(1, parent[..., None].expand_as(tokens)), token[..., None]), -1)
        history.reorder(parent)
        if constraint_state:
            constraint_state.advance(parent, token)
        alive = log_prob > -torch.inf
        if length == settings.max_length:
            finished.add(tokens, history, alive, log_prob, score, closed=False, constraint=constraint_state)
            break
        state.reorder(parent)
        is_live = alive.any(-1) & ~_is_over(settings, finished, history.examples, log_prob, parent_bonus, length)
        if is_cancelled and any(cancelled := [is_cancelled(example) for example in history.examples.tolist()]):
            stopped = torch.tensor(cancelled, device=device)
            finished.add(
                tokens, history, alive & stopped[:, None], log_prob, score, closed=False, constraint=constraint_state
            )
            is_live &= ~stopped
        if not is_live.all():
            index = is_live.nonzero().squeeze(1)
            if not len(index):
                break
            state.keep(index)
            tokens, log_prob = tokens[index], log_prob[index]
            history.keep(index)
            if constraint_state:
                constraint_state.keep(index)
    return finished


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


def _forced(
    settings: DecodeConfig, marks: SpecialTokens, prompt: Tensor | None, num_examples: int, device: torch.device
) -> dict[int, Tensor]:
    """Return the tokens [B] that hypotheses must have, by position from 1; padding if an example is free there."""
    begin = () if prompt is None else marks.target_prefix
    if settings.forced_bos_token_id is not None:
        begin = (settings.forced_bos_token_id, *begin[1:])
    starts = [torch.full((num_examples,), token, device=device) for token in begin]
    forced = dict(enumerate([*starts, *([] if prompt is None else prompt.unbind(1))], 1))
    if settings.forced_eos_token_id is not None:
        forced[settings.max_length] = torch.full((num_examples,), settings.forced_eos_token_id, device=device)
    return forced


def _blocked_sequences(
    settings: DecodeConfig, source: Tensor | None, num_examples: int, device: torch.device
) -> list[Tensor]:
    """Return the blocked sequences [B, 1, N, size] of each size: bad words, and n-grams of ``source``."""
    by_size: dict[int, list[list[int]]] = {}
    for word in settings.bad_words_ids:
        by_size.setdefault(len(word), []).append(word)
    blocked = [torch.tensor(words, device=device).expand(num_examples, 1, -1, -1) for words in by_size.values()]
    size = settings.encoder_no_repeat_ngram_size
    if source is not None and 0 < size <= source.shape[1]:
        blocked.append(source.unfold(1, size, 1)[:, None])
    return blocked


def _candidates(
    logits: Tensor,
    tokens: Tensor,
    log_prob: Tensor,
    settings: DecodeConfig,
    marks: SpecialTokens,
    commas: Tensor,
    constraint_state: ConstraintState | None,
    blocked: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of hypotheses extended by each token, [B, R, V], and by EOS, [B, R]; -inf if blocked.

    The third result, [B, R], is true for hypotheses without a candidate. EOS is -inf in [B, R, V]; in [B, R] it is -inf
    up to the minimum length and inside a name of ``constraint_state``, unless there is no other candidate. Tokens that
    continue such a name are never repetitions. As in transformers, the penalty for repetition applies to logits if
    there is one beam, otherwise to log-probabilities.
    """
    scores = logits.float().view(*log_prob.shape, -1)
    if scores.shape[1] == 1:
        penalize_repetition(scores, tokens, settings.repetition_penalty)
    log_probs = scores.log_softmax(-1)
    if scores.shape[1] > 1:
        penalize_repetition(log_probs, tokens, settings.repetition_penalty)
    log_probs += log_prob[..., None]
    for sequences in blocked:
        block_sequences(log_probs, tokens, sequences)
    eos = log_probs[..., marks.end].clone()
    log_probs[..., marks.end] = -torch.inf
    names = constraint_state.mask(log_probs) if constraint_state else None
    separator = None if settings.block_across_sentences else marks.sentence_end
    block_ngrams(log_probs, tokens, settings.no_repeat_ngram_size, separator)
    block_recent(log_probs, tokens, settings.no_repeat_last, commas)
    if names:
        log_probs.view(-1).scatter_(0, *names)
    stuck = log_probs.amax(-1) == -torch.inf
    if tokens.shape[-1] <= settings.min_length:
        eos = eos.masked_fill(~stuck, -torch.inf)
    elif constraint_state:
        eos = eos.masked_fill(~(stuck | constraint_state.whole), -torch.inf)
    return log_probs, eos, stuck


def _force(log_probs: Tensor, eos: Tensor, log_prob: Tensor, token: Tensor, marks: SpecialTokens) -> None:
    """Allow only ``token`` [B], at no cost, except where it is padding."""
    is_forced, end = token != marks.pad, token == marks.end
    log_probs[is_forced], eos[is_forced] = -torch.inf, -torch.inf
    eos[end] = log_prob[end]
    other = is_forced & ~end
    log_probs[other, :, token[other]] = log_prob[other]


def _best_in_groups(
    log_probs: Tensor, offset: Tensor, examples: Tensor, groups: int, penalty: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return :func:`_best` for each group after the other, each with the penalties of the groups before it.

    Diverse beam search (Vijayakumar et al. 2018, eq. 4) with Hamming diversity: a token loses ``penalty`` for each
    hypothesis of earlier groups that adds it at this step. Penalties stay in the log-probability; EOS has none.
    Group g of an example is the one of ``examples`` [B] that is g modulo ``groups``.
    """
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
