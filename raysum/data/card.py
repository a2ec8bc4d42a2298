"""`raysum data show`: what a dataset holds, what was left out of it and why."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table

from raysum.data.dataset import Dataset

if TYPE_CHECKING:
    from pandas import DataFrame

_PERCENTILES = (0, 10, 50, 90, 99, 100)
_LENGTHS = ("source_tokens", "paragraphs", "target_tokens")  # columns of Dataset.lengths


@dataclass(frozen=True)
class Card:
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

        names = [_percentile_name(percentile) for percentile in _PERCENTILES]
        lines = [
            {"split": name, "of": kind, "rows": split["rows"], **dict(zip(names, values, strict=True))}
            for name, split in self.figures["splits"].items()
            for kind, values in split["lengths"].items()
        ]
        return pd.DataFrame(lines)

    def render(self) -> Group:
        """Tables for the terminal."""
        return Group(_overview(self.figures), _splits(self.figures), _lengths(self.figures))


def _split(dataset: Dataset, split: str) -> dict[str, Any]:
    lengths = dataset.lengths(split)
    percentiles = np.percentile(lengths, _PERCENTILES, axis=0, method="nearest").T
    counts = dataset.manifest["splits"][split].get("counts", {})
    ranked_out = _share(counts, "words_ranked_out", "words")
    cut = _share(counts, "tokens_cut", "tokens")
    return {
        "rows": dataset.rows(split),
        "shards": len(dataset.files(split)),
        "megabytes": round(sum(file.stat().st_size for file in dataset.files(split)) / 1e6, 2),
        "lengths": {name: [int(value) for value in row] for name, row in zip(_LENGTHS, percentiles, strict=True)},
        "source_ranked_out": ranked_out,
        "source_cut": round(1 - (1 - ranked_out) * (1 - cut), 4),
        "counts": counts,
    }


def _share(counts: dict[str, int], part: str, whole: str) -> float:
    return round(counts.get(part, 0) / max(counts.get(whole, 0), 1), 4)


def _overview(card: dict[str, Any]) -> Table:
    table = Table(title=f"{card['data']} ({card['kind']})", show_header=False, title_justify="left")
    table.add_row("clusters", f"{card['rows']} of {card['rows_in']}")
    for reason, count in card["rejected"].items():
        table.add_row("rejected", f"{count} {reason}")
    table.add_row("vocabulary", f"{card['pieces']} pieces")
    for key, value in card["recipe"].items():
        table.add_row(key, str(value)[:16])
    table.add_row("fingerprint", card["fingerprint"][:16])
    return table


def _splits(card: dict[str, Any]) -> Table:
    table = Table(title="Splits (dropped, ranked out, cut: paragraphs; lost: of the source)", title_justify="left")
    table.add_column("split")
    columns = ("rows", "shards", "MB", "no summary", "dropped", "ranked out", "cut", "lost")
    for name in columns:
        table.add_column(name, justify="right")
    for name, split in card["splits"].items():
        counts = split["counts"]
        paragraphs = ("without_summary", "paragraphs_cleaned_away", "paragraphs_ranked_out", "paragraphs_cut")
        figures = (split["rows"], split["shards"], split["megabytes"], *(counts.get(key, 0) for key in paragraphs))
        table.add_row(name, *map(str, figures), f"{100 * split['source_cut']:.1f} %")
    return table


def _lengths(card: dict[str, Any]) -> Table:
    table = Table(title="Lengths", title_justify="left")
    table.add_column("split")
    table.add_column("of")
    for percentile in _PERCENTILES:
        table.add_column(_percentile_name(percentile), justify="right")
    for name, split in card["splits"].items():
        for kind, values in split["lengths"].items():
            table.add_row(name, kind.replace("_", " "), *map(str, values))
    return table


def _percentile_name(percentile: int) -> str:
    return {0: "least", 100: "most"}.get(percentile, f"{percentile} %")
