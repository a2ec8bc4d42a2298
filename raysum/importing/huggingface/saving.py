"""A model of the family as a folder that transformers loads, where its mix is one that transformers has."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from raysum.errors import UserError
from raysum.importing.huggingface.families import ACTIVATIONS
from raysum.importing.huggingface.folder import HEAD, SHARED, SOURCE, TARGET
from raysum.importing.huggingface.loading import KINDS, layer_counts, parts_of
from raysum.importing.mapping import names
from raysum.models.specs.backbone import Backbone
from raysum.models.specs.family import FamilySpec
from raysum.runtime.storage import save_tensors
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.tokenizer import Tokenizer

# What is 0 as long as a layer of ours does what the published one does, or nothing.
_HEARD = {
    "encoder": ("attention.out.", "ffn.outer."),
    "decoder": ("cross.paragraphs.out.", "cross.contexts.out.", "cross.gate"),
}
_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # the first of their names
_CLASSES = {
    "bart": "Bart",
    "mbart": "MBart",
    "pegasus": "Pegasus",
    "led": "LED",
    "t5": "T5",
    "mt5": "MT5",
    "umt5": "UMT5",
}
_OUTSIDE = (HEAD, "final_logits_bias")  # of the model within


def save(folder: Path, spec: FamilySpec, weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors. Raises UserError where transformers has no such model."""
    _check(spec, weights)
    config = config_of(spec)
    kind = KINDS[config["model_type"]]
    found = {}
    for name, published in names(f"huggingface/{kind.table}", parts_of(spec, kind)):
        for theirs, part in zip(published, weights[name].chunk(len(published)), strict=True):
            found[theirs] = part[None] if theirs == "final_logits_bias" else part
    for theirs in _unshared(spec, config):
        found.setdefault(theirs, weights["embedding.weight"])
    tensors = {
        name if name in _OUTSIDE else kind.prefix + name: part.contiguous().clone() for name, part in found.items()
    }
    save_tensors(tensors, folder / "model.safetensors", {"format": "pt"})
    _write(folder / "config.json", config)


def _unshared(spec: FamilySpec, config: dict[str, Any]) -> list[str]:
    """The matrices of tokens that the file must have: transformers shares those that it lacks, but not in a BART with
    ``tie_word_embeddings`` false. T5's output layer is written then too, for version 4."""
    made = spec.backbone
    assert made is not None
    is_untied = not config["tie_word_embeddings"]
    if made.source_embedding or (is_untied and made.places == "learned"):
        return [SHARED, SOURCE, TARGET, HEAD]
    return [HEAD] if is_untied else []


def _check(spec: FamilySpec, weights: dict[str, Tensor]) -> None:
    if getattr(spec, "backbone", None) is None or spec.copy_heads:
        lacking = "a copy gate" if getattr(spec, "copy_heads", 0) else "the papers' layers"
        raise UserError(f"transformers has no model with {lacking}, so this one cannot be exported")
    for name, value in weights.items():
        side, _, rest = name.partition(".")
        number, _, within = rest.partition(".")
        if (
            within.startswith(_HEARD.get(side, ()))
            and (side == "decoder" or spec.encoder[int(number)] == "G")
            and bool(value.any())
        ):
            letter = (spec.encoder if side == "encoder" else spec.decoder)[int(number)]
            raise UserError(
                f"transformers has no layer such as {letter}, number {number} of the {side}, which has been trained; "
                "export a run of the mix that its weights came with"
            )


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the files of the tokenizer of a run. Raises UserError where transformers has none such."""
    if tokenizer.pieces == Vocabulary.pieces:
        raise UserError("the run's vocabulary is raysum's own SentencePiece, which transformers has no tokenizer for")
    told, marks = json.loads(tokenizer.model), tokenizer.marks
    contents = {token["id"]: token["content"] for token in told["tokenizer"]["added_tokens"]}
    named = {"eos_token": marks.end, "pad_token": marks.pad, "unk_token": marks.unknown, "mask_token": marks.mask}
    names = {name: contents[id] for name, id in named.items() if id in contents}
    _write(folder / "tokenizer.json", told["tokenizer"])
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def kind_of(made: Backbone, norm: str) -> str:
    """What transformers calls a model of such layers."""
    if made.places == "relative":
        return "umt5" if made.layer_distances else made.model_type or "t5"
    if made.window:
        return "led"
    return "bart" if norm == "post" else "mbart" if made.embedding_norm else "pegasus"


def config_of(spec: FamilySpec) -> dict[str, Any]:
    made = spec.backbone
    assert made is not None
    kind = kind_of(made, spec.norm)
    config = {
        "model_type": kind,
        "architectures": [f"{_CLASSES[kind]}ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "pad_token_id": spec.marks.pad,
        "eos_token_id": spec.marks.end,
        "decoder_start_token_id": spec.marks.start,
    }
    return config | (_t5(spec, made) if made.places == "relative" else _bart_like(spec, made, kind))


def _bart_like(spec: FamilySpec, made: Backbone, kind: str) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side, count in zip(("encoder", "decoder"), layer_counts(spec), strict=True)
        for name, value in (("layers", count), ("attention_heads", spec.heads), ("ffn_dim", spec.ffn))
    }
    if kind == "led":
        places = {
            "max_encoder_position_embeddings": made.source_places,
            "max_decoder_position_embeddings": made.target_places,
            "attention_window": [made.window] * layer_counts(spec)[0],
        }
    else:
        places = {
            "max_position_embeddings": made.source_places - made.place_offset,
            "scale_embedding": made.embedding_scaled,
        }
    return {
        **sides,
        **places,
        "tie_word_embeddings": spec.tied_output and not made.source_embedding,
        "activation_function": _ACTIVATIONS[made.activation],
        "dropout": spec.dropout,
        "attention_dropout": spec.attention_dropout,
        "activation_dropout": spec.ffn_dropout,
    }


def _t5(spec: FamilySpec, made: Backbone) -> dict[str, Any]:
    """``tie_word_embeddings`` tells transformers whether to scale the last states, and not what it says."""
    activation = "gelu" if made.gated and made.activation == "gelu-tanh" else _ACTIVATIONS[made.activation]
    first, second = layer_counts(spec)
    return {
        "num_layers": first,
        "num_decoder_layers": second,
        "num_heads": spec.heads,
        "d_kv": made.head_width,
        "d_ff": spec.ffn,
        "feed_forward_proj": f"gated-{activation}" if made.gated else activation,
        "layer_norm_epsilon": made.eps,
        "relative_attention_num_buckets": made.buckets,
        "relative_attention_max_distance": made.farthest,
        "dropout_rate": spec.dropout,
        "tie_word_embeddings": made.output_scaled,
    }
