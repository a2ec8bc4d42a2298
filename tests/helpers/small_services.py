"""A service of a model without Ray: its routes, and LexRank as a model of it."""

from fastapi import FastAPI

from raysum.serve.api import build_api
from raysum.serve.config import Limits, ModelConfig
from raysum.serve.events import Service
from raysum.serve.extracts import Extracts
from raysum.serve.schema import Health
from raysum.serve.served import Served

LEXRANK = Extracts(Served.of(ModelConfig(run="lexrank")))
LIMITS = Limits(max_body=100_000, max_documents=50, max_paragraphs=500, max_characters=20_000)


def routes(service: Service, name: str = "lexrank", limits: Limits = LIMITS) -> FastAPI:
    """The routes of ``service`` as the only model, called ``name``."""
    return build_api({name: service}, Health(status="ok", run=name), limits, False)
