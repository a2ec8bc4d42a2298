"""All uses of private names of other libraries. tests/runtime/test_compat.py fails if a release changes them.

Functions import the libraries that they use, so importing this module is fast.
"""

import importlib
import math
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import cache
from traceback import walk_tb
from typing import TYPE_CHECKING, Any
from unittest import mock

from raysum.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

_ANSWER = 2.0  # seconds for Ray's head to answer a process that only shows progress


def onednn_linear(x: "Tensor", weight: "Tensor", bias: "Tensor | None") -> "Tensor":
    """Compute ``torch.nn.functional.linear`` in fp32 on a CPU by oneDNN, without gradients."""
    import torch

    if torch.jit.is_tracing():  # a trace has no empty lists, but calls functions that have
        return _scripted_linear()(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def _scripted_linear() -> Any:
    import torch

    head = "def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:\n"
    call = 'return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")'
    return torch.jit.CompilationUnit(f"{head}    {call}\n").linear


def traced(module: "torch.nn.Module", inputs: "list[Tensor]") -> "Callable[..., Tensor]":
    """Return ``module`` as TorchScript that repeats its operations for ``inputs``.

    Raises RuntimeError, SystemError or a Warning if they depend on anything else.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", "`torch.jit.trace", DeprecationWarning)
        return torch.jit.trace(module, tuple(inputs), check_trace=False, _store_inputs=False)


def packed_weight(weight: Any) -> "Tensor | None":
    """Return a copy of ``weight`` in oneDNN's layout for :func:`onednn_linear`.

    Return None if oneDNN or the weight does not allow it. The layout is chosen for inputs of 80 rows; for 4 and 14,752
    rows it is as fast as a layout for that many.
    """
    import torch

    fits = isinstance(weight, torch.Tensor) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    if not (fits and torch.backends.mkldnn.is_available()):
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 80)


def compiled(function: "Callable[..., Any]", backend: Any) -> "Callable[..., Any]":
    """Return ``function`` compiled by torch for inputs of all sizes.

    By default, torch compiles again whenever two sizes that were equal differ. Calls raise UserError if it cannot.
    """
    import torch
    from torch.fx.experimental import _config

    _config.use_duck_shape = False
    fast = torch.compile(function, backend=backend, dynamic=True)

    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return fast(*arguments, **options)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            from torch._inductor.runtime.cache_dir_utils import cache_dir

            cause = str(error.inner_exception).partition("\n")[0]  # a C++ compiler prints many lines
            fix = f"delete {cache_dir()}, where a killed command leaves broken files, or leave out train.compile=true"
            raise UserError(f"a layer cannot be compiled ({cause}): {fix}") from None

    return run


def check_compiler() -> None:
    """Raise UserError if there is no C++ compiler, which torch.compile needs for a CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):  # OSError: CXX is no program
        given = os.environ.get("CXX")
        problem = "there is none: install g++" if given is None else f"CXX={given} is none: correct or unset CXX"
        raise UserError(
            f"compiled layers need a C++ compiler on a CPU, and {problem}, or leave out train.compile=true"
        ) from None


def peak_memory(known: "Iterable[Tensor]") -> Any:
    """Return a context whose ``most`` is the most bytes of tensors that its block has at once, except the ``known``."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Peak(TorchDispatchMode):
        now = most = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            results = function(*args, **(kwargs or {}))
            for result in results if isinstance(results, tuple | list) else [results]:
                if isinstance(result, torch.Tensor) and (storage := result.untyped_storage()) not in storages:
                    storages.add(storage)
                    self.add(storage.nbytes())
                    weakref.finalize(storage, self.add, -storage.nbytes())
            return results

        def add(self, size: int) -> None:
            self.now += size
            self.most = max(self.most, self.now)

    storages = weakref.WeakSet(tensor.untyped_storage() for tensor in known)
    return Peak()


def load_deepspeed() -> None:
    """Import DeepSpeed without two unused parts that take seconds to minutes.

    ZeRO imports the Muon optimizer, which loads torch's compiler. DeepSpeed also tests compilers for its own operators,
    which it would compile at first use.
    """
    import torch

    with suppress(ImportError), mock.patch.object(torch, "compile", lambda function: function):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {}


def leave_process_group() -> None:
    """Destroy torch's process group and DeepSpeed's record of it, so that this process can create another."""
    from torch import distributed

    comm: Any = sys.modules.get("deepspeed.comm.comm")  # Ctrl-C may have interrupted its import
    if getattr(comm, "cdb", None) is None:
        distributed.destroy_process_group()
    else:
        comm.destroy_process_group()
        comm.cdb = None


def full_precision_copies(optimizer: Any) -> "dict[int, Tensor]":
    """Return the fp32 copies of parameters in DeepSpeed's low-precision optimizers without ZeRO, by ``id``."""
    groups = zip(getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=False)
    return {id(p): copy for group, copies in groups for p, copy in zip(group, copies, strict=True)}


