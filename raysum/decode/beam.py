"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs of at most N tokens. What a model must offer is
`StepModel`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from raysum.config.sections import DecodeConfig
from raysum.decode.grounding.guide import Guide, Guided
from raysum.decode.scores import History, Term, length_norm
from raysum.models.batch import Asked
from raysum.models.special_ids import BOS, EOS, PAD, SENTENCE_END

Left = Callable[[int], bool]  # whether nobody waits for an example any more, by its number in the batch

CHUNK = 128  # candidates under one maximum; 64 measured alike


class StepState(Protocol):
    """The model's memory of the hypotheses: ``reorder`` lets each go on from beam ``parent`` [B, R] of its example."""

    def reorder(self, parent: Tensor) -> None: ...

    def keep(self, examples: Tensor) -> None: ...


class StepModel(Protocol):
    """What continues hypotheses; ``step`` gives logits [B * R, V] and attention [B * R, M], [B * R, M, N] or None."""

    def start(self, memory: Any, beams: int) -> StepState: ...

    def step(self, tokens: Tensor, state: Any, attention: Asked = False) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: ``ids`` without BOS, ending in EOS unless cut at the maximum length.

    ``score`` is what ranks it: ``log_prob`` normalized by length, plus the terms.
    """

    ids: list[int]
    score: float
    log_prob: float


class Finished:
    """The finished hypotheses of a search, F in all: at most 3 R - 1 of an example, and final terms rank them all."""

    def __init__(self, num_examples: int, device: torch.device) -> None:
        self.count = torch.zeros(num_examples, dtype=torch.long, device=device)  # [B] how many have finished
        self._ids: list[list[int]] = []
        self._cut: list[bool] = []
        self._columns: list[tuple[Tensor, ...]] = []  # example, score without final terms, log-probability, attention

    def add(
        self,
        tokens: Tensor,
        history: History,
        chosen: Tensor,
        log_prob: Tensor,
        score: Tensor,
        closed: bool,
        guided: Guided | None = None,
    ) -> None:
        """Take in hypotheses ``tokens`` [B', R, T] of ``history.examples`` where ``chosen`` [B', R].

        ``closed`` puts an EOS behind them. Those that end inside a name, as ``guided`` says, are cut where it begins;
        they come after all others, and do not count.
        """
        at = chosen.nonzero(as_tuple=True)
        length = tokens.shape[-1]
        ends = guided.complete[at].tolist() if guided else [length] * len(at[0])
        for ids, end in zip(tokens[at][:, 1:].tolist(), ends, strict=True):
            self._ids.append([*ids[: end - 1], EOS] if closed or end < length else ids)
            self._cut.append(end < length)
        sums = [part[at] for part in (history.total, history.overlap, history.by_token) if part is not None]
        self._columns.append((history.examples[at[0]], score[at], log_prob[at], *sums))
        self.count[history.examples] += (chosen & guided.whole if guided else chosen).sum(-1)

    def best(self, n_best: int, terms: Sequence[Term] = ()) -> list[list[Hypothesis]]:
        """The ``n_best`` of each example by score and the final ones of ``terms``, best first."""
        found: list[list[tuple[bool, Hypothesis]]] = [[] for _ in range(len(self.count))]
        if not self._columns:
            return [[] for _ in found]
        example, score, log_prob, *sums = (torch.cat(column) for column in zip(*self._columns, strict=True))
        total, overlap, *by_token = (part[:, None] for part in sums)  # [F, 1, ...], as of one beam each
        steps = torch.tensor([[len(ids)] for ids in self._ids], device=score.device)
        history = History(example, total, overlap, steps, *by_token)
        whole = sum((term(history)[:, 0] for term in terms if term.final), score)
        columns = zip(example.tolist(), self._cut, self._ids, whole.tolist(), log_prob.tolist(), strict=True)
        for number, cut, *column in columns:
            if column[1] > -torch.inf:  # else a term is no number: its predictor diverged
                found[number].append((cut, Hypothesis(*column)))
        ranked = (sorted(some, key=lambda one: (one[0], -one[1].score)) for some in found)
        return [[hypothesis for _, hypothesis in some[:n_best]] for some in ranked]


def beam_search(
    model: StepModel, memory: Any, settings: DecodeConfig, terms: Sequence[Term] = (), **options: Any
) -> list[list[Hypothesis]]:
    """The ``settings.n_best`` hypotheses of each example, best first: :func:`search`, ranked by its final terms."""
    return search(model, memory, settings, terms, **options).best(settings.n_best, terms)


@torch.inference_mode()
def search(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    terms: Sequence[Term] = (),
    *,
    exempt: Sequence[int] = (),
    left: Left | None = None,
    prompt: Tensor | None = None,
    guide: Guide | None = None,
) -> Finished:
    """All hypotheses that finish, scored by log-probability and those of ``terms`` that are not final.

    ``memory`` is what ``model.start`` takes, with ``paragraph_mask`` [B, M]. ``exempt`` are ids that
    ``no_repeat_last`` lets repeat (commas). An example of which ``left`` says so ends as if at the maximum length.
    Hypotheses begin with ``prompt`` [B, P], up to its padding; it counts in their length, and as certain. They say only
    what ``guide`` lets them say.

    At each step, hypotheses whose EOS is among the R best candidates finish, and the R best others go on; an example
    stops with R finished ones, and at the maximum length every live one counts as finished. A hypothesis that has
    nothing left but blocked candidates finishes too, even below the minimum length.
    """
    num_examples, paragraphs = memory.paragraph_mask.shape
    beams, device = settings.num_beams, memory.paragraph_mask.device
    watch: Asked = "tokens" if any(term.by_token for term in terms) else bool(terms)
    steering = [term for term in terms if not term.final]
    commas = torch.tensor(exempt, dtype=torch.long, device=device)
    state, done = model.start(memory, beams), Finished(num_examples, device)
    # The live hypotheses: tokens [B, R, T] from BOS on, and log_prob [B, R], which is -inf where a beam is empty.
    tokens = torch.full((num_examples, beams, 1), BOS, device=device)
    log_prob = torch.full((num_examples, beams), -torch.inf, device=device)
    log_prob[:, 0] = 0.0
    history = History(
        examples=torch.arange(num_examples, device=device),
        total=torch.zeros(num_examples, beams, paragraphs, device=device),
        overlap=torch.zeros(num_examples, beams, device=device),
    )
    guided = Guided(guide, beams) if guide else None
    for length in range(1, settings.max_length + 1):
        logits, weights = model.step(tokens[..., -1].flatten(), state, attention=watch)
        if weights is not None:
            history.add(weights.view(*log_prob.shape, *weights.shape[1:]))
        log_probs, eos, stuck = _candidates(logits, tokens, log_prob, settings, commas, guided)
        if prompt is not None and length <= prompt.shape[1]:
            _force(log_probs, eos, log_prob, prompt[history.examples, length - 1])
            stuck = log_probs.amax(-1) == -torch.inf
        norm = length_norm(settings, length)
        bonus = sum((term(history) for term in steering), torch.zeros_like(log_prob))
        parent, token, log_prob = _best(log_probs, norm * bonus)
        score, eos_score = log_prob / norm + bonus.gather(1, parent), eos / norm + bonus

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
        going = (done.count[history.examples] < beams) & alive.any(-1)
        if left and any(gone := [left(example) for example in history.examples.tolist()]):
            ended = torch.tensor(gone, device=device)
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


def _candidates(
    logits: Tensor,
    tokens: Tensor,
    log_prob: Tensor,
    settings: DecodeConfig,
    commas: Tensor,
    guided: Guided | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the hypotheses extended by each token, [B, R, V], and by EOS, [B, R]; -inf where blocked.

    EOS is -inf among the former, and in the latter up to the minimum length and inside a name that ``guided`` follows,
    unless nothing else is left. What continues such a name is no repetition.
    """
    log_probs = logits.float().log_softmax(-1).view(*log_prob.shape, -1)
    log_probs += log_prob[..., None]
    eos = log_probs[..., EOS].clone()
    log_probs[..., EOS] = -torch.inf
    names = guided.mask(log_probs) if guided else None
    separator = None if settings.block_across_sentences else SENTENCE_END
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


def _force(log_probs: Tensor, eos: Tensor, log_prob: Tensor, token: Tensor) -> None:
    """Only ``token`` [B] can follow, at no cost, except where it is padding."""
    given = token != PAD
    log_probs[given], eos[given] = -torch.inf, -torch.inf
    log_probs[given, :, token[given]] = log_prob[given]


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
