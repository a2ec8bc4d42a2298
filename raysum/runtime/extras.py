"""Optional libraries, which extras of setup.cfg install."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from raysum.errors import UserError

_EXTRAS = {"transformers": "bert", "openai": "teach", **dict.fromkeys(("s3fs", "gcsfs", "huggingface_hub"), "remote")}
_PACKAGES = {"docx": "python-docx"}  # library -> package, if the names differ


def needs(library: str, what: str) -> ModuleType:
    """Return the ``library``. Raises UserError with the command that installs it: ``what`` needs it."""
    try:
        return import_module(library)
    except ImportError:
        package, extra = _PACKAGES.get(library, library), _EXTRAS.get(library, "documents")
        command = f'pip install -c constraints.txt ".[{extra}]" in the clone of raysum'
        raise UserError(f"{what} needs {package}, which is not installed: {command}") from None


def has(library: str) -> bool:
    """Return whether the library is installed."""
    return find_spec(library) is not None
