"""Comparing systems on one split: decode, score, save the outputs, make a table."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row, references
from raysum.decode.domain_shift import SPLIT, learn
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.examples import check_readable, read_examples, usual_words
from raysum.evaluate.saved import check_place, save_evaluation
from raysum.evaluate.scorers import HEADLINES, score_table, scorers_of
from raysum.evaluate.systems import Extracted, PaperBaseline, Swapped, System, Trained, strategies
from raysum.evaluate.table import Evaluation
from raysum.extract.summarizer import Extractor, extracts
from raysum.metrics import rouge
from raysum.runs.folder import Run
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import local
from raysum.runtime.run_sync import added_to
from raysum.stream.truncation import DECODING, split_truncation
from raysum.systems import extractive, paper_baseline_names

_CHUNK = 128  # examples held in memory at once
_ALL_WORDS = 0.995  # of a dataset's sources: 100 %, rounded
_COMPARED = (*HEADLINES, "rouge2")  # by differences between systems, where examples have them
_OF_RUNS = ("swapped", "terms", "checkpoints")  # settings that need a trained run
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
    out = local(config.out or "")
    taken = {out: "a file", out / "manifest.json": "a dataset", out / "config.yaml": "a run"}
    for place, kind in taken.items() if config.out else ():
        if place.is_file():
            raise UserError(f"{config.out} is {kind}; choose another --out")
    if str(target) in paper_baseline_names() or extracts(target):
        return _evaluate_untrained(str(target), dataset, split, config)
    run = Run.resolve(target)
    check_readable(run, dataset)
    model = run.config.model
    if config.reference_length:
        _check_no_length(config, model.extracts)
    with added_to(run.path), added_to(out):
        if model.ranks and dataset.kind == "ranking":
            from raysum.evaluate.ranking import evaluate_ranker

            folder = config.out or _own_folder(run, dataset, split, config)
            check_place(folder)
            return save_evaluation(folder, *evaluate_ranker(run, dataset, split, config))
        return (_evaluate_extractor if model.extracts else _evaluate_generator)(run, dataset, split, config)


def _evaluate_untrained(name: str, dataset: Dataset, split: str, config: EvaluateConfig) -> Evaluation:
    if of_runs := [key for key in _OF_RUNS if getattr(config, key) != EvaluateConfig.model_fields[key].default]:
        raise UserError(f"{of_runs[0]} is for trained runs, and {name} is not trained; leave it out")
    system = Extracted.named(name, config)
    if config.reference_length:
        _check_no_length(config)
        system = replace(system, at_reference=True)
    if dataset.kind != "extraction" and (kept := dataset.manifest.get("words_kept", 1)) < _ALL_WORDS:
        rest = "prepare it with --kind extraction to evaluate on all words, as when it is served"
        say(f"{dataset.place} has only {100 * kept:.0f} % of the sources' words for {name}: {rest}")
    return compare_systems([system], dataset, split, config, out=config.out)


def _check_no_length(config: EvaluateConfig, extracts: bool = True) -> None:
    """Raises UserError if the system cannot be cut at the references' lengths, or has another length."""
    if not extracts or {"words", "sentences"} & config.decode.keys():
        raise UserError(
            "reference_length is for systems that extract and replaces words and sentences; leave one of them out"
        )


def _evaluate_extractor(run: Run, dataset: Dataset, split: str, config: EvaluateConfig) -> Evaluation:
    """Evaluate an extractive run and the untrained systems, with summaries of the same length."""
    if config.terms or config.swapped or config.checkpoints > 1:
        raise UserError(
            f"terms, swapped and checkpoints are for runs that generate text, but {run.place} extracts; leave them out"
        )
    own, others = Extractor.trained(run, config), [extractive(name) for name in ("lead", "lexrank", "mmr")]
    settings = own.settings.model_copy(update={"redundancy": config.decode.get("redundancy")})
    systems: list[System] = [Extracted(own.system, own.settings), *(Extracted(each, settings) for each in others)]
    if config.reference_length:
        served = [Extracted(each, at_reference=True) for each in others if each.name == "lexrank"]
        systems = [*(PaperBaseline(system) for system in (own.system, *others)), *served]
    folder = config.out or _own_folder(run, dataset, split, config, "reference-length" * config.reference_length)
    return compare_systems(systems, dataset, split, config, out=folder)


