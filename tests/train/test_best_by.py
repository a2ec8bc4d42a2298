"""The best checkpoint by a figure of its summaries: where loss and ROUGE disagree, after any restart, of both sorts."""

import json
from pathlib import Path
from typing import Any

import pytest

import raysum
from helpers.small_datasets import write_dataset
from helpers.small_trainings import RATE, forget_validation
from helpers.small_trainings import config as of_short_training
from raysum.config.loading import load_config
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.data.rows import table_of
from raysum.data.writer import DatasetWriter
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate
from raysum.prepare.job import prepare
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.fit import fit

SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}
GREEDY = {"num_beams": 1, "n_best": 1}


def config(data: Path, out: Path, steps: int, longest: int = 12, **train: Any) -> Config:
    settings = {"validate_every": 2, "save_every": 2, "keep": 2, **train}
    return of_short_training(data, out, steps, SMALL, train=settings, decode={"max_length": longest, "min_length": 6})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Where the loss goes on falling, and the references are what the model writes after four steps."""
    folder = tmp_path_factory.mktemp("best")
    plain = write_dataset(folder / "plain", {"train": 80, "valid": 12}, shards=1)
    run = fit(config(plain, folder / "run", 4))
    dataset = Dataset.open(plain)
    (folder / "data").mkdir()
    writer = DatasetWriter(folder / "data", dataset.kind, dataset.recipe, load_tokenizer(dataset.vocabulary_path))
    summarizer, written = Summarizer.load(run.path, "4", **GREEDY), []
    for split in ("train", "valid"):
        rows = [*dataset.read(split)]
        told = zip(rows, summarizer.summarize_rows(rows), strict=True)
        table = table_of([row | {"summary": one.summary} for row, one in told], dataset.kind)
        written.append(writer.add(f"{split}-0", split, [table]))
    return writer.finish(written).path


@pytest.fixture(scope="module")
def judged(data, tmp_path_factory) -> Run:
    return fit(config(data, tmp_path_factory.mktemp("runs") / "run", 10, best_by="rouge1"))


def validations(run: Run) -> list[dict[str, Any]]:
    lines = [line for line in read_lines(run.metrics) if "valid_loss" in line]
    return [{name: value for name, value in line.items() if name != "valid_seconds"} for line in lines]


def test_the_best_is_that_of_the_figure_and_not_of_the_loss(data, judged):
    losses, found = judged.validations(), judged.validations("valid_rouge1")
    assert min(losses, key=losses.get) == 10 and found[4] == 100 and max(found.values()) > min(found.values())
    assert judged.best().step == judged.checkpoint().step == 4
    assert [checkpoint.step for checkpoint in judged.checkpoints()] == [4, 8, 10]  # the best is kept
    assert [checkpoint.step for checkpoint in judged.select_checkpoints("average:2")][0] == 4
    told = raysum.train(None, **config(data, judged.path, 10, best_by="rouge1").model_dump()).to_dict()
    assert told == {"run": str(judged.path), "step": 4, "valid_loss": losses[4], "valid_rouge1": 100.0}
    table = raysum.evaluate(judged.path, data, split="valid", checkpoint="8", decode=GREEDY)
    assert table.systems["run"]["rouge1"] == pytest.approx(found[8])
    assert all("valid_seconds" in line for line in read_lines(judged.metrics) if "valid_rouge1" in line)
    assert b"valid_rouge1" in next(judged.tensorboard.iterdir()).read_bytes()


def test_it_is_the_same_after_any_restart_and_patience_goes_by_it(data, judged, tmp_path, capsys):
    forget_validation(fit(config(data, tmp_path / "parts", 6, best_by="rouge1")))
    parts = fit(config(data, tmp_path / "parts", 10, best_by="rouge1"))
    assert validations(parts) == validations(judged) and parts.best().step == 4
    few = {"best_by": "rouge1", "patience": 2}
    assert fit(config(data, tmp_path / "patient", 20, **few)).latest().step == 8
    assert "2 validations were no better than that of step 4" in capsys.readouterr().err
    with pytest.raises(UserError, match="was trained with other values of train.best_by"):
        fit(config(data, tmp_path / "parts", 12))


def write_facts(folder: Path, change=lambda raw: raw) -> list[Path]:
    """Files of two splits of the factbook, their examples changed."""
    files = []
    for split, count in (("train", 20), ("valid", 12)):
        files.append(folder / f"{split}.jsonl")
        files[-1].write_text("".join(json.dumps(change(raw)) + "\n" for raw in generate(split, count)))
    return files


def test_facts_are_counted_as_in_evaluation(tmp_path):
    sources = write_facts(tmp_path)
    with_facts = prepare(sources, tmp_path / "facts", vocab_size=400, keep=["facts"]).dataset.path
    run = fit(config(with_facts, tmp_path / "run", 40, 60, best_by="facts_f1", validate_every=40, batch_tokens=2000))
    table = raysum.evaluate(run.path, with_facts, split="valid", decode=GREEDY)
    assert run.validations("valid_facts_f1") == {40: pytest.approx(table.systems["run"]["facts_f1"])}
    without = prepare(sources, tmp_path / "none", vocab_size=400).dataset.path
    with pytest.raises(UserError, match="train.best_by=facts_f1 cannot be measured: .* --keep facts"):
        fit(config(without, tmp_path / "other", 2, best_by="facts_f1"))


def test_a_run_that_extracts_is_judged_by_the_sentences_it_takes(tmp_path):
    sources = write_facts(tmp_path, lambda raw: raw | {"summary": raw["documents"][-1]["text"].splitlines()[-1]})
    labelled = prepare(sources, tmp_path / "data", kind="extraction", vocab_size=400).dataset.path
    train = {"workers": 0, "threads": 1, "steps": 30, "validate_every": 10, "keep": 9, "validate_examples": 10}
    values = {"model": {"layers": 1, "width": 16, "ffn": 16, "heads": 2}, "optim": RATE | {"lr": 0.02}}
    values |= {"train": train | {"best_by": "rouge2"}, "data": str(labelled), "out": str(tmp_path / "run")}
    run = fit(load_config("hibert_tiny", values=values))
    found = run.validations("valid_rouge2")
    assert [*found] == [10, 20, 30] and len({*found.values()}) == 3 and run.best().step == max(found, key=found.get)
    told = [
        raysum.evaluate(run.path, labelled, split="valid", limit=10, checkpoint="10", decode={"sentences": count})
        for count in range(1, 5)
    ]
    assert found[10] == pytest.approx(max(one.systems["run"]["rouge2"] for one in told))
    assert run.extract.sentences


@pytest.mark.parametrize(
    ("preset", "name", "split", "message"),
    [
        (None, "bleu", "valid", "train.best_by=bleu is no metric; .*rouge1, rouge2"),
        (None, "rouge1", "test", "train.best_by=rouge1 needs summaries to validate by; prepare .* with --valid"),
        ("ranker", "rouge1", "valid", "train.best_by=rouge1 scores summaries, and this ranker writes none"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, preset, name, split, message):
    data = write_dataset(tmp_path / "data", {"train": 12, split: 6})
    overrides = [f"train.best_by={name}", f"data={data}", f"out={tmp_path / 'run'}", "train.workers=0"]
    with pytest.raises(UserError, match=message) as error:
        fit(load_config(preset, overrides))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_workers_share_the_examples_out(data, judged, tmp_path):
    two = fit(config(data, tmp_path / "two", 4, best_by="rouge1", workers=2))
    alone = judged.validations("valid_rouge1")
    assert two.validations("valid_rouge1") == pytest.approx({step: alone[step] for step in (2, 4)})
