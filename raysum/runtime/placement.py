"""Placement: the device, CPUs and GPUs of a process that trains, labels, decodes or serves."""

import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from raysum.errors import UserError
from raysum.runtime.processes import cores
from raysum.runtime.progress import say

if TYPE_CHECKING:
    import torch

Role = Literal["worker", "labeller", "decoder", "replica"]
_READERS = 0.5  # CPUs that the readers of a training's data need beside its workers
_POLL = 2.0  # seconds between looks at the nodes of the cluster


class Share(NamedTuple):
    """The resources of one process."""

    cpus: float
    gpus: float

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


def device(name: str | None = None) -> "torch.device":
    """Return the device ``name``; by default CUDA if it is available, else the CPU."""
    import torch

    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def share(role: Role, processes: int, cpus: float | None = None, gpus: float | None = None) -> Share:
    """Return the resources of each of the ``processes`` with a role in the current Ray session.

    Either all workers of a training get a GPU of their own or none does; other roles share the GPUs. A worker or a
    labeller takes one CPU, but all together at most half of the CPUs: Ray Data's readers need the other half.
    ``cpus`` and ``gpus`` replace the computed ones.
    """
    computed = _share(role, processes)
    return Share(computed.cpus if cpus is None else cpus, computed.gpus if gpus is None else gpus)


def _share(role: Role, processes: int) -> Share:
    import ray

    total = ray.cluster_resources()
    beside_readers = min(1.0, total.get("CPU", 1) / 2 / processes)
    gpus = total.get("GPU", 0.0)
    if role == "worker":
        return Share(beside_readers, 1.0 if gpus >= processes else 0.0)
    return Share(beside_readers if role == "labeller" else 1.0, min(1.0, int(1e4 * gpus / processes) / 1e4))


class Capacity(NamedTuple):
    """CPUs and GPUs of this machine or of a cluster."""

    cpus: int
    gpus: int

    @classmethod
    def of_machine(cls) -> "Capacity":
        import torch

        return cls(cores(), torch.cuda.device_count())

    @classmethod
    def of_cluster(cls) -> "Capacity":
        """Return the capacity of the Ray cluster that this process has joined."""
        import ray

        total = ray.cluster_resources()
        return cls(int(total.get("CPU", 1)), int(total.get("GPU", 0)))

    def trials(self, cpus: float, gpus: float) -> int:
        """Return how many trials with ``cpus`` and ``gpus`` fit at once. A fraction of a GPU never spans two."""
        by_cpus = int(self.cpus / cpus)
        if not gpus:
            return by_cpus
        return min(by_cpus, int(self.gpus / gpus) if gpus >= 1 else self.gpus * int(1 / gpus))

    def trainings(self, workers: int, cpus: float | None = None, gpus: float | None = None) -> int:
        """Return how many trainings of ``workers`` fit at once.

        A worker takes ``cpus`` and ``gpus``. If they are None, it takes a GPU, or a core if GPUs are too few.
        """
        if gpus is None:
            gpus = float(self.gpus >= workers)
        fits = [self.gpus / gpus] if gpus else [self.cpus / (cpus or 1)]
        if gpus and cpus:
            fits.append(self.cpus / cpus)
        return int(min(fits) / workers + 1e-6)


def reserve(workers: int, cpus: float | None, gpus: float | None, minutes: float) -> Share:
    """Return the share of each of the ``workers`` of a training once the nodes of the cluster can hold them.

    ``cpus`` and ``gpus`` are those of each worker; None as in :func:`share`, or one CPU if nodes may still join. An
    autoscaler gets a request for the nodes. Prints a message if the workers fit but must wait for resources in use.
    Raises UserError if the nodes cannot hold them after ``minutes``.
    """
    import ray
    from ray.autoscaler.sdk import request_resources

    end, is_waiting = time.monotonic() + 60 * minutes, False
    while True:
        default = share("worker", workers)
        each = Share(cpus or (1.0 if minutes else default.cpus), default.gpus if gpus is None else gpus)
        wanted = f"{workers} workers with {each.cpus:g} CPUs" + (f" and {each.gpus:g} GPUs" if each.gpus else "")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs = each.bundle.items()
        slots = sum(min(int((node.get(name, 0) + 1e-6) / amount) for name, amount in needs) for node in nodes)
        unused = sum(node.get("CPU", 0) for node in nodes) - workers * each.cpus
        if slots >= workers and unused >= _READERS - 1e-6:
            break
        if time.monotonic() >= end:
            after = f" after train.wait_minutes={minutes:g}" if minutes else ""
            held = f"{wanted} each do not fit on the {len(nodes)} nodes of the cluster{after}"
            if slots >= workers:
                raise UserError(
                    f"{held} beside the readers of the data, which need {_READERS:g} CPU: add nodes, or lower "
                    f"train.workers or train.cpus_per_worker"
                )
            raise UserError(f"{held}, which hold {slots}: add nodes, or set train.workers={max(slots, 1)}")
        if not is_waiting:
            say(f"Waiting {minutes:g} minutes for nodes: {wanted} each, and the nodes of the cluster hold {slots}")
            request_resources(bundles=[each.bundle] * workers + [{"CPU": _READERS}])
            is_waiting = True
        time.sleep(min(_POLL, max(end - time.monotonic(), 0)))
    if is_waiting:
        request_resources(bundles=[])
    free = ray.available_resources()
    if any(free.get(name, 0) + 1e-6 < workers * amount for name, amount in needs):
        say(f"Waiting for {wanted} each: other work of the cluster holds them now")
    return each
