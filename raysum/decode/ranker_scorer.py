"""A trained ranker as what gives each sentence a score: how much of a summary it holds, for the title (HT, eq. 1-6)."""

import numpy as np
import torch

from raysum.data.rows import Row
from raysum.decode.sentences import SentenceScorer
from raysum.prepare.learned import LearnedRanker


class RankerScorer(SentenceScorer):
    """It was trained on paragraphs and reads sentences one by one, as short ones."""

    def scores(self, row: Row) -> np.ndarray:
        """[M], between 0 and 1."""
        ranker = LearnedRanker(self.model, self.vocabulary, self.recipe.normalize, self.source.paragraph_tokens)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            return ranker.scores(row["title"], row["text"])
