"""Models that score paragraphs: the ranker (HT, section 3.1) and the attention predictor (PHT paper, section 4.2).

T title tokens in all, S source tokens in all, P paragraphs, B examples, E width of embeddings and of hidden states.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysum.models.batch import Rows, Source, scatter_padded
from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import Objective, TransformerBlock, xavier_linear
from raysum.models.systems.specs import PredictorSpec, RankerSpec


@dataclass(frozen=True)
class Titles:
    """Titles without padding: ``ids`` [T], ``lengths`` [B], all >= 1."""

    ids: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class RankingBatch:
    """A batch with ``recall`` [P]: the ROUGE-2 recall of each paragraph against the summary, in [0, 1]."""

    titles: Titles
    source: Source
    recall: Tensor


class Ranker(nn.Module):
    """HT eq. 1-6. Both linear layers have a bias, which the equations omit."""

    def __init__(self, spec: RankerSpec):
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.title = nn.LSTM(spec.width, spec.hidden, batch_first=True)
        self.paragraph = nn.LSTM(spec.width, spec.hidden, batch_first=True)
        self.match = xavier_linear(2 * spec.hidden, spec.hidden)
        self.score = xavier_linear(spec.hidden, 1)
        self.dropout = Dropout(spec.dropout)

    def forward(self, titles: Titles, source: Source) -> Tensor:
        """Return logits [P]; their sigmoids are the scores s of eq. 6."""
        title_source = Source(titles.ids, titles.lengths, torch.ones_like(titles.lengths))
        title = self._pooled(self._states(self.title, title_source), title_source)  # eq. 1, 3
        states = self._states(self.paragraph, source)  # eq. 2
        token_title = title[source.layout.token_example]
        features = self.match(self.dropout(torch.cat([states, token_title], -1))).tanh()  # eq. 4
        vectors = self._pooled(features, source)  # eq. 5
        return self.score(self.dropout(vectors)).squeeze(-1)

    def _states(self, lstm: nn.LSTM, source: Source) -> Tensor:
        """Return hidden states [S, E] of paragraphs, one after the other.

        Padding follows a paragraph and changes nothing before it. A packed sequence would have another autograd
        graph if all lengths are equal, but ranks must agree (see ``kernels.linear``); it also trains at half the
        speed.
        """
        index, (rows, longest) = source.layout.in_paragraphs, source.layout.token_mask.shape
        padded = scatter_padded(self.dropout(self.embedding(source.ids)), index, rows, longest)
        return lstm(padded)[0].flatten(0, 1).index_select(0, index)

    def _pooled(self, states: Tensor, source: Source) -> Tensor:
        """Return the maximum over each paragraph: [P, E] from [S, E]."""
        lowest = states.new_full((len(source.lengths), states.shape[1]), -torch.inf)
        row = source.layout.token_paragraph[:, None].expand_as(states)
        return lowest.scatter_reduce(0, row, states, "amax")


class ParagraphRanking(Objective):
    """Cross-entropy between predicted scores and ROUGE-2 recall of paragraphs (HT, section 3.1), without smoothing."""

    def forward(self, batch: RankingBatch) -> Tensor:
        """Return the sum over paragraphs, a scalar in fp32."""
        scores = self.model(batch.titles, batch.source).float()
        return functional.binary_cross_entropy_with_logits(scores, batch.recall, reduction="sum")


@dataclass(frozen=True)
class AlignmentBatch:
    """``embeddings`` [B, M, D] fp32; ``mask`` [B, M], true = a real paragraph; ``label`` [B, M], each row sums to 1."""

    embeddings: Tensor
    mask: Tensor
    label: Tensor


class AttentionPredictor(nn.Module):
    """Transformer layers over paragraph embeddings, one linear unit per paragraph, softmax over real paragraphs.

    As in the published code, layers are post-norm, and any number of paragraphs is possible.
    """

    def __init__(self, spec: PredictorSpec):
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.layers))
        self.score = xavier_linear(spec.width, 1)

    def forward(self, phi: Tensor, mask: Tensor) -> Tensor:
        """Return float32 [B, M], rows that sum to 1, from ``phi`` [B, M, D] and ``mask`` [B, M] of real paragraphs."""
        x, rows = phi.flatten(0, 1), Rows.padded(mask)
        for layer in self.layers:
            x = layer(x, rows)
        return masked_softmax(self.score(x).view(mask.shape), mask)


class AttentionPrediction(Objective):
    """Squared error of the predicted attention to real paragraphs (PHT paper, section 4.2.1), without smoothing."""

    def forward(self, batch: AlignmentBatch) -> Tensor:
        """Return the sum over real paragraphs, a scalar in fp32."""
        predicted = self.model(batch.embeddings.to(next(self.parameters()).dtype), batch.mask)
        return (predicted.float() - batch.label).square()[batch.mask].sum()
