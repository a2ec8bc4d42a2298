"""Save a model of the family as a folder that transformers loads, if transformers has its mix."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from raysum.errors import UserError
from raysum.importing.huggingface.families import ACTIVATIONS
from raysum.importing.huggingface.folder import HEAD, SHARED, SOURCE, TARGET
from raysum.importing.huggingface.loading import KINDS, layer_counts, parts_of
from raysum.importing.mapping import name_pairs
from raysum.models.family.spec import Backbone, FamilySpec
from raysum.runtime.checksums import write_tensors
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.tokenizer import Tokenizer

# Parameters that are 0 while one of our layers computes the same as the published one, or is the identity.
_ADDITIONS = {
    "encoder": ("attention.out.", "ffn.outer."),
    "decoder": ("cross.paragraphs.out.", "cross.contexts.out.", "cross.gate"),
}
_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # the first of transformers' names
_CLASSES = {"bart": "Bart", "mbart": "MBart", "pegasus": "Pegasus"}  # the names of others are capitals
_OUTSIDE = (HEAD, "final_logits_bias")  # names without the model's prefix


def save(folder: Path, spec: FamilySpec, weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors. Raises UserError if transformers has no such model."""
    _check(spec, weights)
    config = published_config(spec)
    kind = KINDS[config["model_type"]]
    tensors = {}
    for name, published in name_pairs(f"huggingface/{kind.table}", parts_of(spec, kind)):
        for theirs, part in zip(published, weights[name].chunk(len(published)), strict=True):
            tensors[theirs] = part[None] if theirs == "final_logits_bias" else part
    for theirs in _unshared(spec, config):
        tensors.setdefault(theirs, weights["embedding.weight"])
    named = {name if name in _OUTSIDE else kind.prefix + name: part for name, part in tensors.items()}
    write_tensors(named, folder / "model.safetensors", {"format": "pt"})
    _write(folder / "config.json", config)


def _unshared(spec: FamilySpec, config: dict[str, Any]) -> list[str]:
    """Return the embedding matrices that the file must contain.

    transformers shares those that are missing, but not in a BART with ``tie_word_embeddings`` false. In that case
    T5's output layer is also written, for version 4.
    """
    backbone = spec.backbone
    assert backbone is not None
    is_untied = not config["tie_word_embeddings"]
    if backbone.source_embedding or (is_untied and backbone.places == "learned"):
        return [SHARED, SOURCE, TARGET, HEAD]
    return [HEAD] if is_untied else []


def _check(spec: FamilySpec, weights: dict[str, Tensor]) -> None:
    if getattr(spec, "backbone", None) is None or spec.copy_heads:
        part = "a copy gate" if getattr(spec, "copy_heads", 0) else "the papers' layers"
        raise UserError(f"transformers has no model with {part}: only pretrained models can be exported")
    for name, value in weights.items():
        side, _, rest = name.partition(".")
        number, _, within = rest.partition(".")
        if within.startswith(_ADDITIONS.get(side, ())):
            letter = (spec.encoder if side == "encoder" else spec.decoder)[int(number)]
            if (side == "decoder" or letter == "G") and bool(value.any()):
                problem = f"transformers has no layer such as {letter}, number {number} of the {side}"
                fix = "export a run with the mix of its published weights"
                raise UserError(f"{problem}, which has been trained: {fix}")


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the tokenizer files of a run. Raises UserError if transformers has no such tokenizer."""
    if tokenizer.pieces == Vocabulary.pieces:
        raise UserError("transformers has no tokenizer for raysum's SentencePiece: export a run of an imported model")
    content, marks = json.loads(tokenizer.model), tokenizer.marks
    contents = {token["id"]: token["content"] for token in content["tokenizer"]["added_tokens"]}
    ids = {"eos_token": marks.end, "pad_token": marks.pad, "unk_token": marks.unknown, "mask_token": marks.mask}
    names = {name: contents[id] for name, id in ids.items() if id in contents}
    _write(folder / "tokenizer.json", content["tokenizer"])
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def backbone_kind(backbone: Backbone, norm: str) -> str:
    """Return transformers' name of a model with such layers."""
    if backbone.places == "relative":
        return "umt5" if backbone.layer_distances else backbone.model_type or "t5"
    if backbone.window:
        return "led"
    return "bart" if norm == "post" else "mbart" if backbone.embedding_norm else "pegasus"


def published_config(spec: FamilySpec) -> dict[str, Any]:
    """Return the config.json of a model with pretrained layers."""
    backbone = spec.backbone
    assert backbone is not None
    kind = backbone_kind(backbone, spec.norm)
    config = {
        "model_type": kind,
        "architectures": [f"{_CLASSES.get(kind, kind.upper())}ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "pad_token_id": spec.marks.pad,
        "eos_token_id": spec.marks.end,
        "decoder_start_token_id": spec.marks.start,
    }
    return config | (_t5(spec, backbone) if backbone.places == "relative" else _bart_like(spec, backbone, kind))


def _bart_like(spec: FamilySpec, backbone: Backbone, kind: str) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side, count in zip(("encoder", "decoder"), layer_counts(spec), strict=True)
        for name, value in (("layers", count), ("attention_heads", spec.heads), ("ffn_dim", spec.ffn))
    }
    if kind == "led":
        tables = {
            "max_encoder_position_embeddings": backbone.source_places,
            "max_decoder_position_embeddings": backbone.target_places,
            "attention_window": [backbone.window] * layer_counts(spec)[0],
        }
    else:
        tables = {
            "max_position_embeddings": backbone.source_places - backbone.place_offset,
            "scale_embedding": backbone.embedding_scaled,
        }
    return {
        **sides,
        **tables,
        "tie_word_embeddings": spec.tied_output and not backbone.source_embedding,
        "activation_function": _ACTIVATIONS[backbone.activation],
        "dropout": spec.dropout,
        "attention_dropout": spec.attention_dropout,
        "activation_dropout": spec.ffn_dropout,
    }


def _t5(spec: FamilySpec, backbone: Backbone) -> dict[str, Any]:
    """Return the options of T5. ``tie_word_embeddings`` decides in transformers whether to scale the last states."""
    activation = "gelu" if backbone.gated and backbone.activation == "gelu-tanh" else _ACTIVATIONS[backbone.activation]
    first, second = layer_counts(spec)
    return {
        "num_layers": first,
        "num_decoder_layers": second,
        "num_heads": spec.heads,
        "d_kv": backbone.head_width,
        "d_ff": spec.ffn,
        "feed_forward_proj": f"gated-{activation}" if backbone.gated else activation,
        "layer_norm_epsilon": backbone.eps,
        "relative_attention_num_buckets": backbone.buckets,
        "relative_attention_max_distance": backbone.farthest,
        "dropout_rate": spec.dropout,
        "tie_word_embeddings": backbone.output_scaled,
    }
