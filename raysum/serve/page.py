"""The page at ``/``: documents and settings of a request, and the summary as it grows beside its sources."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.config.problems import changed
from raysum.extract.summarizer import Extractor, extracts
from raysum.pages.parts import render
from raysum.runs.folder import Run
from raysum.serve.config import Limits, ModelConfig
from raysum.serve.schema import Health, Options
from raysum.sources.documents.read import SUFFIXES

_SHOWN = (".txt", ".text", ".md", ".markdown")  # files that the page reads itself, so that their text can be edited

_TEXTS = {  # labels and help for readers who do not know the settings
    "num_beams": ("Beams", "more find better summaries, slower"),
    "max_length": ("Maximum tokens", "a word has one or a few tokens"),
    "beta": ("Alignment (beta)", "how much attention must follow its prediction; 0 is off"),
    "grounded": ("Grounding", "numbers, names, or all rare words only as the sources have them"),
    "words": ("Maximum words", "whole sentences within this limit; 100 if both are empty"),
    "sentences": ("Maximum sentences", "both limits apply if both are set"),
}


@dataclass(frozen=True)
class Control:
    """A setting on the page: a number within bounds, or one of ``choices``. ``value`` is the setting of the server."""

    name: str
    value: Any
    least: int = 1
    step: int | str = 1  # "any" allows fractions
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The value in its field."""
        return f"{self.value:g}" if isinstance(self.value, float) else str("" if self.value is None else self.value)

    @property
    def most(self) -> int | None:
        """The upper limit of a request."""
        bounds = Options.model_json_schema()["properties"][self.name]["anyOf"][0]
        most: int | None = bounds.get("maximum")
        return most


def controls_of(config: ModelConfig) -> list[Control]:
    """Return the settings that requests to the served run or system can change on the page."""
    if extracts(config.run):
        return _extracting(Extractor.of(config.run, config).settings)
    run = Run.resolve(config.run)
    if run.config.model.extracts:
        return _extracting(changed(run.extract, config.decode))
    settings: DecodeConfig = changed(run.decode, config.decode)
    groups = settings.num_beam_groups
    least = -(-settings.n_best // groups) * groups  # no fewer beams than summaries
    controls = [
        Control("num_beams", settings.num_beams, least, groups),
        Control("max_length", settings.max_length, max(1, settings.min_length)),
    ]
    if run.alignment.exists and run.alignment.checkpoints():
        controls.append(Control("beta", settings.beta, 0, "any"))
    names = ("numbers", "names", "all")
    return [
        *controls,
        Control("grounded", settings.grounded or "", choices=names if settings.grounded else ("", *names)),
    ]


def _extracting(settings: ExtractConfig) -> list[Control]:
    return [Control("words", settings.words), Control("sentences", settings.sentences)]


def add_page(api: FastAPI, health: Health, controls: Mapping[str, list[Control]], limits: Limits) -> None:
    """Add the page to the application, with the ``controls`` of each model, the default one first.

    Its policy allows its own style and script only, and requests to this server.
    """
    style, script = render("page.css") + render("serve.css"), render("serve.js")
    suffixes = " ".join(suffix for suffix in SUFFIXES if suffix not in _SHOWN)
    values = {"health": health, "controls": controls, "limits": limits, "suffixes": suffixes, "texts": _TEXTS}
    html = render("serve.html", style=style, script=script, **values)
    policy = {
        "default-src": "'none'",
        "script-src": _source(script),
        "style-src": _source(style),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }

    @api.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(html, headers=headers)


def _source(text: str) -> str:
    """Return the source expression of a policy that allows an inline ``text``."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
