"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs of at most N tokens. A model
implements `StepModel`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.blocking import block_ngrams, block_recent, block_sequences, penalize_repetition
from raysum.decode.grounding.constraint import Constraint, ConstraintState
from raysum.decode.hypotheses import Finished, Hypothesis
from raysum.decode.scores import History, Term, length_norm
from raysum.models.batch import AttentionRequest
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

IsCancelled = Callable[[int], bool]  # whether the request for the example with this index was cancelled

CHUNK = 128  # candidates under one maximum; 64 measured alike


class StepState(Protocol):
    """The model's cache for the hypotheses: ``reorder`` makes each continue beam ``parent`` [B, R] of its example."""

    def reorder(self, parent: Tensor) -> None: ...

    def keep(self, examples: Tensor) -> None: ...


class StepModel(Protocol):
    """A model that extends hypotheses; ``step`` returns logits [B * R, V] and attention [B * R, M(, N)] or None."""

    def start(self, memory: Any, beams: int) -> StepState: ...

    def step(self, tokens: Tensor, state: Any, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]: ...


def beam_search(
    model: StepModel, memory: Any, settings: DecodeConfig, terms: Sequence[Term] = (), **options: Any
) -> list[list[Hypothesis]]:
    """Return the ``settings.n_best`` hypotheses an example, best first: :func:`search`, ranked by its final terms."""
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
    guide: Constraint | None = None,
    source: Tensor | None = None,
) -> Finished:
    """Return all finished hypotheses, scored by log-probability and those of ``terms`` that are not final.

    ``memory`` is what ``model.start`` takes, with ``paragraph_mask`` [B, M]. ``exempt`` are ids that
    ``no_repeat_last`` lets repeat (commas). If ``is_cancelled`` returns true for an example, it ends as if at the
    maximum length.
    Hypotheses begin with ``prompt`` [B, P], up to its padding, behind the ``target_prefix`` of ``marks``; it counts in
    their length, and as certain. They say only what ``guide`` lets them say. ``source`` [B, S] are the padded ids of
    which ``encoder_no_repeat_ngram_size`` lets no n-gram be written.

    At each step, hypotheses whose EOS is among the R best candidates finish, and the R best others go on. A hypothesis
    that has nothing left but blocked candidates finishes too, even below the minimum length. An example stops with R
    finished ones, and at the maximum length every live one counts as finished.

    With ``early_stopping`` the search is that of transformers: an example stops as :func:`_over` says, and only the R
    best that have finished are kept of it.
    """
    num_examples, paragraphs = memory.paragraph_mask.shape
    beams, device = settings.num_beams, memory.paragraph_mask.device
    most = None if settings.early_stopping is None else beams
    watch: AttentionRequest = "tokens" if any(term.by_token for term in terms) else bool(terms)
    steering = [term for term in terms if not term.final]
    commas = torch.tensor(exempt, dtype=torch.long, device=device)
    forced = _forced(settings, marks, prompt, num_examples, device)
    never = _never(settings, source, num_examples, device)
    state, done = model.start(memory, beams), Finished(num_examples, device, marks.end, most)
    # The live hypotheses: tokens [B, R, T] from the start on, and log_prob [B, R], which is -inf where a beam is empty.
    tokens = torch.full((num_examples, beams, 1), marks.start, device=device)
    log_prob = torch.full((num_examples, beams), -torch.inf, device=device)
    log_prob[:, 0] = 0.0
    history = History(
        examples=torch.arange(num_examples, device=device),
        total=torch.zeros(num_examples, beams, paragraphs, device=device),
        overlap=torch.zeros(num_examples, beams, device=device),
    )
    guided = ConstraintState(guide, beams) if guide else None
    for length in range(1, settings.max_length + 1):
        logits, weights = model.step(tokens[..., -1].flatten(), state, attention=watch)
        if weights is not None:
            history.add(weights.view(*log_prob.shape, *weights.shape[1:]))
        barred = [sequences[history.examples] for sequences in never]
        log_probs, eos, stuck = _candidates(logits, tokens, log_prob, settings, marks, commas, guided, barred)
        if length in forced:
            _force(log_probs, eos, log_prob, forced[length][history.examples], marks)
            stuck = log_probs.amax(-1) == -torch.inf
        norm = length_norm(settings, length)
        bonus = sum((term(history) for term in steering), torch.zeros_like(log_prob))
        parent, token, log_prob = _best(log_probs, norm * bonus)
        kept = bonus.gather(1, parent)
        score, eos_score = log_prob / norm + kept, eos / norm + bonus

        better = torch.cat((eos_score, score), 1)[:, None] > eos_score[..., None]
        ends = (eos > -torch.inf) & (stuck | (better.sum(-1) < beams))
        if ends.any():
            done.add(tokens, history, ends, eos, eos_score, closed=True, guided=guided)
        tokens = torch.cat((tokens.gather(1, parent[..., None].expand_as(tokens)), token[..., None]), -1)
        history.reorder(parent)
        if guided:
            guided.advance(parent, token)
        alive = log_prob > -torch.inf
        if length == settings.max_length:
            done.add(tokens, history, alive, log_prob, score, closed=False, guided=guided)
            break
        state.reorder(parent)
        going = alive.any(-1) & ~_over(settings, done, history.examples, log_prob, kept, length)
        if is_cancelled and any(cancelled := [is_cancelled(example) for example in history.examples.tolist()]):
            ended = torch.tensor(cancelled, device=device)
            done.add(tokens, history, alive & ended[:, None], log_prob, score, closed=False, guided=guided)
            going &= ~ended
        if not going.all():
            index = going.nonzero().squeeze(1)
            if not len(index):
                break
            state.keep(index)
            tokens, log_prob = tokens[index], log_prob[index]
            history.keep(index)
            if guided:
                guided.keep(index)
    return done


