"""Comparing systems on one split: decode, score, save the outputs, make a table."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from raysum.config.loading import section_of
from raysum.config.sections import LoadConfig
from raysum.config.signatures import with_settings
from raysum.data.dataset import Dataset
from raysum.data.rows import Row, references
from raysum.decode.domain_shift import SPLIT, learn
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.examples import check_readable, read_examples, usual_words
from raysum.evaluate.scorers import FIGURES, HEADLINES, means, score_table, scorers_of
from raysum.evaluate.systems import Extracted, PaperBaseline, Swapped, System, Trained, Watched, strategies
from raysum.evaluate.table import Evaluation
from raysum.extract.summarizer import Extractor, extracts
from raysum.metrics import rouge
from raysum.metrics.statistics import difference_of
from raysum.runs.folder import Checkpoint, Run
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import is_url, local, shown
from raysum.runtime.run_sync import added_to
from raysum.runtime.storage import write_json, writing
from raysum.stream.truncation import DECODING, split_truncation
from raysum.systems import extractive, paper_baseline_names

_CHUNK = 128  # examples held in memory at once
_ALL_WORDS = 0.995  # of a dataset's sources: 100 %, rounded
_COMPARED = (*HEADLINES, "rouge2")  # by differences between systems, where examples have them
_OF_RUNS = ("reference_length", "swapped", "terms", "checkpoints")  # settings that need a trained run
_NOTED = {"sentences", "support", "unsupported", "warnings", "attention"}


@with_settings(EvaluateConfig)
def evaluate(target: str | Path, data: str | Path, **settings: Any) -> Evaluation:
    """Score a run (or the best run of a search) with Lead and LexRank, or an extractive system alone, on a split.

    Lead and LexRank appear twice: as they are served, and as in the papers' tables (``lead-paper``,
    ``lexrank-paper``). On data of kind ranking, a ranker is compared with tf-idf and LexRank by its best paragraphs.
    Outputs go to ``out``; the default of a run is :func:`results_folder`. Raises UserError if the run, split, scorer or
    protocol is unknown, the vocabulary differs, or the split has no references.

    >>> raysum.evaluate("runs/pht", "data", split="test").to_pandas()
    """
    config = section_of(EvaluateConfig, {**settings, "data": str(data)})
    dataset = Dataset.open(config.data)
    split = dataset.split(config.split)
    _check_out(config.out)
    if str(target) in paper_baseline_names() or extracts(target):
        if of_runs := [name for name in _OF_RUNS if getattr(config, name) != EvaluateConfig.model_fields[name].default]:
            raise UserError(f"{of_runs[0]} is for trained runs, and nothing is trained of {target}; leave it out")
        system = Extracted.named(str(target), config)
        if dataset.kind != "extraction" and (kept := dataset.manifest.get("words_kept", 1)) < _ALL_WORDS:
            rest = "prepare it with --kind extraction to evaluate on all words, as when it is served"
            say(f"{dataset.place} has only {100 * kept:.0f} % of the sources' words for {target}: {rest}")
        return compare_systems([system], dataset, split, config, out=config.out)
    run = Run.resolve(target)
    check_readable(run, dataset)
    with added_to(run.path), added_to(local(config.out or "")):
        return _evaluate_run(run, dataset, split, config)


def _check_out(out: str | None) -> None:
    """Raise UserError if ``out`` is a file, or the folder of a dataset."""
    folder = local(out) if out else Path()
    if out and (folder.is_file() or (folder / "manifest.json").is_file()):
        raise UserError(f"{out} is {'a file' if folder.is_file() else 'a dataset'}; choose another --out")


def _evaluate_run(run: Run, dataset: Dataset, split: str, config: EvaluateConfig) -> Evaluation:
    if config.reference_length and (not run.config.model.extracts or {"words", "sentences"} & config.decode.keys()):
        raise UserError(
            "reference_length is for extractive runs and replaces words and sentences; leave one of them out"
        )
    if run.config.model.ranks and dataset.kind == "ranking":
        from raysum.evaluate.ranking import evaluate_ranker

        result, outputs = evaluate_ranker(run, dataset, split, config)
        return _save(config.out or results_folder(run, dataset, split), result, outputs)
    if run.config.model.extracts:
        if config.terms or config.swapped or config.checkpoints > 1:
            raise UserError(
                f"terms, swapped and checkpoints are for runs that generate text, but {run.place} extracts; "
                "leave them out"
            )
        folder = results_folder(run, dataset, f"{split}-reference-length" if config.reference_length else split)
        return compare_systems(_extractors(run, config, dataset), dataset, split, config, out=config.out or folder)
    from raysum.decode.summarizer import Summarizer

    updates_ranges = split == SPLIT and run.best().state.get("data", dataset.fingerprint) == dataset.fingerprint
    if updates_ranges:
        learn(run, dataset)
    summarizer = Summarizer.of(run.path, config)
    reading = summarizer.settings.reading(run.config.source)
    if message := split_truncation(dataset, split, run.config.model, reading, DECODING, config.limit):
        say(message)
    name = run.name + ("+align" if summarizer.settings.beta else "")
    plain = Watched(name, summarizer, summarizer.settings)
    systems: list[System] = list(strategies(summarizer)) if config.terms else [plain]
    mean = None
    if config.checkpoints > 1:
        if config.terms or config.checkpoint != "best":
            raise UserError("checkpoints averages the scores of the best ones of a run: leave out terms and checkpoint")
        best = run.select_checkpoints(f"average:{config.checkpoints}")
        mean, systems = name, [*_systems_of(run, best, config, name)]
    if config.swapped:
        systems.append(Swapped("swapped", summarizer, summarizer.settings))
    systems += [*served_baselines(dataset, split), *map(Extracted.named, paper_baseline_names())]
    folder = results_folder(run, dataset, f"{split}-terms" if config.terms else split)
    result = compare_systems(systems, dataset, split, config, out=config.out or folder, mean=mean)
    if updates_ranges and mean is None and not config.decode and config.checkpoint == "best":
        learn(run, dataset, plain.seen)
    return result


def _extractors(run: Run, config: EvaluateConfig, dataset: Dataset) -> list[System]:
    """Return an extractive run and the untrained systems, with summaries of the same length."""
    own, others = Extractor.trained(run, config), [extractive(name) for name in ("lead", "lexrank", "mmr")]
    if config.reference_length:
        return [PaperBaseline(system) for system in (own.system, *others)]
    settings = own.settings.model_copy(update={"redundancy": config.decode.get("redundancy")})
    return [Extracted(own.system, own.settings), *(Extracted(system, settings) for system in others)]


def served_baselines(dataset: Dataset, split: str) -> list[System]:
    """Return Lead and LexRank as they are served, with the usual length of summaries of ``dataset``."""
    usual = LoadConfig(decode={"words": usual_words(dataset, split)})
    return [Extracted.named(name, usual) for name in ("lead", "lexrank")]


def _systems_of(run: Run, checkpoints: Sequence[Checkpoint], config: EvaluateConfig, name: str) -> Iterator[Trained]:
    """Yield the model of each of the ``checkpoints``, as NAME@STEP."""
    from raysum.decode.summarizer import Summarizer

    for checkpoint in checkpoints:
        summarizer = Summarizer.of(run.path, config.model_copy(update={"checkpoint": str(checkpoint.step)}))
        yield Trained(f"{name}@{checkpoint.step}", summarizer, summarizer.settings)


def results_folder(run: Run, dataset: Dataset, split: str) -> Path:
    """Return RUN/evaluation/DATA-FINGERPRINT/SPLIT, which is different for each dataset."""
    return run.evaluation / f"{dataset.place.rpartition('/')[2]}-{dataset.fingerprint[:8]}" / split


def compare_systems(
    systems: Sequence[System],
    dataset: Dataset,
    split: str,
    config: EvaluateConfig,
    *,
    out: str | Path | None = None,
    mean: str | None = None,
) -> Evaluation:
    """Run ``systems`` with different names on a split and score them by ``config``.

    With ``out``, write outputs.jsonl (each system's summary of each example and, under ``notes``, its citations),
    scores.parquet (a line for each system and example) and table.json. With ``mean``, add a system of that name: its
    scores of an example are the means of the first ``config.checkpoints`` systems.
    """
    rouge.find_protocol(config.protocol)
    examples = read_examples(dataset, split, config.limit)
    first = next(examples)
    scorers = scorers_of(config.scorers, config.protocol, config.references)
    known = dataset.references(split)
    total = min(config.limit or known, known)
    if any(isinstance(system, Swapped) for system in systems) and total < 2:
        raise UserError("the swapped control needs two examples at least: it reads another one's sources")
    scored: list[pd.DataFrame] = []
    written: list[dict[str, Any]] = []
    with bar(total=total * len(systems), label=f"evaluate {split}", unit="summary") as shown:
        pairs = pairwise(chain([first], examples, [first]))  # each row with the next one, the last with the first
        while chunk := list(islice(pairs, _CHUNK)):
            rows, others = zip(*chunk, strict=True)
            lines: list[dict[str, Any]] = [{"id": row["id"], **_references(row), "notes": {}} for row in rows]
            for system in systems:
                summaries = system.summarize(rows, others)
                scored.append(score_table(rows, summaries, scorers).assign(system=system.name))
                for line, summary in zip(lines, summaries, strict=True):
                    line[system.name] = summary.summary
                    line["notes"][system.name] = summary.model_dump(include=_NOTED)
                shown.update(len(rows))
            written += lines
    references_read = (line["reference"] for line in written)
    if "rouge1" in scored[0] and (message := rouge.unread(references_read, config.protocol)):
        say(message)
    scores = pd.concat(scored, ignore_index=True)
    how = {system.name: system.how for system in systems}
    if mean is not None:
        averaged = [system.name for system in systems[: config.checkpoints]]
        scores = pd.concat([_mean([scores[scores.system == name] for name in averaged], mean), scores])
        how = {mean: f"mean scores of {', '.join(averaged)}"} | how
    by_system = {str(name): part for name, part in scores.groupby("system", sort=False)}
    main, *rest = by_system
    most = max(1 + len(line.get("other_references", [])) for line in written)
    result = Evaluation(
        systems={name: means(part) for name, part in by_system.items()},
        differences={f"{main} - {name}": gap for name in rest if (gap := _gap(by_system[main], by_system[name]))},
        protocol=rouge.signature([line[systems[0].name] for line in written], config.protocol, most, config.references),
        examples=len(written),
        scores=scores,
        data={"fingerprint": dataset.fingerprint, "split": split},
        how=how,
        weights={
            system.name: dict(system.weights) for system in systems if isinstance(system, Trained) and system.weights
        },
    )
    return result if out is None else _save(out, result, written)


def _mean(scores: Sequence[pd.DataFrame], name: str) -> pd.DataFrame:
    """Return the mean scores of each example; all systems have the examples in the same order."""
    columns = scores[0].select_dtypes("number").columns
    ids = scores[0]["id"].reset_index(drop=True)
    mean = pd.concat([part[columns].reset_index(drop=True) for part in scores]).groupby(level=0).mean()
    return pd.concat([ids, mean], axis=1).assign(system=name)


def _gap(scores: pd.DataFrame, others: pd.DataFrame) -> dict[str, float]:
    gaps = (difference_of(name, FIGURES[name], scores, others).items() for name in _COMPARED)
    return dict(chain.from_iterable(gaps))


def _references(row: Row) -> dict[str, Any]:
    first, *others = references(row)
    return {"reference": first, **({"other_references": others} if others else {})}


def _save(out: str | Path, result: Evaluation, outputs: Iterable[dict[str, Any]]) -> Evaluation:
    """Save ``result`` and return it. If the disk is full, none of the three files changes."""
    folder = local(out) if is_url(out) else Path(out)
    unfinished = folder / ".unfinished"
    try:
        with writing(folder):
            unfinished.mkdir(parents=True, exist_ok=True)
            with (unfinished / "outputs.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in outputs)
            result.scores.to_parquet(unfinished / "scores.parquet", index=False)
            write_json(unfinished / "table.json", result.to_dict())
            for path in unfinished.iterdir():
                path.replace(folder / path.name)
    finally:
        with suppress(OSError):
            shutil.rmtree(unfinished)
            folder.rmdir()  # if it is empty
    return replace(result, place=shown(folder))
