"""The sentence scores of a trained extractive run. Needs neither Ray nor DeepSpeed."""

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
from raysum.prepare.row_builder import sentence_row
from raysum.runs.folder import Run
from raysum.runs.restore import restore_extractor
from raysum.runtime.placement import device as find_device
from raysum.tokenizers.loading import load_tokenizer

_ALL = 10**6  # sentences


class SentenceScorer:
    """The model of a run that extracts, and how raw clusters reach it.

    Raises UserError where the run does not extract, or has no such checkpoint.
    """

    def __init__(self, run: Run, config: LoadConfig, device: str | None = None):
        self.device, self.bf16 = find_device(device), config.dtype == "bf16"
        # All of a cluster can be taken, however little of it training could hold in memory.
        self.source = run.config.source.model_copy(update={"max_paragraphs": _ALL, "max_tokens": None})
        self.vocabulary, self.recipe = load_tokenizer(run.vocabulary), read_recipe(run.recipe, str(run.path))
        self.model = optimize_for_inference(restore_extractor(run, config.checkpoint, self.device), config.dtype)
        self.kind: Any = systems.kind(run.config.model)

    def row(self, cluster: Mapping[str, Any]) -> Row:
        """A raw cluster as a row of kind extraction, without labels. Raises Rejected where it has no sentence."""
        return sentence_row(cluster, self.recipe, self.vocabulary)

    @torch.inference_mode()
    def scores(self, row: Row) -> np.ndarray:
        """[M] of the sentences of a row, higher = rather to be taken."""
        batch = self.kind.collate(self.kind.pack([row], self.source))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            return self.model.sentence_scores(move(batch, self.device)).float().cpu().numpy()
