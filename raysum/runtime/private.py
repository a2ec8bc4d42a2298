"""Every touch of what a library keeps to itself: its next release may change it, and then tests/test_private.py fails.

Libraries are imported where they are touched, so this file is light.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def packed_linear(weight: Any, bias: "Tensor | None", rows: int) -> "Callable[[Tensor], Tensor] | None":
    """``linear`` in fp32 on a CPU, from a copy of ``weight`` laid out by oneDNN for products of ``rows`` rows.

    None where that does not apply. The plain equal is ``torch.nn.functional.linear``.
    """
    import torch

    if not isinstance(weight, torch.Tensor) or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def compile_nothing() -> None:
    """DeepSpeed would compile an operator for shared memory at first use, for minutes, which training does not need."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def leave_process_group() -> None:
    """End torch's process group, and what DeepSpeed remembers of it, so that another can be made in this process."""
    import deepspeed.comm.comm
    from torch import distributed

    if deepspeed.comm.comm.cdb is None:
        distributed.destroy_process_group()
    else:
        deepspeed.comm.destroy_process_group()
        deepspeed.comm.comm.cdb = None


def full_precision_copies(optimizer: Any) -> "dict[int, Tensor]":
    """The fp32 copies that DeepSpeed's low-precision optimizers hold without ZeRO, by ``id`` of the parameter."""
    groups = zip(getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=False)
    return {id(p): copy for group, copies in groups for p, copy in zip(group, copies, strict=True)}


def hide_worker_logs() -> None:
    """Ray prints the deaths of workers to stdout, which belongs to results."""
    import ray

    ray._private.worker._worker_logs_enabled = False


def dashboard_address() -> str | None:
    """``host:port`` of the dashboard of this process' Ray session."""
    import ray

    node = ray.worker.global_worker.node
    return node.address_info.get("webui_url") if node else None
