"""The settings of `raysum serve`, and of `raysum summarize --out`."""

import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from raysum.config.base import Section
from raysum.config.sections import LoadConfig
from raysum.prepare.config import Shaped

_NAME = re.compile(r"[\w.-]{1,100}")
_NAMED = re.compile(r"([\w.-]+)=(.+)")


class Limits(Section):
    """Upper limits of a request."""

    max_body: int = Field(8 << 20, gt=0, description="bytes of a request; 40 long articles have about 2 MiB")
    max_batch: int = Field(1 << 30, gt=0, description="bytes of the requests of a batch")
    max_documents: int = Field(1000, gt=0, description="documents of a request")
    max_paragraphs: int = Field(10_000, gt=0, description="lines of its documents, including blank ones")
    max_characters: int = Field(4_000_000, gt=0, description="characters of its documents")
    max_cost: int = Field(
        10_000_000,
        gt=0,
        description="num_beams x max_length x source tokens of a request; the run's own settings are always accepted",
    )


class _Served(LoadConfig, Limits):
    replicas: int = Field(1, ge=1, le=100_000, description="copies of the models, which share cores and GPUs")
    follow: float = Field(
        30.0,
        ge=0,
        description="seconds between looks for another best checkpoint of the run or search, which is loaded beside "
        "the old one and then served; 0 = never",
    )


class ModelConfig(_Served):
    """One model of a service."""

    run: str


class ServeConfig(_Served):
    run: str | dict[str, str] = Field(
        description="a trained run, a search (its best run), or a system that extracts sentences; or several by name"
    )
    max_replicas: int | None = Field(
        None, ge=1, le=100_000, description="more replicas, up to so many, while more requests come than they answer"
    )
    scale_up: float = Field(10.0, ge=0, le=1e6, description="seconds of high load before a replica is added")
    scale_down: float = Field(300.0, ge=0, le=1e6, description="seconds of low load before a replica is removed")
    surge: int = Field(
        100,
        ge=0,
        le=1000,
        description="percent of additional replicas while a new configuration replaces them: the old ones stop when "
        "these answer; 0 = they stop first, which needs no more memory",
    )
    gpus: float | None = Field(None, ge=0, le=64, description="GPUs of a replica; by default, the replicas share all")
    trace: float = Field(0.0, ge=0, le=1, description="share of requests that OpenTelemetry traces")
    memory: float | None = Field(
        None, gt=0, description="GiB for the weights of a replica's models; others are loaded when they are asked for"
    )
    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(8000, ge=0, le=65535, description="port to bind; 0 chooses a free port")
    keys: str | None = Field(None, description="file of `raysum keys`; requests without a key in it get 401")
    batches: str | None = Field(None, description="folder on this machine for the batches of /v1/batches")
    log: str | None = Field(None, description="file to append a JSON line for each request to, without texts and keys")
    tls_certificate: str | None = Field(None, description="PEM file of the certificate and its chain, for https")
    tls_key: str | None = Field(None, description="PEM file of its private key, without a password")
    allow_anyone: bool = Field(False, description="serve other machines (--host) without keys")
    address: str | None = Field(None, description="address of a running Ray cluster to use")

    @model_validator(mode="after")
    def _check_replicas(self) -> "ServeConfig":
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is less than replicas {self.replicas}")
        return self

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.replicas

    @field_validator("run", mode="before")
    @classmethod
    def _name_models(cls, value: Any) -> Any:
        """Return a list of runs, some of them as NAME=RUN, as one run, or as several by name."""
        if isinstance(value, list):
            if halves := [item for item in value if item.strip("=") != item]:
                raise ValueError(f"has no model {halves[0]}: write RUN or NAME=RUN")
            if len(value) == 1 and not _NAMED.match(value[0]):
                return value[0]
            named = [(found[1], found[2]) if (found := _NAMED.match(item)) else (_stem(item), item) for item in value]
            value = dict(named)
            if len(value) < len(named):
                raise ValueError("has two models of one name; write NAME=RUN for one of them")
        if isinstance(value, dict) and not (value and all(map(_NAME.fullmatch, value))):
            raise ValueError("needs names of letters, digits and the marks . _ - for its models")
        return value


def _stem(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


class Spread(Section):
    """Where and how many processes summarize."""

    workers: int = Field(1, ge=0, le=10_000, description="processes that summarize; 0 = this one, without Ray")
    address: str | None = Field(None, description="address of a running Ray cluster to use")


class BatchConfig(LoadConfig, Shaped, Spread):
    run: str = Field(description="a trained run, a search (its best run), or a system that extracts sentences")
    out: str = Field(description="folder or URL of the summaries")
