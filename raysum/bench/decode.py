"""Decoding speed: beam search with random weights, where every summary has the same length.

Flat presets can be compared with other tools, which are an extra (`pip install ".[peers]"`): a Transformer of the same
sizes, with random weights and the same beam search.
"""

import tempfile
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field

from raysum import systems
from raysum.bench.base import Number, PresetBench, Row, Threads, alone
from raysum.bench.machine import DTYPES, Costs, Machine, measure, timed
from raysum.config.sections import Config
from raysum.decode.beam import beam_search
from raysum.errors import UserError
from raysum.importing.huggingface.saving import published_config
from raysum.models.batch import move
from raysum.models.kernels.linear import check_int8, optimize_for_inference
from raysum.runtime.lanes import in_lanes, lanes_of
from raysum.runtime.placement import device
from raysum.stream.random_rows import batch_of
from raysum.tokenizers.special_tokens import PUBLISHED

PEERS = ("transformers", "ctranslate2")
Options = dict[str, Any]


class Search(NamedTuple):
    """A beam search in which every summary has ``length`` tokens, by raysum or by another ``tool``."""

    tool: str
    preset: str
    config: Config
    dtype: str
    threads: int
    batch: int
    beams: int
    length: int


class DecodeBench(PresetBench):
    """A row for each preset, dtype, number of threads and batch size, and for each tool to compare with."""

    NAME: ClassVar[str] = "decode"
    presets: list[str] = Field(["ft", "ht", "ht-code", "pht", "vht"], min_length=1, description="models to measure")
    batches: list[Number] = Field([1, 16], min_length=1, description="examples decoded together")
    threads: list[Threads] = Field([2], min_length=1, description="CPU threads, a row each")
    dtypes: list[Literal["fp32", "bf16", "int8"]] = Field(["fp32"], min_length=1, description="of products, a row each")
    beams: int = Field(5, gt=0, description="hypotheses of an example")
    length: int = Field(200, gt=0, description="tokens of every summary")
    repeats: int = Field(2, gt=0, description="number of searches; the fastest counts")
    against: list[str] = Field([], description="tools to compare flat presets with: transformers, ctranslate2")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        configs = self.configs(are_decoded=True)
        for tool, (_, config) in product(self.against, configs):
            _check_peer(tool, config)
        if "int8" in self.dtypes:
            check_int8(device())
        variants = product(["", *self.against], configs, self.dtypes, self.threads, self.batches)
        searches = (
            Search(tool, *preset, dtype, threads, batch, self.beams, self.length)
            for tool, preset, dtype, threads, batch in variants
        )
        return [(search, options) for search in searches if (options := _options(search))]

    @cached_property
    def machines(self) -> dict[int, Machine]:
        """The limits by number of threads; an int8 model also has fp32 products."""
        rates = dict.fromkeys([*self.dtypes, *(["fp32"] if "int8" in self.dtypes else [])])
        return {count: measure(count, [*rates]) for count in self.threads}

    def machine(self) -> Machine:
        return self.machines[max(self.threads)]

    def measured(self, _: Machine, search: Search, options: list[Options]) -> Row:
        """Return the row of the fastest options, each measured in its own process."""
        rows = [alone(self.row, self.machines[search.threads], search, one) for one in options]
        return max(rows, key=lambda row: row["tokens_per_s"])

    def row(self, machine: Machine, search: Search, options: Options) -> Row:
        """Return the figures of a search, including encoding. For a tool, ``way`` names its options."""
        torch.set_num_threads(search.threads)
        torch.manual_seed(0)
        source = batch_of(search.config, search.batch, search.length).source
        decode = {"": _raysum, "transformers": _transformers, "ctranslate2": _ctranslate2}[search.tool]
        run = decode(search, source, **options)
        seconds = min(timed(run) for _ in range(self.repeats))
        row = {
            "preset": search.tool or search.preset,
            "dtype": search.dtype,
            "threads": search.threads,
            "batch": search.batch,
            "beams": search.beams,
            "examples_per_s": search.batch / seconds,
            "tokens_per_s": search.batch * search.length / seconds,
            "seconds": seconds,
        }
        if search.tool:
            way = "{compute_type} {inter_threads}x{intra_threads}".format(**options) if options else None
            return row | {"way": way}
        torch.set_num_threads(1)  # so that only this thread works, which counts
        with Costs() as costs:
            run()
        row["limit_share"] = costs.least_seconds(machine, search.dtype) / seconds
        return row | {"mflop_per_token": costs.flops / (search.batch * search.length) / 1e6}