def zero_fragment(parameter: Any) -> "tuple[int, Tensor] | None":
    """Return where this rank's part of a ``parameter`` under ZeRO begins in it, and its fp32 copy; None without a part.

    Under ZeRO-3 the last part may have padding behind it, and frozen parameters have their own precision.
    """
    from deepspeed.utils import safe_get_local_fp32_param
    from torch import distributed

    if hasattr(parameter, "ds_id"):
        part = safe_get_local_fp32_param(parameter) if parameter.requires_grad else parameter.ds_tensor
        return distributed.get_rank() * part.numel(), part
    mapping = parameter._hp_mapping
    return (mapping.lp_fragment_address.start, mapping.get_hp_fragment()) if mapping is not None else None


def hide_worker_logs() -> None:
    """Stop Ray from printing deaths of workers to stdout, which is for results."""
    import ray

    ray._private.worker._worker_logs_enabled = False


def dashboard() -> str | None:
    """Return the URL of the dashboard of this process's Ray session, or None."""
    import ray

    node = ray.worker.global_worker.node
    return f"http://{node.address_info['webui_url']}" if node and node.address_info.get("webui_url") else None


def session_folder() -> str | None:
    """Return the folder of the Ray session that this process started, or None."""
    import ray

    node = ray._private.worker._global_node
    return node.get_session_dir_path() if node and node.is_head() else None


def draining_nodes() -> set[str]:
    """Return the ids of the nodes of the cluster that will be shut down soon (``ray drain-node``)."""
    import ray

    return {*ray._private.state.state.get_draining_nodes()}


def post(name: str, value: bytes = b"1") -> None:
    """Set a flag, or a value, that all processes of the cluster see."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(name, value, namespace="raysum")


def take_posted(prefix: str) -> list[bytes]:
    """Remove and return the values whose names begin with ``prefix``, by name; none if Ray does not run or answer."""
    ray, where = sys.modules.get("ray"), b"raysum"
    found = list[bytes]()
    with suppress(Exception):  # of Ray while it starts, stops or its head restarts
        if ray is not None and ray.is_initialized():
            from ray.experimental import internal_kv

            store = internal_kv.internal_kv_get_gcs_client()
            for name in sorted(store.internal_kv_keys(prefix.encode(), where, _ANSWER)):
                found.append(store.internal_kv_get(name, where, _ANSWER))
                store.internal_kv_del(name, False, where, _ANSWER)
    return found


def is_posted(name: str) -> bool:
    """Return whether a process of the cluster has set the flag ``name``."""
    from ray.experimental import internal_kv

    return bool(internal_kv._internal_kv_exists(name, namespace="raysum"))


def search_path() -> list[str]:
    """Return this process's module search path as absolute paths."""
    return list(dict.fromkeys(map(os.path.abspath, sys.path)))


def same_modules() -> Any:
    """Return a Ray job config that gives workers the module search path of the driver.

    By default Ray puts the driver's current folder first, which may hold another ``raysum``. Ray does not do so for
    jobs of its client, so this config pretends to be one. Return None in a submitted job, which has its own config.
    """
    from ray.job_config import JobConfig

    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return None
    return JobConfig(_client_job=True, _py_driver_sys_path=search_path()[::-1])  # Ray prepends each


