"""The settings of `raysum serve`."""

from pydantic import Field

from raysum.config.sections import LoadConfig


class ServeConfig(LoadConfig):
    run: str = Field(description="a trained run, or a search: its best")
    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(8000, ge=0, le=65535, description="port to bind; 0 takes a free one")
    replicas: int = Field(1, ge=1, description="copies of the model, which share the cores and GPUs")
    max_body: int = Field(8 << 20, gt=0, description="bytes of a request; 40 long articles are about 2 MiB")
    address: str | None = Field(None, description="address of a running Ray cluster to use")
