"""`raysum data show`: the contents of a dataset, and the dropped parts with reasons."""

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from raysum.data.dataset import Dataset
from raysum.runtime.grid import Grid
from raysum.runtime.rendering import Shown
from raysum.text.languages import LANGUAGE

if TYPE_CHECKING:
    from pandas import DataFrame

_PERCENTILES = {"least": 0, "10 %": 10, "50 %": 50, "90 %": 90, "99 %": 99, "most": 100}
_SHOWN, _WIDTH = 3, 160  # of an example: paragraphs, and characters of a text
_LABELS = {"paragraphs_ranked_out": "paragraphs ranked out, long ones split"}  # the others are counted before
_LENGTHS = ("source_tokens", "paragraphs", "target_tokens")  # columns of Dataset.lengths


@dataclass(frozen=True)
class Card(Shown):
    """All figures of a dataset: rows, rejections, recipe and, by split, lengths and truncation.

    Percentiles are 0, 10, 50, 90, 99 and 100. ``source_cut`` is the share of the source lost to the limits L and N:
    words of clean paragraphs that rank below L, and tokens of the other paragraphs beyond N.
    """

    figures: dict[str, Any]

    @classmethod
    def of(cls, path: str) -> "Card":
        """Return the card of a dataset. Raises UserError if ``path`` is no dataset."""
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
            "repeated_ids": manifest.get("repeated_ids", 0),
            "splits": splits,
            "example": _example(dataset),
        }
        return cls(figures)

    def to_dict(self) -> dict[str, Any]:
        return self.figures

    def to_pandas(self) -> "DataFrame":
        """Return one line per split and kind of length, with rows and percentiles."""
        import pandas as pd

        lines = [
            {"split": name, "of": kind, "rows": split["rows"], **dict(zip(_PERCENTILES, values, strict=True))}
            for name, split in self.figures["splits"].items()
            for kind, values in split["lengths"].items()
        ]
        return pd.DataFrame(lines)

    def render(self) -> Group:
        """Return lines about the whole and a table with a column per split, for the terminal."""
        card = self.figures
        lines = [f"{card['data']} ({card['kind']})", _rows(card)]
        lines += [f"rejected: {count} {reason}" for reason, count in card["rejected"].items()]
        lines += [f"{key}: {_brief(value)}" for key, value in card["recipe"].items()]
        if card["repeated_ids"]:
            lines.append(f"repeated ids: {card['repeated_ids']}")
        lines += [f"vocabulary: {card['pieces']} pieces", f"fingerprint: {card['fingerprint']}"]
        table = Grid("")
        for split in card["splits"]:
            table.add_column(split, justify="right", no_wrap=True)
        columns = [_column(split) for split in card["splits"].values()]
        for name in dict.fromkeys(chain.from_iterable(columns)):
            table.add_row(name.replace("_", " "), *(str(column.get(name, 0)) for column in columns))
        shown = [f"{name}: {text}" for name, text in card["example"].items()]
        return Group(Text("\n".join(lines)), table, Text("\n".join(["An example:", *shown])))


def _example(dataset: Dataset) -> dict[str, Any]:
    """Return parts of the first row: its id, title, first paragraphs or sentences, and summary."""
    row = next(dataset.read(dataset.splits[0]), None)
    if row is None:
        return {}
    texts = [_opening(text) for text in row.get("text", [])[:_SHOWN]]
    told = {f"text {number}": text for number, text in enumerate(texts, 1)}
    known = {name: _opening(row[name]) for name in ("id", "title", "summary") if row.get(name)}
    return {name: known[name] for name in ("id", "title") if name in known} | told | known


def _opening(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH].rstrip()} ..."


def _brief(value: Any) -> str:
    return f"{len(value)}, such as {value[0]}" if isinstance(value, list) and len(value) > _SHOWN else str(value)


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
        "megabytes": round(sum(dataset.size(file) for file in dataset.files(split)) / 1e6, 2),
        "lengths": dict(zip(_LENGTHS, percentiles.tolist(), strict=True)),
        "source_ranked_out": ranked_out,
        "source_cut": round(1 - (1 - ranked_out) * (1 - cut), 4),
        "reference_bigrams_kept": _share(counts, "reference_bigrams_kept", "reference_bigrams"),
        "languages": _languages(counts),
        "counts": {name: count for name, count in counts.items() if not name.startswith(LANGUAGE)},
    }


def _share(counts: Counter[str], part: str, whole: str) -> float | None:
    return round(counts[part] / counts[whole], 4) if counts[whole] else None


def _languages(counts: Counter[str]) -> dict[str, float]:
    """Return the share of each language in the sampled documents, the commonest first."""
    found = Counter({name.removeprefix(LANGUAGE): n for name, n in counts.items() if name.startswith(LANGUAGE)})
    return {name: round(count / found.total(), 4) for name, count in found.most_common()}


def _column(split: dict[str, Any]) -> dict[str, Any]:
    lengths = {
        f"{kind}, {name}": value
        for kind, values in split["lengths"].items()
        for name, value in zip(_PERCENTILES, values, strict=True)
    }
    sizes = {name: split[name] for name in ("rows", "shards", "megabytes")}
    shares = {"source lost": split["source_cut"], "of the reference's bigrams kept": split["reference_bigrams_kept"]}
    shares |= {LANGUAGE + name: share for name, share in split["languages"].items()}
    told = {name: f"{100 * share:.1f} %" for name, share in shares.items() if share is not None}
    counts = {_LABELS.get(name, name): count for name, count in split["counts"].items()}
    return {**sizes, **told, **lengths, **counts}
