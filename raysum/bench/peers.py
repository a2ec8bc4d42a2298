"""General tools beside ours: a flat Transformer of the same sizes, random weights, the same beam search.

They are an extra (`pip install ".[peers]"`), used by `raysum bench decode` when asked for.
"""

import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from raysum.bench.inputs import Search
from raysum.bench.machine import DTYPES
from raysum.bench.result import Row, alone
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.importing.huggingface.saving import config_of
from raysum.runtime.placement import device
from raysum.tokenizers.special_tokens import PUBLISHED

PEERS = ("transformers", "ctranslate2")
Way = dict[str, Any]


def check(names: Iterable[str], config: Config) -> None:
    """Raises UserError for an unknown tool, one that is not installed, or a model that is not flat."""
    for name in names:
        if name not in PEERS:
            raise UserError(f"no tool {name!r} to compare with; there are {', '.join(PEERS)}")
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed; install the extra `peers`")
        if set(getattr(config.model, "encoder", "")) != {"S"}:
            raise UserError(f"{name} has flat Transformers only: compare presets such as ft")


def fastest_row(name: str, search: Search) -> Row:
    """The figures of the tool ``name`` by the fastest of its ways, each in a process of its own; ``way`` tells it."""
    rows = [alone(peer_row, name, search, way) for way in ways(name, search)]
    return max(rows, key=lambda row: row["tokens_per_s"])


def ways(name: str, search: Search) -> list[Way]:
    """What a tool lets its user choose, such as how threads are shared out; none where it lacks the dtype here."""
    if name == "transformers":
        return [{}] if search.dtype in DTYPES else []
    import ctranslate2

    kinds = {"fp32": ("float32",), "bf16": ("bfloat16",), "int8": ("int8", "int8_float32", "int8_bfloat16")}
    place, split = device().type, {(1, 1)}
    if place == "cpu":
        split |= {(1, search.threads), (min(search.threads, search.batch), max(1, search.threads // search.batch))}
    known = ctranslate2.get_supported_compute_types(place)
    return [
        {"compute_type": kind, "inter_threads": inter, "intra_threads": intra}
        for kind in kinds[search.dtype]
        if kind in known
        for inter, intra in sorted(split)
    ]


def peer_row(name: str, search: Search, way: Way) -> Row:
    """The figures of one way, in this process."""
    torch.set_num_threads(search.threads)
    ids = search.source().ids.view(search.batch, -1)
    run = _transformers(search, ids) if name == "transformers" else _ctranslate2(search, ids, way)
    told = "{compute_type} {inter_threads}x{intra_threads}".format(**way) if way else None
    return search.row(run) | {"preset": name, "way": told}


def _transformers(search: Search, ids: torch.Tensor) -> Callable[[], Any]:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    spec: Any = search.config.model
    told = config_of(spec) if spec.backbone else _marian(spec, max(ids.shape[1], search.length) + 2)
    model: Any = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**told))
    model.generation_config.forced_bos_token_id = model.generation_config.forced_eos_token_id = None
    model, ids = model.eval().to(device(), DTYPES[search.dtype]), ids.to(device())
    sizes = {"num_beams": search.beams, "min_new_tokens": search.length, "max_new_tokens": search.length}
    mask = torch.ones_like(ids)
    return lambda: model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **sizes)


def _marian(spec: Any, places: int) -> dict[str, Any]:
    """The config of transformers' model that is nearest to a flat Transformer of the papers' layers."""
    return {
        "model_type": "marian",
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "encoder_layers": len(spec.encoder),
        "decoder_layers": len(spec.decoder),
        "encoder_ffn_dim": spec.ffn,
        "decoder_ffn_dim": spec.ffn,
        "encoder_attention_heads": spec.heads,
        "decoder_attention_heads": spec.heads,
        "max_position_embeddings": places,
        "pad_token_id": PUBLISHED.pad,
        "eos_token_id": PUBLISHED.end,
        "decoder_start_token_id": PUBLISHED.start,
        "forced_eos_token_id": None,
    }


def _ctranslate2(search: Search, ids: torch.Tensor, way: Way) -> Callable[[], Any]:
    import ctranslate2

    spec: Any = search.config.model
    kind = ctranslate2.specs.TransformerSpec.from_config((len(spec.encoder), len(spec.decoder)), spec.heads)
    _fill(kind, spec)
    pieces = ["<unk>", "<s>", "</s>", *(str(number) for number in range(3, spec.vocabulary))]
    kind.register_source_vocabulary(pieces)
    kind.register_target_vocabulary(pieces)
    kind.validate()
    with tempfile.TemporaryDirectory() as folder:
        kind.save(folder)
        translator = ctranslate2.Translator(folder, device().type, **way)
    tokens = [[pieces[number] for number in row] for row in ids.tolist()]
    sizes = {"beam_size": search.beams, "min_decoding_length": search.length, "max_decoding_length": search.length}
    part = -(-len(tokens) // way["inter_threads"])
    return lambda: translator.translate_batch(tokens, max_batch_size=part, max_input_length=0, **sizes)


def _fill(part: Any, spec: Any) -> None:
    """Random weights of the right shapes in a CTranslate2 specification."""
    random, width = np.random.default_rng(0), spec.width

    def put(layer: Any, *shape: int) -> None:
        layer.weight = random.normal(0, 0.02, shape).astype(np.float32)
        if hasattr(layer, "bias"):
            layer.bias = np.zeros(shape[0], np.float32)

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def attention(layer: Any, *parts: int) -> None:
        norm(layer.layer_norm)
        for linear, count in zip(layer.linear, parts, strict=True):
            put(linear, count * width, width)

    for table in (part.encoder.embeddings[0], part.decoder.embeddings, part.decoder.projection):
        put(table, spec.vocabulary, width)
    for side in (part.encoder, part.decoder):
        norm(side.layer_norm)
        for layer in side.layer:
            attention(layer.self_attention, 3, 1)
            norm(layer.ffn.layer_norm)
            put(layer.ffn.linear_0, spec.ffn, width)
            put(layer.ffn.linear_1, width, spec.ffn)
    for layer in part.decoder.layer:
        attention(layer.attention, 1, 2, 1)
