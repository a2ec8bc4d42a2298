"""Routes about the service itself: whether a replica is ready, and which model it has loaded."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from fastapi import FastAPI

from raysum.serve.guard import Overloaded, model_named
from raysum.serve.schema import ModelCard, ModelEntry, ModelList, Problem, Readiness

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "No replica is ready; retry after Retry-After seconds"}
}


class Described(Protocol):
    """A model of the replicas."""

    async def describe(self) -> dict[str, Any]: ...


def add_state_routes(api: FastAPI, models: Mapping[str, Described], are_ready: Callable[[], Awaitable[bool]]) -> None:
    """Add the routes about ``models`` by name, the default one first."""
    since = int(time.time())
    entries = {name: ModelEntry(id=name, created=since) for name in models}
    unknown: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "No such model"}}

    @api.get("/readyz", responses=_NOT_READY)
    async def show_readiness() -> Readiness:
        """Report whether a replica can answer. A busy service is ready."""
        if await are_ready():
            return Readiness()
        raise Overloaded("no replica is ready; try again later")

    @api.get("/v1/models")
    async def list_models() -> ModelList:
        """List the served models, as OpenAI's clients read them."""
        return ModelList(data=[*entries.values()])

    @api.get("/v1/models/{model:path}", responses=unknown)
    async def show_model(model: str) -> ModelEntry:
        """Return a served model, as OpenAI's clients read it."""
        return model_named(entries, model)

    @api.get("/v1/model", response_model_exclude_none=True, responses=_NOT_READY | unknown)
    async def describe_model(model: str | None = None) -> ModelCard:
        """Describe a model that a replica has loaded: run, step, layers, beta, validation metrics, load time.

        Without `model`, it is the default one. If the last better checkpoint could not be loaded, `rejected` has the
        reason."""
        return ModelCard(**await model_named(models, model).describe())
