"""Small models and sources that the tests of models share."""

import torch
from torch import nn

from raysum.models.build import build
from raysum.models.specs import Seq2SeqSpec, Spec

SIZES = {"vocabulary": 40, "width": 16, "ffn": 24, "heads": 2, "pooling_heads": 4}
DRY = {"dropout": 0.0, "attention_dropout": 0.0}
MIXES = ["S/F", "L/F", "L/P", "L/V", "LG/FP", "SLG/FPV", "G/VP", "LLGLG/PPF"]
EXAMPLES = [[[9, 11, 3, 12], [13, 14], [15, 16, 17]], [[20, 21, 3]], [[22, 3, 23], [24, 25, 26, 27, 28]]]


def spec(mix: str, **options) -> Seq2SeqSpec:
    encoder, decoder = mix.split("/")
    return Seq2SeqSpec(encoder=encoder, decoder=decoder, **{**SIZES, **options})


def model_of(mix: str, **options) -> nn.Module:
    return shaken(build_seeded(spec(mix, **options)))


def build_seeded(some_spec: Spec) -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    return build(some_spec)


def shaken(model: nn.Module) -> nn.Module:
    """Biases and norms start at 0 and 1, where mistakes would not show."""
    for name, value in model.named_parameters():
        if value.dim() == 1 or name.startswith("bias."):
            nn.init.normal_(value, mean=float("norm" in name), std=0.2)
    return model


def targets(rows: int, length: int = 6) -> torch.Tensor:
    return torch.randint(9, 40, (rows, length), generator=torch.Generator().manual_seed(3))
