"""A trained ranker as what orders the paragraphs of a cluster (HT, section 3.1): in `prepare`, in runs trained on what
that made, and by itself. The file beside a vocabulary holds all of it; the recipe tells its hash.

M paragraphs of a cluster.
"""

import hashlib
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysum.data.recipe import RANKER, Recipe
from raysum.models.batch import Source
from raysum.models.systems.ranker import Titles
from raysum.prepare.row_builder import readable_head
from raysum.runs.folder import Run
from raysum.runs.restore import fill, restore_ranker
from raysum.runtime.checksums import damaged
from raysum.runtime.placement import device
from raysum.runtime.storage import open_tensors
from raysum.systems import build, spec_class
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.tokenizer import Tokenizer

_AT_ONCE = 512  # paragraphs, to bound the memory
_TOLD = "ranker"  # what the file tells besides weights: one key, as the order of several is not always the same
_DIGITS = 6  # of a score: what differs less is in the documents' order, on any number of threads


class LearnedRanker:
    """A ranker's ``model`` in evaluation mode, and how texts reach it: ``tokens`` of a paragraph are read, at most."""

    def __init__(self, model: Any, vocabulary: Tokenizer, how: Normalization, tokens: int):
        self.model, self.vocabulary, self.how, self.tokens = model, vocabulary, how, tokens

    @classmethod
    def beside(cls, vocabulary: Path, recipe: Recipe, where: torch.device | None = None) -> "LearnedRanker | None":
        """That of the dataset or run with that file of the ``vocabulary``; None where its recipe has none.

        Raises UserError where the ranker's file is missing or not the one that the recipe tells of.
        """
        from safetensors.torch import load

        if recipe.ranker_sha256 is None:
            return None
        file = vocabulary.with_name(RANKER)
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != recipe.ranker_sha256:
            raise damaged(file, "is not the ranker that paragraphs were put in order with" if content else "is missing")
        with open_tensors(file) as opened:
            told = json.loads(opened.metadata()[_TOLD])
        model = fill(build(spec_class(told["model"]["system"])(**told["model"])), load(content), file)
        return cls(model.to(where or device()).eval(), Tokenizer.load(vocabulary), recipe.normalize, told["tokens"])

    @torch.inference_mode()
    def scores(self, title: str, paragraphs: Sequence[str]) -> np.ndarray:
        """[M] how much of a summary each paragraph holds, for the title: 0 to 1, higher = better."""
        mark = [*self.vocabulary.marks.title_end]
        named = [*self._encode([title])[0][: self.tokens // 2], *mark]
        known = [ids or mark for ids in self._encode(paragraphs)]
        parts = [self._scores(named, known[at : at + _AT_ONCE]) for at in range(0, len(known), _AT_ONCE)]
        return torch.cat(parts).double().cpu().numpy().round(_DIGITS)

    def _scores(self, title: list[int], paragraphs: list[list[int]]) -> torch.Tensor:
        def whole(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=next(self.model.parameters()).device)

        ids, lengths = [*chain.from_iterable(paragraphs)], [*map(len, paragraphs)]
        source = Source(whole(ids), whole(lengths), whole([len(lengths)]))
        return self.model(Titles(whole(title), whole([len(title)])), source).float().sigmoid()

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        heads = [normalize(readable_head(text, self.tokens), self.how) for text in texts]
        return [ids[: self.tokens] for ids in self.vocabulary.encode_all(heads)]


def keep_ranker(run: Run, vocabulary: Tokenizer, folder: Path) -> str:
    """Put the best ranker of ``run`` into ``folder``; the hash of its file.

    Raises UserError where the run is no ranker's, or has another vocabulary.
    """
    from safetensors.torch import save

    model = restore_ranker(str(run.path), vocabulary.sha256, torch.device("cpu"))
    told = {"model": run.config.model.model_dump(), "tokens": run.config.source.paragraph_tokens}
    content = save(model.state_dict(), {_TOLD: json.dumps(told, sort_keys=True)})
    (folder / RANKER).write_bytes(content)
    return hashlib.sha256(content).hexdigest()
