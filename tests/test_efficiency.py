"""The efficiency table of the PHT paper (Table 5): largest batch in a memory, parameters, time to validate a set.

By hand: ``pytest -m long tests/test_efficiency.py -s`` prints the table.
"""

from typing import Any

import pytest
import torch

from raysum import systems
from raysum.bench.inputs import batch
from raysum.bench.isolate import Row, alone
from raysum.bench.machine import measure, timed
from raysum.bench.result import BenchResult
from raysum.bench.train import training_step
from raysum.cli.options import print_result
from raysum.config.loading import load_config
from raysum.config.sections import Config
from raysum.errors import UserError

PRESETS = ("ft-3", "tdmca-3", "txl", "ht-3-3", "vht", "pht", "graphsum")
SOURCE = ["source.max_paragraphs=16", "source.max_tokens=1600"]  # as in the paper
TARGET_TOKENS, EXAMPLES, THREADS = 140, 8, 2
MEMORY_MB, MOST = 2048, 8  # what a training process may hold, its code included; no larger batch is tried


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_hierarchical_models_train_larger_batches_and_validate_faster():
    machine = measure(THREADS, ["fp32"])
    rows = []
    for preset in PRESETS:
        config = load_config(preset, SOURCE)
        largest, used = largest_batch(config)
        row = {"preset": preset, "largest_batch": largest, "memory_mb": used}
        rows.append(row | {"parameters": systems.count_parameters(config.model)} | alone(validation_row, config))
    print_result(BenchResult("efficiency", machine, rows), as_json=False)
    found = {row["preset"]: row for row in rows}
    assert all(found[name]["validation_s"] < found["ft-3"]["validation_s"] for name in ("vht", "pht"))


def largest_batch(config: Config) -> tuple[int, float]:
    """The most examples whose training step stays in the memory, and its peak in MiB: doubled, then halved between."""
    fits, used, fails = 0, 0.0, MOST + 1
    while fits + 1 < fails:
        size = (fits + fails) // 2 if fails <= MOST else min(2 * fits or 1, MOST)
        try:
            peak = alone(training_row, config, size)["peak_rss_mb"]
        except UserError:  # killed for memory
            peak = float("inf")
        if peak <= MEMORY_MB:
            fits, used = size, peak
        else:
            fails = size
    return fits, used


def training_row(config: Config, examples: int) -> Row:
    """Two training steps, in this process: their peak is its figure."""
    torch.set_num_threads(THREADS)
    step, _ = training_step(config, batch(config, examples, TARGET_TOKENS), "fp32")
    for _ in range(2):
        step()
    return {}


def validation_row(config: Config) -> Row:
    """Seconds to compute the validation loss of a fixed set, in batches of four, in this process."""
    torch.set_num_threads(THREADS)
    objective = systems.objective(config.model, systems.build(config.model), 0.0).eval()
    batches = [batch(config, 4, TARGET_TOKENS, seed=seed) for seed in range(EXAMPLES // 4)]

    def validate() -> Any:
        with torch.inference_mode():
            return [float(objective(inputs)) for inputs in batches]

    validate()
    return {"validation_s": timed(validate)}
