"""A model of the family as a folder that transformers loads, where its mix is one that transformers has."""

import json
from pathlib import Path

from torch import Tensor

from raysum.errors import UserError
from raysum.importing.huggingface.configs import config_of
from raysum.importing.huggingface.loading import KINDS, is_silent, parts_of
from raysum.importing.mapping import names
from raysum.models.specs.family import FamilySpec

_OUTSIDE = ("lm_head.weight", "final_logits_bias")  # of the model within


def save(folder: Path, spec: FamilySpec, weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors. Raises UserError where transformers has no such model."""
    from safetensors.torch import save_file

    _check(spec, weights)
    config = config_of(spec)
    kind = KINDS[config["model_type"]]
    tensors = {}
    for name, published in names(f"huggingface/{kind.table}", parts_of(spec, kind)):
        for theirs, part in zip(published, weights[name].chunk(len(published)), strict=True):
            part = part[None] if theirs == "final_logits_bias" else part
            tensors[theirs if theirs in _OUTSIDE else kind.prefix + theirs] = part.contiguous().clone()
    if not config.get("tie_word_embeddings", True):
        tensors.setdefault("lm_head.weight", weights["embedding.weight"].clone())
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _check(spec: FamilySpec, weights: dict[str, Tensor]) -> None:
    if spec.backbone is None or spec.copy_heads:
        lacking = "a copy gate" if spec.copy_heads else "the papers' layers"
        raise UserError(f"transformers has no model with {lacking}, so this one cannot be exported")
    for name, value in weights.items():
        if (is_silent(name, spec) or name.endswith("cross.gate")) and bool(value.any()):
            side, number, _ = name.split(".", 2)
            letter = (spec.encoder if side == "encoder" else spec.decoder)[int(number)]
            raise UserError(
                f"transformers has no layer such as {letter}, number {number} of the {side}, which has been trained; "
                "export a run of the mix that its weights came with"
            )
