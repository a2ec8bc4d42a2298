"""How Ray Train prepares the workers of a training: each sees the GPUs of all, as NCCL wants; the rest is theirs."""

from ray.train.backend import Backend, BackendConfig


class _SharedDevices(Backend):
    share_cuda_visible_devices = True


class SharedDevices(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _SharedDevices
