"""The process group of a training: one process alone, or all workers of Ray Train."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psutil
import torch
from torch import distributed

from raysum.errors import UserError
from raysum.runtime.compat import leave_process_group
from raysum.runtime.processes import environment, run_near

_Result = TypeVar("_Result")


@contextmanager
def lone_group() -> Iterator[None]:
    """Create a process group of this process alone for the duration of the block."""
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "0"}
    names |= {"MASTER_ADDR": "127.0.0.1"}
    with environment(names):
        distributed.init_process_group(_backend(), store=distributed.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            leave_process_group()


@contextmanager
def ray_group() -> Iterator[None]:
    """Create the process group of all Ray Train workers for the duration of the block. Every worker calls it.

    Ray's own TorchConfig would create it earlier, but also load torch into the controller process.
    If the block fails, the worker does not leave the group: leaving waits for the others, which may be gone.
    """
    import ray
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    context = ray.train.get_context()
    rank, world, local = context.get_world_rank(), context.get_world_size(), context.get_local_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
        gpu: Any = torch.cuda.get_device_properties(local)  # NCCL chooses the network card next to it by itself
        run_near(f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0")
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # a lost peer ends a worker, which would wait
    own = host = ray.util.get_node_ip_address()
    store = None
    if rank == 0:  # the store's own socket would listen on all addresses
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        socket_of = {"port": listener.getsockname()[1], "master_listen_fd": listener.detach()}
        store = distributed.TCPStore(host, world_size=world, is_master=True, wait_for_workers=False, **socket_of)
    host, port = broadcast_from_rank_zero((host, store.port) if store else None)
    store = store or distributed.TCPStore(host, port, world, is_master=False)
    names = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": world, "NODE_RANK": context.get_node_rank()}
    names |= {"LOCAL_WORLD_SIZE": context.get_local_world_size(), "MASTER_ADDR": host, "MASTER_PORT": port}
    if interface := interface_of(own):  # Gloo uses the address of the host name, which may be 127.0.1.1
        names |= {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in os.environ}
    with environment({name: str(value) for name, value in names.items()}):
        distributed.init_process_group(_backend(), store=store, rank=rank, world_size=world)
        yield
        leave_process_group()


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with this ``address``, or None."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, own in interfaces if any(entry.address == address for entry in own)), None)


def _backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"


def from_rank_0(value: Any) -> Any:
    """Return rank 0's ``value`` on every rank: all ranks must take the same decisions."""
    values = [value]
    distributed.broadcast_object_list(values, src=0)
    return values[0]


def from_all_ranks(value: Any, group: Any = None) -> list[Any]:
    """Return the ``value`` of each rank on every rank. The ``group``, if it is not the default one, has all ranks."""
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value, group=group)
    return values


def agreed(work: Callable[[], _Result]) -> _Result:
    """Return the result of ``work``, which every rank does. If it raises UserError on one rank, all ranks raise it."""
    result, message = None, ""
    try:
        result = work()
    except UserError as error:
        message = str(error)
    if messages := [*filter(None, from_all_ranks(message))]:
        raise UserError(messages[0])
    return result  # type: ignore[return-value]
