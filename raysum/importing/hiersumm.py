"""Weights of the published HT and FT code (nlpyang/hiersumm, PyTorch) under our names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from raysum.errors import UserError
from raysum.importing.mapping import Arrays, Names, Published, count_layers, misfit, read, step_in_name
from raysum.importing.torch_file import read_checkpoint
from raysum.models.specs.family import FamilySpec

_BUFFERS = (".pe", ".mask")  # sinusoids, and 25 MB of causal mask a decoder layer
_SHARED = ("decoder.embeddings.weight", "generator.0.weight")  # with the encoder's embedding, as ours are
_OLD_NORM = {".a_2": ".weight", ".b_2": ".bias"}  # LayerNorm's parameters in its older checkpoints


def load(path: Path) -> Published:
    """The model of a checkpoint file (``model_step_STEP.pt``, gzipped or not). The optimizer's state is left out.

    Raises UserError where the file does not read, is of another code, or has embeddings that ours cannot hold.
    """
    found, options = read_checkpoint(path, lambda name: not name.endswith(_BUFFERS))
    arrays = {name[:-4] + _OLD_NORM.get(name[-4:], name[-4:]): array for name, array in found.items()}
    try:
        spec, weights = convert(arrays, options)
        limits = {"max_tokens": options["trunc_src_ntoken"] + 1}  # its loader adds the EOS behind the cut
        limits = limits if spec.positions == "flat" else {"max_paragraphs": options["trunc_src_nblock"]}
    except (KeyError, ValueError, TypeError) as error:
        raise misfit(path, "hiersumm", error) from None
    embedding = arrays["encoder.embeddings.weight"]
    for name in _SHARED if spec.tied_output else _SHARED[:1]:
        if not np.array_equal(arrays.get(name, embedding), embedding):
            raise UserError(f"{path} has embeddings of its own in {name}; here source and target must share theirs")
    return Published(spec, weights, step_in_name(path, r"step_(\d+)"), limits)


def spec_of(arrays: Arrays, options: Mapping[str, Any]) -> FamilySpec:
    """The architecture that ``arrays`` have; ``options`` (the checkpoint's ``opt``) give what no shape tells."""
    flat = "encoder.transformer_local.0.layer_norm.weight" in arrays
    layers = _encoder(arrays)
    count = count_layers(arrays, layers)
    pooled = [f"{layers}{layer}.pooling.linear_keys.weight" in arrays for layer in range(count)]
    vocabulary, width = arrays["encoder.embeddings.weight"].shape
    return FamilySpec(
        encoder="S" * count if flat else "".join("G" if pool else "L" for pool in pooled),
        decoder="F" * count_layers(arrays, "decoder.transformer_layers."),
        vocabulary=vocabulary,
        width=width,
        ffn=arrays[f"{layers}0.feed_forward.w_1.weight"].shape[0],
        heads=options["heads"],
        pooling_heads=options["inter_heads"] if any(pooled) else options["heads"],
        graph_heads=0,
        norm="pre",
        positions="flat" if flat else "2d",
        sinusoid="interleaved",
        form="code",
        tied_output=bool(options["share_decoder_embeddings"]),
        dropout=options["enc_dropout"],
        attention_dropout=options["enc_dropout"],
        ffn_dropout=options["enc_dropout"],
    )


def convert(arrays: Arrays, options: Mapping[str, Any]) -> tuple[FamilySpec, dict[str, Tensor]]:
    """The spec and state dict of a hiersumm model.

    ``arrays``: parameters by hiersumm's names (buffers are ignored), ``options``: its ``opt`` as a mapping.
    Raises KeyError where a parameter is missing.
    """
    spec = spec_of(arrays, options)
    names: Names = {"embedding.weight": ["encoder.embeddings.weight"]}
    if spec.tied_output:
        names["embedding.bias"] = ["generator.0.bias"]
    else:
        names |= _linear("output", "generator.0")
    names |= _norm("encoder_norm", "encoder.layer_norm") | _norm("decoder_norm", "decoder.layer_norm")
    for layer, letter in enumerate(spec.encoder):
        ours, theirs = f"encoder.{layer}", f"{_encoder(arrays)}{layer}"
        names |= _global_layer(ours, theirs) if letter == "G" else _block(f"{ours}.block", theirs)
    for layer in range(len(spec.decoder)):
        names |= _decoder_layer(f"decoder.{layer}", f"decoder.transformer_layers.{layer}")
    return spec, read(arrays, names)


def _encoder(arrays: Arrays) -> str:
    local = "encoder.transformer_local."
    return local if any(name.startswith(local) for name in arrays) else "encoder.transformer_layers."


def _block(ours: str, theirs: str) -> Names:
    return (
        _linear(f"{ours}.attention.qkv", *_heads(f"{theirs}.self_attn", "query", "keys", "values"))
        | _linear(f"{ours}.attention.out", f"{theirs}.self_attn.final_linear")
        | _norm(f"{ours}.around_attention.norm", f"{theirs}.layer_norm")
        | _feed_forward(ours, theirs)
    )


def _global_layer(ours: str, theirs: str) -> Names:
    return (
        _norm(f"{ours}.norm", f"{theirs}.layer_norm1")
        | _linear(f"{ours}.pooling.score", f"{theirs}.pooling.linear_keys")
        | _linear(f"{ours}.pooling.value", f"{theirs}.pooling.linear_values")
        | _norm(f"{ours}.pooling.norm", f"{theirs}.layer_norm2")
        | _linear(f"{ours}.attention.qkv", *_heads(f"{theirs}.inter_att", "query", "keys", "values"))
        | _linear(f"{ours}.attention.out", f"{theirs}.linear")
        | _feed_forward(ours, theirs)
    )


def _decoder_layer(ours: str, theirs: str) -> Names:
    return (
        _block(ours, theirs)
        | _norm(f"{ours}.around_attention.norm", f"{theirs}.layer_norm_1")
        | _linear(f"{ours}.cross.words.query", *_heads(f"{theirs}.context_attn", "query"))
        | _linear(f"{ours}.cross.words.source", *_heads(f"{theirs}.context_attn", "keys", "values"))
        | _linear(f"{ours}.cross.words.out", f"{theirs}.context_attn.final_linear")
        | _norm(f"{ours}.around_cross.norm", f"{theirs}.layer_norm_2")
    )


def _feed_forward(ours: str, theirs: str) -> Names:
    return (
        _linear(f"{ours}.ffn.inner", f"{theirs}.feed_forward.w_1")
        | _linear(f"{ours}.ffn.outer", f"{theirs}.feed_forward.w_2")
        | _norm(f"{ours}.around_ffn.norm", f"{theirs}.feed_forward.layer_norm")
    )


def _heads(theirs: str, *parts: str) -> list[str]:
    return [f"{theirs}.linear_{part}" for part in parts]


def _linear(ours: str, *theirs: str) -> Names:
    return {f"{ours}.{kind}": [f"{name}.{kind}" for name in theirs] for kind in ("weight", "bias")}


_norm = _linear