def _check_peer(tool: str, config: Config) -> None:
    """Raise UserError for an unknown tool, one that is not installed, or a model that is not flat."""
    if tool not in PEERS:
        raise UserError(f"unknown tool {tool!r} to compare with: choose one of {', '.join(PEERS)}")
    if find_spec(tool) is None:
        raise UserError(f'{tool} is not installed: pip install ".[peers]" in the clone of raysum')
    if set(getattr(config.model, "encoder", "")) != {"S"}:
        raise UserError(f"{tool} has only flat Transformers: compare presets such as ft")


def _options(search: Search) -> list[Options]:
    """Return the options of a tool to try, such as the distribution of threads; none if it lacks the dtype here."""
    if search.tool != "ctranslate2":
        return [{}] if not search.tool or search.dtype in DTYPES else []
    import ctranslate2

    kinds = {"fp32": ("float32",), "bf16": ("bfloat16",), "int8": ("int8", "int8_float32", "int8_bfloat16")}
    split = {(1, 1)}
    if device().type == "cpu":
        split |= {(1, search.threads), (min(search.threads, search.batch), max(1, search.threads // search.batch))}
    supported = ctranslate2.get_supported_compute_types(device().type)
    return [
        {"compute_type": kind, "inter_threads": inter, "intra_threads": intra}
        for kind in kinds[search.dtype]
        if kind in supported
        for inter, intra in sorted(split)
    ]


def _raysum(search: Search, source: Any) -> Callable[[], Any]:
    model: Any = systems.build(search.config.model).to(device(), DTYPES.get(search.dtype, torch.float32)).eval()
    optimize_for_inference(model, search.dtype)
    inputs = move(source, device())
    forced = {"num_beams": search.beams, "min_length": search.length, "max_length": search.length}
    decode = search.config.decode.model_copy(update=forced)

    def found(part: Any) -> list[Any]:
        with torch.inference_mode():
            return [beam_search(model, model.encode(part), decode)]

    examples = -(-search.batch // lanes_of(device()))
    parts = inputs.split(examples * (len(inputs.ids) // search.batch))
    return lambda: [*in_lanes(found, parts, device())]


def _transformers(search: Search, source: Any) -> Callable[[], Any]:
    model = _published_model(search, source).to(device(), DTYPES[search.dtype])
    model.generation_config.forced_bos_token_id = model.generation_config.forced_eos_token_id = None
    ids = source.ids.view(search.batch, -1).to(device())
    sizes = {"num_beams": search.beams, "min_new_tokens": search.length, "max_new_tokens": search.length}
    mask = torch.ones_like(ids)
    return lambda: model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **sizes)


def _ctranslate2(search: Search, source: Any, **options: Any) -> Callable[[], Any]:
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    published = _published_model(search, source)
    model = BartLoader().get_model_spec(published)
    pieces = ["<unk>", "<s>", "</s>", *(str(number) for number in range(3, published.config.vocab_size))]
    model.register_source_vocabulary(pieces)
    model.register_target_vocabulary(pieces)
    model.validate()
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        translator = ctranslate2.Translator(folder, device().type, **options)
    tokens = [[pieces[number] for number in row] for row in source.ids.view(search.batch, -1).tolist()]
    sizes = {"beam_size": search.beams, "min_decoding_length": search.length, "max_decoding_length": search.length}
    part = -(-len(tokens) // options["inter_threads"])
    return lambda: translator.translate_batch(tokens, max_batch_size=part, max_input_length=0, **sizes)


def _published_model(search: Search, source: Any) -> Any:
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
        "max_position_embeddings": max(len(source.ids) // search.batch, search.length) + 2,
        "pad_token_id": PUBLISHED.pad,
        "eos_token_id": PUBLISHED.end,
        "decoder_start_token_id": PUBLISHED.start,
        "forced_eos_token_id": None,
    }
    config = AutoConfig.for_model(**(published_config(spec) if spec.backbone else flat))
    config.normalize_before, config.normalize_embedding = False, bool(spec.backbone)
    return AutoModelForSeq2SeqLM.from_config(config).eval()
