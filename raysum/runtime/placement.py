"""Placement: the device, CPUs and GPUs of a process that trains, labels, decodes or serves."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from raysum.errors import UserError
from raysum.runtime.processes import cores
from raysum.runtime.progress import say

if TYPE_CHECKING:
    import torch

Role = Literal["worker", "labeller", "decoder", "replica"]


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


def share(role: Role, processes: int) -> Share:
    """Return the resources of each of the ``processes`` with a role in the current Ray session.

    Either all workers of a training get a GPU of their own or none does; other roles share the GPUs. A worker or a
    labeller takes one CPU, but all together at most half of the CPUs: Ray Data's readers need the other half.
    """
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

    def trainings(self, workers: int) -> int:
        """Return how many trainings of ``workers`` fit at once: a worker takes a GPU, or a core if GPUs are too few."""
        return (self.gpus if self.gpus >= workers else self.cpus) // workers


def check_fits(workers: int, each: Share) -> None:
    """Raises UserError if the nodes of the cluster can never hold ``workers`` with ``each`` share.

    Prints a message if they fit but must wait for resources that are in use.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needs = each.bundle.items()
    slots = sum(min(int((node.get(name, 0) + 1e-6) / amount) for name, amount in needs) for node in nodes)
    wanted = f"{workers} workers with {each.cpus:g} CPUs" + (f" and {each.gpus:g} GPUs" if each.gpus else "")
    if slots < workers:
        raise UserError(
            f"{wanted} each do not fit on the {len(nodes)} nodes of the cluster, which hold {slots}: add nodes, or "
            f"set train.workers={max(slots, 1)}"
        )
    free = ray.available_resources()
    if any(free.get(name, 0) + 1e-6 < workers * amount for name, amount in needs):
        say(f"Waiting for {wanted} each: other work of the cluster holds them now")
