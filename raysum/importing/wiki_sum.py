"""Weights of the published PHT and VHT code (yema2018/wiki_sum, TensorFlow) under our names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from raysum.importing.mapping import (
    Arrays,
    PublishedModel,
    converting,
    count_layers,
    layer_parts,
    map_weights,
    step_in_name,
)
from raysum.importing.tensor_bundle import TensorBundle
from raysum.models.family.spec import FamilySpec

_HEADS, _DROPOUT = 4, 0.3  # the code's defaults, -num_headers and -drop_rate; also PHT/VHT paper section 4.2

_MODEL, _VALUE, _SLOT = "model/", "/.ATTRIBUTES/VARIABLE_VALUE", "/.OPTIMIZER_SLOT/"
_STEPS = f"optimizer/iter{_VALUE}"  # updates; the number in a checkpoint's name counts checkpoints
_EMBEDDING = "decoder/embedding/embeddings"  # shared with the encoder
_ENCODER = "encoder/para_encoder/encoder/enc_layers/"
_DECODER = "decoder/dec_layers/"
_POOLING = "encoder/para_encoder/final_encoder/"


def load(prefix: Path, heads: int | None = None, dropout: float | None = None) -> PublishedModel:
    """Return the model of ``prefix`` (``ckpt-N``, or one of its files), without the optimizer's state.

    Raises UserError if its files are damaged or of another code, or do not fit ``heads``.
    """
    bundle = TensorBundle(prefix)
    names = [name for name in bundle.entries if name.startswith(_MODEL) and name.endswith(_VALUE) and _SLOT not in name]
    arrays = {name.removeprefix(_MODEL).removesuffix(_VALUE): bundle.read(name) for name in names}
    heads, dropout = _HEADS if heads is None else heads, _DROPOUT if dropout is None else dropout
    with converting(prefix, "wiki_sum"):
        spec, weights = convert(arrays, {"num_heads": heads, "drop_rate": dropout})
    step = int(bundle.read(_STEPS)) if _STEPS in bundle.entries else step_in_name(prefix, r"ckpt-(\d+)")
    return PublishedModel(spec, weights, step, {})


def convert(arrays: Arrays, options: Mapping[str, Any]) -> tuple[FamilySpec, dict[str, Tensor]]:
    """Return the spec and state dict of a wiki_sum model.

    ``arrays``: weights by their object path after ``model/``; ``options``: ``num_heads`` and ``drop_rate``. Raises
    KeyError if a weight is missing.
    """
    vocabulary, width = arrays[_EMBEDDING].shape
    letter = "P" if f"{_POOLING}weight" in arrays else "V"
    spec = FamilySpec(
        encoder="L" * count_layers(arrays, _ENCODER),
        decoder=letter * count_layers(arrays, _DECODER),
        vocabulary=vocabulary,
        width=width,
        ffn=arrays[f"{_ENCODER}0/ffn/layer_with_weights-0/kernel"].shape[1],
        heads=options["num_heads"],
        pooling_heads=options["num_heads"],
        norm="post",
        positions="paragraph",
        sinusoid="halves",
        form="code",
        tied_output=False,
        dropout=options["drop_rate"],
        attention_dropout=0.0,
        ffn_dropout=0.0,
    )
    parts = [("model", "", ""), *layer_parts(spec, _ENCODER, _DECODER)]
    if letter == "V":
        return spec, map_weights(arrays, "wiki_sum", parts)
    state = map_weights(arrays, "wiki_sum", [*parts, ("pooling", "pooling.", _POOLING)])
    return spec, state | {"pooling.pool.scorer": state["pooling.pool.scorer"].view(spec.pooling_heads, -1)}
