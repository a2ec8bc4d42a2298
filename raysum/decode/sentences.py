"""Sentence scores of a trained extractive run or ranker. Needs neither Ray nor DeepSpeed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from raysum import systems
from raysum.config.sections import LoadConfig
from raysum.data.recipe import read_recipe
from raysum.data.rows import Row
from raysum.models.batch import move
from raysum.models.kernels.linear import optimize_for_inference
from raysum.prepare.learned import LearnedRanker
from raysum.prepare.row_builder import sentence_row
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.runtime.placement import device as find_device
from raysum.tokenizers.loading import load_tokenizer

_ALL = 10**6  # sentences: more than any cluster has


class SentenceScorer:
    """The extractive model of a run, and the preparation of raw clusters for it.

    Raises UserError if the run is not extractive or lacks the checkpoint.
    """

    def __init__(self, run: Run, config: LoadConfig, device: str | None = None):
        self.device, self.bf16 = find_device(device), config.dtype == "bf16"
        # Limits of training (its memory) do not apply: score every sentence of a cluster.
        self.source = run.config.source.model_copy(update={"max_paragraphs": _ALL, "max_tokens": None})
        self.vocabulary, self.recipe = load_tokenizer(run.vocabulary), read_recipe(run.recipe, str(run.path))
        self.model = optimize_for_inference(restore(run, config.checkpoint, self.device, "extracts"), config.dtype)
        self.kind: Any = systems.kind(run.config.model)

    def row(self, cluster: Mapping[str, Any]) -> Row:
        """Return a raw cluster as a row of kind extraction, without labels. Raises Rejected if it has no sentence."""
        return sentence_row(cluster, self.recipe, self.vocabulary)

    @torch.inference_mode()
    def scores(self, row: Row) -> np.ndarray:
        """Return the scores [M] of the sentences of a row; higher scores are selected first."""
        batch = self.kind.collate(self.kind.pack([row], self.source))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            return self.model.sentence_scores(move(batch, self.device)).float().cpu().numpy()


class RankerScorer(SentenceScorer):
    """A learned ranker as a sentence scorer. It was trained on paragraphs and reads each sentence as a short one."""

    def scores(self, row: Row) -> np.ndarray:
        """Return [M], 0 to 1: the relevance of each sentence for the title (HT paper, eq. 1-6)."""
        ranker = LearnedRanker(self.model, self.vocabulary, self.recipe.normalize, self.source.paragraph_tokens)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            return ranker.scores(row["title"], row["text"])
