"""The specification of a BART, mBART, PEGASUS, LED, T5, mT5 or UMT5 from its config.json."""

from collections.abc import Mapping
from typing import Any

from raysum.importing.huggingface.folder import HEAD, SOURCE, vocabulary_size
from raysum.importing.mapping import Arrays
from raysum.models.family.spec import Backbone, FamilySpec

Config = Mapping[str, Any]

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
_MAX_POSITIONS = 1 << 17  # for which a table is computed if the file has none
_OLD = {"normalize_before", "add_final_layer_norm", "normalize_embedding"}  # the model type determines these


def bart_like(config: Config, arrays: Arrays, encoder: str, decoder: str) -> FamilySpec:
    """Return the specification of a BART, mBART, PEGASUS or LED with these mixes.

    Raises KeyError and ValueError for options that the family lacks.
    """
    kind = config["model_type"]
    pre = kind in ("mbart", "pegasus")
    offset = 0 if kind in ("pegasus", "led") else 2
    for name in _OLD & config.keys():
        if bool(config[name]) != (kind != "pegasus" if name == "normalize_embedding" else pre):
            raise ValueError(f"its {name} is {config[name]}, but must be {not config[name]} for a {kind}")
    if config.get("static_position_embeddings") and kind != "pegasus":
        raise ValueError("its positions are sinusoids (static_position_embeddings), but must be tables")
    tables = [arrays.get(f"{side}.embed_positions.weight") for side in ("encoder", "decoder")]
    rows = [config.get("max_position_embeddings", 0) if table is None else len(table) for table in tables]
    if not offset < min(rows) <= max(rows) <= _MAX_POSITIONS:
        raise ValueError(f"it has {rows[0]} and {rows[1]} positions, but must have {offset + 1} to {_MAX_POSITIONS}")
    return FamilySpec(
        **_sides(config),
        **_mixes(encoder, decoder),
        vocabulary=vocabulary_size(arrays),
        width=config["d_model"],
        norm="pre" if pre else "post",
        sinusoid="halves",
        tied_output=HEAD not in arrays,
        dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.0),
        ffn_dropout=config.get("activation_dropout", 0.0),
        backbone=Backbone(
            eps=1e-5,
            activation=_activation(config.get("activation_function", "gelu")),
            places="learned",
            source_places=rows[0],
            target_places=rows[1],
            place_offset=offset,
            window=_window(config) if kind == "led" else 0,
            places_trained=kind != "pegasus",
            source_embedding=SOURCE in arrays,
            embedding_norm=kind != "pegasus",
            embedding_scaled=bool(config.get("scale_embedding", False)),
            padding_trained=False,
            output_bias="fixed",
        ),
    )


def t5(config: Config, arrays: Arrays, encoder: str, decoder: str) -> FamilySpec:
    """Return the specification of a T5 (v1.0, v1.1, FLAN), mT5 or UMT5 with these mixes.

    ``tie_word_embeddings`` decides whether the last states are scaled, except for mT5, which never scales them but
    for which version 5 of transformers writes true. Raises KeyError and ValueError for options that the family
    lacks.
    """
    kind = config["model_type"]
    *gated, activation = str(config.get("feed_forward_proj", "relu")).split("-")
    if gated not in ([], ["gated"]):
        raise ValueError(f"its feed_forward_proj is {config['feed_forward_proj']}, which T5 does not have")
    is_scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    width, heads, dropout = config["d_model"], config["num_heads"], config.get("dropout_rate", 0.1)
    return FamilySpec(
        **_mixes(encoder, decoder),
        vocabulary=vocabulary_size(arrays),
        width=width,
        ffn=config["d_ff"],
        heads=heads,
        pooling_heads=next(count for count in range(heads, 0, -1) if width % count == 0),
        norm="pre",
        tied_output=HEAD not in arrays,
        dropout=dropout,
        attention_dropout=dropout,
        ffn_dropout=dropout,
        backbone=Backbone(
            norm="rms",
            eps=config.get("layer_norm_epsilon", 1e-6),
            bias=False,
            activation=_activation("gelu_new" if gated and activation == "gelu" else activation),
            gated=bool(gated),
            head_width=config["d_kv"],
            scaled_scores=False,
            places="relative",
            layer_distances=kind == "umt5",
            buckets=config.get("relative_attention_num_buckets", 32),
            farthest=config.get("relative_attention_max_distance", 128),
            source_embedding=SOURCE in arrays,
            embedding_scaled=False,
            output_bias="none",
            output_scaled=kind != "mt5" and bool(is_scaled),
            final_dropout=True,
            model_type="mt5" if kind == "mt5" else None,
        ),
    )


def _window(config: Config) -> int:
    window = config["attention_window"]
    different = {*window} if isinstance(window, list) else {window}
    if len(different) != 1:
        raise ValueError(f"its layers have different windows, {window}, but must share one")
    return different.pop()


def _sides(config: Config) -> dict[str, int]:
    """Return sizes that both sides must share."""
    for name in ("attention_heads", "ffn_dim"):
        if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
            raise ValueError(f"its encoder_{name} and decoder_{name} differ, but must be equal")
    count = config["encoder_attention_heads"]
    return {"heads": count, "pooling_heads": count, "ffn": config["encoder_ffn_dim"]}


def _mixes(encoder: str, decoder: str) -> dict[str, Any]:
    flat = not set(encoder) - {"S", "W"}
    return {"encoder": encoder, "decoder": decoder, "positions": "flat" if flat else "paragraph", "form": "code"}


def _activation(name: str) -> Any:
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"its activation is {name}, but must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
