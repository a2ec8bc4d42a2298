"""Decoding speed: beam search with random weights, where every summary has the same length."""

from collections.abc import Iterable
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from raysum import systems
from raysum.bench.base import PresetBench, Row, alone
from raysum.bench.inputs import Search
from raysum.bench.machine import DTYPES, Machine, measure
from raysum.bench.operators import Costs
from raysum.bench.peers import check_peer, fastest_row, tool_options
from raysum.decode.beam import beam_search
from raysum.models.batch import move
from raysum.models.kernels.linear import check_int8, optimize_for_inference
from raysum.runtime.placement import device


class DecodeBench(PresetBench):
    """A row for each preset, dtype, number of threads and batch size, and for each tool to compare with."""

    NAME: ClassVar[str] = "decode"
    presets: list[str] = Field(["ft", "ht", "ht-code", "pht", "vht"], min_length=1)
    batches: list[int] = Field([1, 16], min_length=1, description="examples decoded together")
    threads: list[int] = Field([2], min_length=1)
    dtypes: list[Literal["fp32", "bf16", "int8"]] = Field(["fp32"], min_length=1)
    beams: int = Field(5, gt=0)
    length: int = Field(200, gt=0, description="tokens of every summary")
    repeats: int = Field(2, gt=0, description="number of searches; the fastest counts")
    against: list[str] = Field([], description="tools to compare flat presets with: transformers, ctranslate2")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        configs = self.configs()
        for _, config in configs:
            check_peer(self.against, config)
        if "int8" in self.dtypes:
            check_int8(device())
        searches = [
            Search(*preset, dtype, threads, batch, self.beams, self.length, self.repeats)
            for preset, dtype, threads, batch in product(configs, self.dtypes, self.threads, self.batches)
        ]
        tools = [(search, tool) for tool in self.against for search in searches if tool_options(tool, search)]
        return [(search, "") for search in searches] + tools

    @cached_property
    def machines(self) -> dict[int, Machine]:
        """The limits by number of threads; an int8 model also has fp32 products."""
        rates = dict.fromkeys([*self.dtypes, *(["fp32"] if "int8" in self.dtypes else [])])
        return {count: measure(count, [*rates]) for count in self.threads}

    def machine(self) -> Machine:
        return self.machines[max(self.threads)]

    def measured(self, _: Machine, search: Search, tool: str) -> Row:
        return fastest_row(tool, search) if tool else alone(decode_row, search, self.machines[search.threads])


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
