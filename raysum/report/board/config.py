"""The settings of `raysum board`."""

from pydantic import Field

from raysum.config.base import Section


class BoardConfig(Section):
    folder: str = Field(description="folder with the runs and searches")
    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(8100, ge=0, le=65535, description="port to bind; 0: a free one")
