"""Searches with several betas (weights of attention alignment) or groups of beams for the same examples.

The source is encoded once. At each step, searches of an example with equal beams share one step of the model; they
separate when their beams differ.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import SearchOptions, StepModel, Steps, repeat, search_steps
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.scores import terms
from raysum.models.batch import AttentionRequest


def beta_steps(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    betas: Sequence[float],
    predicted: Tensor | None = None,
    extracted: Tensor | None = None,
    **options: Any,
) -> Steps[list[list[list[Hypothesis]]]]:
    """Yield after each step; return for each example and beta the ``settings.n_best`` hypotheses that ``beam_search``
    finds with this beta.

    ``predicted`` [B, M] is the predicted attention, None if all betas are 0; ``extracted`` [B, M] are the extractive
    probabilities, None if ``settings`` do not use them; ``options`` are :class:`SearchOptions`.
    """
    groups, device = settings.num_beam_groups, memory.paragraph_mask.device
    is_shared = len(betas) == 1 or settings.alignment_when == "final"  # one search finds what every beta ranks
    number = groups if is_shared else groups * len(betas)
    each_beta = torch.tensor(betas, device=device).repeat_interleave(groups).repeat(len(memory.paragraph_mask))
    chosen = SearchOptions(**options, groups=groups)
    if number > 1:
        model = memory = Searches(model, memory, number)
        chosen, predicted, extracted = chosen.repeat(number), repeat(predicted, number), repeat(extracted, number)
    steering = terms(settings, memory, predicted, extracted, max(betas) if is_shared else each_beta)
    own_settings = settings.model_copy(update={"num_beams": settings.num_beams // groups})
    finished = yield from search_steps(model, memory, own_settings, steering, chosen)
    if is_shared:
        by_beta = (terms(settings, memory, predicted, extracted, beta) for beta in betas)
        ranked = [finished.best(settings.n_best, ranking, groups) for ranking in by_beta]
        return [list(example) for example in zip(*ranked, strict=True)]
    best = finished.best(settings.n_best, steering, groups)
    return [best[start : start + len(betas)] for start in range(0, len(best), len(betas))]


class Searches:
    """``number`` searches of each example, in consecutive rows: their memory, a StepModel over it, and its state.

    The state of ``model`` has one row of beams for each group of equal searches; search n belongs to ``group[n]``, and
    its beams continue the former beams ``parent[n]`` of that group.
    """

    def __init__(self, model: StepModel, memory: Any, number: int):
        mask, self._model, self._memory, self._number = memory.paragraph_mask, model, memory, number
        self.paragraph_mask = mask.repeat_interleave(number, 0)
        self._groups, self._group = len(mask), torch.arange(len(mask), device=mask.device).repeat_interleave(number)

    @property
    def token_mask(self) -> Tensor:
        return self._memory.token_mask.repeat_interleave(self._number, 0)

    def start(self, memory: Any, beams: int) -> "Searches":
        self._shared = self._model.start(self._memory, beams)
        self._parent = torch.arange(beams, device=self._group.device).expand(len(self._group), -1)
        return self

    def reorder(self, parent: Tensor) -> None:
        self._parent = parent

    def keep(self, examples: Tensor) -> None:
        self._group, self._parent = self._group[examples], self._parent[examples]

    def step(self, tokens: Tensor, state: Any, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]:
        beams = self._parent.shape[1]
        keys = torch.cat((self._group[:, None], self._parent, tokens.view(-1, beams)), 1)
        groups, self._group = torch.unique(keys, dim=0, return_inverse=True)
        former, parent, newest = groups[:, 0], groups[:, 1 : beams + 1], groups[:, beams + 1 :]
        if not torch.equal(former, torch.arange(self._groups, device=former.device)):
            self._shared.keep(former)
        self._shared.reorder(parent)
        self._groups = len(groups)
        logits, weights = self._model.step(newest.flatten(), self._shared, attention=attention)
        index = torch.arange(beams, device=former.device)
        rows = (self._group[:, None] * beams + index).flatten()  # [N * R] among [G * R]
        return logits.index_select(0, rows), None if weights is None else weights.index_select(0, rows)
