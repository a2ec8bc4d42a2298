"""Rooms that can be called: ``raysum.train(...)`` imports and calls the function ``train`` of ``raysum/train/``."""

import inspect
import sys
from pkgutil import resolve_name
from types import ModuleType
from typing import Any


class Verb(ModuleType):
    """A package that can be called as the function that ``verb`` names (``module:function``)."""

    verb: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return resolve_name(self.verb)(*args, **kwargs)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        function = resolve_name(self.verb)
        first, _, rest = (inspect.getdoc(function) or "").partition("\n")
        return f"{first}\n\n{function.__name__}{inspect.signature(function)}\n{rest}"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(resolve_name(self.verb))


def make_verb(package: str, function: str) -> None:
    """Let the imported ``package`` be called as ``function``."""
    module: Any = sys.modules[package]
    module.__class__ = Verb
    module.verb = function
