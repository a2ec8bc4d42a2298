"""The two Serve deployments: the front, which speaks HTTP and holds no model, and the model's replicas behind it."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from raysum.config.sections import DecodeConfig
from raysum.data.rows import Row
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.runtime.placement import share
from raysum.runtime.processes import cores
from raysum.serve.api import Overloaded, build_api
from raysum.serve.config import Limits, ServeConfig
from raysum.serve.guard import LOCAL
from raysum.serve.schema import Health

BATCH_WAIT = 0.02  # seconds a request waits for company; decoding one takes many times as long
_TRIES = 2  # of a request whose replica dies under it; more would let a deadly request kill all replicas in turn
_DRAIN = 3.0  # seconds that requests under way may take once the server is told to stop


class Request(NamedTuple):
    row: Row
    settings: DecodeConfig
    left: threading.Event  # set once nobody waits for it any more


class Model:
    """One replica of the summarizer. Requests that come together and want the same settings are decoded together."""

    def __init__(self, config: ServeConfig):
        self._summarizer = Summarizer.of(config.run, config)
        self._decode.set_max_batch_size(self._summarizer.settings.batch_examples)  # type: ignore[attr-defined]
        self._max_cost = config.max_cost
        threads = max(1, cores() // config.replicas)
        # One thread decodes, so that the event loop stays free to collect the next batch meanwhile.
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """The `summarize` object of ``cluster``, or ``{"error": ..., "status": ...}`` where the request is at fault.

        Where the client leaves meanwhile, this is cancelled, and so its decoding.
        """
        try:
            chosen = self._summarizer.choose(settings)
            row = await asyncio.to_thread(self._summarizer.prepare, cluster)
        except UserError as error:
            return {"error": str(error), "status": 400}
        if too_much := self._too_costly(row, chosen):
            return {"error": too_much, "status": 422}
        request = Request(row, chosen, threading.Event())
        try:
            return await self._decode(request)
        finally:
            request.left.set()

    def _too_costly(self, row: Row, chosen: DecodeConfig) -> str | None:
        """What to say where ``chosen`` ask for more than is taken; None where they do not."""
        most = chosen.reading(self._summarizer.searcher.source).max_tokens
        read = min(len(row["ids"]), most or len(row["ids"]))
        own, asked = (each.num_beams * each.max_length * read for each in (self._summarizer.settings, chosen))
        if asked <= max(own, self._max_cost):
            return None
        return (
            f"num_beams {chosen.num_beams} x max_length {chosen.max_length} x {read} tokens of source are {asked}, "
            f"more than the {self._max_cost} that a request may ask for; the server's --max-cost says it"
        )

    @serve.batch(batch_wait_timeout_s=BATCH_WAIT)
    async def _decode(self, requests: list[Request]) -> list[dict[str, Any]]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._decode_now, requests)

    def _decode_now(self, requests: list[Request]) -> list[dict[str, Any]]:
        """The answers to ``requests``; an empty one where the client left before."""
        answers: dict[int, dict[str, Any]] = {}
        for settings in dict.fromkeys(request.settings for request in requests):
            alike = [place for place, request in enumerate(requests) if request.settings == settings]
            waiting = [place for place in alike if not requests[place].left.is_set()]
            answers |= zip(waiting, self._summaries([requests[place] for place in waiting], settings), strict=True)
        return [answers.get(place, {}) for place in range(len(requests))]

    def _summaries(self, requests: list[Request], settings: DecodeConfig) -> Iterator[dict[str, Any]]:
        rows = [request.row for request in requests]
        summaries = self._summarizer.summarize_rows(rows, settings, left=lambda place: requests[place].left.is_set())
        return (summary.to_dict() for summary in summaries)


class Front:
    """The HTTP interface before the replicas. It checks requests, so that a bad one never takes a replica's time."""

    def __init__(self, model: DeploymentHandle, health: Health, limits: Limits, local: bool):
        self._model, self._health, self._limits, self._local = model, health, limits, local

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_api(self._answer, self._health, self._limits, self._local)

    async def _answer(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        for _ in range(_TRIES):
            try:
                answer = await self._model.summarize.remote(cluster, settings)
            except BackPressureError:
                raise Overloaded("too many requests are waiting; come again later") from None
            except RayActorError:
                continue  # its replica died: another takes it, for summarizing twice does no harm
            if "error" in answer:
                raise HTTPException(answer["status"], answer["error"])
            return answer
        raise Overloaded("the model's replicas stopped while they worked on this request; come again later")


def application(config: ServeConfig, health: Health, batch: int) -> serve.Application:
    """Both deployments, bound. A replica works on ``batch`` requests while the next ``batch`` of them gather; twice as
    many wait for each replica; what comes beyond that is refused."""
    each = share("replica", config.replicas)
    model = serve.deployment(
        name="model",
        num_replicas=config.replicas,
        max_ongoing_requests=2 * batch,
        max_queued_requests=2 * batch * config.replicas,
        max_constructor_retry_count=1,
        graceful_shutdown_timeout_s=0.1,  # the front, which waits for the requests, is stopped before
        graceful_shutdown_wait_loop_s=0.05,
        ray_actor_options={"num_cpus": each.cpus, "num_gpus": each.gpus},
    )(Model)
    front = serve.deployment(
        name="front",
        max_ongoing_requests=8 * batch * config.replicas + 100,  # more than the model takes: it refuses, never waits
        graceful_shutdown_timeout_s=_DRAIN,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(Front))
    return front.bind(model.bind(config), health, config, config.host in LOCAL)
