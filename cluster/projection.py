"""Project the time of a training step on many H100 GPUs from its parts: `python cluster/projection.py [PRESET] [GPUS]`.

Counted here, on random examples of the preset's full size: the FLOPs of the matrix products, and the operations of a
micro-batch, each of which is a kernel on a GPU (without dropout, which attention on a GPU includes). The CPU time of
reading is measured (raysum/bench/RESULTS.md). The constants below come from data sheets or are assumptions; nothing is
timed on a GPU.
"""

import sys
from typing import Any

from sizing import EXAMPLES, PEAKS, SHARE, TARGET_TOKENS
from torch.utils._python_dispatch import TorchDispatchMode

from raysum import systems
from raysum.bench.machine import Costs
from raysum.config.loading import load_config
from raysum.stream.random_rows import batch_of

LAUNCH = 8e-6  # seconds for PyTorch to run an operation and launch its kernel: an assumption
STEP_LAUNCHES = 0.5e-3  # seconds of the optimizer's fused kernels and DeepSpeed's own: an assumption
LINK, NETWORK = 300e9, 45e9  # bytes/s of a GPU within its host (NVLink) and between hosts (400 Gbit/s for each GPU)
HOP = 20e-6  # seconds of latency for each step of a collective
GPUS_PER_HOST, READERS = 8, 8  # reading tasks of a host that work at once
READING = 89e-6  # CPU seconds of a row at 1 to 256 ranks: `raysum bench stream ranks=[1,8,64,256]`


class Operations(TorchDispatchMode):
    """While entered, count the operations that compute: all but views and allocations."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = function.is_view or "empty" in function.name() or "detach" in function.name()
        self.count += not is_view
        return function(*args, **(kwargs or {}))


def parts(preset: str, gpus: int) -> dict[str, float]:
    """Return the seconds of the parts of a step, of which each GPU computes an equal number of tokens."""
    config = load_config(preset, [])
    inputs = batch_of(config, EXAMPLES, TARGET_TOKENS)
    dropout = {name: 0.0 for name in type(config.model).model_fields if name.endswith("dropout")}
    spec = config.model.model_copy(update=dropout)
    objective = systems.objective(spec, systems.build(spec), config.train.label_smoothing)
    with Costs() as costs:
        objective(inputs)
    with Operations() as operations:
        loss = objective(inputs)
        (loss[0] if isinstance(loss, tuple) else loss).sum().backward()
    tokens = len(inputs.source.ids) + EXAMPLES * TARGET_TOKENS
    step_tokens = config.train.batch_tokens * config.train.micro_batches
    launches = max(1, config.train.micro_batches // gpus) * operations.count
    size = 2 * systems.count_parameters(spec)  # bf16 gradients
    hosts = max(1, gpus // GPUS_PER_HOST)
    local = min(gpus, GPUS_PER_HOST)
    within = 2 * (local - 1) / local * size / LINK + 2 * (local - 1) * HOP  # reduce-scatter and all-gather of a ring
    between = 2 * (hosts - 1) / hosts * size / local / NETWORK + 2 * (hosts - 1) * HOP
    return {
        "matrix products": 3 * costs.flops / tokens * step_tokens / gpus / (SHARE * PEAKS["H100"]),
        f"launches of {launches:,} kernels": launches * LAUNCH + STEP_LAUNCHES,
        f"all-reduce of {size / 1e6:.0f} MB": within + between,
        "reading": step_tokens / (tokens / EXAMPLES) * READING / (hosts * READERS),
    }


def main(preset: str = "ht", gpus: str = "64") -> None:
    """Print the parts of a step in milliseconds, and the hours of the training."""
    found = parts(preset, int(gpus))
    for name, seconds in found.items():
        print(f"{name:40} {1e3 * seconds:8.2f} ms")
    matrix, launches, network, reading = found.values()
    step = max(matrix, launches) + network  # kernels run while the next ones are launched; rows are read ahead
    hours = max(step, reading) * load_config(preset, []).train.steps / 3600
    first = max(found, key=lambda name: found[name])
    print(f"{preset} on {gpus} GPUs: {1e3 * max(step, reading):.1f} ms per step, {hours:.1f} hours")
    print(f"first bottleneck: {first}")


if __name__ == "__main__":
    main(*sys.argv[1:])
