"""Comparing systems on one split: decode, score, save the outputs, make a table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.examples import check_readable, read_examples
from raysum.evaluate.output import Row
from raysum.evaluate.scoring import means, score
from raysum.evaluate.strategies import strategies
from raysum.evaluate.systems import EXTRACTIVE, Lead, LexRank, Swapped, System, Trained
from raysum.evaluate.table import Evaluation
from raysum.metrics import rouge
from raysum.metrics.statistics import paired_difference
from raysum.run import Run, write_json
from raysum.runtime.progress import bar

_CHUNK = 128  # examples held in memory at once


def evaluate(
    target: str,
    data: str | Path,
    *,
    split: str | None = None,
    limit: int | None = None,
    protocol: str = "google",
    swapped: bool = False,
    terms: bool = False,
    checkpoint: str = "best",
    dtype: str = "fp32",
    decode: dict[str, Any] | None = None,
    out: str | Path | None = None,
) -> Evaluation:
    """Score a run (or a search's best) beside Lead and LexRank, or an extractive system alone, on a split of ``data``.

    ``limit``: only the first so many examples. ``swapped``: also the control that reads another cluster's sources.
    ``terms``: the run by each decoding strategy of the PHT paper's Table 2. ``decode`` changes decoding settings.
    Outputs go to ``out``, for a run by default to RUN/evaluation/SPLIT, or SPLIT-terms.
    Raises UserError for no such run, split or protocol, another vocabulary, or a split without references.
    """
    dataset = Dataset.open(data)
    split = dataset.split(split)
    if target in EXTRACTIVE and not Path(target).exists():
        return compare([EXTRACTIVE[target]()], dataset, split, limit=limit, protocol=protocol, out=out)
    run = Run.resolve(target)
    check_readable(run, dataset)
    summarizer = Summarizer.load(run.path, checkpoint=checkpoint, dtype=dtype, **(decode or {}))
    name = run.path.name + ("+align" if summarizer.settings.beta else "")
    rows = list(strategies(summarizer)) if terms else [(Trained(name, summarizer, summarizer.settings), {})]
    systems: list[System] = [system for system, _ in rows]
    if swapped:
        systems.append(Swapped("swapped", summarizer, summarizer.settings))
    systems += [Lead(), LexRank()]
    folder = out or run.evaluation / (f"{split}-terms" if terms else split)
    weights = {system.name: weight for system, weight in rows if weight}
    return compare(systems, dataset, split, limit=limit, protocol=protocol, weights=weights, out=folder)


def compare(
    systems: Sequence[System],
    dataset: Dataset,
    split: str,
    *,
    limit: int | None = None,
    protocol: str = "google",
    weights: dict[str, dict[str, float]] | None = None,
    out: str | Path | None = None,
) -> Evaluation:
    """Run ``systems`` (of different names) over the first ``limit`` examples of a split and score them.

    ``weights`` are those of score terms by system, to be shown beside the figures. With ``out``: outputs.jsonl (a
    summary of each system for each example), scores.parquet (a line for each system and example) and table.json.
    """
    rouge.find_protocol(protocol)
    total = min(limit or dataset.rows(split), dataset.rows(split))
    if any(isinstance(system, Swapped) for system in systems) and total < 2:
        raise UserError("the swapped control needs two examples at least: it reads another one's sources")
    scored: list[pd.DataFrame] = []
    written: list[dict[str, Any]] = []
    with bar(total=total * len(systems), label=f"evaluate {split}", unit="summary") as shown:
        for rows, others in _chunks(_neighbours(read_examples(dataset, split, limit))):
            lines = [{"id": row["id"], "reference": row["summary"]} for row in rows]
            for system in systems:
                outputs = system.summarize(rows, others)
                scored.append(score(rows, outputs, protocol).assign(system=system.name))
                for line, output in zip(lines, outputs, strict=True):
                    line[system.name] = " ".join(output.sentences)
                shown.update(len(rows))
            written += lines
    scores = pd.concat(scored, ignore_index=True)
    result = _evaluation(scores, [line[systems[0].name] for line in written], protocol, weights or {})
    if out is not None:
        _save(Path(out), result, written)
    return result


def _neighbours(rows: Iterator[Row]) -> Iterator[tuple[Row, Row]]:
    """Each row with the next one, the last with the first."""
    first = previous = next(rows)
    for row in rows:
        yield previous, row
        previous = row
    yield previous, first


def _chunks(pairs: Iterator[tuple[Row, Row]]) -> Iterator[tuple[list[Row], list[Row]]]:
    while chunk := list(islice(pairs, _CHUNK)):
        rows, others = zip(*chunk, strict=True)
        yield list(rows), list(others)


def _evaluation(
    scores: pd.DataFrame, first_texts: Sequence[str], protocol: str, weights: dict[str, dict[str, float]]
) -> Evaluation:
    by_system = {str(name): part for name, part in scores.groupby("system", sort=False)}
    first, *others = by_system
    differences = {}
    for name in others:
        value, low, high = paired_difference(by_system[first]["rouge2"], by_system[name]["rouge2"])
        differences[f"{first} - {name}"] = {"rouge2": value, "rouge2_low": low, "rouge2_high": high}
    return Evaluation(
        systems={name: means(part.dropna(axis=1, how="all")) for name, part in by_system.items()},
        differences=differences,
        protocol=rouge.signature(first_texts, protocol),
        examples=len(by_system[first]),
        scores=scores,
        weights=weights,
    )


def _save(folder: Path, result: Evaluation, outputs: Iterable[dict[str, Any]]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "outputs.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in outputs)
        result.scores.to_parquet(folder / "scores.parquet", index=False)
        write_json(folder / "table.json", result.to_dict())
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another --out") from None
