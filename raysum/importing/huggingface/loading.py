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
from raysum.importing.huggingface.folder import read_arrays, read_json, untied
from raysum.importing.mapping import Arrays, Part, Published, misfit, read
from raysum.models.specs.family import FamilySpec


@dataclass(frozen=True)
class Kind:
    """One of the models that are read: the table of its names, what reads its config, and how layers are named."""

    table: str
    spec: Callable[..., FamilySpec]
    prefix: str = "model."  # of the names of most tensors
    layers: tuple[str, str] = ("encoder.layers.", "decoder.layers.")
    counts: tuple[str, str] = ("encoder_layers", "decoder_layers")


_BART, _LED = Kind("bart", bart_like), Kind("led", bart_like, "led.")
_T5 = Kind("t5", t5, "", ("encoder.block.", "decoder.block."), ("num_layers", "num_decoder_layers"))
KINDS = {"bart": _BART, "mbart": _BART, "pegasus": _BART, "led": _LED, "t5": _T5, "mt5": _T5, "umt5": _T5}

_MOST_LAYERS = 1000

# What no model uses: the number of a format, and a bias of distances in a cross-attention of T5's first releases.
_SPARE = (
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    "encoder.version",
    "decoder.version",
)


def load(folder: Path, encoder: str | None = None, decoder: str | None = None) -> Published:
    """The model of ``folder`` with these mixes; by default each paragraph is read alone, and all are attended to.

    ``L``, ``S`` or ``W`` and ``F``, ``P`` or ``V`` are its own layers in their order, ``G`` is new between them. What
    is new is not among the weights: see :func:`with_new`. Raises UserError where the folder does not read, or is of a
    model that the family cannot express.
    """
    if folder.is_file():
        raise UserError(f"{folder} is a file; name the folder that it is in: {folder.parent}")
    config = read_json(folder, "config.json")
    name = config.get("model_type")
    if not isinstance(name, str) or name not in KINDS:
        raise UserError(f"{folder} is a {name}; read are {', '.join(KINDS)}")
    kind = KINDS[name]
    try:
        layers = [_count(config, count, kind.counts[0]) for count in kind.counts]
        mixes = encoder or ("W" if kind is _LED else "L") * layers[0], decoder or "F" * layers[1]
        _check_mixes(mixes, layers, "SLGW" if kind is _LED else "SLG")
        published = read_arrays(folder)
        arrays: Arrays = {name.removeprefix(kind.prefix): array for name, array in published.items()}
        if twice := [name for name in published if name not in arrays and name.removeprefix(kind.prefix) in published]:
            raise ValueError(f"it has both {twice[0]} and {twice[0].removeprefix(kind.prefix)}")
        if single := [name for name, array in arrays.items() if not array.ndim]:
            raise ValueError(f"its {single[0]} is a single number")
        arrays = untied(arrays, kind is not _T5 and config.get("tie_word_embeddings") is False)
        spec = kind.spec(config, arrays, *mixes)
        weights = placed(_completed(arrays, spec), spec, kind)
        _check_whole(spec, weights)
    except UserError:
        raise
    except (LookupError, ValueError, TypeError) as error:
        raise misfit(folder, f"a {name}", error) from None
    return Published(spec, weights, 0, {})


def placed(arrays: Arrays, spec: FamilySpec, kind: Kind) -> dict[str, Tensor]:
    """Arrays by transformers' names under ours."""
    spare = {name for name in arrays if name in _SPARE or ("_global." in name and "W" not in spec.encoder)}
    return read(arrays, f"huggingface/{kind.table}", parts_of(spec, kind), spare)


def _count(config: Mapping[str, Any], name: str, otherwise: str) -> int:
    """Layers of one side; some configs tell them of the encoder alone."""
    found = config[otherwise] if config.get(name) is None else config[name]
    if type(found) is not int or not 0 < found <= _MOST_LAYERS:
        raise ValueError(f"its {name} is {found!r}, and models of 1 to {_MOST_LAYERS} layers are read")
    return found


