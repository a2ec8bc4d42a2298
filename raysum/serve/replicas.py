"""The two Ray Serve deployments: the front, which handles HTTP, and the replicas, which have the models."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from raysum.config.decoding import DecodeConfig
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.runtime.placement import share
from raysum.runtime.processes import cores
from raysum.serve.api import build_api
from raysum.serve.batch_routes import Batches
from raysum.serve.config import ModelConfig, ServeConfig
from raysum.serve.events import Event, asked_settings, completed, failed, grown, outlined, queued, reading
from raysum.serve.extracts import Extracts
from raysum.serve.guard import LOCAL, Overloaded, extent, refused
from raysum.serve.page import Control, add_page, controls_of
from raysum.serve.ports import bind_to_node
from raysum.serve.reports import reported_problems
from raysum.serve.scheduler import LANES, Lane, Request, Scheduler
from raysum.serve.schema import Health
from raysum.serve.served import EXAMPLE, Follower, Served, health_of
from raysum.serve.shelf import Book, Shelf
from raysum.serve.state import add_state_routes

_LARGE = 0.1  # of a limit; larger requests take longer to prepare than ordinary ones to decode
_TRIES = 2  # of a request if its replica dies; with more, one fatal request could kill all replicas
_STOPPED = "the replicas stopped during this request; try again later"
_FRESH = 1.0  # seconds for which the state of the replicas is used
_LOOK_BACK = 30.0  # seconds of load that decide about the number of replicas
_SLOW = 2000  # requests that may arrive slowly without delaying others
_DRAIN = 2.0  # seconds that running requests may take after the server is stopped


class _Loaded(NamedTuple):
    summarizer: Summarizer
    scheduler: Scheduler


class Model:
    """A loaded summarizer.

    Requests with settings more costly than the run's own, or with much text, have separate lanes with lower priority.
    Otherwise a request with 16 beams and 1,000 tokens would delay all others for seconds.
    """

    def __init__(self, served: Served):
        self._limits, self._id = served.config, secrets.token_hex(8)
        self._follower = Follower(served, self._load, retire=lambda model: model.scheduler.close())
        # A lane prepares one request at a time, so that large ones do not delay others. Few threads keep little memory.
        self._preparing = {lane: ThreadPoolExecutor(1) for lane in LANES}

    def close(self) -> None:
        """Unload the model; running requests are answered."""
        self._follower.close()
        for pool in self._preparing.values():
            pool.shutdown(wait=False)

    @staticmethod
    def _load(config: ModelConfig) -> "_Loaded":
        # GNU's OpenMP keeps the threads of each thread that computes. If there are more of them than cores, none waits
        # actively any more, and a model that was loaded with two threads decodes at 0.7 to 0.8 of its speed.
        torch.set_num_threads(1)
        summarizer = Summarizer.of(config.run, config)
        summarizer.summarize("", [*EXAMPLE])
        return _Loaded(summarizer, Scheduler(summarizer, threads=max(1, cores() // config.replicas)))

    def describe(self) -> dict[str, Any]:
        """Return the values of a ``schema.ModelCard``."""
        return self._follower.describe() | {"beta": self._follower.current.model.summarizer.settings.beta}

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of ``cluster``, or ``{"error": ..., "status": ...}``.

        If the client disconnects, Ray cancels this call, which cancels the decoding.
        """
        async with aclosing(self.stream(cluster, settings, sends_prefixes=False)) as events:
            return [event async for event in events][-1]["data"]

    async def stream(
        self, cluster: dict[str, Any], settings: dict[str, Any], sends_prefixes: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream, see :mod:`raysum.serve.events`."""
        version = self._follower.current
        summarizer, scheduler = version.model
        own = summarizer.settings
        try:
            asked, is_background = asked_settings(summarizer.choose, settings)
            costly = asked.num_beams * asked.max_length > own.num_beams * own.max_length
            lane: Lane = "costly" if costly else "large" if self._is_large(cluster) else "ordinary"
            lane = "background" if is_background else lane
            if scheduler.is_full(lane):  # the remaining places are for ordinary requests
                yield failed("too many costly requests are waiting; try again later", 503)
                return
            with scheduler.entered(lane):
                yield queued(scheduler.position(lane))
                loop = asyncio.get_running_loop()
                row = await loop.run_in_executor(self._preparing[lane], summarizer.prepare, cluster)
                read = reading(row, asked.reading(summarizer.source))
                if costly and (too_much := self._too_costly(asked, read["data"]["tokens"])):
                    yield failed(too_much, 422)
                    return
                yield read
                async with aclosing(scheduler.results(Request(row, asked, lane, sends_prefixes))) as results:
                    async for result in results:
                        if isinstance(result, str):
                            yield grown(result)
                            continue
                        usage = {"source_tokens": read["data"]["tokens"], "summary_tokens": result.num_tokens}
                        usage["is_truncated"] = result.is_truncated
                        summary = await outlined(result.summaries[0].located(cluster), cluster)
                        replica = {"id": self._id, "waiting": scheduler.waiting}
                        counts = {"usage": usage, "replica": replica}
                        for event in completed(summary, version.name, sends_prefixes, **counts):
                            yield event
        except UserError as error:
            yield failed(str(error), 400)

    def _is_large(self, cluster: dict[str, Any]) -> bool:
        sizes = extent(cluster["documents"])
        return any(size > _LARGE * getattr(self._limits, f"max_{what}") for what, size in sizes.items())

    def _too_costly(self, chosen: DecodeConfig, read: int) -> str | None:
        """Return the error if the settings ``chosen`` with ``read`` tokens of source exceed the limit, else None."""
        asked = chosen.num_beams * chosen.max_length * read
        if asked <= self._limits.max_cost:
            return None
        return (
            f"num_beams {chosen.num_beams} x max_length {chosen.max_length} x {read} tokens of source are {asked}, "
            f"more than the {self._limits.max_cost} that a request may ask for; the server's --max-cost says it"
        )


class Replica:
    """A process with the models of the service. A model that cannot be loaded now has status 503."""

    def __init__(self, served: Mapping[str, Served], memory: float | None):
        bind_to_node()
        books = {
            name: Book[Model | Extracts](partial(Extracts if one.is_extractive else Model, one), one.size)
            for name, one in served.items()
        }
        self._shelf = Shelf(books, None if memory is None else int(memory * (1 << 30)))

    async def describe(self, name: str) -> dict[str, Any]:
        """Return the values of a ``schema.ModelCard``, or an error as :meth:`summarize` does."""
        try:
            async with self._shelf.using(name) as model:
                return model.describe()
        except UserError as error:
            return _not_loaded(error)

    async def summarize(self, name: str, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the summary by a model, or ``{"error": ..., "status": ...}``."""
        try:
            async with self._shelf.using(name) as model:
                return await model.summarize(cluster, settings)
        except UserError as error:
            return _not_loaded(error)

    async def stream(self, name: str, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncGenerator[Event, None]:
        try:
            async with self._shelf.using(name) as model, aclosing(model.stream(cluster, settings)) as events:
                async for event in events:
                    yield event
        except UserError as error:
            yield failed(str(error), 503)


def _not_loaded(error: UserError) -> dict[str, Any]:
    return {"error": str(error), "status": 503, "not_loaded": True}


class Remote:
    """A model of the replicas.

    A request whose replica dies is repeated; a stream then begins again with its event ``queued``.
    """

    def __init__(self, replicas: DeploymentHandle, name: str):
        self._replicas, self._name = replicas, name

    async def describe(self) -> dict[str, Any]:
        """Return what a replica has loaded. Raises Overloaded if none answers, or it cannot load the model."""
        with _unavailable():
            answer: dict[str, Any] = await self._replicas.describe.remote(self._name)
        if "error" in answer:
            raise refused(answer)
        return answer

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the summary. Raises HTTPException for a request that the replica refuses."""
        for _ in range(_TRIES):
            with _unavailable():
                try:
                    answer = await self._replicas.summarize.remote(self._name, cluster, settings)
                except RayActorError:
                    continue  # the replica died; repeating the request is safe
            if "error" in answer:
                raise refused(answer)
            return answer
        raise Overloaded(_STOPPED)

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncGenerator[Event, None]:
        """Yield events. Raises as :meth:`summarize` before the first one."""
        for _ in range(_TRIES):
            events: Any = self._replicas.options(stream=True).stream.remote(self._name, cluster, settings)
            try:
                with _unavailable():
                    async for event in events:
                        yield event
                    return
            except RayActorError:
                continue
            finally:
                events.cancel()
        raise Overloaded(_STOPPED)


class Front:
    """The HTTP interface. It validates requests before they reach a replica."""

    def __init__(
        self,
        replicas: DeploymentHandle,
        health: Health,
        config: ServeConfig,
        controls: Mapping[str, list[Control]],
        together: int,
    ):
        bind_to_node()
        self._models = {name: Remote(replicas, name) for name in controls}
        self._health, self._config, self._controls, self._together = health, config, controls, together
        self._are_ready, self._asked = False, time.monotonic() - _FRESH

    def __serve_build_asgi_app__(self) -> FastAPI:
        config = self._config
        batches = Batches(config.batches, self._together) if config.batches else None
        api = build_api(self._models, self._health, config, config.host in LOCAL, config.keys, config.log, batches)
        add_page(api, self._health, self._controls, config)
        add_state_routes(api, self._models, self.are_ready)
        return api

    async def problems(self) -> list[str]:
        """Return the problems since the last call, for the operator."""
        return reported_problems()

    async def are_ready(self) -> bool:
        """Return whether Ray Serve has a running replica, as of at most a second ago."""
        if time.monotonic() - self._asked > _FRESH:
            self._asked = time.monotonic()
            self._are_ready = await asyncio.to_thread(_has_replica)
        return self._are_ready


def _has_replica() -> bool:
    name = serve.get_replica_context().app_name
    states = serve.status().applications[name].deployments["model"].replica_states
    return any(state == "RUNNING" and count for state, count in states.items())


@contextmanager
def _unavailable() -> Iterator[None]:
    """Raise Overloaded if the replicas have no place, or stop."""
    try:
        yield
    except BackPressureError:
        raise Overloaded("too many requests are waiting; try again later") from None
    except (DeploymentUnavailableError, RequestCancelledError):
        raise Overloaded(_STOPPED) from None


def application(config: ServeConfig, served: Mapping[str, Served]) -> serve.Application:
    """Return the application of both deployments for the models ``served``.

    A replica decodes a batch of requests while the next one collects. Twice as many may wait for each replica; more
    requests are refused.
    """
    batch = max(model.batch for model in served.values())
    each = share("replica", config.most_replicas, gpus=config.gpus)
    count: dict[str, Any] = {"num_replicas": config.replicas}
    if config.max_replicas:
        scaling = {
            "min_replicas": config.replicas,
            "max_replicas": config.max_replicas,
            "target_ongoing_requests": batch,
            "upscale_delay_s": config.scale_up,
            "downscale_delay_s": config.scale_down,
            "look_back_period_s": min(_LOOK_BACK, max(1.0, config.scale_up)),
        }
        count = {"num_replicas": "auto", "autoscaling_config": scaling}
    replicas = serve.deployment(
        name="model",
        **count,
        max_surge_percent=config.surge,
        max_ongoing_requests=(4 if config.batches else 2) * batch,  # requests of batches take no place of others
        max_queued_requests=2 * batch * config.most_replicas,
        max_constructor_retry_count=1,
        graceful_shutdown_timeout_s=_DRAIN,
        graceful_shutdown_wait_loop_s=0.05,
        ray_actor_options={"num_cpus": each.cpus, "num_gpus": each.gpus},
    )(Replica)
    front = serve.deployment(
        name="front",
        # More than the replicas accept, so that they refuse requests and the front never queues them.
        max_ongoing_requests=8 * batch * config.most_replicas + _SLOW,
        max_surge_percent=config.surge,
        graceful_shutdown_timeout_s=_DRAIN,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(Front))
    controls = {name: controls_of(model.config) for name, model in served.items()}
    models = replicas.bind(dict(served), config.memory)
    return front.bind(models, health_of(served), config, controls, 2 * batch * config.most_replicas)
