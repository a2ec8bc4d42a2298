"""The settings of `raysum serve`."""

from pydantic import Field

from raysum.config.base import Section
from raysum.config.sections import LoadConfig


class Limits(Section):
    """The most that one request may hold, and ask for."""

    max_body: int = Field(8 << 20, gt=0, description="bytes of a request; 40 long articles are about 2 MiB")
    max_documents: int = Field(1000, gt=0, description="documents of a request")
    max_paragraphs: int = Field(10_000, gt=0, description="lines of its documents, blank ones too")
    max_characters: int = Field(4_000_000, gt=0, description="characters of its documents")
    max_cost: int = Field(
        10_000_000,
        gt=0,
        description="num_beams x max_length x tokens that are read of its source; what the run's own settings "
        "cost is taken in any case",
    )


class ServeConfig(LoadConfig, Limits):
    run: str = Field(description="a trained run, a search: its best, or a system that extracts")
    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(8000, ge=0, le=65535, description="port to bind; 0 takes a free one")
    replicas: int = Field(1, ge=1, le=100_000, description="copies of the model, which share the cores and GPUs")
    address: str | None = Field(None, description="address of a running Ray cluster to use")
