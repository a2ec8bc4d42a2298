"""Libraries that only some need, and that are installed by hand."""

from importlib.util import find_spec

from raysum.errors import UserError


def needs(library: str, what: str) -> None:
    """Raises UserError with the command that installs ``library``, without which there is no ``what``."""
    if find_spec(library) is None:
        raise UserError(f'{what} needs the {library} library, which is not installed: pip install "transformers>=5"')
