"""The efficiency table of the PHT paper (Table 5): largest batch in a memory, parameters, time to validate a set."""

from typing import Any

import torch
from pydantic import Field

from raysum import systems
from raysum.bench.inputs import batch
from raysum.bench.isolate import Row, alone
from raysum.bench.machine import measure, timed
from raysum.bench.result import BenchResult
from raysum.bench.train import training_step
from raysum.config.loading import load_config
from raysum.config.sections import Config, Section
from raysum.config.sizes import sizes_of
from raysum.errors import UserError
from raysum.models.batch import move
from raysum.runtime.placement import device
from raysum.runtime.progress import bar


class EfficiencyBench(Section):
    presets: list[str] = Field(["ft-3", "tdmca-3", "txl", "ht-3-3", "vht", "pht", "graphsum"], min_length=1)
    memory_mb: int = Field(4096, gt=0, description="what a training process may hold, its code included")
    most: int = Field(256, gt=0, description="no larger batch is tried")
    examples: int = Field(32, gt=0, description="examples that are validated")
    target_tokens: int = Field(140, gt=1)
    threads: int = Field(2, gt=0)
    config: list[str] = Field(
        ["source.max_paragraphs=16", "source.max_tokens=1600"],
        description="key=value overrides of every preset; by default the paper's 1,600 tokens",
    )


def bench_efficiency(settings: EfficiencyBench) -> BenchResult:
    """A row for each preset. Raises UserError for an unknown preset."""
    configs = {preset: load_config(preset, settings.config) for preset in settings.presets}
    machine = measure(settings.threads, ["fp32"])
    rows = []
    for preset, config in bar(list(configs.items()), label="bench efficiency", unit="preset"):
        largest, used = _largest_batch(settings, config)
        row = {
            "preset": preset,
            "dtype": "fp32",
            "threads": settings.threads,
            "largest_batch": largest,
            "memory_mb": used,
        }
        rows.append(row | sizes_of(preset, config) | alone(validation_row, settings, config))
    return BenchResult("efficiency", machine, rows)


def _largest_batch(settings: EfficiencyBench, config: Config) -> tuple[int, float]:
    """The most examples whose training step stays in the memory, and its peak in MiB: doubled, then halved between."""
    fits, used, fails = 0, 0.0, settings.most + 1
    while fits + 1 < fails:
        size = (fits + fails) // 2 if fails <= settings.most else min(2 * fits or 1, settings.most)
        try:
            peak = alone(training_row, settings, config, size)["peak_rss_mb"]
        except UserError:  # killed for memory
            peak = float("inf")
        if peak <= settings.memory_mb:
            fits, used = size, peak
        else:
            fails = size
    return fits, used


def training_row(settings: EfficiencyBench, config: Config, examples: int) -> Row:
    """Two training steps, in this process: their peak is its figure."""
    torch.set_num_threads(settings.threads)
    step, _ = training_step(config, move(batch(config, examples, settings.target_tokens), device()), "fp32")
    for _ in range(2):
        step()
    return {}


def validation_row(settings: EfficiencyBench, config: Config) -> Row:
    """Seconds to compute the validation loss of the fixed set, in batches of four, in this process."""
    torch.set_num_threads(settings.threads)
    objective = systems.objective(config.model, systems.build(config.model), 0.0).to(device()).eval()
    batches = [batch(config, 4, settings.target_tokens, seed=seed) for seed in range(-(-settings.examples // 4))]

    def validate() -> Any:
        with torch.inference_mode():
            return [float(objective(move(inputs, device()))) for inputs in batches]

    validate()
    return {"validation_s": timed(validate)}
