"""Batched beam search over a step function: no model inside, no loop over beams or vocabulary.

B examples still decoded, R beams, V vocabulary, M paragraphs. What a model must offer is `StepModel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from raysum.config.sections import DecodeConfig
from raysum.decode.blocking import block_ngrams, block_recent
from raysum.decode.hypotheses import Finished, Hypothesis
from raysum.decode.scores import History, Term, length_norm, watched
from raysum.models.batch import Asked
from raysum.models.special_ids import BOS, EOS, SENTENCE_END

CHUNK = 128  # candidates under one maximum; 64 measured alike


class StepState(Protocol):
    """The model's memory of the hypotheses: ``reorder`` lets each go on from beam ``parent`` [B, R] of its example."""

    def reorder(self, parent: Tensor) -> None: ...

    def keep(self, examples: Tensor) -> None: ...


class StepModel(Protocol):
    """What continues hypotheses; ``step`` gives logits [B * R, V] and attention [B * R, M], [B * R, M, N] or None."""

    def start(self, memory: Any, beams: int) -> StepState: ...

    def step(self, tokens: Tensor, state: Any, attention: Asked = False) -> tuple[Tensor, Tensor | None]: ...


def beam_search(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    terms: Sequence[Term] = (),
    *,
    exempt: Sequence[int] = (),
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """The ``settings.n_best`` hypotheses of each example, best first; ``attention``: with theirs even if no term asks.

    See :func:`search`; final terms rank what it found.
    """
    steering, ranking = [term for term in terms if not term.final], [term for term in terms if term.final]
    watch = watched(terms, attention)
    return search(model, memory, settings, steering, exempt=exempt, attention=watch).best(settings.n_best, ranking)


@torch.inference_mode()
def search(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    steering: Sequence[Term] = (),
    *,
    exempt: Sequence[int] = (),
    attention: Asked = False,
) -> Finished:
    """All hypotheses that finish, scored by log-probability and the terms ``steering``.

    ``memory`` is what ``model.start`` takes, with ``paragraph_mask`` [B, M]. ``exempt`` are ids that
    ``no_repeat_last`` lets repeat (commas). ``attention``: watch it even if no term does.

    At each step, hypotheses whose EOS is among the R best candidates finish, and the R best others go on; an example
    stops with R finished ones, and at the maximum length every live one counts as finished. A hypothesis that has
    nothing left but blocked candidates finishes too, even below the minimum length.
    """
    num_examples, paragraphs = memory.paragraph_mask.shape
    beams, device = settings.num_beams, memory.paragraph_mask.device
    state = model.start(memory, beams)
    live = _Live.start(num_examples, beams, paragraphs, device)
    watch = watched(steering, attention)
    done = Finished.start(num_examples, beams, paragraphs, settings.max_length, device, bool(watch))
    commas = torch.tensor(exempt, dtype=torch.long, device=device)
    for length in range(1, settings.max_length + 1):
        logits, weights = model.step(live.tokens[..., -1].flatten(), state, attention=watch)
        if weights is not None:
            live.history.add(weights.view(*live.log_prob.shape, *weights.shape[1:]))
        log_probs, eos = _candidates(logits, live, settings, commas, closable=length > settings.min_length)
        norm, bonus = length_norm(settings, length), live.bonus(steering)
        parent, token, log_prob = _best(log_probs, norm * bonus)
        score, eos_score = log_prob / norm + bonus.gather(1, parent), eos / norm + bonus

        better = torch.cat((eos_score, score), 1)[:, None] > eos_score[..., None]
        stuck = log_probs.amax(-1) == -torch.inf
        ends = (eos > -torch.inf) & (stuck | (better.sum(-1) < beams))
        if ends.any():
            done.add(live.tokens, live.history, ends, eos, eos_score, closed=True)
        live.extend(parent, token, log_prob)
        alive = log_prob > -torch.inf
        if length == settings.max_length:
            done.add(live.tokens, live.history, alive, log_prob, score, closed=False)
            break
        state.reorder(parent)
        going = (done.count[live.examples] < beams) & alive.any(-1)
        if not going.all():
            index = going.nonzero().squeeze(1)
            if not len(index):
                break
            state.keep(index)
            live.keep(index)
    return done


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
