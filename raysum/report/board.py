"""`raysum board`: the runs and searches of a folder in a browser, read again for each request, until stopped."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from raysum.config.base import Section
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.pages import parts
from raysum.runtime.network import http_url, listening
from raysum.runtime.progress import say
from raysum.runtime.storage import check_here

if TYPE_CHECKING:
    from fastapi import FastAPI

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class BoardConfig(Section):
    folder: str = Field(description="folder with the runs and searches")
    host: str = Field("127.0.0.1", description="address to bind")
    port: int = Field(8100, ge=0, le=65535, description="port to bind; 0: a free one")


def board(folder: str, **settings: Any) -> None:
    """Serve the runs and searches in ``folder`` at ``http://host:port`` until SIGINT or SIGTERM.

    ``settings`` are those of BoardConfig. Raises UserError if the folder is missing or the address is in use.
    """
    config = section_of(BoardConfig, {**settings, "folder": folder})
    path = Path(config.folder).expanduser().absolute()
    check_here(path)
    if not path.is_dir():
        raise UserError(f"no folder {folder}; name the folder of your runs and searches")
    with listening(config.host, config.port) as listener:
        import uvicorn

        from raysum.serve.guard import LOCAL

        api = build_board_api(path, config.host in LOCAL)
        say(f"runs and searches in {folder}: {http_url(config.host, listener.getsockname()[1])}")
        if config.host not in LOCAL:
            say(f"warning: everyone who reaches {config.host} can see them; use 127.0.0.1 for this machine only")
        say("Ctrl-C stops it")
        options: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False, "lifespan": "off"}
        server = uvicorn.Server(uvicorn.Config(api, timeout_graceful_shutdown=1, **options))

        def stop(*_: Any) -> None:
            server.should_exit = True

        before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
        server.run(sockets=[listener])  # it handles the signals itself, and raises them again at its end
        say("stopping")
        for name, handler in before.items():
            signal.signal(name, handler)


def build_board_api(folder: Path, local: bool) -> "FastAPI":
    """Return the web application, which only reads. If ``local``, it answers only this machine."""
    from fastapi import FastAPI, Response

    from raysum.report.overview import Pages
    from raysum.serve.guard import LocalOnly

    api, pages = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), Pages(folder)
    if local:
        api.add_middleware(LocalOnly)

    def answer(page: str, status: int = 200) -> Response:
        return Response(page.encode(errors="replace"), status, _HEADERS, "text/html; charset=utf-8")

    def explain(name: str, message: str, status: int) -> Response:
        top = f'<p class="warning">{parts.escape(message)}</p><p><a href="/">All runs and searches</a></p>'
        return answer(parts.document(name, top, []), status)

    @api.get("/")
    def overview() -> Response:
        return answer(pages.overview())

    @api.get("/page/{name:path}")
    def page(name: str) -> Response:
        try:
            content = pages.page(name)
        except UserError as error:
            return explain(name, str(error), 422)
        except Exception as error:  # damaged files raise any exception
            return explain(name, f"it cannot be read ({type(error).__name__}: {error})", 422)
        return explain(name, "There is no run or search with this name.", 404) if content is None else answer(content)

    return api