def _evaluate_generator(run: Run, dataset: Dataset, split: str, config: EvaluateConfig) -> Evaluation:
    from raysum.decode.summarizer import Summarizer

    updates_ranges = split == SPLIT and run.best().state.get("data", dataset.fingerprint) == dataset.fingerprint
    if updates_ranges:
        learn(run, dataset)
    summarizer = Summarizer.of(run.path, config)
    reading = summarizer.settings.reading(run.config.source)
    if message := split_truncation(dataset, split, run.config.model, reading, DECODING, config.limit):
        say(message)
    name = run.name + ("+align" if summarizer.settings.beta else "")
    plain, mean = Trained(name, summarizer, summarizer.settings), None
    systems: list[System] = [*strategies(summarizer)] if config.terms else [plain]
    if config.checkpoints > 1:
        if config.terms or config.checkpoint != "best":
            raise UserError("checkpoints averages the scores of the best ones of a run: leave out terms and checkpoint")
        mean, systems = name, []
        for checkpoint in run.select_checkpoints(f"average:{config.checkpoints}"):
            one = Summarizer.of(run.path, config.model_copy(update={"checkpoint": str(checkpoint.step)}))
            systems.append(Trained(f"{name}@{checkpoint.step}", one, one.settings))
    if config.swapped:
        systems.append(Swapped("swapped", summarizer, summarizer.settings))
    systems += [*served_baselines(dataset, split), *map(Extracted.named, paper_baseline_names())]
    folder = _own_folder(run, dataset, split, config, "terms" * config.terms)
    result = compare_systems(systems, dataset, split, config, out=config.out or folder, mean=mean)
    if updates_ranges and mean is None and not config.decode and config.checkpoint == "best":
        learn(run, dataset, plain.seen)
    return result


def served_baselines(dataset: Dataset, split: str) -> list[System]:
    """Return Lead and LexRank as they are served, with the usual length of summaries of ``dataset``."""
    usual = LoadConfig(decode={"words": usual_words(dataset, split)})
    return [Extracted.named(name, usual) for name in ("lead", "lexrank")]


def _own_folder(run: Run, dataset: Dataset, split: str, config: EvaluateConfig, kind: str = "") -> Path:
    """Return the :func:`results_folder` of an evaluation by ``config``, which names its precision."""
    kinds = kind, config.dtype if config.dtype != "fp32" else ""
    return results_folder(run, dataset, split, "-".join(filter(None, kinds)), config.limit)


def results_folder(run: Run, dataset: Dataset, split: str, kind: str = "", limit: int | None = None) -> Path:
    """Return RUN/evaluation/DATA-FINGERPRINT/SPLIT, which is different for each dataset.

    Evaluations of another ``kind``, and those of fewer examples than the split has, get names of their own.
    """
    parts = [split, kind, f"first-{limit}" if limit and limit < dataset.references(split) else ""]
    return (
        run.evaluation / f"{dataset.place.rpartition('/')[2]}-{dataset.fingerprint[:8]}" / "-".join(filter(None, parts))
    )


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
    if out is not None:
        check_place(out)
    examples = read_examples(dataset, split, config.limit)
    first = next(examples)
    scorers = scorers_of(config.scorers, config.protocol, config.references)
    known = dataset.references(split)
    total = min(config.limit or known, known)
    if any(isinstance(system, Swapped) for system in systems) and total < 2:
        raise UserError("the swapped control needs two examples at least: it reads another one's sources")
    scored, outputs = list[pd.DataFrame](), list[dict[str, Any]]()
    with bar(total=total * len(systems), label=f"evaluate {split}", unit="summary") as shown:
        pairs = pairwise(chain([first], examples, [first]))  # each row with the next one, the last with the first
        while chunk := list(islice(pairs, _CHUNK)):
            rows, others = zip(*chunk, strict=True)
            lines = [_reference_line(row) for row in rows]
            for system in systems:
                summaries = system.summarize(rows, others)
                scored.append(score_table(rows, summaries, scorers).assign(system=system.name))
                for line, summary in zip(lines, summaries, strict=True):
                    line[system.name] = summary.summary
                    line["notes"][system.name] = summary.model_dump(include=_NOTED)
                shown.update(len(rows))
            outputs += lines
    scores, how = pd.concat(scored, ignore_index=True), {system.name: system.how for system in systems}
    if "rouge1" in scores and (message := rouge.unread((line["reference"] for line in outputs), config.protocol)):
        say(message)
    if mean is not None:
        names = [system.name for system in systems[: config.checkpoints]]
        scores = pd.concat([_mean(scores[scores["system"].isin(names)], mean), scores])
        how = {mean: f"mean scores of {', '.join(names)}"} | how
    texts = [line[systems[0].name] for line in outputs]
    most = max(1 + len(line.get("other_references", [])) for line in outputs)
    result = Evaluation.of(
        scores,
        _COMPARED,
        protocol=rouge.signature(texts, config.protocol, most, config.references),
        examples=len(outputs),
        data={"fingerprint": dataset.fingerprint, "split": split},
        how=how,
        weights={system.name: dict(system.weights) for system in systems if system.weights},
    )
    return result if out is None else save_evaluation(out, result, outputs)


def _reference_line(row: Row) -> dict[str, Any]:
    """Return the line of outputs.jsonl for a row, without summaries."""
    first, *others = references(row)
    return {"id": row["id"], "reference": first, **({"other_references": others} if others else {}), "notes": {}}


def _mean(scores: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the mean scores of each example; all systems have the examples in the same order."""
    number = scores.groupby("system").cumcount()
    ids = scores["id"].iloc[: number.max() + 1].reset_index(drop=True)
    return scores.groupby(number).mean(numeric_only=True).assign(id=ids, system=name)[[*scores]]
