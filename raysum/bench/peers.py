"""Other tools for comparison: a flat Transformer of the same sizes, with random weights and the same beam search.

They are an extra (`pip install ".[peers]"`), used only by `raysum bench decode`.
"""

import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import torch

from raysum.bench.base import Row, alone
from raysum.bench.inputs import Search
from raysum.bench.machine import DTYPES
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.importing.huggingface.saving import published_config
from raysum.runtime.placement import device
from raysum.tokenizers.special_tokens import PUBLISHED

PEERS = ("transformers", "ctranslate2")
Options = dict[str, Any]


def check_peer(names: Iterable[str], config: Config) -> None:
    """Raise UserError for an unknown tool, one that is not installed, or a model that is not flat."""
    for name in names:
        if name not in PEERS:
            raise UserError(f"unknown tool {name!r} to compare with: choose one of {', '.join(PEERS)}")
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed: install the extra `peers`")
        if set(getattr(config.model, "encoder", "")) != {"S"}:
            raise UserError(f"{name} has only flat Transformers: compare presets such as ft")


def fastest_row(name: str, search: Search) -> Row:
    """Return the figures of the tool ``name`` with its fastest options, each measured in its own process.

    The column ``way`` names these options.
    """
    rows = [alone(peer_row, name, search, options) for options in tool_options(name, search)]
    return max(rows, key=lambda row: row["tokens_per_s"])


def tool_options(name: str, search: Search) -> list[Options]:
    """Return the options of a tool to try, such as the distribution of threads; none if it lacks the dtype here."""
    if name == "transformers":
        return [{}] if search.dtype in DTYPES else []
    import ctranslate2

    kinds = {"fp32": ("float32",), "bf16": ("bfloat16",), "int8": ("int8", "int8_float32", "int8_bfloat16")}
    device_type, split = device().type, {(1, 1)}
    if device_type == "cpu":
        split |= {(1, search.threads), (min(search.threads, search.batch), max(1, search.threads // search.batch))}
    supported = ctranslate2.get_supported_compute_types(device_type)
    return [
        {"compute_type": kind, "inter_threads": inter, "intra_threads": intra}
        for kind in kinds[search.dtype]
        if kind in supported
        for inter, intra in sorted(split)
    ]


def peer_row(name: str, search: Search, options: Options) -> Row:
    """Return the figures of one set of options, measured in this process."""
    torch.set_num_threads(search.threads)
    ids = search.source().ids.view(search.batch, -1)
    run = _transformers(search, ids) if name == "transformers" else _ctranslate2(search, ids, options)
    label = "{compute_type} {inter_threads}x{intra_threads}".format(**options) if options else None
    return search.row(run) | {"preset": name, "way": label}


def _transformers(search: Search, ids: torch.Tensor) -> Callable[[], Any]:
    model, ids = _model(search, ids).to(device(), DTYPES[search.dtype]), ids.to(device())
    model.generation_config.forced_bos_token_id = model.generation_config.forced_eos_token_id = None
    sizes = {"num_beams": search.beams, "min_new_tokens": search.length, "max_new_tokens": search.length}
    mask = torch.ones_like(ids)
    return lambda: model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **sizes)


def _ctranslate2(search: Search, ids: torch.Tensor, options: Options) -> Callable[[], Any]:
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    published = _model(search, ids)
    model = BartLoader().get_model_spec(published)
    pieces = ["<unk>", "<s>", "</s>", *(str(number) for number in range(3, published.config.vocab_size))]
    model.register_source_vocabulary(pieces)
    model.register_target_vocabulary(pieces)
    model.validate()
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        translator = ctranslate2.Translator(folder, device().type, **options)
    tokens = [[pieces[number] for number in row] for row in ids.tolist()]
    sizes = {"beam_size": search.beams, "min_decoding_length": search.length, "max_decoding_length": search.length}
    part = -(-len(tokens) // options["inter_threads"])
    return lambda: translator.translate_batch(tokens, max_batch_size=part, max_input_length=0, **sizes)


def _model(search: Search, ids: torch.Tensor) -> Any:
    """Return transformers' model that is closest to the preset's: its backbone, or a flat Transformer of its sizes."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    spec: Any = search.config.model
    flat = {
        "model_type": "marian",
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "encoder_layers": len(spec.encoder),
        "decoder_layers": len(spec.decoder),
        "encoder_ffn_dim": spec.ffn,
        "decoder_ffn_dim": spec.ffn,
        "encoder_attention_heads": spec.heads,
        "decoder_attention_heads": spec.heads,
        "max_position_embeddings": max(ids.shape[1], search.length) + 2,
        "pad_token_id": PUBLISHED.pad,
        "eos_token_id": PUBLISHED.end,
        "decoder_start_token_id": PUBLISHED.start,
        "forced_eos_token_id": None,
    }
    config = AutoConfig.for_model(**(published_config(spec) if spec.backbone else flat))
    config.normalize_before, config.normalize_embedding = False, bool(spec.backbone)
    return AutoModelForSeq2SeqLM.from_config(config).eval()
