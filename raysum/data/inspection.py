"""`raysum data show` and `raysum data check`: figures and plots of a dataset, and the verification of its files."""

import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runtime.progress import bar
from raysum.runtime.rendering import Grid, Shown
from raysum.runtime.storage import check_picture
from raysum.text.languages import LANGUAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_PERCENTILES = {"least": 0, "10 %": 10, "50 %": 50, "90 %": 90, "99 %": 99, "most": 100}
_PARAGRAPHS, _WIDTH = 3, 160  # of the example: number of paragraphs, and characters of a text
# The other counts are taken before long paragraphs are split.
_LABELS = {"paragraphs_ranked_out": "paragraphs ranked out, long ones split"}
_BARS = 40
_PLOTTED = 99.5  # percent of the rows; the few longest ones would squeeze the others
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
        manifest, rows = dataset.manifest, sum(map(dataset.rows, dataset.splits))
        return cls(
            {
                "data": str(path),
                "kind": dataset.kind,
                "fingerprint": dataset.fingerprint,
                "rows_in": manifest.get("rows_in", rows),
                "rows": rows,
                "rejected": manifest.get("rejected", {}),
                "pieces": manifest.get("pieces"),
                "recipe": dataset.recipe.model_dump(),
                "repeated_ids": manifest.get("repeated_ids", 0),
                "splits": {split: _split(dataset, split) for split in dataset.splits},
                "example": _example(dataset),
            }
        )

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
        """Return lines about the dataset, a table with a column per split, and an example, for the terminal."""
        card = self.figures
        lines = [f"{card['data']} ({card['kind']})", f"rows: {card['rows']} of {card['rows_in']} clusters"]
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
        example = [f"{name}: {text}" for name, text in card["example"].items()]
        return Group(Text("\n".join(lines)), table, Text("\n".join(["An example:", *example])))


def _example(dataset: Dataset) -> dict[str, str]:
    """Return parts of the first row: its id, title, first paragraphs or sentences, and summary."""
    row: dict[str, Any] = next(dataset.read(dataset.splits[0]), {})
    texts = {f"text {number}": text for number, text in enumerate(row.get("text", [])[:_PARAGRAPHS], 1)}
    parts = {"id": row.get("id"), "title": row.get("title"), **texts, "summary": row.get("summary")}
    lines = {name: " ".join(text.split()) for name, text in parts.items() if text}
    return {name: line if len(line) <= _WIDTH else f"{line[:_WIDTH].rstrip()} ..." for name, line in lines.items()}


def _brief(value: Any) -> str:
    return f"{len(value)}, such as {value[0]}" if isinstance(value, list) and len(value) > _PARAGRAPHS else str(value)


def _split(dataset: Dataset, split: str) -> dict[str, Any]:
    lengths = dataset.lengths(split)
    percentiles = np.percentile(lengths, [*_PERCENTILES.values()], axis=0, method="nearest").T.astype(int)
    counts = Counter(dataset.manifest["splits"][split].get("counts", {}))
    ranked_out, tokens_cut = _share(counts, "words_ranked_out", "words"), _share(counts, "tokens_cut", "tokens")
    languages = Counter({name.removeprefix(LANGUAGE): n for name, n in counts.items() if name.startswith(LANGUAGE)})
    kept = _share(counts, "reference_bigrams_kept", "reference_bigrams") if counts["reference_bigrams"] else None
    return {
        "rows": dataset.rows(split),
        "shards": len(dataset.files(split)),
        "megabytes": round(sum(map(dataset.size, dataset.files(split))) / 1e6, 2),
        "lengths": dict(zip(_LENGTHS, percentiles.tolist(), strict=True)),
        "source_ranked_out": ranked_out,
        "source_cut": round(1 - (1 - ranked_out) * (1 - tokens_cut), 4),
        "reference_bigrams_kept": kept,
        "languages": {name: round(count / languages.total(), 4) for name, count in languages.most_common()},
        "counts": {name: count for name, count in counts.items() if not name.startswith(LANGUAGE)},
    }


def _share(counts: Counter[str], part: str, whole: str) -> float:
    return round(counts[part] / max(counts[whole], 1), 4)


