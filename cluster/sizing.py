"""Compute the sizing table of cluster/README.md: `python cluster/sizing.py [PRESET ...]`.

Nothing is timed. FLOPs are those of the matrix products of one forward pass, which runs here on random examples of the
preset's full size, times three for a training step. The hours assume ``SHARE`` of the peak of the GPU. Memory is the
state of ZeRO-0 in bf16, and the tensors that the forward pass saves for the backward pass of a micro-batch.
"""

import sys
from collections.abc import Iterable, Iterator

import torch

from raysum import systems
from raysum.bench.machine import Costs
from raysum.config.loading import load_config
from raysum.stream.random_rows import batch_of

PRESETS = ("ft", "ht", "ht-code", "pht", "vht", "tdmca", "txl", "graphsum", "hiertransformer", "hibert_s", "hibert_m")
PEAKS = {"H100": 989e12, "A100": 312e12}  # FLOP/s in bf16 without sparsity, by the data sheets
SHARE = 0.05  # of the peak: an assumption for matrices of width 256 to 768, not measured on these GPUs
STATE = 2 + 4 + 4 + 8  # bytes per parameter: bf16 weight, fp32 gradient, fp32 master weight, Adam's two moments
EXAMPLES, TARGET_TOKENS = 2, 140  # WikiSum's summaries have about 140 tokens
HEADER = "| preset | parameters | tokens of a step | PFLOP of a step | steps | memory, GiB | H100, hours | A100, hours |"


def saved_bytes(objective: torch.nn.Module, inputs: object) -> int:
    """Return the bytes of tensors saved for the backward pass, without the parameters; each storage counts once."""
    parameters = {one.untyped_storage().data_ptr() for one in objective.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage  # kept, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = objective(inputs)
    del loss
    return sum(one.nbytes() for one in saved.values())


def row(preset: str) -> str:
    """Return the table row of a preset."""
    config = load_config(preset, [])
    train = config.train
    inputs = batch_of(config, EXAMPLES, TARGET_TOKENS)
    objective = systems.objective(config.model, systems.build(config.model), train.label_smoothing)
    with Costs() as costs, torch.no_grad():
        objective(inputs)
    tokens = len(inputs.source.ids) + EXAMPLES * TARGET_TOKENS
    parameters = systems.count_parameters(config.model)
    per_step = 3 * costs.flops / tokens * train.batch_tokens * train.micro_batches
    activations = saved_bytes(objective, inputs) / 2 / tokens * train.batch_tokens  # measured in fp32; bf16 is half
    hours = [train.steps * per_step / (peak * SHARE) / 3600 for peak in PEAKS.values()]
    cells = [
        f"`{preset}`",
        f"{parameters / 1e6:.0f} M",
        f"{train.batch_tokens * train.micro_batches:,}",
        f"{per_step / 1e15:.2g}",
        f"{train.steps:,}",
        f"{(parameters * STATE + activations) / 2**30:.1f}",
        *(f"{value:,.1f}" for value in hours),
    ]
    return f"| {' | '.join(cells)} |"


def table(presets: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield HEADER
    yield "|" + "---|" * HEADER.count(" | ") + "---|"
    yield from map(row, presets)


if __name__ == "__main__":
    for line in table(sys.argv[1:] or PRESETS):
        print(line, flush=True)
