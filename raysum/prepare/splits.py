"""Which split a cluster belongs to."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "valid", "test")
_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("valid", "val", "dev", "validation", "development"), "valid"
)


def split_of(name: Any) -> str | None:
    """train, valid or test for one of their usual names, in any case; None for anything else."""
    return _NAMES.get(str(name).strip().lower())


@dataclass(frozen=True)
class Splitting:
    """The split asked for, else the row's own field, else the file's name, else a held-out share, else train."""

    forced: str | None = None
    hold_out: Mapping[str, float] = field(default_factory=dict)  # share of the clusters by split, at most 1 in all

    def of(self, name: str, told: Any, by_file: str | None) -> str | None:
        """The split of the cluster called ``name``; None where ``told``, its own field, is no split.

        Held out are the clusters whose hashed names fall into the share: the same ones each time, whatever the order.
        """
        if self.forced:
            return self.forced
        if told not in (None, ""):
            return split_of(told)
        return by_file or self._held_out(name)

    def _held_out(self, name: str) -> str:
        digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        for split, share in self.hold_out.items():
            if place < share:
                return split
            place -= share
        return "train"
