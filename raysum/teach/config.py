"""The settings of `raysum teach`, and the key of the server."""

import os
from base64 import b64encode
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import Field, model_validator

from raysum.errors import UserError
from raysum.prepare.config import Shaped
from raysum.text.cleaning import ParagraphSeparator

KEY = "RAYSUM_TEACHER_KEY"
_PATH = "/chat/completions"


class TeachConfig(Shaped):
    ALIASES: ClassVar[dict[str, str]] = {
        "again": "retry_rejected",
        "context": "max_characters",
        "patience": "give_up_after",
        "parted_by": "paragraph_separator",
    }

    teacher: str = Field(
        repr=False,  # it may hold a password
        description=f"an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; its key, if any, is in {KEY}",
    )
    model: str = Field(description="the model's name on that server")
    out: str = Field(description="JSONL file to write; the answers are saved beside it and never paid for twice")
    replace: bool = Field(False, description="write new summaries also for clusters that have one")
    prompt: str | None = Field(None, description="file of a prompt with {documents}, {title} and {words} in it")
    words: int = Field(150, gt=0, le=100_000, description="length that the prompt asks for")
    cite: bool = Field(False, description="ask a second question: which paragraphs support each sentence")
    paragraph_separator: ParagraphSeparator = Field(
        "blank-lines", description="what separates these paragraphs, as in `raysum prepare`"
    )
    max_characters: int = Field(
        24_000,
        ge=100,
        le=100_000_000,
        description="characters of a cluster to send; of longer clusters the best-ranked paragraphs",
    )
    concurrency: int = Field(8, gt=0, le=1000, description="most requests at the same time")
    budget: int | None = Field(
        None, gt=0, description="most tokens of prompts and answers of OUT, of all runs together, as the server counts"
    )
    max_tokens: int = Field(
        1000,
        gt=0,
        le=1_000_000,
        description="most tokens of an answer; a higher limit asks again for cut answers only",
    )
    temperature: float | None = Field(None, ge=0, le=5, description="the default is the server's")
    seed: int | None = Field(None, description="random seed of the server, if it supports one")
    max_rejected: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of answers that may be empty, cut or refused; checked from ten answers on",
    )
    retry_rejected: bool = Field(False, description="ask again for answers that are empty, cut or refused")
    timeout: float = Field(300.0, gt=0, le=86_400, description="most seconds of one request")
    give_up_after: float = Field(
        600.0, gt=0, le=604_800, description="most seconds without any answer, also if the server asks to wait longer"
    )
    retries: int = Field(8, ge=0, le=100, description="tries after the first; the waits between them double")
    address: str | None = Field(None, description="address of a running Ray cluster")

    @model_validator(mode="after")
    def _check(self) -> "TeachConfig":
        if not _is_url(self.teacher):
            raise ValueError("teacher is not the URL of a server; write for example http://127.0.0.1:8000/v1")
        if not self.out.endswith(".jsonl"):
            raise ValueError(f"out must end in .jsonl, which `raysum prepare` recognizes (got {self.out!r})")
        return self

    @property
    def endpoint(self) -> str:
        """The URL of requests: the API's base and /chat/completions, without user and password."""
        parts = urlsplit(self.teacher)
        path, host = parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        path = path if path.endswith(_PATH) else (path or "/v1") + _PATH
        return parts._replace(netloc=host, path=path, fragment="").geturl()

    @property
    def login(self) -> tuple[str, str] | None:
        """The user and password of the URL, if any."""
        parts = urlsplit(self.teacher)
        return (unquote(parts.username), unquote(parts.password or "")) if parts.username else None

    @property
    def shown(self) -> str:
        """The endpoint for messages, without its query, which may hold a key."""
        return self.endpoint.partition("?")[0]

    @property
    def secrets(self) -> list[str]:
        """The texts that no message may hold, the longest first."""
        parts, login = urlsplit(self.teacher), ":".join(self.login or ())
        secrets = [os.environ.get(KEY, "").strip(), login, login.partition(":")[2], b64encode(login.encode()).decode()]
        secrets += [parts.password or "", *(pair.rpartition("=")[2] for pair in parts.query.split("&"))]
        return sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)

    @property
    def parameters(self) -> dict[str, int | float]:
        """The parameters of a request beside model and messages."""
        values = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        return {name: value for name, value in values.items() if value is not None}


def api_key() -> str:
    """Return the key of the environment, or an empty one. Raises UserError if it cannot be sent."""
    key = os.environ.get(KEY, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{KEY} is no key: it holds spaces or characters that no request can carry; set it again")
    return key


def _is_url(text: str) -> bool:
    import httpx  # slow to import, and only needed here

    try:
        return urlsplit(text).scheme in ("http", "https") and bool(httpx.URL(text).host)
    except (ValueError, httpx.InvalidURL):
        return False
