"""The settings of `raysum serve`, and of `raysum summarize --out`."""

from pydantic import Field

from raysum.config.base import Section
from raysum.config.sections import LoadConfig
from raysum.prepare.config import Shaped


class Limits(Section):
    """Upper limits of a request."""

    max_body: int = Field(8 << 20, gt=0, description="bytes of a request; 40 long articles have about 2 MiB")
    max_documents: int = Field(1000, gt=0, description="documents of a request")
    max_paragraphs: int = Field(10_000, gt=0, description="lines of its documents, including blank ones")
    max_characters: int = Field(4_000_000, gt=0, description="characters of its documents")
    max_cost: int = Field(
        10_000_000,
        gt=0,
        description="num_beams x max_length x source tokens of a request; the run's own settings are always accepted",
    )


class ServeConfig(LoadConfig, Limits):
    run: str = Field(description="a trained run, a search (its best run), or a system that extracts sentences")
    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(8000, ge=0, le=65535, description="port to bind; 0 chooses a free port")
    keys: str | None = Field(None, description="file of `raysum keys`; requests without a key in it get 401")
    log: str | None = Field(None, description="file to append a JSON line for each request to, without texts and keys")
    tls_certificate: str | None = Field(None, description="PEM file of the certificate and its chain, for https")
    tls_key: str | None = Field(None, description="PEM file of its private key, without a password")
    allow_anyone: bool = Field(False, description="serve other machines (--host) without keys")
    replicas: int = Field(1, ge=1, le=100_000, description="copies of the model, which share cores and GPUs")
    follow: float = Field(
        30.0,
        ge=0,
        description="seconds between looks for another best checkpoint of the run or search, which is loaded beside "
        "the old one and then served; 0 = never",
    )
    address: str | None = Field(None, description="address of a running Ray cluster to use")


class Spread(Section):
    """Where and how many processes summarize."""

    workers: int = Field(1, ge=0, le=10_000, description="processes that summarize; 0 = this one, without Ray")
    address: str | None = Field(None, description="address of a running Ray cluster to use")


class BatchConfig(LoadConfig, Shaped, Spread):
    run: str = Field(description="a trained run, a search (its best run), or a system that extracts sentences")
    out: str = Field(description="folder or URL of the summaries")
