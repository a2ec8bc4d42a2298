"""The OpenAPI page: the specification as one plain HTML page, without scripts or anything from the network."""

from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #ccd3dc}h2 b{color:#0a5c8a}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0}
tr+tr td{border-top:1px solid #e4e8ee}code,pre{font:14px/1.5 ui-monospace,monospace;background:#f2f5f8}
pre{padding:.8rem;overflow-x:auto}code{padding:.1rem .25rem}
"""


def page(spec: dict[str, Any], example: str) -> str:
    """``spec`` (an OpenAPI 3.1 object) as HTML; ``example`` is a command to try."""
    info = spec["info"]
    return "".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
            f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            f"<p>{escape(info.get('description', ''))} The same for programs: ",
            '<a href="openapi.json">openapi.json</a>.</p>',
            f"<pre>{escape(example)}</pre>",
            *_operations(spec),
            "<h2>Objects</h2>",
            *_schemas(spec),
        ]
    )


def _operations(spec: dict[str, Any]) -> Iterator[str]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><b>{method.upper()}</b> {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>"
            body = operation.get("requestBody")
            if body:
                yield f"<p>Takes {_content(body)}.</p>"
            rows = ((code, answer["description"], _content(answer)) for code, answer in operation["responses"].items())
            yield _table(("status", "meaning", "body"), rows)


def _schemas(spec: dict[str, Any]) -> Iterator[str]:
    for name, schema in spec["components"]["schemas"].items():
        needed = schema.get("required", [])
        fields = (
            (f"<code>{escape(field)}</code>" + (" *" if field in needed else ""), _type(value), _about(value))
            for field, value in schema.get("properties", {}).items()
        )
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>'
        yield _table(("field (* required)", "type", ""), fields)


def _table(head: tuple[str, ...], rows: Any) -> str:
    titles = "".join(f"<th>{title}</th>" for title in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"


def _content(part: dict[str, Any]) -> str:
    """The type of a JSON body; another kind of content by its name."""
    content = part.get("content", {})
    if "application/json" in content:
        return _type(content["application/json"]["schema"])
    return escape(", ".join(content))


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    choices = schema.get("anyOf", schema.get("oneOf"))
    if choices:
        return " or ".join(_type(choice) for choice in choices if choice.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return escape(str(schema.get("type", "any")))


def _about(schema: dict[str, Any]) -> str:
    """Description and bounds of a field."""
    parts = [escape(schema["description"])] if "description" in schema else []
    for limits in (schema, *schema.get("anyOf", [])):
        low, high = limits.get("minimum"), limits.get("maximum")
        if low is not None:
            parts.append(f"{low:g} to {high:g}")
    return "; ".join(parts)
