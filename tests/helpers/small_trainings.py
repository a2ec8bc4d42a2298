"""Short trainings in this process at a constant rate, and what they leave."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from raysum.config.sections import Config
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.train.fit import fit

RATE = {"lr": 0.01, "schedule": "constant", "warmup_steps": 0}
STEPS = {"batch_tokens": 200, "micro_batches": 2, "workers": 0, "threads": 1, "log_every": 1}


def config(data: Path, out: Path, steps: int, model: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    """The config of a training of ``steps`` steps; ``sections`` change its values."""
    values: dict[str, Any] = {"model": model, "optim": RATE, "train": STEPS | {"steps": steps}}
    values |= {name: {**values.get(name, {}), **section} for name, section in sections.items()}
    return Config(**values, data=str(data), out=str(out))


def trained(data: Path, out: Path, steps: int, model: Mapping[str, Any], **sections: Mapping[str, Any]) -> Run:
    return fit(config(data, out, steps, model, **sections))


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in read_lines(run.metrics) if "loss" in line]


def weights(run: Run, checkpoint: str = "best") -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(checkpoint).weights)


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Whether both have the same tensors, bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def forget_validation(run: Run) -> None:
    """Remove the last validation, as if the training was killed before it was written."""
    lines = run.metrics.read_text().splitlines(keepends=True)
    assert "valid_loss" in lines[-1]
    run.metrics.write_text("".join(lines[:-1]))
    run.validations_file.unlink()
