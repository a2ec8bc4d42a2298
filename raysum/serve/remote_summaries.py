"""`raysum summarize --server`: a running server summarizes the clusters of files."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from pydantic import ValidationError

from raysum.decode.summary import NoSummary, Summary, name_of
from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.runtime.progress import bar
from raysum.serve.client import AsyncClient, NoServerError
from raysum.sources.record import Rejected

_TOGETHER = 8  # requests at one time


def summarize_on_server(
    address: str, clusters: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> list[Summary | NoSummary]:
    """Return the summary of each raw cluster by the server at ``address``, or why it refuses the cluster.

    ``options`` change its decoding settings. Once no server of raysum is at the address, nothing more is sent there.
    Raises UserError if there was none from the beginning.
    """
    return asyncio.run(_all_summaries(address, clusters, options))


async def _all_summaries(
    address: str, clusters: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> list[Summary | NoSummary]:
    places, is_long, gone = asyncio.Semaphore(_TOGETHER), len(clusters) > 1, list[str]()
    async with AsyncClient(address) as client:
        with bar(total=len(clusters), label="summarize", unit="cluster") if is_long else nullcontext() as progress:

            async def ask(cluster: Mapping[str, Any], number: int) -> Summary | NoSummary:
                async with places:
                    found = await _summary(client, cluster, number, options, gone)
                if progress is not None:
                    progress.update(1)
                return found

            found = await asyncio.gather(*(ask(cluster, number) for number, cluster in enumerate(clusters, 1)))
    if gone and all(isinstance(one, NoSummary) for one in found):
        raise UserError(gone[0])
    return found


async def _summary(
    client: AsyncClient, raw: Mapping[str, Any], number: int, options: Mapping[str, Any], gone: list[str]
) -> Summary | NoSummary:
    """``gone``: why there is no server, if so."""
    name = str(name_of(raw, number))
    if gone:
        return NoSummary(name, gone[0])
    try:
        cluster = read_cluster(raw)
        documents: list[str | dict[str, str]] = [
            {"source": source, "text": text} if source else text for source, text in cluster.documents
        ]
        answer = await client.summarize(cluster.title, documents, name, **options)
        return Summary.model_validate(answer).located(raw)
    except Rejected as reason:
        return NoSummary(name, f"cluster {name!r} cannot be summarized: {reason}")
    except ValidationError:
        problem: UserError = client.foreign()
    except UserError as error:
        problem = error
    if isinstance(problem, NoServerError):
        gone.append(str(problem))
    return NoSummary(name, str(problem))
