"""The config.json that transformers reads, of a model of the family with pretrained layers."""

from typing import Any

from raysum.importing.huggingface.families import ACTIVATIONS
from raysum.importing.huggingface.loading import layer_counts
from raysum.models.specs.backbone import Backbone
from raysum.models.specs.family import FamilySpec

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
