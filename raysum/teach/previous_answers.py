"""What an earlier start has written into the output: of these clusters, or of others."""

import hashlib
import json
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.progress import say


class Earlier:
    """The clusters of an output, by their documents, until they are ``seen`` among the sources."""

    def __init__(self, out: Path):
        """Raises UserError where the file holds something else."""
        self._out, self._others = out, set[bytes]()
        if out.exists():
            try:
                with out.open(encoding="utf-8") as rows:
                    self._others.update(_content(json.loads(row)) for row in rows)
            except (OSError, ValueError, AttributeError):
                raise UserError(f"{out} holds no clusters; remove it, or choose another --out") from None
        self._all = len(self._others)

    def seen(self, raw: dict[str, Any]) -> None:
        if self._others:
            self._others.discard(_content(raw))

    def check(self) -> None:
        """Once all are seen: raises UserError where the output has other clusters alone; says where it has some."""
        kept = f"the answers stay in {self._out}.answers"
        if self._others and len(self._others) == self._all:
            raise UserError(f"{self._out} holds other clusters; choose another --out, or remove it ({kept})")
        if self._others:
            say(f"{self._out} holds {len(self._others)} other clusters, which will go ({kept})")


def _content(raw: dict[str, Any]) -> bytes:
    told = json.dumps([raw.get("documents"), raw.get("paragraphs")], default=str)
    return hashlib.blake2b(told.encode(), digest_size=16).digest()
