"""Placement: the device, CPUs and GPUs of a process that trains, labels, decodes or serves."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from raysum.errors import UserError
from raysum.runtime.compat import draining_nodes
from raysum.runtime.processes import cores
from raysum.runtime.progress import say

if TYPE_CHECKING:
    import torch

Role = Literal["worker", "labeller", "decoder", "replica"]
_READERS = 0.5  # CPUs that the readers of a training's data need beside its workers
_POLL = 2.0  # seconds between looks at the nodes of the cluster
_ANSWER = 180.0  # seconds after which a node that does not answer is used all the same; Ray declares it dead before


class Share(NamedTuple):
    """The resources of one process."""

    cpus: float
    gpus: float

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    def is_free(self, processes: int) -> bool:
        """Return whether nothing uses the resources of so many ``processes`` now."""
        import ray

        free = ray.available_resources()
        return all(free.get(name, 0) + 1e-6 >= processes * amount for name, amount in self.bundle.items())


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
    import ray

    total = ray.cluster_resources()
    if cpus is None:
        cpus = min(1.0, total.get("CPU", 1) / 2 / processes) if role in ("worker", "labeller") else 1.0
    if gpus is None:
        all_gpus = total.get("GPU", 0.0)
        gpus = float(all_gpus >= processes) if role == "worker" else min(1.0, int(1e4 * all_gpus / processes) / 1e4)
    return Share(cpus, gpus)


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


class WorkerPlan(NamedTuple):
    """The workers of a training, and what the nodes of the cluster hold."""

    workers: int
    each: Share
    nodes: int
    slots: int  # workers that the nodes hold
    left_cpus: float  # CPUs beside those of the workers

    @classmethod
    def on_nodes(cls, workers: int, each: Share) -> "WorkerPlan":
        """Return the plan for ``workers`` of the size ``each`` on the nodes that now belong to the cluster."""
        nodes = [node["Resources"] for node in _nodes()]
        needs = each.bundle.items()
        slots = sum(min(int((node.get(name, 0) + 1e-6) / amount) for name, amount in needs) for node in nodes)
        left_cpus = sum(node.get("CPU", 0) for node in nodes) - workers * each.cpus
        return cls(workers, each, len(nodes), slots, left_cpus)

    @property
    def fits(self) -> bool:
        return self.slots >= self.workers and self.left_cpus >= _READERS - 1e-6

    def can_grow(self, workers: int) -> bool:
        """Return whether the nodes hold so many more ``workers``, and nothing else uses their resources."""
        return self.each.is_free(workers - self.workers) and self.on_nodes(workers, self.each).fits

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The resources of each worker, and those of the readers."""
        return [self.each.bundle] * self.workers + [{"CPU": _READERS}]

    def __str__(self) -> str:
        gpus = f" and {self.each.gpus:g} GPUs" if self.each.gpus else ""
        return f"{self.workers} workers with {self.each.cpus:g} CPUs{gpus} each"

    def error(self, minutes: float) -> UserError:
        """Return the error of a plan that does not fit after ``minutes``."""
        after = f" after train.wait_minutes={minutes:g}" if minutes else ""
        held = f"{self} do not fit on the {self.nodes} nodes of the cluster{after}"
        if self.slots >= self.workers:
            return UserError(
                f"{held} beside the readers of the data, which need {_READERS:g} CPU: add nodes, or lower "
                f"train.workers or train.cpus_per_worker"
            )
        return UserError(f"{held}, which hold {self.slots}: add nodes, or set train.workers={max(self.slots, 1)}")


def reserve(counts: Sequence[int], cpus: float | None, gpus: float | None, minutes: float) -> WorkerPlan:
    """Return the plan of the first of the ``counts`` of workers that the nodes of the cluster can hold.

    ``cpus`` and ``gpus`` are those of each worker; None as in :func:`share`, or one CPU if nodes may still join.
    Of several counts, None is one CPU, and one GPU if the cluster has any.
    If none fits, waits for nodes that hold the last one. Prints a message if workers must wait for resources in use.
    Raises UserError if the nodes cannot hold them after ``minutes``.
    """
    if len(counts) > 1 and gpus is None:
        gpus = float(Capacity.of_cluster().gpus > 0)
    if cpus is None and (minutes or len(counts) > 1):
        cpus = 1.0

    def plan() -> WorkerPlan:
        plans = [WorkerPlan.on_nodes(workers, share("worker", workers, cpus, gpus)) for workers in counts]
        return next((each for each in plans if each.fits), plans[-1])

    current = plan()
    if not current.fits and minutes:
        current = _wait_for_nodes(plan, minutes)
    if not current.fits:
        raise current.error(minutes)
    if not current.each.is_free(current.workers):
        say(f"Waiting for {current}: other work of the cluster holds them now")
    return current


def wait_for_answers() -> None:
    """Wait until each node of the cluster answers or is declared dead, which takes Ray up to a minute."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    answer, asked = ray.remote(num_cpus=0, max_retries=0)(lambda: None), dict[str, Any]()
    for node in _nodes():
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[node["NodeID"]] = answer.options(scheduling_strategy=there).remote()
    end = time.monotonic() + _ANSWER
    while asked and time.monotonic() < end:
        done, _ = ray.wait([*asked.values()], num_returns=len(asked), timeout=_POLL)
        alive = {node["NodeID"] for node in _nodes()}
        asked = {node: task for node, task in asked.items() if node in alive and task not in done}


@contextmanager
def requested(workers: int, each: Share) -> Iterator[None]:
    """Ask an autoscaler for the nodes of so many ``workers`` during the block."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=WorkerPlan(workers, each, 0, 0, 0).bundles)
    try:
        yield
    finally:
        request_resources(bundles=[])


def _nodes() -> list[dict[str, Any]]:
    """Return the nodes of the cluster that are alive and not about to be shut down."""
    import ray

    draining = draining_nodes()
    return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in draining]


def _wait_for_nodes(plan: Callable[[], WorkerPlan], minutes: float) -> WorkerPlan:
    """Return the first plan that fits, or the last one after ``minutes``. An autoscaler is asked for the nodes."""
    from ray.autoscaler.sdk import request_resources

    end, current = time.monotonic() + 60 * minutes, plan()
    say(f"Waiting {minutes:g} minutes for nodes: {current}, and the nodes of the cluster hold {current.slots}")
    request_resources(bundles=current.bundles)
    while not current.fits and (left := end - time.monotonic()) > 0:
        time.sleep(min(_POLL, left))
        current = plan()
    if current.fits:
        request_resources(bundles=[])
    return current