def _over(
    settings: DecodeConfig, done: Finished, examples: Tensor, log_prob: Tensor, bonus: Tensor, length: int
) -> Tensor:
    """[B] whether examples end: with R finished hypotheses, whatever still lives.

    Unless ``early_stopping`` is false or "never", and there is more than one beam: then no live hypothesis may promise
    more than the worst of the R best finished ones. It promises its score if it ended here (false), or in the most
    favourable length ("never"), and lost nothing more.
    """
    full = done.count[examples] >= settings.num_beams
    if settings.early_stopping in (None, True) or settings.num_beams == 1:
        return full
    reach = settings.max_length if settings.early_stopping == "never" else length
    promise = (log_prob / length_norm(settings, reach) + bonus).amax(-1)
    return full & (promise <= done.worst(examples))


def _forced(
    settings: DecodeConfig, marks: SpecialTokens, prompt: Tensor | None, num_examples: int, device: torch.device
) -> dict[int, Tensor]:
    """The tokens [B] that hypotheses must have, by their place from 1 on; padding where an example need not."""
    begin = () if prompt is None else marks.target_prefix
    if settings.forced_bos_token_id is not None:
        begin = (settings.forced_bos_token_id, *begin[1:])
    places = [torch.full((num_examples,), token, device=device) for token in begin]
    forced = dict(enumerate([*places, *([] if prompt is None else prompt.unbind(1))], 1))
    if settings.forced_eos_token_id is not None:
        forced[settings.max_length] = torch.full((num_examples,), settings.forced_eos_token_id, device=device)
    return forced


def _never(settings: DecodeConfig, source: Tensor | None, num_examples: int, device: torch.device) -> list[Tensor]:
    """The sequences that are never written, [B, 1, N, size] of each size: bad words, and n-grams of sources [B, S]."""
    by_size: dict[int, list[list[int]]] = {}
    for word in settings.bad_words_ids:
        by_size.setdefault(len(word), []).append(word)
    found = [torch.tensor(words, device=device).expand(num_examples, 1, -1, -1) for words in by_size.values()]
    size = settings.encoder_no_repeat_ngram_size
    if source is not None and 0 < size <= source.shape[1]:
        found.append(source.unfold(1, size, 1)[:, None])
    return found


def _candidates(
    logits: Tensor,
    tokens: Tensor,
    log_prob: Tensor,
    settings: DecodeConfig,
    marks: SpecialTokens,
    commas: Tensor,
    guided: ConstraintState | None,
    barred: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the hypotheses extended by each token, [B, R, V], and by EOS, [B, R]; -inf where blocked.

    EOS is -inf among the former, and in the latter up to the minimum length and inside a name that ``guided`` follows,
    unless nothing else is left. Tokens that continue such a name are no repetition. As in transformers, repetition is
    penalized by logits where there is one beam, else by log-probabilities.
    """
    scores = logits.float().view(*log_prob.shape, -1)
    if scores.shape[1] == 1:
        penalize_repetition(scores, tokens, settings.repetition_penalty)
    log_probs = scores.log_softmax(-1)
    if scores.shape[1] > 1:
        penalize_repetition(log_probs, tokens, settings.repetition_penalty)
    log_probs += log_prob[..., None]
    for sequences in barred:
        block_sequences(log_probs, tokens, sequences)
    eos = log_probs[..., marks.end].clone()
    log_probs[..., marks.end] = -torch.inf
    names = guided.mask(log_probs) if guided else None
    separator = None if settings.block_across_sentences else marks.sentence_end
    block_ngrams(log_probs, tokens, settings.no_repeat_ngram_size, separator)
    block_recent(log_probs, tokens, settings.no_repeat_last, commas)
    if names:
        log_probs.view(-1).scatter_(0, *names)
    stuck = log_probs.amax(-1) == -torch.inf
    if tokens.shape[-1] <= settings.min_length:
        eos = eos.masked_fill(~stuck, -torch.inf)
    elif guided:
        eos = eos.masked_fill(~(stuck | guided.whole), -torch.inf)
    return log_probs, eos, stuck


def _force(log_probs: Tensor, eos: Tensor, log_prob: Tensor, token: Tensor, marks: SpecialTokens) -> None:
    """Only ``token`` [B] can follow, at no cost, except where it is padding."""
    given, end = token != marks.pad, token == marks.end
    log_probs[given], eos[given] = -torch.inf, -torch.inf
    eos[end] = log_prob[end]
    plain = given & ~end
    log_probs[plain, :, token[plain]] = log_prob[plain]


def _best(log_probs: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Beam, token and log-probability, each [B, R], of the R best candidates by ``log_probs + offset``, best first.

    ``log_probs`` [B, R, V], ``offset`` [B, R]. The best candidates lie in the R chunks of highest maximum, so only
    these are sorted: 8 times as fast as a top-k over everything (CPU, 16 examples of 5 x 32,000 candidates).
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
