"""Training speed: forward pass, backward pass and Adam step, repeated on one random batch."""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch.profiler import ProfilerActivity, profile

from raysum import systems
from raysum.bench.base import BenchResult, Number, PresetBench, Row, Threads
from raysum.bench.inputs import full_size
from raysum.bench.machine import DTYPES, Costs, Machine, timed
from raysum.config.sections import Config
from raysum.models.batch import move
from raysum.models.kernels.compilation import compile_layers
from raysum.models.kernels.recomputation import recompute_layers
from raysum.pages.charts import Chart, Line, Point, save
from raysum.runtime.compat import check_compiler
from raysum.runtime.placement import device
from raysum.runtime.processes import hushed, peak_rss_mb
from raysum.runtime.storage import check_picture, writing
from raysum.stream.collators.base import kind_of
from raysum.stream.loader import batches
from raysum.stream.plan import PlanSettings
from raysum.stream.random_rows import batch_of, limits_of
from raysum.stream.stream import Stream
from raysum.train.optim import compiles_layers

ENDLESS = 100_000  # more steps than any benchmark runs


class TrainBench(PresetBench):
    """A row for each preset, dtype and number of paragraphs."""

    NAME: ClassVar[str] = "train"
    presets: list[str] = Field(["ft", "ht", "ht-code", "pht", "vht"], min_length=1, description="models to measure")
    dtypes: list[Literal["fp32", "bf16"]] = Field(["fp32"], min_length=1, description="of products, a row each")
    compiled: list[bool] = Field([False], min_length=1, description="whether layers are compiled (train.compile)")
    paragraphs: list[Number] = Field([], description="paragraphs per example, a row each; empty = the preset's number")
    examples: int = Field(4, gt=0, description="examples per step")
    target_tokens: int = Field(140, gt=1, description="tokens of each target; WikiSum's have about 140")
    steps: int = Field(5, gt=0, description="timed steps, after two warm-up steps")
    threads: Threads = Field(2, description="CPU threads")
    plot: str | None = Field(None, description="PNG or SVG file for a plot of time and memory by paragraphs")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        if self.plot:
            check_picture(Path(self.plot).expanduser())
        counts: list[int | None] = [*self.paragraphs] or [None]
        configs = self.configs()
        if device().type == "cpu" and (True in self.compiled or any(config.train.compile for _, config in configs)):
            check_compiler()
        variants = product(configs, self.dtypes, self.compiled, counts)
        return [(*preset, dtype, compiled, count) for preset, dtype, compiled, count in variants]

    def row(
        self, machine: Machine, preset: str, config: Config, dtype: str, compiled: bool, paragraphs: int | None
    ) -> Row:
        """Return the figures of one model, measured in this process; the median step counts."""
        torch.set_num_threads(self.threads)
        if paragraphs:
            changes = {"max_paragraphs": paragraphs, "max_tokens": None}
            config = config.model_copy(update={"source": config.source.model_copy(update=changes)})
        if compiled:
            config = config.model_copy(update={"train": config.train.model_copy(update={"compile": True})})
        inputs = batch_of(config, self.examples, self.target_tokens)
        step, costs = training_step(config, move(inputs, device()), dtype)
        for _ in range(2):
            step()
        seconds = median(timed(step) for _ in range(self.steps))
        peak = peak_rss_mb()  # before the profiler allocates memory
        share = _product_share(step)
        source_tokens, target_tokens = len(inputs.source.ids), self.examples * self.target_tokens
        flops = 3 * costs.flops  # a backward pass has two products for each product of the forward pass
        row = {
            "preset": preset,
            "dtype": dtype,
            "compiled": compiles_layers(config),
            "threads": self.threads,
            "paragraphs": len(inputs.source.lengths) // self.examples,
            "source_tokens_per_s": source_tokens / seconds,
            "target_tokens_per_s": target_tokens / seconds,
            "examples_per_s": self.examples / seconds,
            "ms_per_step": 1000 * seconds,
            "seconds": seconds * self.steps,
            "matmul_fraction": flops / seconds / (1e9 * machine.gflops[dtype]),
            "matmul_time_share": share,
            "wait_share": self._wait_share(config, step),
            "mflop_per_source_token": flops / source_tokens / 1e6,
            "parameters": systems.count_parameters(config.model),
            "peak_rss_mb": peak,
        }
        if torch.cuda.is_available():
            row["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / (1 << 20)
        return row

    def _wait_share(self, config: Config, step: Callable[[Any], Any]) -> float:
        """Return the :func:`wait_share` of a dataset of rows like those of the batch."""
        with tempfile.TemporaryDirectory() as folder:
            limits = limits_of(config, self.target_tokens)
            dataset = full_size(Path(folder), config, self.target_tokens)
            kind: Any = kind_of(config.model, dataset)
            budget = self.examples * int(kind.costs(dataset.lengths("train"), limits)[0].max())
            stream = Stream(dataset.address, "train", limits, PlanSettings(budget, 1), kind)
            return wait_share(stream, step, self.steps)

    def run(self) -> BenchResult:
        result = super().run()
        if self.plot:
            plot_growth(result.rows, Path(self.plot).expanduser())
        return result


def wait_share(stream: Stream, step: Callable[[Any], Any], count: int) -> float:
    """Return the share of the time of ``count`` micro-batches that training waits for data, after a first one.

    Each micro-batch is a step, so that few are read together, and more than four require reading meanwhile.
    """
    stream = replace(stream, settings=replace(stream.settings, micro_batches=1))
    stream_batches = batches(stream, 0, 1, 0, ENDLESS)
    step(move(stream.kind.collate(next(stream_batches).arrays), device()))
    waited, began = 0.0, time.perf_counter()
    for _ in range(count):
        start = time.perf_counter()
        micro_batch = next(stream_batches)
        waited += time.perf_counter() - start
        timed(partial(step, move(stream.kind.collate(micro_batch.arrays), device())))
    return waited / (time.perf_counter() - began)


def training_step(
    config: Config, inputs: Any, dtype: str, target: torch.device | None = None, rate: float = 1e-6
) -> tuple[Callable[..., torch.Tensor], Costs]:
    """Return a training step on ``inputs`` or its argument, and the costs of its forward pass in matrix products.

    A step returns the loss. It runs on ``target``, by default :func:`device`, with the learning ``rate``.
    """
    target = target or device()
    torch.manual_seed(0)
    model = systems.build(config.model)
    if compiles_layers(config):
        compile_layers(model)
    if config.train.recompute:
        recompute_layers(model)
    objective = systems.objective(config.model, model, config.train.label_smoothing)
    objective.to(target)
    optimizer = torch.optim.Adam(objective.parameters(), lr=rate, fused=True)
    autocast = torch.autocast(target.type, DTYPES[dtype], enabled=dtype != "fp32")

    def step(batch: Any = inputs) -> torch.Tensor:
        with autocast:
            loss: torch.Tensor = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    with Costs() as costs, torch.no_grad(), autocast:
        objective(inputs)
    return step, costs


def _product_share(step: Callable[[], Any]) -> float:
    """Return the share of a step's operator time in matrix products and fused attention."""
    cuda = device().type == "cuda"
    with hushed(), profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiled:
        step()
    kind = "self_device_time_total" if cuda else "self_cpu_time_total"
    times = {event.key: getattr(event, kind) for event in profiled.key_averages()}
    products = ("mm", "gemm", "matmul", "flash_attention", "cutlass", "fmha")
    return sum(time for key, time in times.items() if any(part in key for part in products)) / sum(times.values())


def plot_growth(rows: list[Row], file: Path) -> None:
    """Write a plot of the time and peak memory of a training step by number of paragraphs.

    It has one line per preset and dtype.
    """
    drawn = []
    for key, label in {"ms_per_step": "ms per step", "peak_rss_mb": "peak memory, MB"}.items():
        points = defaultdict[str, list[Point]](list)
        for row in rows:
            points[f"{row['preset']} {row['dtype']}"].append(Point(row["paragraphs"], row[key]))
        lines = [Line(name, own, color) for color, (name, own) in enumerate(points.items())]
        drawn.append(Chart("", lines, "paragraphs per example", label, log="xy"))
    with writing(file.absolute().parent):
        save(file, "", drawn)
