"""Every touch of what a library keeps to itself: its next release may change it, and then tests/test_private.py fails.

Libraries are imported where they are touched, so this file is light.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def onednn_linear(x: "Tensor", weight: "Tensor", bias: "Tensor | None") -> "Tensor":
    """``linear`` in fp32 on a CPU by oneDNN, without gradients; the plain equal is ``torch.nn.functional.linear``."""
    import torch

    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def packed_linear(weight: Any, bias: "Tensor | None") -> "Callable[[Tensor], Tensor] | None":
    """``linear`` in fp32 on a CPU, from a copy of ``weight`` laid out by oneDNN.

    None where that does not apply. The plain equal is ``torch.nn.functional.linear``. The copy is laid out for inputs
    of 80 rows; for 4 or 14,752 rows it is as fast as one made for so many.
    """
    import torch

    fits = isinstance(weight, torch.Tensor) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    if not (fits and torch.backends.mkldnn.is_available()):
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 80)
    return lambda x: onednn_linear(x, packed, bias)


def load_deepspeed() -> None:
    """Import DeepSpeed without what costs seconds, or minutes, and is not used.

    ZeRO imports the Muon optimizer, which compiles functions when it is imported, and so loads torch's compiler; it
    works without. And compilers would be tried for DeepSpeed's own operators, to compile one of them at first use.
    """
    import torch

    with suppress(ImportError), mock.patch.object(torch, "compile", lambda function: function):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}


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


def dashboard() -> str | None:
    """Address of the dashboard of this process' Ray session, None where it has none."""
    import ray

    node = ray.worker.global_worker.node
    return f"http://{node.address_info['webui_url']}" if node and node.address_info.get("webui_url") else None


def session_folder() -> str | None:
    """The folder of the Ray session that this process has started, None where it has started none."""
    import ray

    node = ray._private.worker._global_node
    return node.get_session_dir_path() if node and node.is_head() else None


def search_path() -> list[str]:
    """Where this process looks for modules, as it stands for a process in another folder."""
    return list(dict.fromkeys(map(os.path.abspath, sys.path)))


def same_modules() -> Any:
    """The job of a driver whose workers look for modules where the driver does, in that order.

    Ray itself lets them look into the driver's current folder first, where another ``raysum`` may be; but not for jobs
    of Ray's client, as which this one passes. None in a submitted job, of which Ray has been told its folder.
    """
    from ray.job_config import JobConfig

    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return None
    return JobConfig(_client_job=True, _py_driver_sys_path=search_path()[::-1])  # each is put before the others


@contextmanager
def loopback_only() -> Iterator[None]:
    """A Ray started in the block has the address 127.0.0.1, and listens nowhere else: as it does on macOS."""
    import ray

    with mock.patch.object(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False):
        yield


def serve_grpc_at(host: str) -> None:
    """Let the Ray Serve replica that is this process open its gRPC port at ``host``, and not on all interfaces.

    The port unpickles what it receives. Ray opens it after the constructor of the deployment's class, which calls this.
    """
    from ray._common.network_utils import build_address
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica

    def add_port(server: Any, address: str) -> int:
        return add_port_to_grpc_server(server, build_address(host, address.rpartition(":")[2]))

    replica.add_port_to_grpc_server = add_port


def requires_token() -> bool:
    """Whether the Ray cluster of this process, a driver or a worker, accepts only requests with its token."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return is_token_auth_enabled()


@contextmanager
def no_sigterm_handler() -> Iterator[None]:
    """A Ray started or joined in the block puts no handler of SIGTERM."""
    import ray

    with mock.patch.object(ray._private.utils, "set_sigterm_handler", lambda handler: None):
        yield


@contextmanager
def own_groups() -> Iterator[None]:
    """What a Ray started in the block consists of is not in this process's group: who ends that by a signal, as
    `timeout` and closed terminals do, leaves it to this process to end Ray in order, for which Ray must live."""
    import ray

    real = ray._private.services.ConsolePopen

    def started(command: Any, preexec_fn: Callable[[], None], **how: Any) -> Any:
        def prepare() -> None:
            os.setpgid(0, 0)
            preexec_fn()

        return real(command, preexec_fn=prepare, **how)

    with mock.patch.object(ray._private.services, "ConsolePopen", started):
        yield


def stop_half_started(error: Exception) -> str | None:
    """End the processes of a Ray whose start ended in ``error``; the folder of its session, where it has one.

    Until it has started, only the frames of the error know it.
    """
    import ray

    folder = session_folder()
    ray.shutdown(wait_for_processes=True)
    for frame, _ in walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, ray._private.node.Node):
            node.kill_all_processes(check_alive=False, wait=True)
            folder = getattr(node, "_session_dir", folder)
    return folder


@contextmanager
def no_ids_drawn() -> Iterator[None]:
    """Nothing imported in the block draws one of Ray's ids: copies of a process that has drawn one all draw the same.

    Classes of actors have such an id.
    """
    import ray.actor

    real: Any = ray.actor.ActorClassID
    drawn = type("Drawn", (real,), {"from_random": classmethod(lambda cls: real(os.urandom(real.size())))})
    with mock.patch.object(ray.actor, "ActorClassID", drawn):
        yield


def boosted_trees(model: Any) -> "dict[str, np.ndarray]":
    """The trees of scikit-learn's fitted HistGradientBoostingRegressor: ``feature``, ``threshold``, ``left``, ``right``
    and ``value`` [T, N] of T trees of N nodes at most, and ``base`` [1]. A leaf's left and right are itself."""
    import numpy as np

    trees = [tree.nodes for (tree,) in model._predictors]
    own = np.arange(max(map(len, trees)))
    arrays: dict[str, Any] = {name: np.zeros((len(trees), len(own)), np.int32) for name in ("feature", "left", "right")}
    arrays |= {name: np.zeros((len(trees), len(own))) for name in ("threshold", "value")}
    for number, nodes in enumerate(trees):
        leaf, inside = nodes["is_leaf"].astype(bool), slice(len(nodes))
        arrays["feature"][number, inside] = np.where(leaf, 0, nodes["feature_idx"])
        arrays["threshold"][number, inside] = nodes["num_threshold"]
        arrays["value"][number, inside] = nodes["value"]
        for side in ("left", "right"):
            arrays[side][number, inside] = np.where(leaf, own[inside], nodes[side])
    return arrays | {"base": np.asarray(model._baseline_prediction, float).reshape(1)}
