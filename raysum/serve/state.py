"""Routes about the service itself: whether a replica is ready, and which model it has loaded."""

import math
import time
from functools import cache
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from raysum.extract.summarizer import extracts
from raysum.runs.folder import Run
from raysum.serve.guard import RETRY_AFTER
from raysum.serve.schema import Health, ModelCard, ModelEntry, ModelList, Problem, Readiness

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "No replica is ready; retry after Retry-After seconds"}
}


class Replicas(Protocol):
    """The replicas of a front."""

    async def are_ready(self) -> bool: ...

    async def describe(self) -> dict[str, Any]: ...


@cache
def described(run: str, checkpoint: str) -> dict[str, Any]:
    """Return the layers of the run, if it has any, and the validation metrics of the checkpoint."""
    if extracts(run):
        return {}
    folder = Run(run)
    spec = folder.config.model
    letters = {part: getattr(spec, part, None) for part in ("encoder", "decoder")}
    mix = letters if all(isinstance(layers, str) for layers in letters.values()) else None
    figures = folder.figures(int(checkpoint)) if checkpoint.isdecimal() else {}
    return {"mix": mix, "validation": {name: value for name, value in figures.items() if math.isfinite(value)}}


def add_state_routes(api: FastAPI, health: Health, replicas: Replicas) -> None:
    name, since = health.system or health.run or "", int(time.time())
    entry = ModelEntry(id=name, created=since)

    @api.get("/readyz", responses=_NOT_READY)
    async def show_readiness() -> Readiness:
        """Report whether a replica can answer. A busy service is ready."""
        if await replicas.are_ready():
            return Readiness()
        raise HTTPException(503, "no replica is ready; try again later", {"Retry-After": str(RETRY_AFTER)})

    @api.get("/v1/models")
    async def list_models() -> ModelList:
        """List the served model, as OpenAI's clients read it."""
        return ModelList(data=[entry])

    @api.get("/v1/models/{model:path}", responses={404: {"model": Problem, "description": "No such model"}})
    async def show_model(model: str) -> ModelEntry:
        """Return the served model, as OpenAI's clients read it."""
        if model != name:
            raise HTTPException(404, f"there is no model {model[:100]!r}; this service has {name!r}")
        return entry

    @api.get("/v1/model", response_model_exclude_none=True, responses=_NOT_READY)
    async def describe_model() -> ModelCard:
        """Describe the model that a replica has loaded: run, step, layers, beta, validation metrics, load time.

        If the last better checkpoint could not be loaded, `rejected` has the reason."""
        return ModelCard(**await replicas.describe())
