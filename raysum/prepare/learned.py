"""Order the paragraphs of a cluster by a trained ranker (HT, section 3.1).

`prepare` and runs trained on its datasets store the ranker as one file beside the vocabulary, and its hash in the
recipe. M paragraphs of a cluster.
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
from raysum.models.systems.paragraph_scorers import Titles
from raysum.prepare.row_builder import encode_heads
from raysum.runs.folder import Run
from raysum.runs.restore import fill, restore_ranker
from raysum.runtime.checksums import damaged
from raysum.runtime.placement import device
from raysum.runtime.storage import open_tensors
from raysum.systems import build, spec_class
from raysum.text.cleaning import Normalization
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.tokenizer import Tokenizer

_BATCH_PARAGRAPHS = 512  # bounds the memory
_METADATA = "ranker"  # the only key of the file's metadata, because the order of several keys varies
_DIGITS = 6  # of a score: smaller differences, which depend on the number of threads, do not change the order


class LearnedRanker:
    """A ranker's ``model`` in evaluation mode, which reads at most ``tokens`` of each paragraph."""

    def __init__(self, model: Any, vocabulary: Tokenizer, how: Normalization, tokens: int):
        self.model, self.vocabulary, self.how, self.tokens = model, vocabulary, how, tokens

    @classmethod
    def beside(cls, vocabulary: Path, recipe: Recipe, where: torch.device | None = None) -> "LearnedRanker | None":
        """Return the ranker beside the file ``vocabulary`` of a dataset or run; None if its recipe has none.

        Raises UserError if the ranker's file is missing or has another hash than in the recipe.
        """
        from safetensors.torch import load

        if recipe.ranker_sha256 is None:
            return None
        file = vocabulary.with_name(RANKER)
        content = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(content).hexdigest() != recipe.ranker_sha256:
            raise damaged(file, "is not the ranker that ordered the paragraphs" if content else "is missing")
        with open_tensors(file) as tensors:
            settings = json.loads(tensors.metadata()[_METADATA])
        model = fill(build(spec_class(settings["model"]["system"])(**settings["model"])), load(content), file)
        return cls(model.to(where or device()).eval(), load_tokenizer(vocabulary), recipe.normalize, settings["tokens"])

    @torch.inference_mode()
    def scores(self, title: str, paragraphs: Sequence[str]) -> np.ndarray:
        """[M] the share (0 to 1) of a summary that each paragraph is expected to contain."""
        mark = [*self.vocabulary.marks.title_end]
        title_ids = [*self._encode([title])[0][: self.tokens // 2], *mark]
        encoded = [ids or mark for ids in self._encode(paragraphs)]
        starts = range(0, len(encoded), _BATCH_PARAGRAPHS)
        parts = [self._scores(title_ids, encoded[start : start + _BATCH_PARAGRAPHS]) for start in starts]
        return torch.cat(parts).double().cpu().numpy().round(_DIGITS)

    def _scores(self, title: list[int], paragraphs: list[list[int]]) -> torch.Tensor:
        def tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=next(self.model.parameters()).device)

        ids, lengths = [*chain.from_iterable(paragraphs)], [*map(len, paragraphs)]
        source = Source(tensor(ids), tensor(lengths), tensor([len(lengths)]))
        return self.model(Titles(tensor(title), tensor([len(title)])), source).float().sigmoid()

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids[: self.tokens] for ids in encode_heads(texts, self.tokens, self.vocabulary, self.how)]


def keep_ranker(run: Run, vocabulary: Tokenizer, folder: Path) -> str:
    """Store the best ranker of ``run`` in ``folder`` and return the hash of its file.

    Raises UserError if the run is not a ranker's, or has another vocabulary.
    """
    from safetensors.torch import save

    model = restore_ranker(str(run.path), vocabulary.sha256, torch.device("cpu"))
    settings = {"model": run.config.model.model_dump(), "tokens": run.config.source.paragraph_tokens}
    content = save(model.state_dict(), {_METADATA: json.dumps(settings, sort_keys=True)})
    (folder / RANKER).write_bytes(content)
    return hashlib.sha256(content).hexdigest()
