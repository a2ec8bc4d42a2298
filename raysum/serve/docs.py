"""The interface as one plain HTML page, without scripts or anything from the network."""

import json
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "h2 b{color:#0a5c8a}pre{background:#f2f5f8;padding:.8rem;overflow-x:auto}"
)


def page(spec: dict[str, Any], example: str) -> str:
    """``spec`` (an OpenAPI 3.1 object) as HTML; ``example`` is a command to try."""
    info = spec["info"]
    operations = [
        f"<h2><b>{method.upper()}</b> {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>"
        for path, methods in spec["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{escape(json.dumps(schema, indent=2))}</pre>'
        for name, schema in spec["components"]["schemas"].items()
    ]
    return "".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
            f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            f"<p>{escape(info.get('description', ''))} For programs: ",
            f'<a href="openapi.json">openapi.json</a>.</p><pre>{escape(example)}</pre>',
            *operations,
            "<h2>Objects</h2>",
            *schemas,
        ]
    )
