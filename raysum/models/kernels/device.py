"""Which kernels run on a device."""

import torch


def has_cpu_kernels(device: torch.device) -> bool:
    """Return whether the kernels for CPUs run on ``device``; not in torch.compile, which makes its own kernels."""
    return device.type == "cpu" and not torch.compiler.is_compiling()
