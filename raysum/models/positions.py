"""Positions as waves."""

import math

import torch
from torch import Tensor

from raysum.models.batch import Layout


def sinusoids(positions: Tensor, width: int, form: str) -> Tensor:
    """[...] -> [..., width]: HT eq. 7-8; sines and cosines in turn ("interleaved") or one after the other."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * torch.exp(steps * (-math.log(10000.0) / width))
    waves = angles.sin(), angles.cos()
    return torch.stack(waves, -1).flatten(-2) if form == "interleaved" else torch.cat(waves, -1)


def position_codes(positions: Tensor, length: int, width: int, form: str) -> Tensor:
    """:func:`sinusoids` of many positions [S] below ``length``, each different one computed once."""
    return sinusoids(torch.arange(length, device=positions.device), width, form)[positions]


def positions_2d(layout: Layout, width: int, form: str) -> tuple[Tensor, Tensor]:
    """The codes of each token's place in its paragraph and of its paragraph's rank, [S, width / 2] each."""
    longest, most, ranks = layout.token_mask.shape[1], layout.paragraph_mask.shape[1], layout.rank
    token = position_codes(layout.token_position, longest, width // 2, form)
    return token, position_codes(ranks[layout.token_paragraph], most, width // 2, form)
