"""The two Ray Serve deployments: the front, which handles HTTP, and the replicas of the model."""

from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from raysum.config.decoding import DecodeConfig
from raysum.data.rows import Row
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.runtime.placement import share
from raysum.runtime.processes import cores
from raysum.serve.api import Overloaded, build_api
from raysum.serve.config import Limits, ServeConfig
from raysum.serve.extracts import Extracts
from raysum.serve.guard import LOCAL, extent
from raysum.serve.lanes import Lane, Request
from raysum.serve.ports import bind_to_node
from raysum.serve.schema import Health

_LARGE = 0.1  # of a limit; larger requests take longer to prepare than ordinary ones to decode
_TRIES = 2  # of a request if its replica dies; with more, one fatal request could kill all replicas
_DRAIN = 2.0  # seconds that running requests may take after the server is stopped


class Model:
    """A replica of the summarizer.

    Requests with settings more costly than the run's own, or with much text, are processed in separate lanes with lower
    priority. Otherwise a request with 16 beams and 1,000 tokens would delay all others for seconds.
    """

    def __init__(self, config: ServeConfig):
        bind_to_node()
        self._summarizer, self._limits = Summarizer.of(config.run, config), config
        threads = max(1, cores() // config.replicas)
        self._ordinary = Lane(self._summarizer, threads)
        self._large = Lane(self._summarizer, threads, self._ordinary)
        self._costly = Lane(self._summarizer, threads, self._ordinary)

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of ``cluster``, or ``{"error": ..., "status": ...}``.

        If the client disconnects, Ray cancels this call, which cancels the decoding.
        """
        own = self._summarizer.settings
        try:
            chosen = self._summarizer.choose(settings)
            costly = chosen.num_beams * chosen.max_length > own.num_beams * own.max_length
            lane = self._costly if costly else self._large if self._is_large(cluster) else self._ordinary
            # The remaining slots are for ordinary requests.
            if lane.present >= own.batch_examples and lane is not self._ordinary:
                return {"error": "too many costly requests are waiting; try again later", "status": 503}
            with lane.entered():
                row = await lane.prepared(cluster)
                if costly and (too_much := self._too_costly(row, chosen)):
                    return {"error": too_much, "status": 422}
                return await lane.answer(Request(row, chosen))
        except UserError as error:
            return {"error": str(error), "status": 400}

    def _is_large(self, cluster: dict[str, Any]) -> bool:
        texts = (text["text"] if isinstance(text, dict) else text for text in cluster["documents"])
        return any(size > _LARGE * getattr(self._limits, f"max_{what}") for what, size in extent(texts).items())

    def _too_costly(self, row: Row, chosen: DecodeConfig) -> str | None:
        """Return the error message if the settings ``chosen`` exceed the limit of costs, else None."""
        most = chosen.reading(self._summarizer.source).max_tokens
        read = min(len(row["ids"]), most or len(row["ids"]))
        asked = chosen.num_beams * chosen.max_length * read
        if asked <= self._limits.max_cost:
            return None
        return (
            f"num_beams {chosen.num_beams} x max_length {chosen.max_length} x {read} tokens of source are {asked}, "
            f"more than the {self._limits.max_cost} that a request may ask for; the server's --max-cost says it"
        )


class Front:
    """The HTTP interface. It validates requests before they reach a replica."""

    def __init__(self, model: DeploymentHandle, health: Health, limits: Limits, local: bool):
        bind_to_node()
        self._model, self._health, self._limits, self._local = model, health, limits, local

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_api(self._answer, self._health, self._limits, self._local)

    async def _answer(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        for _ in range(_TRIES):
            try:
                answer = await self._model.summarize.remote(cluster, settings)
            except BackPressureError:
                raise Overloaded("too many requests are waiting; try again later") from None
            except RayActorError:
                continue  # the replica died; repeating the request is safe
            except (DeploymentUnavailableError, RequestCancelledError):
                break
            if answer.get("status") == 503:
                raise Overloaded(answer["error"])
            if "error" in answer:
                raise HTTPException(answer["status"], answer["error"])
            return answer
        raise Overloaded("the replicas stopped during this request; try again later")


def application(config: ServeConfig, health: Health, batch: int, extracting: bool) -> serve.Application:
    """Return the application of both deployments.

    A replica decodes ``batch`` requests while the next ``batch`` collect. Twice as many may wait for each replica; more
    requests are refused.
    """
    each = share("replica", config.replicas)
    model = serve.deployment(
        name="model",
        num_replicas=config.replicas,
        max_ongoing_requests=2 * batch,
        max_queued_requests=2 * batch * config.replicas,
        max_constructor_retry_count=1,
        graceful_shutdown_timeout_s=_DRAIN,
        graceful_shutdown_wait_loop_s=0.05,
        ray_actor_options={"num_cpus": each.cpus, "num_gpus": each.gpus},
    )(Extracts if extracting else Model)
    front = serve.deployment(
        name="front",
        # More than the replicas accept, so that they refuse requests and the front never queues them.
        max_ongoing_requests=8 * batch * config.replicas + 100,
        graceful_shutdown_timeout_s=_DRAIN,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(Front))
    return front.bind(model.bind(config), health, config, config.host in LOCAL)