def _column(split: dict[str, Any]) -> dict[str, Any]:
    lengths = {
        f"{kind}, {name}": value
        for kind, values in split["lengths"].items()
        for name, value in zip(_PERCENTILES, values, strict=True)
    }
    sizes = {name: split[name] for name in ("rows", "shards", "megabytes")}
    shares = {"source lost": split["source_cut"], "of the reference's bigrams kept": split["reference_bigrams_kept"]}
    shares |= {LANGUAGE + name: share for name, share in split["languages"].items()}
    percentages = {name: f"{100 * share:.1f} %" for name, share in shares.items() if share is not None}
    counts = {_LABELS.get(name, name): count for name, count in split["counts"].items()}
    return {**sizes, **percentages, **lengths, **counts}


def plot_lengths(data: str | Path, file: str | Path) -> None:
    """Plot histograms of source tokens, paragraphs and target tokens by split; a dotted line is the median.

    ``file`` is a PNG or SVG. Raises UserError if it is neither or cannot be written, or if ``data`` is no dataset.
    """
    from matplotlib.figure import Figure

    dataset = Dataset.open(data)
    check_picture(Path(file))
    lengths = {split: dataset.lengths(split) for split in dataset.splits}
    figure = Figure(figsize=(11, 1 + 1.8 * len(lengths)), dpi=120, layout="constrained")
    grid = figure.subplots(len(lengths), len(_LENGTHS), sharex="col", squeeze=False)
    for column, name in enumerate(_LENGTHS):
        edges = _edges([values[:, column] for values in lengths.values()])
        for number, (axes, values) in enumerate(zip(grid[:, column], lengths.values(), strict=True)):
            _histogram(axes, values[:, column], edges, f"C{number}")
        grid[-1, column].set_xlabel(name.replace("_", " "))
    for axes, (split, values) in zip(grid[:, 0], lengths.items(), strict=True):
        axes.set_ylabel(f"{split}\n% of {len(values):,} rows")
    figure.suptitle(f"The rows of {dataset.path.name} by their lengths", fontsize="medium")
    try:
        figure.savefig(file)
    except OSError as error:
        raise UserError(f"cannot write the plot {file}: {error.strerror}; name another file with --plot") from None


def _edges(lengths: list[np.ndarray]) -> np.ndarray:
    """Return the edges of the bars, the same for all splits."""
    highest = max(np.percentile(values, _PLOTTED, method="higher") for values in lengths)
    lowest = min(values.min() for values in lengths)
    wide = -(-(highest - lowest + 1) // _BARS)
    return np.arange(lowest, highest + wide + 1, wide) - 0.5


def _histogram(axes: "Axes", values: np.ndarray, edges: np.ndarray, color: str) -> None:
    axes.hist(values, edges.tolist(), weights=np.full(len(values), 100 / len(values)), color=color, alpha=0.55)
    median = float(np.percentile(values, 50, method="nearest"))  # as in the table of `data show`
    axes.axvline(median, color="0.2", linestyle=":")
    axes.set_title(f"median {median:,.0f}", loc="right", fontsize="small")
    axes.grid(alpha=0.3)
    axes.locator_params("x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,.0f}")


@dataclass(frozen=True)
class CheckedDataset(Shown):
    """The number of files and rows of a dataset without damage."""

    data: str
    files: int
    rows: int
    bytes: int
    seconds: float

    def render(self) -> str:
        rate = self.bytes / max(self.seconds, 1e-9) / 1e6
        size = f"{self.files} files, {self.rows} rows, {self.bytes / 1e6:.1f} MB"
        return f"{self.data}: {size} are undamaged ({rate:.0f} MB/s)"


def check_dataset(path: str) -> CheckedDataset:
    """Read all files of the dataset ``path``. Raises UserError with the missing and damaged ones."""
    start, dataset = time.monotonic(), Dataset.open(path)
    files = [file for split in dataset.splits for file in dataset.files(split)]
    problems = list[str]()
    checks = [partial(dataset.lengths, split) for split in dataset.splits]
    for check in bar([*checks, *(partial(_read, dataset, file) for file in files)], label="check", unit="file"):
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))
    size = sum(map(dataset.size, files)) + dataset.vocabulary_path.stat().st_size
    rows, seconds = sum(map(dataset.rows, dataset.splits)), round(time.monotonic() - start, 3)
    return CheckedDataset(str(path), len(files) + len(dataset.splits) + 2, rows, size, seconds)


def _read(dataset: Dataset, file: Path) -> None:
    with dataset.shard(file) as shard:
        for group in range(shard.num_row_groups):
            shard.read_row_group(group)
