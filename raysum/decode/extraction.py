"""Extractive probabilities: how likely a learned ranker finds each paragraph in the summary (PHT paper, extProb)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raysum.decode.scores import shares
from raysum.models.batch import EOS, PARAGRAPH_END, Source, scatter_padded
from raysum.models.systems.ranker import Ranker, Titles
from raysum.stream.cut import split_title


def probabilities(ranker: Ranker, examples: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Tensor:
    """[B, M] s / sum s over the paragraphs of each example, with the scores s of HT eq. 6; 0 at padding.

    ``examples``: the ids of each paragraph that the model reads, the title first.
    """
    titles, paragraphs = zip(*(split_title([_plain(ids) for ids in example]) for example in examples), strict=True)
    source = Source.pack(paragraphs).to(device)
    lengths = torch.tensor([len(title) for title in titles], device=device)
    with torch.autocast(device.type, enabled=False):  # torch has no LSTM in bf16 on every CPU
        logits = ranker(Titles(torch.from_numpy(np.concatenate(titles)).to(device), lengths), source)
    layout = source.layout
    return shares(scatter_padded(logits.float().sigmoid(), layout.in_examples, *layout.paragraph_mask.shape))


def _plain(ids: Sequence[int]) -> np.ndarray:
    """Without the marks that join paragraphs for models which read one sequence; a mark alone stays."""
    array = np.array(ids, np.int64)
    return array[:-1] if len(array) > 1 and array[-1] in (PARAGRAPH_END, EOS) else array
