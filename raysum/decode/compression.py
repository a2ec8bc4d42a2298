"""Compression: only the paragraphs of highest predicted attention are decoded from (PHT paper, Table 6)."""

from collections.abc import Sequence

import numpy as np

from raysum.models.batch import EOS, TITLE_END


def strongest(predicted: np.ndarray, count: int) -> list[int]:
    """The ``count`` paragraphs of highest ``predicted`` [M] attention, in rank order."""
    return sorted(np.argsort(-predicted, kind="stable")[:count].tolist())


def restrict(paragraphs: Sequence[list[int]], kept: Sequence[int]) -> list[list[int]]:
    """The ids of the paragraphs ``kept``; the title before paragraph 0 moves to the first, an EOS to the last."""
    chosen = [paragraphs[index] for index in kept]
    if kept[0] != 0 and TITLE_END in paragraphs[0]:
        chosen[0] = paragraphs[0][: paragraphs[0].index(TITLE_END) + 1] + chosen[0]
    if paragraphs[-1][-1] == EOS:  # joined paragraphs: each of the others ends with <P>
        chosen[-1] = [*chosen[-1][:-1], EOS]
    return chosen
