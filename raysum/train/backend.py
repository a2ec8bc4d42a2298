"""What Ray Train calls: the backend of the workers, and the record of their failures.

Each worker sees the GPUs of all workers, as NCCL needs, and makes its own process group.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.callback import UserCallback

from raysum.runs.events import add_event
from raysum.runtime.session import reason


class _SharedDevices(Backend):
    share_cuda_visible_devices = True


class SharedDevices(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _SharedDevices


class FailureRecord(UserCallback):
    """Adds each failure of a worker to the events of the run at ``folder``. Ray Train's controller calls it."""

    def __init__(self, folder: Path):
        self._folder = folder

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            with suppress(OSError):  # a full disk, or a head without the run folder
                add_event(self._folder, "failure", message=f"worker {rank}: {reason(error)}")
