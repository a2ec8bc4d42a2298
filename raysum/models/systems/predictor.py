"""The attention predictor (PHT paper, section 4.2): how much attention each paragraph will get in all."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysum.models.kernels.attention import masked_softmax
from raysum.models.layers import TransformerBlock, xavier_linear
from raysum.models.specs.scorers import PredictorSpec


@dataclass(frozen=True)
class AlignmentBatch:
    """``embeddings`` [B, M, D] fp32, ``mask`` [B, M] true = a real paragraph, ``label`` [B, M] summing to 1."""

    embeddings: Tensor
    mask: Tensor
    label: Tensor


class AttentionPredictor(nn.Module):
    """Transformer layers over paragraph embeddings, one linear unit a paragraph, softmax over real paragraphs.

    Post-norm layers and one unit a paragraph as in the published code, so that it takes any number of paragraphs.
    """

    def __init__(self, spec: PredictorSpec):
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.layers))
        self.score = xavier_linear(spec.width, 1)

    def forward(self, phi: Tensor, mask: Tensor) -> Tensor:
        """phi [B, M, D], mask [B, M] true = real -> float32 [B, M]; rows sum to one, 0 at padding."""
        x, index = phi.flatten(0, 1), torch.arange(mask.numel(), device=phi.device)
        for layer in self.layers:
            x = layer(x, index, mask)
        return masked_softmax(self.score(x).view(mask.shape), mask)


class AttentionPrediction(nn.Module):
    """Squared error of predicted against true paragraph attention, over real paragraphs (PHT paper, section 4.2.1)."""

    def __init__(self, model: nn.Module, smoothing: float):  # labels are not smoothed
        super().__init__()
        self.model = model

    def forward(self, batch: AlignmentBatch) -> Tensor:
        """The sum over real paragraphs, a scalar in fp32."""
        predicted = self.model(batch.embeddings.to(next(self.parameters()).dtype), batch.mask)
        return (predicted.float() - batch.label).square()[batch.mask].sum()