def _check_whole(spec: FamilySpec, weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError if a parameter has another shape, or none of its own although it is pretrained."""
    for name, wanted in systems.parameters(spec).items():
        if name not in weights:
            if not _is_new(spec, name):
                raise ValueError(f"none of its tensors is our {name}")
        elif weights[name].shape != wanted.shape:
            found, told = (" x ".join(map(str, one.shape)) for one in (weights[name], wanted))
            raise ValueError(f"our {name} is of {told} numbers by its config, and of {found} in its weights")


def _is_new(spec: FamilySpec, name: str) -> bool:
    """Whether the mix adds the parameter to the published ones: G layers, and what P and V have beside an F."""
    side, number, *rest = name.split(".")
    if side == "encoder":
        return spec.encoder[int(number)] == "G"
    return side == "pooling" or (side == "decoder" and rest[0] == "cross" and rest[1] != "words")


def _check_mixes(mixes: tuple[str, str], layers: Sequence[int], letters: str) -> None:
    """Raises UserError where a mix has other letters, or not all layers of the weights."""
    for side, mix, count, known in zip(("encoder", "decoder"), mixes, layers, (letters, "FPV"), strict=True):
        if wrong := [letter for letter in mix if letter not in known]:
            raise UserError(f"model.{side}={mix}: {wrong[0]} is no letter of its layers, which are {', '.join(known)}")
        if (own := len(mix.replace("G", ""))) != count:
            added = "; G, which is new, does not count" if side == "encoder" else ""
            told = f"model.{side}={mix} has {own} layer{'s' * (own != 1)}"
            raise UserError(f"{told}, and the weights have {count}: give all, in order{added}")


def layer_counts(spec: FamilySpec) -> tuple[int, int]:
    """Pretrained layers of the encoder and of the decoder."""
    return len(spec.encoder) - spec.encoder.count("G"), len(spec.decoder)


def parts_of(spec: FamilySpec, kind: Kind) -> Iterable[Part]:
    """The sections of the table of names that a model of ``spec`` is made of."""
    made = spec.backbone
    assert made is not None
    yield ("separate" if made.source_embedding else "shared"), "", ""
    yield ("tied" if spec.tied_output else "untied"), "", ""
    if made.places == "learned":
        yield "places", "", ""
    else:
        for side, layers, count in zip(("source", "target"), kind.layers, layer_counts(spec), strict=True):
            tables = (f"{layers}{number}." for number in range(count if made.layer_distances else 1))
            yield "distances", f"entry.{side}_distances.", " ".join(tables)
    if made.embedding_norm:
        yield "embedding_norm", "", ""
    if spec.norm == "pre":
        yield "final_norm", "", ""
    for ours, mix, theirs in zip(("encoder", "decoder"), (spec.encoder, spec.decoder), kind.layers, strict=True):
        own = (place for place, letter in enumerate(mix) if letter != "G")
        for number, place in enumerate(own):
            names = f"{ours}.{place}.", f"{theirs}{number}."
            yield mix[place], *names
            if kind is _T5:
                yield f"{mix[place]}.{'gated' if made.gated else 'plain'}", *names


def _completed(arrays: Arrays, spec: FamilySpec) -> Arrays:
    """With what files may leave out: a bias of zeros, and the tables of waves."""
    made = spec.backbone
    assert made is not None
    found = dict(arrays)
    if made.output_bias == "fixed":
        found["final_logits_bias"] = found.get("final_logits_bias", np.zeros(spec.vocabulary, np.float32)).reshape(-1)
    if made.places == "learned" and not made.places_trained:
        for side, rows in (("encoder", made.source_places), ("decoder", made.target_places)):
            found.setdefault(f"{side}.embed_positions.weight", waves(rows, spec.width))
    return found


def waves(rows: int, width: int) -> np.ndarray:
    """PEGASUS's table [rows, width]: sines, then cosines, in float64 before it is rounded."""
    angles = np.arange(rows)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def with_new(spec: FamilySpec, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """All weights of a model of ``spec``: those that ``weights`` lack as they begin."""
    torch.manual_seed(0)
    fresh = {name: value.detach() for name, value in systems.build(spec).named_parameters()}
    return fresh | weights
