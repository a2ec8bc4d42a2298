"""A folder of a published pretrained encoder-decoder as a specification of the family and its weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysum import systems
from raysum.errors import UserError
from raysum.importing.huggingface.families import bart_like, t5
from raysum.importing.huggingface.folder import read_arrays, read_config_json, untied
from raysum.importing.mapping import Arrays, Part, PublishedModel, converting, map_weights
from raysum.models.family.spec import FamilySpec


@dataclass(frozen=True)
class ModelType:
    """A supported model type: its table of names, the reader of its config, and the names of its layers."""

    table: str
    spec: Callable[..., FamilySpec]
    prefix: str = "model."  # of the names of most tensors
    layers: tuple[str, str] = ("encoder.layers.", "decoder.layers.")
    counts: tuple[str, str] = ("encoder_layers", "decoder_layers")


_BART, _LED = ModelType("bart", bart_like), ModelType("led", bart_like, "led.")
_T5 = ModelType("t5", t5, "", ("encoder.block.", "decoder.block."), ("num_layers", "num_decoder_layers"))
KINDS = {"bart": _BART, "mbart": _BART, "pegasus": _BART, "led": _LED, "t5": _T5, "mt5": _T5, "umt5": _T5}

_MAX_LAYERS = 1000

# Unused tensors: a format number, and a bias of distances in the cross-attention of T5's first releases.
_SPARE = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    "encoder.version",
    "decoder.version",
)


def load(folder: Path, encoder: str | None = None, decoder: str | None = None) -> PublishedModel:
    """Return the model of ``folder`` with these mixes; by default it encodes each paragraph alone.

    ``L``, ``S`` or ``W`` and ``F``, ``P`` or ``V`` are its own layers in their order; ``G`` inserts new layers. New
    parameters are not among the weights: see :func:`with_new`. Raises UserError if the folder is damaged or the
    family cannot express the model.
    """
    if folder.is_file():
        raise UserError(f"{folder} is a file: name its folder, {folder.parent}")
    config = read_config_json(folder, "config.json")
    name = config.get("model_type")
    if not isinstance(name, str) or name not in KINDS:
        raise UserError(f"{folder} is a {name}, but must be one of {', '.join(KINDS)}")
    kind = KINDS[name]
    with converting(folder, f"a {name}"):
        layers = [_count(config, count, kind.counts[0]) for count in kind.counts]
        mixes = encoder or ("W" if kind is _LED else "L") * layers[0], decoder or "F" * layers[1]
        _check_mixes(mixes, layers, "SLGW" if kind is _LED else "SLG")
        published = read_arrays(folder)
        arrays: Arrays = {name.removeprefix(kind.prefix): array for name, array in published.items()}
        if duplicates := [
            name for name in published if name not in arrays and name.removeprefix(kind.prefix) in published
        ]:
            raise ValueError(f"it has both {duplicates[0]} and {duplicates[0].removeprefix(kind.prefix)}")
        if scalars := [name for name, array in arrays.items() if not array.ndim]:
            raise ValueError(f"its {scalars[0]} is a single number")
        arrays = untied(arrays, kind is not _T5 and config.get("tie_word_embeddings") is False)
        spec = kind.spec(config, arrays, *mixes)
        weights = map_arrays(_completed(arrays, spec), spec, kind)
        _check_whole(spec, weights)
    return PublishedModel(spec, weights, 0, {})


def map_arrays(arrays: Arrays, spec: FamilySpec, kind: ModelType) -> dict[str, Tensor]:
    """Return arrays with transformers' names under our names."""
    spare = {name for name in arrays if name in _SPARE or ("_global." in name and "W" not in spec.encoder)}
    return map_weights(arrays, f"huggingface/{kind.table}", parts_of(spec, kind), spare)


def _count(config: Mapping[str, Any], name: str, otherwise: str) -> int:
    """Return the number of layers of one side; some configs give only that of the encoder."""
    count = config[otherwise] if config.get(name) is None else config[name]
    if type(count) is not int or not 0 < count <= _MAX_LAYERS:
        raise ValueError(f"its {name} is {count!r}, but must be 1 to {_MAX_LAYERS}")
    return count


