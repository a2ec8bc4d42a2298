"""The splits of a dataset, and the names that they go by elsewhere."""

from typing import Any

SPLITS = ("train", "valid", "test")
_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("valid", "val", "dev", "validation", "development"), "valid"
)


def split_of(name: Any) -> str | None:
    """train, valid or test for one of their usual names, in any case; None for anything else."""
    return _NAMES.get(str(name).strip().lower())
