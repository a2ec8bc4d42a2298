"""Weights of the published PHT and VHT code (yema2018/wiki_sum, TensorFlow) under our names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from raysum.importing.mapping import Arrays, Names, Published, count_layers, misfit, read, step_in_name
from raysum.importing.tensor_bundle import TensorBundle
from raysum.models.specs.family import FamilySpec

HEADS, DROPOUT = 4, 0.3  # the code's defaults, -num_headers and -drop_rate; also PHT/VHT paper section 4.2

_MODEL, _VALUE, _SLOT = "model/", "/.ATTRIBUTES/VARIABLE_VALUE", "/.OPTIMIZER_SLOT/"
_STEPS = f"optimizer/iter{_VALUE}"  # updates; the number in a checkpoint's name counts savings
_EMBEDDING = "decoder/embedding/embeddings"  # shared with the encoder
_ENCODER = "encoder/para_encoder/encoder/enc_layers/"
_DECODER = "decoder/dec_layers/"
_POOLING = "encoder/para_encoder/final_encoder"


def load(prefix: Path, heads: int = HEADS, dropout: float = DROPOUT) -> Published:
    """The model of the checkpoint ``prefix`` (``ckpt-N``, or one of its files). The optimizer's state is left out.

    Raises UserError where its files do not read, are of another code, or do not fit ``heads``.
    """
    bundle = TensorBundle(prefix)
    names = [name for name in bundle.entries if name.startswith(_MODEL) and name.endswith(_VALUE) and _SLOT not in name]
    arrays = {name.removeprefix(_MODEL).removesuffix(_VALUE): bundle.read(name) for name in names}
    try:
        spec, weights = convert(arrays, {"num_heads": heads, "drop_rate": dropout})
    except (KeyError, ValueError, RuntimeError) as error:
        raise misfit(prefix, "wiki_sum", error) from None
    step = int(bundle.read(_STEPS)) if _STEPS in bundle.entries else step_in_name(prefix, r"ckpt-(\d+)")
    return Published(spec, weights, step, {})


def spec_of(arrays: Arrays, options: Mapping[str, Any]) -> FamilySpec:
    """The architecture that ``arrays`` have; ``options`` give ``num_heads`` and ``drop_rate``, which no shape tells."""
    vocabulary, width = arrays[_EMBEDDING].shape
    letter = "P" if f"{_POOLING}/weight" in arrays else "V"
    return FamilySpec(
        encoder="L" * count_layers(arrays, _ENCODER),
        decoder=letter * count_layers(arrays, _DECODER),
        vocabulary=vocabulary,
        width=width,
        ffn=arrays[f"{_ENCODER}0/ffn/layer_with_weights-0/kernel"].shape[1],
        heads=options["num_heads"],
        pooling_heads=options["num_heads"],
        graph_heads=0,
        norm="post",
        positions="paragraph",
        sinusoid="halves",
        form="code",
        tied_output=False,
        dropout=options["drop_rate"],
        attention_dropout=0.0,
        ffn_dropout=0.0,
    )


def convert(arrays: Arrays, options: Mapping[str, Any]) -> tuple[FamilySpec, dict[str, Tensor]]:
    """The spec and state dict of a wiki_sum model.

    ``arrays``: weights by their TensorFlow object path (behind ``model/``), ``options``: see ``spec_of``.
    Raises KeyError where a weight is missing.
    """
    spec = spec_of(arrays, options)
    names: Names = {"embedding.weight": [_EMBEDDING]} | _linear("output", "out_layer")
    for layer in range(len(spec.encoder)):
        names |= _encoder_layer(f"encoder.{layer}.block", f"{_ENCODER}{layer}")
    for layer, letter in enumerate(spec.decoder):
        ours, theirs = f"decoder.{layer}", f"{_DECODER}{layer}"
        names |= _decoder_layer(ours, theirs)
        names |= _parallel(f"{ours}.cross", theirs) if letter == "P" else _vertical(f"{ours}.cross", theirs)
    if "P" in spec.decoder:
        names |= _pooling("pooling", _POOLING)
    state = read(arrays, names, transpose="/kernel")
    if "P" in spec.decoder:
        scorer = state["pooling.pool.scorer"]
        state["pooling.pool.scorer"] = scorer.view(spec.pooling_heads, -1)
    return spec, state


def _encoder_layer(ours: str, theirs: str) -> Names:
    return (
        _self_attention(ours, f"{theirs}/mha")
        | _norm(f"{ours}.around_attention.norm", f"{theirs}/layernorm1")
        | _feed_forward(ours, theirs)
        | _norm(f"{ours}.around_ffn.norm", f"{theirs}/layernorm2")
    )


def _decoder_layer(ours: str, theirs: str) -> Names:
    return (
        _self_attention(ours, f"{theirs}/mha1")
        | _norm(f"{ours}.around_attention.norm", f"{theirs}/layernorm1")
        | _norm(f"{ours}.around_cross.norm", f"{theirs}/layernorm2")
        | _feed_forward(ours, theirs)
        | _norm(f"{ours}.around_ffn.norm", f"{theirs}/layernorm3")
    )


def _parallel(ours: str, theirs: str) -> Names:
    names: Names = {}
    for part, layer in (("paragraphs", "mha2_g"), ("words", "mha2_l")):
        names |= _linear(f"{ours}.{part}.query", f"{theirs}/{layer}/wq")
        names |= _linear(f"{ours}.{part}.source", f"{theirs}/{layer}/wk", f"{theirs}/{layer}/wv")
        names |= _linear(f"{ours}.{part}.out", f"{theirs}/{layer}/dense")
    return names


def _vertical(ours: str, theirs: str) -> Names:
    return (
        _linear(f"{ours}.word_query", f"{theirs}/mha2_l/wq")
        | _linear(f"{ours}.word_source", f"{theirs}/mha2_l/wk", f"{theirs}/mha2_l/wv")
        | _linear(f"{ours}.contexts", f"{theirs}/mha2_l/dense")
        | {f"{ours}.contexts.norm_weight": [f"{theirs}/layernorm4/gamma"]}
        | {f"{ours}.contexts.norm_bias": [f"{theirs}/layernorm4/beta"]}
        | _linear(f"{ours}.query", f"{theirs}/mha2_g/wq")
        | _linear(f"{ours}.key", f"{theirs}/mha2_g/wk")
        | _linear(f"{ours}.value", f"{theirs}/mha2_g/wv")
        | _linear(f"{ours}.out", f"{theirs}/mha2_g/dense")
    )


def _pooling(ours: str, theirs: str) -> Names:
    return (
        _linear(f"{ours}.pool", f"{theirs}/full_conn")
        | {f"{ours}.pool.scorer": [f"{theirs}/weight"]}
        | _linear(f"{ours}.merge", f"{theirs}/concat")
        | _norm(f"{ours}.norm", f"{theirs}/layernorm1")
        | _feed_forward(ours, theirs)
        | _norm(f"{ours}.around_ffn.norm", f"{theirs}/layernorm2")
    )


def _self_attention(ours: str, theirs: str) -> Names:
    parts = (f"{theirs}/wq", f"{theirs}/wk", f"{theirs}/wv")
    return _linear(f"{ours}.attention.qkv", *parts) | _linear(f"{ours}.attention.out", f"{theirs}/dense")


def _feed_forward(ours: str, theirs: str) -> Names:
    inner, outer = (f"{theirs}/ffn/layer_with_weights-{part}" for part in (0, 1))
    return _linear(f"{ours}.ffn.inner", inner) | _linear(f"{ours}.ffn.outer", outer)


def _linear(ours: str, *theirs: str) -> Names:
    return {
        f"{ours}.weight": [f"{name}/kernel" for name in theirs],
        f"{ours}.bias": [f"{name}/bias" for name in theirs],
    }


def _norm(ours: str, theirs: str) -> Names:
    return {f"{ours}.weight": [f"{theirs}/gamma"], f"{ours}.bias": [f"{theirs}/beta"]}
