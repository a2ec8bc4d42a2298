"""Libraries that only some documents need."""

from importlib import import_module
from types import ModuleType

from raysum.errors import UserError

_PACKAGES = {"docx": "python-docx"}


def needed(module: str, name: str) -> ModuleType:
    """Raises UserError where the library that reads ``name`` is not installed."""
    try:
        return import_module(module)
    except ImportError:
        package = _PACKAGES.get(module, module)
        told = f"reading {name} takes {package}"
        raise UserError(f'{told}: pip install {package}, or "raysum[documents]" for all of them') from None
