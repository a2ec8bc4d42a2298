"""`raysum data show`: what a dataset holds, what was left out of it and why."""

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from raysum.data.dataset import Dataset
from raysum.runtime.shown import Shown

if TYPE_CHECKING:
    from pandas import DataFrame

_PERCENTILES = {"least": 0, "10 %": 10, "50 %": 50, "90 %": 90, "99 %": 99, "most": 100}
_LENGTHS = ("source_tokens", "paragraphs", "target_tokens")  # columns of Dataset.lengths


@dataclass(frozen=True)
class Card(Shown):
    """All figures of a dataset: rows, rejections, recipe and, by split, lengths and what was cut.

    Percentiles are 0, 10, 50, 90, 99 and 100. ``source_cut`` is the share of the source lost to the limits L and N: of
    the words of all clean paragraphs those in paragraphs ranked below L, of the tokens of the others those beyond N.
    """

    figures: dict[str, Any]

    @classmethod
    def of(cls, path: str) -> "Card":
        """Raises UserError where ``path`` is no dataset."""
        dataset = Dataset.open(path)
        manifest = dataset.manifest
        splits = {split: _split(dataset, split) for split in dataset.splits}
        rows = sum(split["rows"] for split in splits.values())
        figures = {
            "data": str(path),
            "kind": dataset.kind,
            "fingerprint": dataset.fingerprint,
            "rows_in": manifest.get("rows_in", rows),
            "rows": rows,
            "rejected": manifest.get("rejected", {}),
            "pieces": manifest.get("pieces"),
            "recipe": dataset.recipe.model_dump(),
            "splits": splits,
        }
        return cls(figures)

    def to_dict(self) -> dict[str, Any]:
        return self.figures

    def to_pandas(self) -> "DataFrame":
        """A line a split and kind of length: its rows and percentiles."""
        import pandas as pd

        lines = [
            {"split": name, "of": kind, "rows": split["rows"], **dict(zip(_PERCENTILES, values, strict=True))}
            for name, split in self.figures["splits"].items()
            for kind, values in split["lengths"].items()
        ]
        return pd.DataFrame(lines)

    def render(self) -> Group:
        """For the terminal: lines about the whole, and a table with a column a split."""
        card = self.figures
        lines = [f"{card['data']} ({card['kind']})", _rows(card)]
        lines += [f"rejected: {count} {reason}" for reason, count in card["rejected"].items()]
        lines += [f"{key}: {value}" for key, value in card["recipe"].items()]
        lines += [f"vocabulary: {card['pieces']} pieces", f"fingerprint: {card['fingerprint']}"]
        table = Table("", *(Column(split, justify="right") for split in card["splits"]))
        columns = [_column(split) for split in card["splits"].values()]
        for name in dict.fromkeys(chain.from_iterable(columns)):
            table.add_row(name.replace("_", " "), *(str(column.get(name, 0)) for column in columns))
        return Group(Text("\n".join(lines)), table)


def _rows(card: dict[str, Any]) -> str:
    if card["kind"] == "pretraining":
        return f"rows: {card['rows']} of {card['rows_in']} clusters"
    return f"clusters: {card['rows']} of {card['rows_in']}"


def _split(dataset: Dataset, split: str) -> dict[str, Any]:
    lengths = dataset.lengths(split)
    percentiles = np.percentile(lengths, [*_PERCENTILES.values()], axis=0, method="nearest").T.astype(int)
    counts = Counter(dataset.manifest["splits"][split].get("counts", {}))
    ranked_out = round(counts["words_ranked_out"] / max(counts["words"], 1), 4)
    cut = round(counts["tokens_cut"] / max(counts["tokens"], 1), 4)
    return {
        "rows": dataset.rows(split),
        "shards": len(dataset.files(split)),
        "megabytes": round(sum(file.stat().st_size for file in dataset.files(split)) / 1e6, 2),
        "lengths": dict(zip(_LENGTHS, percentiles.tolist(), strict=True)),
        "source_ranked_out": ranked_out,
        "source_cut": round(1 - (1 - ranked_out) * (1 - cut), 4),
        "counts": dict(counts),
    }


def _column(split: dict[str, Any]) -> dict[str, Any]:
    lengths = {
        f"{kind}, {name}": value
        for kind, values in split["lengths"].items()
        for name, value in zip(_PERCENTILES, values, strict=True)
    }
    sizes = {name: split[name] for name in ("rows", "shards", "megabytes")}
    return {**sizes, "source lost": f"{100 * split['source_cut']:.1f} %", **lengths, **split["counts"]}
