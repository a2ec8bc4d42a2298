"""Compression: only the paragraphs of highest predicted attention are decoded from (PHT paper, Table 6)."""

from collections.abc import Sequence

import numpy as np

from raysum.models.batch import TITLE_END


def strongest(predicted: np.ndarray, count: int) -> list[int]:
    """The ``count`` paragraphs of highest ``predicted`` [M] attention, in rank order."""
    return sorted(np.argsort(-predicted, kind="stable")[:count].tolist())


def restrict(paragraphs: Sequence[np.ndarray], kept: Sequence[int]) -> list[np.ndarray]:
    """The ids of the paragraphs ``kept``; the title before paragraph 0 moves to the first of them."""
    chosen = [paragraphs[index] for index in kept]
    if kept[0] != 0:
        title = paragraphs[0][: 1 + int(np.argmax(paragraphs[0] == TITLE_END))]
        if title[-1] == TITLE_END:
            chosen[0] = np.concatenate((title, chosen[0]))
    return chosen
