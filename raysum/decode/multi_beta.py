"""Searches with several betas (weights of attention alignment) or groups of beams for the same examples.

The source is encoded once. At each step, searches of an example with equal beams share one step of the model; they
separate when their beams differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import IsCancelled, StepModel, StepState, search
from raysum.decode.grounding.constraint import Constraint
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.scores import terms
from raysum.models.batch import AttentionRequest
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens


def search_betas(
    model: StepModel,
    memory: Any,
    settings: DecodeConfig,
    betas: Sequence[float],
    predicted: Tensor | None = None,
    extracted: Tensor | None = None,
    *,
    marks: SpecialTokens = PUBLISHED,
    exempt: Sequence[int] = (),
    is_cancelled: IsCancelled | None = None,
    prompt: Tensor | None = None,
    constraint: Constraint | None = None,
    source: Tensor | None = None,
) -> list[list[list[Hypothesis]]]:
    """Return for each example and beta the ``settings.n_best`` hypotheses that ``beam_search`` finds with this beta.

    ``predicted`` [B, M] is the predicted attention, None if all betas are 0; ``extracted`` [B, M] are the extractive
    probabilities, None if ``settings`` do not use them. :func:`search` explains the other parameters.
    """
    groups, mask = settings.num_beam_groups, memory.paragraph_mask
    is_shared = len(betas) == 1 or settings.alignment_when == "final"  # one search finds what every beta ranks
    number = groups if is_shared else groups * len(betas)
    if number > 1:
        model = memory = Searches(model, memory, number)
        predicted, extracted, prompt, source = (
            None if part is None else part.repeat_interleave(number, 0)
            for part in (predicted, extracted, prompt, source)
        )
        constraint = None if constraint is None else constraint.repeat(number)
    each_cancelled = None if is_cancelled is None else lambda index: is_cancelled(index // number)
    each_beta = torch.tensor(betas, device=mask.device).repeat_interleave(groups).repeat(len(mask))
    steering = terms(settings, memory, predicted, extracted, max(betas) if is_shared else each_beta)
    options: dict[str, Any] = {"marks": marks, "exempt": exempt, "prompt": prompt, "constraint": constraint}
    options |= {"is_cancelled": each_cancelled, "source": source, "groups": groups}
    own_settings = settings.model_copy(update={"num_beams": settings.num_beams // groups})
    finished = search(model, memory, own_settings, steering, **options)
    if is_shared:
        by_beta = (terms(settings, memory, predicted, extracted, beta) for beta in betas)
        ranked = [finished.best(settings.n_best, chosen, groups) for chosen in by_beta]
        return [list(example) for example in zip(*ranked, strict=True)]
    best = finished.best(settings.n_best, steering, groups)
    return [best[start : start + len(betas)] for start in range(0, len(best), len(betas))]


@dataclass
class _State:
    """The model's state, with one row of beams for each group of equal searches; search n belongs to ``group[n]``."""

    shared: Any
    groups: int
    group: Tensor  # [N]
    parent: Tensor  # [N, R] the former beam of each beam, in its group

    def reorder(self, parent: Tensor) -> None:
        self.parent = parent

    def keep(self, examples: Tensor) -> None:
        self.group, self.parent = self.group[examples], self.parent[examples]


@dataclass(frozen=True)
class Searches:
    """``number`` searches of each example, in consecutive rows: their memory, and a StepModel over it."""

    model: StepModel
    memory: Any
    number: int

    @property
    def paragraph_mask(self) -> Tensor:
        return self.memory.paragraph_mask.repeat_interleave(self.number, 0)

    @property
    def token_mask(self) -> Tensor:
        return self.memory.token_mask.repeat_interleave(self.number, 0)

    def start(self, memory: Any, beams: int) -> StepState:
        mask = self.memory.paragraph_mask
        group = torch.arange(len(mask), device=mask.device).repeat_interleave(self.number)
        parent = torch.arange(beams, device=mask.device).expand(len(group), -1)
        return _State(self.model.start(self.memory, beams), len(mask), group, parent)

    def step(self, tokens: Tensor, state: _State, attention: AttentionRequest = False) -> tuple[Tensor, Tensor | None]:
        beams = state.parent.shape[1]
        tokens = tokens.view(-1, beams)
        keys = torch.cat((state.group[:, None], state.parent, tokens), 1)
        groups, group = torch.unique(keys, dim=0, return_inverse=True)
        former, parent, newest = groups[:, 0], groups[:, 1 : beams + 1], groups[:, beams + 1 :]
        if not torch.equal(former, torch.arange(state.groups, device=former.device)):
            state.shared.keep(former)
        state.shared.reorder(parent)
        state.groups, state.group = len(groups), group
        logits, weights = self.model.step(newest.flatten(), state.shared, attention=attention)
        rows = (group[:, None] * beams + torch.arange(beams, device=group.device)).flatten()  # [N * R] among [G * R]
        return logits.index_select(0, rows), None if weights is None else weights.index_select(0, rows)