def _check_whole(spec: FamilySpec, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a parameter has another shape, or is missing although it is pretrained."""
    for name, parameter in systems.parameters(spec).items():
        if name not in weights:
            if not _is_new(spec, name):
                raise ValueError(f"it has no tensor for our {name}")
        elif weights[name].shape != parameter.shape:
            actual, expected = (" x ".join(map(str, tensor.shape)) for tensor in (weights[name], parameter))
            raise ValueError(f"our {name} is {expected} by its config, but {actual} in its weights")


def _is_new(spec: FamilySpec, name: str) -> bool:
    """Return whether the mix adds the parameter: G layers, and the additions of P and V to F."""
    side, number, *rest = name.split(".")
    if side == "encoder":
        return spec.encoder[int(number)] == "G"
    return side == "pooling" or (side == "decoder" and rest[0] == "cross" and rest[1] != "words")


def _check_mixes(mixes: tuple[str, str], layers: Sequence[int], letters: str) -> None:
    """Raise UserError if a mix has unknown letters, or does not have all layers of the weights."""
    for side, mix, count, known in zip(("encoder", "decoder"), mixes, layers, (letters, "FPV"), strict=True):
        if wrong := [letter for letter in mix if letter not in known]:
            raise UserError(f"model.{side}={mix}: {wrong[0]} is not a letter for its layers; use {', '.join(known)}")
        if (own := len(mix.replace("G", ""))) != count:
            note = "; inserted G layers do not count" if side == "encoder" else ""
            problem = f"model.{side}={mix} has {own} layer{'s' * (own != 1)}, but the weights have {count}"
            raise UserError(f"{problem}: give all, in order{note}")


def layer_counts(spec: FamilySpec) -> tuple[int, int]:
    """Return the numbers of pretrained layers of the encoder and of the decoder."""
    return len(spec.encoder) - spec.encoder.count("G"), len(spec.decoder)


def parts_of(spec: FamilySpec, kind: ModelType) -> Iterable[Part]:
    """Yield the parts of the table of names for a model of ``spec``."""
    backbone = spec.backbone
    assert backbone is not None
    yield ("separate" if backbone.source_embedding else "shared"), "", ""
    yield ("tied" if spec.tied_output else "untied"), "", ""
    if backbone.places == "learned":
        yield "places", "", ""
    else:
        for side, layers, count in zip(("source", "target"), kind.layers, layer_counts(spec), strict=True):
            tables = (f"{layers}{number}." for number in range(count if backbone.layer_distances else 1))
            yield "distances", f"entry.{side}_distances.", " ".join(tables)
    if backbone.embedding_norm:
        yield "embedding_norm", "", ""
    if spec.norm == "pre":
        yield "final_norm", "", ""
    for ours, mix, theirs in zip(("encoder", "decoder"), (spec.encoder, spec.decoder), kind.layers, strict=True):
        pretrained = (index for index, letter in enumerate(mix) if letter != "G")
        for number, index in enumerate(pretrained):
            names = f"{ours}.{index}.", f"{theirs}{number}."
            yield mix[index], *names
            if kind is _T5:
                yield f"{mix[index]}.{'gated' if backbone.gated else 'plain'}", *names


def _completed(arrays: Arrays, spec: FamilySpec) -> Arrays:
    """Return ``arrays`` with those that files may omit: a bias of zeros, and sinusoidal tables."""
    backbone = spec.backbone
    assert backbone is not None
    completed = dict(arrays)
    if backbone.output_bias == "fixed":
        bias = completed.get("final_logits_bias", np.zeros(spec.vocabulary, np.float32))
        completed["final_logits_bias"] = bias.reshape(-1)
    if backbone.places == "learned" and not backbone.places_trained:
        for side, rows in (("encoder", backbone.source_places), ("decoder", backbone.target_places)):
            completed.setdefault(f"{side}.embed_positions.weight", sinusoid_table(rows, spec.width))
    return completed


def sinusoid_table(rows: int, width: int) -> np.ndarray:
    """Return PEGASUS's table [rows, width]: sines, then cosines, computed in float64."""
    angles = np.arange(rows)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def with_new(spec: FamilySpec, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return all weights of a model of ``spec``; those that ``weights`` lack are initialized."""
    torch.manual_seed(0)
    fresh = {name: value.detach() for name, value in systems.build(spec).named_parameters()}
    return fresh | weights
