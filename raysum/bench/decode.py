"""Decoding speed: beam search with random weights, where every summary has the same length."""

from itertools import product
from typing import Any, Literal

import torch
from pydantic import Field

from raysum import systems
from raysum.bench.inputs import Search
from raysum.bench.machine import DTYPES, Machine, measure
from raysum.bench.operators import Costs
from raysum.bench.peers import check_peer, fastest_row, tool_options
from raysum.bench.result import BenchResult, Row, alone
from raysum.config.base import Section
from raysum.config.loading import load_config
from raysum.decode.beam import beam_search
from raysum.models.batch import move
from raysum.models.kernels.linear import check_int8, optimize_for_inference
from raysum.runtime.placement import device
from raysum.runtime.progress import bar


class DecodeBench(Section):
    presets: list[str] = Field(["ft", "ht", "ht-code", "pht", "vht"], min_length=1)
    batches: list[int] = Field([1, 16], min_length=1, description="examples decoded together")
    threads: list[int] = Field([2], min_length=1)
    dtypes: list[Literal["fp32", "bf16", "int8"]] = Field(["fp32"], min_length=1)
    beams: int = Field(5, gt=0)
    length: int = Field(200, gt=0, description="tokens of every summary")
    repeats: int = Field(2, gt=0, description="number of searches; the fastest counts")
    against: list[str] = Field([], description="tools to compare flat presets with: transformers, ctranslate2")
    config: list[str] = Field([], description="key=value overrides of every preset")


def bench_decode(settings: DecodeBench) -> BenchResult:
    """Return a row for each preset, dtype, number of threads and batch size.

    Raises UserError for an unknown preset or tool, a tool that is not installed, and int8 if unsupported.
    """
    configs = {preset: load_config(preset, settings.config) for preset in settings.presets}
    for config in configs.values():
        check_peer(settings.against, config)
    if "int8" in settings.dtypes:
        check_int8(device())
    rates = dict.fromkeys([*settings.dtypes, *(["fp32"] if "int8" in settings.dtypes else [])])
    machines = {count: measure(count, list(rates)) for count in settings.threads}
    variants = product(configs.items(), settings.dtypes, settings.threads, settings.batches)
    searches = [
        Search(preset, config, dtype, threads, batch, settings.beams, settings.length, settings.repeats)
        for (preset, config), dtype, threads, batch in variants
    ]
    work: list[Any] = [(alone, decode_row, search, machines[search.threads]) for search in searches]
    work += [
        (fastest_row, name, search) for name in settings.against for search in searches if tool_options(name, search)
    ]
    rows = [measure_row(*arguments) for measure_row, *arguments in bar(work, label="bench decode", unit="row")]
    return BenchResult("decode", machines[max(machines)], rows)


def decode_row(search: Search, machine: Machine) -> Row:
    """Return the figures of one model, measured in this process, including encoding."""
    torch.set_num_threads(search.threads)
    torch.manual_seed(0)
    model: Any = systems.build(search.config.model).to(device(), DTYPES.get(search.dtype, torch.float32)).eval()
    optimize_for_inference(model, search.dtype)
    inputs = move(search.source(), device())
    forced = {"num_beams": search.beams, "min_length": search.length, "max_length": search.length}
    decode = search.config.decode.model_copy(update=forced)

    def run() -> None:
        with torch.inference_mode():
            beam_search(model, model.encode(inputs), decode)

    row = search.row(run)
    with Costs() as costs:
        run()
    return row | {
        "limit_share": costs.least_seconds(machine, search.dtype) / row["seconds"],
        "mflop_per_token": costs.flops / (search.batch * search.length) / 1e6,
    }
