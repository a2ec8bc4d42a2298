"""Small models and sources that the tests of models share."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysum.models.batch import Source
from raysum.models.family.spec import FamilySpec
from raysum.systems import Spec, build, objective

SIZES = {"vocabulary": 40, "width": 16, "ffn": 24, "heads": 2, "pooling_heads": 4}
DRY = {"dropout": 0.0, "attention_dropout": 0.0}
MIXES = ["S/F", "L/F", "L/P", "L/V", "LG/FP", "SLG/FPV", "G/VP", "LLGLG/PPF"]
EXAMPLES = [[[9, 11, 3, 12], [13, 14], [15, 16, 17]], [[20, 21, 3]], [[22, 3, 23], [24, 25, 26, 27, 28]]]

_SMALL = {"width": 16, "ffn": 32, "heads": 2}
SYSTEMS = {
    "family": {"encoder": "LG", "decoder": "PF", "pooling_heads": 2, **_SMALL},
    "tdmca": {"layers": "LM", "block": 8, **_SMALL},
    "txl": {"layers": 2, "segment": 8, "memory": 8, **_SMALL},
    "graphsum": {"local_layers": 1, "graph_layers": 1, "decoder_layers": 1, **_SMALL},
}


def spec(mix: str, **options) -> FamilySpec:
    encoder, decoder = mix.split("/")
    return FamilySpec(encoder=encoder, decoder=decoder, **{**SIZES, **options})


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


def stirred(model: nn.Module, seed: int, end: int, bias: float) -> nn.Module:
    """With other random weights, and ``bias`` more for the id ``end``, so that summaries have several lengths."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn_like(weight)
        model.embedding.bias[end] += bias
    return model


def targets(rows: int, length: int = 6) -> torch.Tensor:
    return torch.randint(9, 40, (rows, length), generator=torch.Generator().manual_seed(3))


def pack(examples: Sequence[Sequence[Sequence[int]]]) -> Source:
    """From token ids by example and paragraph; empty paragraphs are left out, so they take no rank."""
    kept = [[list(paragraph) for paragraph in example if len(paragraph)] for example in examples]
    return Source(
        ids=torch.tensor([token for example in kept for paragraph in example for token in paragraph]),
        lengths=torch.tensor([len(paragraph) for example in kept for paragraph in example]),
        counts=torch.tensor([len(example) for example in kept]),
    )


def objective_of(model: nn.Module, smoothing: float) -> nn.Module:
    """What trains ``model``."""
    return objective(model.spec, model, smoothing)


def log_probs(model: nn.Module, hidden: Tensor) -> Tensor:
    """[..., D] -> [..., V] in float32."""
    return model.logits(hidden).log_softmax(-1, dtype=torch.float32)
