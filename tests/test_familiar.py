"""Warnings of sources that are unlike those a model was trained on: learned of the valid split, told with a summary."""

import json

import numpy as np
import pytest
from factbook_data import write_factbook, write_run

from raysum.data.familiar import SIGNALS, Familiar, learn, signals
from raysum.data.vocabulary import Vocabulary
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate
from raysum.prepare.factbook.corpus import generate
from raysum.prepare.pipeline import prepare_example
from raysum.run import Run
from raysum.train.fit import train

FOREIGN = {  # written for this test
    "review": "Great blender, it crushes ice in seconds, but the lid leaks.\n\nI sent it back and got a refund.",
    "readme": "# fastthing\n\nA tiny library to parse config files.\n\nRun `pip install fastthing`, and call `load`.",
    "russian": "Волга впадает в Каспийское море. Это самая длинная река в Европе.\n\nНа ней много водохранилищ.",
    "chinese": "长江是中国最长的河流，发源于青藏高原，流入东海。\n\n三峡大坝是世界上最大的水电站。",
    "german": "Der Rhein entspringt in den Schweizer Alpen.\n\nEr mündet in die Nordsee und ist eine Wasserstraße.",
    "news": "Shares of the company fell 4.2 percent on Tuesday.\n\nAnalysts expected revenue of 1.3 billion dollars.",
    "code": "def main():\n    parser = argparse.ArgumentParser()\n    for item in items:\n        print(item.name)",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"valid": 150, "test": 150}, pieces=1200)


@pytest.fixture
def run(tmp_path, data) -> Run:
    return write_run(tmp_path / "pht", data)


def test_what_is_like_the_valid_split_is_not_warned_of_and_what_is_foreign_is(run, data):
    learn(run, data)
    summarizer = Summarizer.load(run.path)
    rows = list(data.read("test"))
    alarms = [row["id"] for row in rows if summarizer.familiar.warnings(row)]
    assert len(alarms) <= 0.05 * len(rows)
    quiet = next(row for row in rows if row["id"] not in alarms)
    assert summarizer.summarize_rows([quiet])[0].warnings == []
    short = [cluster | {"documents": cluster["documents"][:1]} for cluster in generate("test", 40)]
    few = [prepare_example(cluster, data.recipe, summarizer.vocabulary) for cluster in short]
    found = {name: summarizer.summarize(name, [text]) for name, text in FOREIGN.items()}
    assert all(len(one.warnings) == 1 for one in found.values()), found
    # Text of the own domain is like it, also where there is less of it.
    assert sum(bool(summarizer.familiar.warnings(row)) for row in few) <= 4
    assert "unlike what the model was trained on" in found["review"].warnings[0]
    assert "of pieces unknown (there" in found["chinese"].warnings[0]
    assert "warning: the sources are unlike" in found["german"].render()


def test_a_run_that_has_learned_nothing_warns_of_nothing_and_a_changed_file_is_told(run, data):
    assert Summarizer.load(run.path).familiar is None
    assert Summarizer.load(run.path).summarize("x", [FOREIGN["chinese"]]).warnings == []
    learn(run, data)
    file = run.path / "familiar.json"
    told = json.loads(file.read_text())
    assert told["examples"] == 150 and list(told["usual"]) == list(SIGNALS)
    file.write_text(json.dumps(told | {"examples": 3}))
    with pytest.raises(UserError, match="familiar.json was changed since it was written"):
        Summarizer.load(run.path)
    file.write_text(json.dumps({"examples": 3}))
    with pytest.raises(UserError, match="familiar.json does not tell what is usual"):
        Summarizer.load(run.path)


def test_a_small_or_missing_valid_split_teaches_nothing(tmp_path, run):
    learn(run, write_factbook(tmp_path / "small", {"train": 30, "valid": 19}))
    learn(run, write_factbook(tmp_path / "none", {"train": 30}))
    assert not (run.path / "familiar.json").exists()


def test_few_clusters_raise_few_false_alarms(run, data):
    """What is usual of 20 clusters is narrower than it is: any twenty of the valid split, and the whole test split."""
    vocabulary, test = Vocabulary.load(data.vocabulary_path), list(data.read("test"))
    table = np.array([list(signals(row, vocabulary).values()) for row in data.read("valid")])
    shares = []
    for part in np.split(table[:140], 7):
        ends = np.quantile(part, [0.005, 0.995], axis=0).T.tolist()
        few = Familiar(vocabulary, len(part), dict(zip(SIGNALS, map(tuple, ends), strict=True)))
        shares.append(np.mean([bool(few.warnings(row)) for row in test]))
        foreign = [prepare_example({"documents": [text]}, data.recipe, vocabulary) for text in FOREIGN.values()]
        assert all(map(few.warnings, foreign))
    assert np.mean(shares) < 0.05


def test_evaluating_on_the_valid_split_teaches_a_run(run, data, tmp_path):
    evaluate(str(run.path), data.path, split="test", limit=2)
    assert not (run.path / "familiar.json").exists()
    other = write_factbook(tmp_path / "other", {"valid": 30}, pieces=1200)  # the same pieces, other clusters
    evaluate(str(run.path), other.path, split="valid", limit=2)
    assert not (run.path / "familiar.json").exists()
    evaluate(str(run.path), data.path, split="valid", limit=2)
    assert Summarizer.load(run.path).familiar is not None


def test_training_teaches_a_run_and_so_does_repeating_it(tmp_path):
    data = write_factbook(tmp_path / "data", {"train": 40, "valid": 24})
    sizes = {"width": 16, "ffn": 32, "heads": 2, "encoder": "L", "decoder": "P", "pooling_heads": 2}
    given = {"data": str(data.path), "out": str(tmp_path / "run"), "model": sizes}
    short = {"steps": 1, "workers": 0, "threads": 1, "micro_batches": 1, "batch_tokens": 500}
    run = train("pht", **given, train=short).run
    first = (run.path / "familiar.json").read_bytes()
    assert json.loads(first)["examples"] == 24
    (run.path / "familiar.json").unlink()
    train("pht", **given, train=short)
    assert (run.path / "familiar.json").read_bytes() == first
