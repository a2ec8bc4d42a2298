"""The matrices of tokens in a published file: one that all share, or one for source, target or output each."""

import numpy as np

from raysum.importing.mapping import Arrays

SHARED = "shared.weight"
SOURCE, TARGET = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
HEAD = "lm_head.weight"


def untied(arrays: Arrays, needs_head: bool) -> Arrays:
    """Return ``arrays`` with each different matrix of tokens once: ``SHARED``, or ``SOURCE`` and ``TARGET`` where these
    differ, and ``HEAD`` where it differs from the target's.

    The tensors decide what is tied, because versions of transformers read ``tie_word_embeddings`` differently; a file
    has a tied matrix under one of its names or under several. Raises KeyError if it has none, or lacks ``HEAD`` where
    the output layer ``needs_head``.
    """
    found = dict(arrays)
    named = [found.pop(name, None) for name in (SHARED, SOURCE, TARGET, HEAD)]
    shared = next((one for one in named if one is not None), None)
    if shared is None or (needs_head and named[-1] is None):
        raise KeyError(SHARED if shared is None else HEAD)
    source, target, head = (shared if one is None else one for one in named[1:])
    found |= {SHARED: target} if _same(source, target) else {SOURCE: source, TARGET: target}
    return found if _same(head, target) else found | {HEAD: head}


def rows(arrays: Arrays) -> int:
    """Return the vocabulary size."""
    return len(arrays[SHARED] if SHARED in arrays else arrays[TARGET])


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one is other or np.array_equal(one, other)
