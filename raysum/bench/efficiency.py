"""The cost of systems: largest batch in a given memory, parameters, validation time (PHT Table 5; VHT Table 4)."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field

from raysum import systems
from raysum.bench.base import PresetBench, Row, Threads
from raysum.bench.machine import Machine, timed
from raysum.bench.train import training_step
from raysum.config.sections import Config
from raysum.config.sizes import megabytes
from raysum.models.batch import move
from raysum.runtime.placement import device
from raysum.runtime.processes import forget_peak, peak_rss_mb
from raysum.stream.random_rows import batch_of

_VALIDATION_BATCH = 4  # examples
_GROWTH = 4  # the next size is at most so many times the largest known size


class EfficiencyBench(PresetBench):
    """A row for each preset; ``parameters_mb`` counts as the papers do: with Adam's moments and a tied output."""

    NAME: ClassVar[str] = "efficiency"
    presets: list[str] = Field(
        ["ft-3", "transformer-decoder", "tdmca-3", "txl", "ht-3-3", "vht", "pht", "graphsum"],
        min_length=1,
        description="models to measure",
    )
    memory_mb: int = Field(2048, gt=0, description="memory limit of training in MiB: of the whole process, or of a GPU")
    most: int = Field(8, gt=0, le=10_000, description="largest batch size that is tried")
    examples: int = Field(8, gt=0, description="examples to validate, four at a time")
    target_tokens: int = Field(140, gt=1, description="tokens of each target; WikiSum's have about 140")
    threads: Threads = Field(2, description="CPU threads")
    config: list[str] = Field(
        ["source.max_paragraphs=16", "source.max_tokens=1600"],
        description="key=value overrides of every preset; the default is the papers' 1,600 source tokens",
    )

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        return self.configs()

    def row(self, _: Machine, preset: str, config: Config) -> Row:
        """Return the figures of one model, measured in this process; ``memory_mb`` is the peak at its largest batch."""
        torch.set_num_threads(self.threads)
        spec, tied = config.model, {"tied_output": True} if "tied_output" in type(config.model).model_fields else {}
        seconds = self._validation_seconds(config)
        largest, peak = largest_batch(partial(self._training_peak, config), self.memory_mb, self.most)
        return {
            "preset": preset,
            "largest_batch": largest,
            "memory_mb": peak,
            "parameters": systems.count_parameters(spec),
            "parameters_mb": megabytes(spec.model_copy(update=tied), moments=True),
            "validation_s": seconds,
            "threads": self.threads,
        }

    def _training_peak(self, config: Config, examples: int) -> float:
        """Return the MiB of two training steps: of this process, or allocated on a GPU."""
        forget_peak()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        inputs = move(batch_of(config, examples, self.target_tokens), device())
        step, _ = training_step(config, inputs, "fp32")
        for _ in range(2):
            step()
        return torch.cuda.max_memory_allocated() / (1 << 20) if torch.cuda.is_available() else peak_rss_mb()

    def _validation_seconds(self, config: Config) -> float:
        """Return the seconds to compute the validation loss of a fixed set, after a warm-up."""
        objective = systems.objective(config.model, systems.build(config.model), 0.0).eval().to(device())
        sizes = [min(_VALIDATION_BATCH, self.examples - start) for start in range(0, self.examples, _VALIDATION_BATCH)]
        inputs = [batch_of(config, size, self.target_tokens, seed=seed) for seed, size in enumerate(sizes)]
        batches = [move(item, device()) for item in inputs]

        def validate() -> Any:
            with torch.inference_mode():
                return [float(objective(item)) for item in batches]

        validate()
        return timed(validate)


def largest_batch(peak: Callable[[int], float], limit: float, most: int) -> tuple[int, float]:
    """Return the largest size up to ``most`` whose ``peak`` is within ``limit``, and its peak, or 0 and 0.0.

    Peaks grow almost linearly, so few sizes are tried after the first two.
    """
    known = {0: 0.0}
    fits, fails = 0, most + 1
    while fails - fits > 1:
        size = min(max(_expected(known, limit), fits + 1), fails - 1)
        known[size] = peak(size)
        fits, fails = (size, fails) if known[size] <= limit else (fits, size)
    return fits, known[fits]


def _expected(known: dict[int, float], limit: float) -> int:
    """Return the largest size within ``limit`` by the line through the two nearest peaks; first 1, then 2."""
    sizes = sorted(size for size in known if size)
    if len(sizes) < 2:
        return len(sizes) + 1
    lower, upper = sorted(sorted(sizes, key=lambda size: abs(known[size] - limit))[:2])
    slope = (known[upper] - known[lower]) / (upper - lower)
    furthest = _GROWTH * sizes[-1]
    return min(int(lower + (limit - known[lower]) / slope), furthest) if slope > 0 else furthest
