"""The attention predictor (PHT paper, section 4.2), which predicts the total attention to each paragraph."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysum.models.kernels.attention import masked_softmax
from raysum.models.layers import TransformerBlock, xavier_linear
from raysum.models.specs.scorers import PredictorSpec


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
        """Return float32 [B, M]: rows sum to 1, 0 at padding.

        ``phi`` [B, M, D]; ``mask`` [B, M], true = a real paragraph.
        """
        x, index = phi.flatten(0, 1), torch.arange(mask.numel(), device=phi.device)
        for layer in self.layers:
            x = layer(x, index, mask)
        return masked_softmax(self.score(x).view(mask.shape), mask)


class AttentionPrediction(nn.Module):
    """Squared error of the predicted paragraph attention over real paragraphs (PHT paper, section 4.2.1)."""

    def __init__(self, model: nn.Module, smoothing: float):  # labels are not smoothed
        super().__init__()
        self.model = model

    def forward(self, batch: AlignmentBatch) -> Tensor:
        """Return the sum over real paragraphs, a scalar in fp32."""
        predicted = self.model(batch.embeddings.to(next(self.parameters()).dtype), batch.mask)
        return (predicted.float() - batch.label).square()[batch.mask].sum()
