"""The Ray Train backend: each worker sees the GPUs of all workers, as NCCL needs, and makes its own process group."""

from ray.train.backend import Backend, BackendConfig


class _SharedDevices(Backend):
    share_cuda_visible_devices = True


class SharedDevices(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _SharedDevices
