"""Which device, how many CPUs and how many GPUs a process gets: a worker, a labeller, a decoder, a replica."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from raysum.runtime.processes import cores

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


def trainings_at_once(workers: int) -> int:
    """How many trainings of ``workers`` run side by side: a worker takes a GPU, or a core where there are too few."""
    import torch

    gpus = torch.cuda.device_count()
    return (gpus if gpus >= workers else cores()) // workers
