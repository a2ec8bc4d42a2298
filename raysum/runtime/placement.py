"""Which device, how many CPUs and how many GPUs a process gets: a worker, a labeller, a decoder, a replica."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from raysum.errors import UserError
from raysum.runtime.processes import cores
from raysum.runtime.progress import say

if TYPE_CHECKING:
    import torch

Role = Literal["worker", "labeller", "decoder", "replica"]


class Share(NamedTuple):
    """What one process asks Ray for."""

    cpus: float
    gpus: float

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


def device(name: str | None = None) -> "torch.device":
    """The device ``name``; without one, CUDA where this process sees it."""
    import torch

    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def share(role: Role, processes: int) -> Share:
    """What each of so many ``processes`` of a role gets of the Ray session.

    Workers of one training each need a GPU of their own, all or none; others share what there is. A worker or a
    labeller takes one CPU, or where there are few a part of half of all: the other half is left to Ray Data's readers,
    so that nothing waits for CPUs that are not there.
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
        """That of the Ray cluster which this process has joined."""
        import ray

        total = ray.cluster_resources()
        return cls(int(total.get("CPU", 1)), int(total.get("GPU", 0)))

    def trainings(self, workers: int) -> int:
        """How many trainings of ``workers`` run side by side: a worker takes a GPU, or a core if there are too few."""
        return (self.gpus if self.gpus >= workers else self.cpus) // workers


def check_fits(workers: int, each: Share) -> None:
    """Raises UserError where the nodes of the cluster together could never hold ``workers`` of ``each`` share.

    Says what they wait for where other work holds it now.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    places = sum(_places(node, each) for node in nodes)
    wanted = f"{workers} workers with {each.cpus:g} CPUs" + (f" and {each.gpus:g} GPUs" if each.gpus else "")
    if places < workers:
        raise UserError(
            f"{wanted} each do not fit on the {len(nodes)} nodes of the cluster, which hold {places}: add nodes, or "
            f"set train.workers={max(places, 1)}"
        )
    free = ray.available_resources()
    if any(free.get(name, 0) + 1e-6 < workers * amount for name, amount in each.bundle.items()):
        say(f"Waiting for {wanted} each: other work of the cluster holds them now")


def _places(node: dict[str, float], each: Share) -> int:
    """How many processes with the share ``each`` a node holds."""
    return min(int((node.get(name, 0) + 1e-6) / amount) for name, amount in each.bundle.items())
