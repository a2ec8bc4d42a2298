"""Uploaded files: documents of all supported kinds, whose content is sent in base64."""

import base64
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.read import parse_document, raw_document


def uploaded(name: str, data: str, field: str = "data") -> dict[str, Any]:
    """Return the raw document of a file: its content in base64, also as a data URL, in the ``field`` of a request.

    Raises UserError if it is not base64, or unreadable.
    """
    name = name or "the file"
    head, comma, content = data.rpartition(",")
    if comma and not head.endswith(";base64"):
        raise UserError(f"{name}: {field} must be base64")
    try:
        read = base64.b64decode(content, validate=True)
    except ValueError as error:  # also of characters beyond ASCII
        raise UserError(f"{name}: {field} is not base64 ({error})") from None
    if not read:
        raise UserError(f"{name}: {field} is empty")
    return raw_document(parse_document(read, name, name), name)


def with_uploads(documents: list[Any]) -> list[Any]:
    """Return the ``documents`` of a request with those in the place of files that these hold. Raises UserError."""
    return [
        uploaded(each.get("source", ""), each["data"]) if isinstance(each, dict) and "data" in each else each
        for each in documents
    ]
