"""The names of the parts of an outline, as an option."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

Part = Literal["headline", "themes", "disagreements"]
PARTS: tuple[Part, ...] = get_args(Part)


def chosen_parts(value: Any) -> Any:
    """Return the parts of "headline,themes" or "all", or of a list. Raises ValueError for an unknown part."""
    if value == "all":
        return [*PARTS]
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(parts, list) and (unknown := [part for part in parts if part not in PARTS]):
        raise ValueError(f"{unknown[0]!r} is no part; choose of {', '.join(PARTS)}, or all")
    return parts


Outline = Annotated[list[Part], BeforeValidator(chosen_parts)]
