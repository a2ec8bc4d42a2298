"""Results in notebooks: they look as on the command line."""

from io import StringIO
from typing import Any

_WIDTH = 120  # characters of a line


class Shown:
    """A result that ``render()`` turns into something that rich prints."""

    def render(self) -> Any:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from rich.console import Console

        printed = StringIO()
        console = Console(file=printed, width=_WIDTH, soft_wrap=True, force_jupyter=False)
        console.print(self.render(), markup=False, highlight=False)
        return {"text/plain": printed.getvalue()}
