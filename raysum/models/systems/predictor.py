"""The attention predictor (PHT paper, section 4.2): how much attention each paragraph will get in all."""

import torch
from torch import Tensor, nn

from raysum.models.layers import TransformerBlock, masked_softmax, xavier_linear
from raysum.models.specs import PredictorSpec


class AttentionPredictor(nn.Module):
    """Transformer layers over paragraph embeddings, one linear unit a paragraph, softmax over real paragraphs.

    Post-norm layers and one unit a paragraph as in the published code, so that it takes any number of paragraphs.
    """

    def __init__(self, spec: PredictorSpec):
        super().__init__()
        self.spec = spec
        rates = (spec.dropout, 0.0, 0.0)  # the published code drops out sub-layer outputs only
        self.layers = nn.ModuleList(
            TransformerBlock(spec.width, spec.ffn, spec.heads, "post", rates) for _ in range(spec.layers)
        )
        self.score = xavier_linear(spec.width, 1)

    def forward(self, phi: Tensor, mask: Tensor) -> Tensor:
        """phi [B, M, D], mask [B, M] true = real -> float32 [B, M]; rows sum to one, 0 at padding."""
        x, index = phi.flatten(0, 1), torch.arange(mask.numel(), device=phi.device)
        for layer in self.layers:
            x = layer(x, index, mask)
        return masked_softmax(self.score(x).view(mask.shape), mask)
