"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs. What a model must offer is `StepModel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from raysum.config import DecodeConfig
from raysum.decode.blocking import block_ngrams, block_recent
from raysum.decode.scores import History, Term, length_norm, shares
from raysum.models.batch import BOS, EOS, PAD, SENTENCE_END

CHUNK = 128  # candidates under one maximum; 64 measured alike


class StepState(Protocol):
    """The model's memory of the hypotheses: ``reorder`` lets each go on from beam ``parent`` [B, R] of its example."""

    def reorder(self, parent: Tensor) -> None: ...

    def keep(self, examples: Tensor) -> None: ...


class StepModel(Protocol):
    """What continues hypotheses; ``step`` gives logits [B * R, V] and paragraph attention [B * R, M] or None."""

    def start(self, memory: Any, beams: int) -> StepState: ...

    def step(self, tokens: Tensor, state: Any, attention: bool = False) -> tuple[Tensor, Tensor | None]: ...


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


@torch.inference_mode()
def beam_search(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    terms: Sequence[Term] = (),
    *,
    exempt: Sequence[int] = (),
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """The ``settings.n_best`` hypotheses of each example, best first.

    ``memory`` is what ``model.start`` takes, with ``paragraph_mask`` [B, M]. ``exempt`` are ids that
    ``no_repeat_last`` lets repeat (commas). ``attention``: fill it in even if no term reads it.

    At each step, hypotheses whose EOS is among the R best candidates finish, and the R best others go on; an example
    stops with R finished ones, and at the maximum length every live one counts as finished. A hypothesis that has
    nothing left but blocked candidates finishes too, even below the minimum length.
    """
    num_examples, paragraphs = memory.paragraph_mask.shape
    beams, device = settings.num_beams, memory.paragraph_mask.device
    state = model.start(memory, beams)
    live = _Live.start(num_examples, beams, paragraphs, device)
    done = _Finished.start(num_examples, beams, paragraphs, settings.max_length, device)
    commas = torch.tensor(exempt, dtype=torch.long, device=device)
    steering, ranking = [term for term in terms if not term.final], [term for term in terms if term.final]
    watch = attention or bool(terms)
    for length in range(1, settings.max_length + 1):
        logits, weights = model.step(live.tokens[..., -1].flatten(), state, attention=watch)
        if weights is not None:
            live.history.add(weights.view(*live.log_prob.shape, -1))
        log_probs, eos = _candidates(logits, live, settings, commas, closable=length > settings.min_length)
        norm, bonus = length_norm(settings, length), live.bonus(steering)
        parent, token, log_prob = _best(log_probs, norm * bonus)
        score, eos_score = log_prob / norm + bonus.gather(1, parent), eos / norm + bonus

        better = torch.cat((eos_score, score), 1)[:, None] > eos_score[..., None]
        stuck = log_probs.amax(-1) == -torch.inf
        ends = (eos > -torch.inf) & (stuck | (better.sum(-1) < beams))
        if ends.any():
            done.add(live, ends, eos, eos_score + live.bonus(ranking), closed=True)
        live.extend(parent, token, log_prob)
        alive = log_prob > -torch.inf
        if length == settings.max_length:
            done.add(live, alive, log_prob, score + live.bonus(ranking), closed=False)
            break
        state.reorder(parent)
        going = (done.count[live.examples] < beams) & alive.any(-1)
        if not going.all():
            index = going.nonzero().squeeze(1)
            if not len(index):
                break
            state.keep(index)
            live.keep(index)
    return done.hypotheses(settings.n_best, watch)


def _candidates(
    logits: Tensor, live: "_Live", settings: DecodeConfig, commas: Tensor, closable: bool
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the hypotheses extended by each token, [B, R, V], and by EOS, [B, R]; -inf where blocked.

    EOS is -inf among the former, and in the latter unless ``closable`` or nothing else is left.
    """
    log_probs = logits.float().log_softmax(-1).view(*live.log_prob.shape, -1)
    log_probs += live.log_prob[..., None]
    eos = log_probs[..., EOS].clone()
    log_probs[..., EOS] = -torch.inf
    separator = None if settings.block_across_sentences else SENTENCE_END
    block_ngrams(log_probs, live.tokens, settings.no_repeat_ngram_size, separator)
    block_recent(log_probs, live.tokens, settings.no_repeat_last, commas)
    if not closable:
        eos = eos.masked_fill(log_probs.amax(-1) > -torch.inf, -torch.inf)
    return log_probs, eos


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


@dataclass
class _Live:
    """The hypotheses that go on: ``tokens`` [B, R, T] from BOS on, ``log_prob`` [B, R], -inf where a beam is empty."""

    tokens: Tensor
    log_prob: Tensor
    history: History

    @classmethod
    def start(cls, num_examples: int, beams: int, paragraphs: int, device: torch.device) -> "_Live":
        log_prob = torch.full((num_examples, beams), -torch.inf, device=device)
        log_prob[:, 0] = 0.0
        tokens = torch.full((num_examples, beams, 1), BOS, device=device)
        return cls(tokens, log_prob, History.start(num_examples, beams, paragraphs, device))

    @property
    def examples(self) -> Tensor:
        return self.history.examples

    def bonus(self, terms: Sequence[Term]) -> Tensor:
        """The sum of ``terms``, [B, R]."""
        return sum((term(self.history) for term in terms), torch.zeros_like(self.log_prob))

    def extend(self, parent: Tensor, token: Tensor, log_prob: Tensor) -> None:
        kept = self.tokens.gather(1, parent[..., None].expand_as(self.tokens))
        self.tokens = torch.cat((kept, token[..., None]), -1)
        self.log_prob = log_prob
        self.history.reorder(parent)

    def keep(self, index: Tensor) -> None:
        self.tokens, self.log_prob = self.tokens[index], self.log_prob[index]
        self.history.keep(index)


@dataclass
class _Finished:
    """The R best finished hypotheses of every example; an unused place has the score -inf."""

    score: Tensor  # [B, R]
    log_prob: Tensor  # [B, R]
    tokens: Tensor  # [B, R, max_length], PAD behind the end
    length: Tensor  # [B, R]
    total: Tensor  # [B, R, M] attention summed over steps
    count: Tensor  # [B] of all that finished

    @classmethod
    def start(cls, num_examples: int, beams: int, paragraphs: int, longest: int, device: torch.device) -> "_Finished":
        empty = torch.full((num_examples, beams), -torch.inf, device=device)
        return cls(
            score=empty,
            log_prob=empty.clone(),
            tokens=torch.full((num_examples, beams, longest), PAD, device=device),
            length=torch.zeros_like(empty, dtype=torch.long),
            total=torch.zeros(num_examples, beams, paragraphs, device=device),
            count=torch.zeros(num_examples, dtype=torch.long, device=device),
        )

    def add(self, live: _Live, chosen: Tensor, log_prob: Tensor, score: Tensor, closed: bool) -> None:
        """Take in the hypotheses ``chosen`` [B, R] of ``live``; ``closed`` puts an EOS behind them."""
        rows = live.examples
        tokens = pad(live.tokens[..., 1:], (0, int(closed)), value=EOS)
        length = tokens.shape[-1]
        padded = pad(tokens, (0, self.tokens.shape[-1] - length), value=PAD)
        best, order = torch.cat((self.score[rows], score.masked_fill(~chosen, -torch.inf)), 1).topk(chosen.shape[1])
        self.score[rows] = best
        for mine, theirs in (
            (self.log_prob, log_prob),
            (self.tokens, padded),
            (self.length, torch.full_like(order, length)),
            (self.total, live.history.total),
        ):
            both = torch.cat((mine[rows], theirs), 1)
            mine[rows] = torch.take_along_dim(both, order[..., None] if both.dim() == 3 else order, 1)
        self.count[rows] += chosen.sum(-1)

    def hypotheses(self, n_best: int, attention: bool) -> list[list[Hypothesis]]:
        eta = shares(self.total).cpu().numpy()
        columns = zip(*(t.tolist() for t in (self.score, self.log_prob, self.tokens, self.length)), strict=True)
        return [
            [
                Hypothesis(tokens[i][: lengths[i]], scores[i], log_probs[i], eta[example, i] if attention else None)
                for i in range(min(n_best, len(scores)))
                if scores[i] > -float("inf")
            ]
            for example, (scores, log_probs, tokens, lengths) in enumerate(columns)
        ]
