"""Weights of the published HT and FT code (nlpyang/hiersumm, PyTorch) under our names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from raysum.errors import UserError
from raysum.importing.mapping import (
    Arrays,
    PublishedModel,
    converting,
    count_layers,
    layer_parts,
    map_weights,
    step_in_name,
)
from raysum.importing.torch_file import read_checkpoint
from raysum.models.family.spec import FamilySpec

_BUFFERS = (".pe", ".mask")  # sinusoids, and a causal mask of 25 MB per decoder layer
_SHARED = ("decoder.embeddings.weight", "generator.0.weight")  # equal to the encoder's embedding, like ours
_FLAT, _HIERARCHICAL = "encoder.transformer_local.", "encoder.transformer_layers."
_DECODER = "decoder.transformer_layers."
_OLD_NORM = {".a_2": ".weight", ".b_2": ".bias"}  # LayerNorm's parameters in its older checkpoints


def load(path: Path) -> PublishedModel:
    """Return the model of a checkpoint file (``model_step_STEP.pt``, gzipped or not), without the optimizer's state.

    Raises UserError if the file is damaged or of another code, or has several embeddings.
    """
    parameters, options = read_checkpoint(path, lambda name: not name.endswith(_BUFFERS))
    arrays = {name[:-4] + _OLD_NORM.get(name[-4:], name[-4:]): array for name, array in parameters.items()}
    with converting(path, "hiersumm"):
        spec, weights = convert(arrays, options)
        limits = {"max_tokens": _count(options, "trunc_src_ntoken") + 1}  # its loader adds EOS after truncation
        limits = limits if spec.positions == "flat" else {"max_paragraphs": _count(options, "trunc_src_nblock")}
    embedding = arrays["encoder.embeddings.weight"]
    for name in _SHARED if spec.tied_output else _SHARED[:1]:
        if not np.array_equal(arrays.get(name, embedding), embedding):
            raise UserError(f"{path} has another embedding in {name}: source and target must share one")
    return PublishedModel(spec, weights, step_in_name(path, r"step_(\d+)"), limits)


def _count(options: Mapping[str, Any], name: str) -> int:
    if type(options[name]) is not int or options[name] < 1:
        raise ValueError(f"its option {name} is {options[name]!r}, but must be a number from 1")
    return options[name]


def convert(arrays: Arrays, options: Mapping[str, Any]) -> tuple[FamilySpec, dict[str, Tensor]]:
    """Return the spec and state dict of a hiersumm model.

    ``arrays``: parameters by its names; ``options``: its ``opt``. Raises KeyError if a parameter is missing.
    """
    flat = any(name.startswith(_FLAT) for name in arrays)
    layers = _FLAT if flat else _HIERARCHICAL
    count = count_layers(arrays, layers)
    pooled = [f"{layers}{layer}.pooling.linear_keys.weight" in arrays for layer in range(count)]
    vocabulary, width = arrays["encoder.embeddings.weight"].shape
    spec = FamilySpec(
        encoder="S" * count if flat else "".join("G" if pool else "L" for pool in pooled),
        decoder="F" * count_layers(arrays, _DECODER),
        vocabulary=vocabulary,
        width=width,
        ffn=arrays[f"{layers}0.feed_forward.w_1.weight"].shape[0],
        heads=options["heads"],
        pooling_heads=options["inter_heads"] if any(pooled) else options["heads"],
        norm="pre",
        positions="flat" if flat else "2d",
        sinusoid="interleaved",
        form="code",
        tied_output=bool(options["share_decoder_embeddings"]),
        dropout=options["enc_dropout"],
        attention_dropout=options["enc_dropout"],
        ffn_dropout=options["enc_dropout"],
    )
    parts = [("tied" if spec.tied_output else "untied", "", ""), ("model", "", "")]
    spare = [name for name in arrays if name in _SHARED or name.endswith(_BUFFERS)]
    return spec, map_weights(arrays, "hiersumm", [*parts, *layer_parts(spec, layers, _DECODER)], spare)
