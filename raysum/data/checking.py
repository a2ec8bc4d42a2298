"""`raysum data check`: compare every file of a dataset with its checksums."""

import time
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runtime.progress import bar
from raysum.runtime.rendering import Shown


@dataclass(frozen=True)
class Checked(Shown):
    """The checked files and rows, which are all undamaged."""

    data: str
    files: int
    rows: int
    bytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> str:
        rate = self.bytes / max(self.seconds, 1e-9) / 1e6
        return (
            f"{self.data}: {self.files} files, {self.rows} rows, {self.bytes / 1e6:.1f} MB are sound ({rate:.0f} MB/s)"
        )


def check(path: str) -> Checked:
    """Read the manifest, the vocabulary, the lengths and all shards of the dataset ``path`` with their rows.

    Raises UserError with all missing and damaged files.
    """
    began, dataset = time.monotonic(), Dataset.open(path)
    files = [*chain.from_iterable(dataset.files(split) for split in dataset.splits)]
    wrong, read = list[str](), 0
    for split in dataset.splits:
        try:
            dataset.lengths(split)
        except UserError as error:
            wrong.append(str(error))
    for file in bar(files, total=len(files), label="check", unit="file"):
        read += dataset.size(file)
        try:
            with dataset.shard(file) as shard:
                for group in range(shard.num_row_groups):
                    shard.read_row_group(group)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(wrong))
    read += dataset.vocabulary_path.stat().st_size
    rows = sum(map(dataset.rows, dataset.splits))
    return Checked(str(path), len(files) + len(dataset.splits) + 2, rows, read, round(time.monotonic() - began, 3))
