"""Libraries that only some need, and that are installed by hand."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from raysum.errors import UserError

_EXTRAS = {"transformers": "bert"}  # of setup.cfg; the others are for documents
_PACKAGES = {"docx": "python-docx"}  # where its name is another
_EXTRAS |= dict.fromkeys(("s3fs", "gcsfs", "huggingface_hub"), "remote")


def needs(library: str, what: str) -> ModuleType:
    """The ``library``, without which there is no ``what``. Raises UserError with the command that installs it."""
    try:
        return import_module(library)
    except ImportError:
        told = f"{what} needs {_PACKAGES.get(library, library)}, which is not installed"
        extra = _EXTRAS.get(library, "documents")
        raise UserError(f'{told}: pip install -c constraints.txt ".[{extra}]" in the clone of raysum') from None


def has(library: str) -> bool:
    """Whether it is installed."""
    return find_spec(library) is not None
