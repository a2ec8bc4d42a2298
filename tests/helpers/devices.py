"""A check that operations of a GPU get no tensors of the CPU, on the meta device, which itself accepts them."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OneDevice(TorchDispatchMode):
    """Raises AssertionError for an operation of tensors on several devices, and for a new tensor on the CPU.

    Tensors without axes may be on the CPU: kernels of GPUs take them as numbers.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = devices((args, kwargs))
        assert len(given) < 2, f"{function} gets tensors on {given}"
        result = function(*args, **(kwargs or {}))
        assert given or "cpu" not in devices(result), f"{function} makes a tensor on the CPU"
        return result


def devices(values: Any) -> set[str]:
    tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
    return {tensor.device.type for tensor in tensors if tensor.dim()}