def loopback_only() -> AbstractContextManager[Any]:
    """Make a Ray that starts in the block use only the address 127.0.0.1, as it does on macOS."""
    return mock.patch("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)


def serve_grpc_at(host: str) -> None:
    """Make this process, a Ray Serve replica, open its gRPC port at ``host`` instead of on all interfaces.

    The port unpickles its input. Ray opens it after the constructor of the deployment's class, which must call this.
    """
    from ray._common.network_utils import build_address
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica

    def add_port(server: Any, address: str) -> int:
        return add_port_to_grpc_server(server, build_address(host, address.rpartition(":")[2]))

    replica.add_port_to_grpc_server = add_port


def requires_token() -> bool:
    """Return whether the Ray cluster of this process requires token authentication."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return is_token_auth_enabled()


def no_log_monitor() -> AbstractContextManager[Any]:
    """Start a Ray in the block without the process that sends the output of workers to drivers.

    It takes a second of a core at the start, and then 3 to 6 % of a core, even if no driver wants the output. The
    dashboard reads the files themselves.
    """
    return mock.patch("ray._private.node.Node.start_log_monitor", lambda self: None)


def worker_script(path: str) -> AbstractContextManager[Any]:
    """Make a Ray that starts in the block start its Python workers by the script at the absolute ``path``.

    It gets the command line of a worker. Unlike Ray's own script, it is also used without a runtime environment.
    """
    return mock.patch("ray._private.ray_constants.SETUP_WORKER_FILENAME", path)


def no_sigterm_handler() -> AbstractContextManager[Any]:
    """Keep Ray from installing a SIGTERM handler when it starts in the block."""
    return mock.patch("ray._private.utils.set_sigterm_handler", lambda handler: None)


def own_groups() -> AbstractContextManager[Any]:
    """Start the processes of Ray in a process group of their own.

    A signal to this process's group, as from `timeout` or a closed terminal, then reaches only this process, which ends
    Ray in order.
    """
    import ray

    real = ray._private.services.ConsolePopen

    def started(command: Any, preexec_fn: Callable[[], None], **how: Any) -> Any:
        def prepare() -> None:
            os.setpgid(0, 0)
            preexec_fn()

        return real(command, preexec_fn=prepare, **how)

    return mock.patch.object(ray._private.services, "ConsolePopen", started)


def stop_half_started(error: Exception) -> str | None:
    """End the processes of a Ray whose start raised ``error``, and return the folder of its session, if it has one.

    Until Ray has started, only the stack frames of the error refer to its node.
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


def no_ids_drawn() -> AbstractContextManager[Any]:
    """Keep imports in the block from using Ray's random generator of ids, as actor classes do.

    Forked copies of a process that has used it would all generate the same ids.
    """
    import ray.actor

    real: Any = ray.actor.ActorClassID
    drawn = type("Drawn", (real,), {"from_random": classmethod(lambda cls: real(os.urandom(real.size())))})
    return mock.patch.object(ray.actor, "ActorClassID", drawn)


def boosted_trees(model: Any) -> "dict[str, np.ndarray]":
    """Return the trees of a fitted HistGradientBoostingRegressor of scikit-learn as arrays.

    They are ``feature``, ``threshold``, ``left``, ``right``, ``value`` and ``gain`` [T, N] for T trees of at most N
    nodes, and ``base`` [1]. The left and right of a leaf are the leaf itself, and its gain is 0.
    """
    import numpy as np

    trees = [tree.nodes for (tree,) in model._predictors]
    own = np.arange(max(map(len, trees)))
    arrays: dict[str, Any] = {name: np.zeros((len(trees), len(own)), np.int32) for name in ("feature", "left", "right")}
    arrays |= {name: np.zeros((len(trees), len(own))) for name in ("threshold", "value", "gain")}
    for number, nodes in enumerate(trees):
        leaf, inside = nodes["is_leaf"].astype(bool), slice(len(nodes))
        arrays["feature"][number, inside] = np.where(leaf, 0, nodes["feature_idx"])
        arrays["threshold"][number, inside] = nodes["num_threshold"]
        arrays["value"][number, inside] = nodes["value"]
        arrays["gain"][number, inside] = np.where(leaf, 0, nodes["gain"])
        for side in ("left", "right"):
            arrays[side][number, inside] = np.where(leaf, own[inside], nodes[side])
    return arrays | {"base": np.asarray(model._baseline_prediction, float).reshape(1)}


def openai_client(before_retry: Callable[[BaseException | None, float | None], None], **options: Any) -> Any:
    """Return an OpenAI client that calls ``before_retry(error, seconds)`` instead of sleeping before it tries again.

    ``seconds`` comes from Retry-After, which may hold a date, or is None. The client tries again after 408, 429, 5xx
    and failed connections, until ``before_retry`` raises an exception. By itself it would ignore waits above 120 s, and
    its sleep could not be interrupted.
    """
    from openai import OpenAI

    class Client(OpenAI):
        def _should_retry(self, response: Any) -> bool:
            return response.status_code in (408, 429) or response.status_code >= 500

        def _sleep_for_retry(self, *, response: Any, **_: Any) -> None:
            seconds = None if response is None else self._parse_retry_after_header(response.headers)
            if seconds is not None:
                seconds = None if math.isnan(seconds) else max(seconds, 0.0)
            before_retry(sys.exc_info()[1], seconds)

    return Client(max_retries=sys.maxsize - 1, **options)
