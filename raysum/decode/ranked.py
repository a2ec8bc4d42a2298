"""A trained ranker as what gives each sentence a score: how much of a summary it holds, for the title (HT, eq. 1-6)."""

from itertools import chain

import numpy as np
import torch

from raysum.data.clean import normalize
from raysum.data.rows import Row
from raysum.decode.sentences import SentenceScorer
from raysum.models.batch import Source
from raysum.models.special_ids import TITLE_END
from raysum.models.systems.ranker import Titles
from raysum.prepare.sentences import head

_AT_ONCE = 512  # sentences, to bound the memory


class RankerScorer(SentenceScorer):
    """It was trained on paragraphs and reads sentences one by one, as short ones."""

    @torch.inference_mode()
    def scores(self, row: Row) -> np.ndarray:
        """[M], between 0 and 1."""
        title = [*self._encode([row["title"]])[0][: self.source.paragraph_tokens // 2], TITLE_END]
        known = [ids or [TITLE_END] for ids in self._encode(row["text"])]
        return np.concatenate([self._scores(title, known[at : at + _AT_ONCE]) for at in range(0, len(known), _AT_ONCE)])

    def _scores(self, title: list[int], sentences: list[list[int]]) -> np.ndarray:
        def whole(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=self.device)

        source = Source(
            whole([*chain.from_iterable(sentences)]), whole([*map(len, sentences)]), whole([len(sentences)])
        )
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            found = self.model(Titles(whole(title), whole([len(title)])), source)
        return found.float().sigmoid().cpu().numpy()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        most = self.source.paragraph_tokens
        heads = [normalize(head(text, most), self.recipe.normalize) for text in texts]
        return [ids[:most] for ids in self.vocabulary.encode_all(heads)]
