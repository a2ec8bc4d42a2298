"""The settings of `raysum teach`: the server, the key to it, what is asked, how fast and for how much."""

import os
from base64 import b64encode
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field, model_validator

from raysum.errors import UserError
from raysum.prepare.config import Shaped
from raysum.text.cleaning import Parting

KEY = "RAYSUM_TEACHER_KEY"
_ASKED = "/chat/completions"


class TeachConfig(Shaped):
    teacher: str = Field(
        repr=False,  # it may hold a password
        description=f"an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; its key, if any, is in {KEY}",
    )
    model: str = Field(description="the model's name, as that server has it")
    out: str = Field(description="JSON lines to write; the answers are kept beside it, and never asked for twice")
    replace: bool = Field(False, description="write new summaries also for clusters that have one")
    prompt: str | None = Field(None, description="file of a prompt with {documents}, {title} and {words} in it")
    words: int = Field(150, gt=0, le=100_000, description="length that the prompt asks for")
    cite: bool = Field(False, description="ask once more, for the paragraphs that each sentence rests on")
    parted_by: Parting = Field("blank-lines", description="what parts these paragraphs, as in `raysum prepare`")
    context: int = Field(
        24_000,
        ge=100,
        le=100_000_000,
        description="characters of a cluster that are read, at most: of longer ones the best-ranked paragraphs",
    )
    concurrency: int = Field(8, gt=0, le=1000, description="requests at once, at most")
    budget: int | None = Field(
        None, gt=0, description="tokens of prompts and answers that OUT may cost in all, by the server's count"
    )
    max_tokens: int = Field(
        1000,
        gt=0,
        le=1_000_000,
        description="tokens of an answer, at most; more of them ask again for what was cut alone",
    )
    temperature: float | None = Field(None, ge=0, le=5, description="by default the server's own")
    seed: int | None = Field(None, description="seed of the server's draws, where it has one")
    max_rejected: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the answers that may be empty, cut or refused; ten tell",
    )
    again: bool = Field(False, description="ask again for answers that are empty, cut or refused")
    timeout: float = Field(300.0, gt=0, le=86_400, description="seconds of one request, at most")
    patience: float = Field(
        600.0, gt=0, le=604_800, description="seconds without any answer, at most, whatever wait the server asks for"
    )
    retries: int = Field(8, ge=0, le=100, description="tries after the first; the waits between them double")
    address: str | None = Field(None, description="address of a running Ray cluster")

    @model_validator(mode="after")
    def _check(self) -> "TeachConfig":
        parts = _split(self.teacher)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("teacher is no address of a server; write for example http://127.0.0.1:8000/v1")
        if not self.out.endswith(".jsonl"):
            raise ValueError(f"out must end in .jsonl, by which `raysum prepare` knows it (got {self.out!r})")
        return self

    @property
    def endpoint(self) -> str:
        """Where requests go: the API's base and /chat/completions behind it, without user and password."""
        parts = urlsplit(self.teacher)
        path, host = parts.path.rstrip("/"), parts.netloc.rpartition("@")[2]
        path = path if path.endswith(_ASKED) else (path or "/v1") + _ASKED
        return parts._replace(netloc=host, path=path, fragment="").geturl()

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password of the address, if it has any."""
        parts = urlsplit(self.teacher)
        return (unquote(parts.username), unquote(parts.password or "")) if parts.username else None

    @property
    def shown(self) -> str:
        """The endpoint for messages, without its query, which may hold a key."""
        return self.endpoint.partition("?")[0]

    @property
    def secrets(self) -> list[str]:
        """What must stand in no message, the longest first."""
        parts, login = urlsplit(self.teacher), ":".join(self.login or ())
        found = [os.environ.get(KEY, "").strip(), login, login.partition(":")[2], b64encode(login.encode()).decode()]
        found += [parts.password or ""]
        found += [pair.rpartition("=")[2] for pair in parts.query.split("&")]
        return sorted((one for one in found if len(one) > 3), key=len, reverse=True)

    @property
    def parameters(self) -> dict[str, int | float]:
        """What goes with a request beside model and messages."""
        told = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        return {name: value for name, value in told.items() if value is not None}


def api_key() -> str:
    """The key of the environment, or an empty one. Raises UserError where it cannot be sent."""
    key = os.environ.get(KEY, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{KEY} is no key: it holds blanks or signs that no request can carry; set it anew")
    return key


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is none
    except ValueError:
        return None
    return parts
