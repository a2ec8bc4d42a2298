"""Warnings of sources that are unlike those a model was trained on: learned of the valid split, told with a summary."""

import json
import time
from itertools import pairwise

import numpy as np
import pytest

from helpers.factbook_data import write_factbook, write_run
from raysum.decode import domain_shift
from raysum.decode.domain_shift import Familiar, ReferenceRange, figures, learn, rehearse, signals
from raysum.decode.summarizer import Summarizer
from raysum.decode.summary import Summaries, Summary
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate
from raysum.evaluate.systems import swap
from raysum.examples.factbook.corpus import generate
from raysum.prepare.row_builder import prepare_example
from raysum.runs.folder import Run
from raysum.runtime.checksums import seal, sealed
from raysum.runtime.storage import write_json
from raysum.tokenizers.loading import load_tokenizer
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

SPELLING = ["letters", "starts", "unknown", "rank"]
# Figures of summaries such as those of the quickstart's model.
GOOD = [{"support": 78 + n % 4, "entropy": 0.87 + 0.01 * (n % 12), "paragraphs": 7.0 + n % 4} for n in range(150)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"valid": 150, "test": 150}, pieces=1200)


@pytest.fixture(autouse=True)
def no_floor(monkeypatch):
    """Models of random weights write what hardly rests on anything, which is told whatever is usual."""
    monkeypatch.setattr(domain_shift, "_LEAST_SUPPORT", 0)


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
    assert "of pieces unknown (usual: " in found["chinese"].warnings[0]
    assert "warning: the sources are unlike" in found["german"].render()


def test_a_run_that_has_learned_nothing_warns_of_nothing_and_a_changed_file_is_told(run, data):
    assert Summarizer.load(run.path).familiar is None
    assert Summarizer.load(run.path).summarize("x", [FOREIGN["chinese"]]).warnings == []
    learn(run, data)
    file = run.path / "familiar.json"
    told = json.loads(file.read_text())
    assert told["examples"] == 150 and list(told["usual"]) == [*SPELLING, "title"]
    file.write_text(json.dumps(told | {"examples": 3}))
    with pytest.raises(UserError, match="familiar.json was changed since it was written"):
        Summarizer.load(run.path)
    file.write_text(json.dumps({"examples": 3}))
    told = r"familiar.json contains no valid reference ranges; remove it, and `raysum evaluate \S+ --data DATA"
    with pytest.raises(UserError, match=told):
        Summarizer.load(run.path)
    file.write_text("{")
    with pytest.raises(UserError, match="familiar.json.*; remove it, and `raysum evaluate"):
        Summarizer.load(run.path)
    evaluate(str(run.path), data.path, split="valid", limit=2)  # the other way out
    assert Summarizer.load(run.path).familiar is not None


def test_what_a_former_version_learned_goes_on_telling_what_it_did(run, data):
    learn(run, data, GOOD)
    file = run.path / "familiar.json"
    told = json.loads(file.read_text())
    usual = {name: told["usual"][name] for name in SPELLING}
    file.write_text(json.dumps(sealed({"examples": 150, "usual": usual})))
    summarizer = Summarizer.load(run.path)
    (warning,) = summarizer.summarize("Blender", [FOREIGN["review"]]).warnings
    assert "letters a piece" in warning and "title" not in warning
    first, second = list(data.read("test"))[:2]
    assert summarizer.summarize_rows([first, swap(first, second)])[1].warnings == []


def test_a_title_that_does_not_fit_is_told(run, data):
    learn(run, data)
    domain_shift, rows = Summarizer.load(run.path).familiar, list(data.read("test"))[:40]
    alarms = [domain_shift.warnings(swap(row, other)) for row, other in pairwise(rows)]
    assert sum("of the title's pieces in them (usual: 100% to 100%)" in "".join(told) for told in alarms) >= 35
    untitled = [row | {"ids": row["ids"][row["title_tokens"] :], "title_tokens": 0} for row in rows]
    assert not any(map(domain_shift.warnings, untitled))


def test_what_rests_on_its_sources_less_than_usual_is_told_where_the_spelling_tells_nothing(run, data):
    """The clusters are of the own domain; the weights are random, so the summaries are not."""
    learn(run, data, GOOD)
    summarizer = Summarizer.load(run.path)
    summaries = summarizer.summarize_rows(list(data.read("test"))[:20])
    told = [warning for one in summaries for warning in one.warnings if warning.startswith("the summary rests on its")]
    assert len(told) >= 18 and "usual for this model: support " in told[0] and told[0].endswith("(usual: 78 to 81)")
    # With other citations there is other support; what is cut short attends to less.
    other = summarizer.choose({"citations": "lexical", "max_length": 4})
    assert not any(one.warnings for one in summarizer.summarize_rows(list(data.read("test"))[:20], other))


def test_attention_as_even_or_uneven_as_never_before_is_told_and_better_support_is_not():
    usual = ReferenceRange.of(GOOD)
    even, one = [0.1] * 10, [0.91] + [0.01] * 9
    for attention, support, expected in [
        (even, 80.0, ["its entropy is 100.0% of the highest (usual: 87.0% to 98.0%)"]),
        (one, 80.0, ["its entropy is 21.7% of the highest (usual: 87.0% to 98.0%)"]),
        ([0.5, 0.5], 80.0, []),  # of so few paragraphs nothing is known
        ([1.0], 70.0, ["support 70 (usual: 78 to 81)"]),
        ([0.2] * 4 + [0.0, 0.04, 0.04, 0.04, 0.04, 0.04], 100.0, []),  # one that was not read
        ([0.2] * 4 + [0.04] * 5, None, []),
    ]:
        assert [text for _, text in usual.unlike(figures(support, attention))] == expected, attention


def test_some_of_the_valid_split_is_decoded_to_learn_of_summaries_and_no_longer_than_is_said(run, data):
    learn(run, data)
    rehearse(run, data, 0.1)
    assert Summarizer.load(run.path).familiar.summaries is None
    rehearse(run, data, 60)
    summarizer = Summarizer.load(run.path)
    assert summarizer.familiar.summaries.examples == 100
    rows = list(data.read("test"))[:60]
    assert sum(bool(one.warnings) for one in summarizer.summarize_rows(rows)) <= 3
    began = time.monotonic()
    rehearse(run, data, 0.6)
    assert time.monotonic() - began < 5  # it loads the model, too


def test_of_many_clusters_with_the_same_warning_only_the_first_are_told_one_by_one():
    warned = ["the sources are unlike: 1", "the summary rests: 2"]
    made = [Summary(id=str(n), summary="", sentences=[], attention=[], score=0.0, warnings=warned) for n in range(5)]
    late = Summary(id="late", summary="", sentences=[], attention=[], score=0.0, warnings=["another: 3"])
    printed = Summaries([*made, late]).render()
    assert printed.count("    warning: the sources are unlike: 1\n") == 3 and "    warning: another: 3\n" in printed
    assert printed.endswith(
        "\nwarning: the sources are unlike: 2 more (see --json)\nwarning: the summary rests: 2 more (see --json)"
    )
    assert all(one.warnings == warned for one in made)


def test_a_small_or_missing_valid_split_teaches_with_the_train_split_and_too_few_clusters_nothing(tmp_path, run):
    learn(run, write_factbook(tmp_path / "few", {"train": 12, "valid": 7}))
    assert not (run.path / "familiar.json").exists()
    for name, splits in (("small", {"train": 12, "valid": 8}), ("none", {"train": 20})):
        learn(run, write_factbook(tmp_path / name, splits))
        told = json.loads((run.path / "familiar.json").read_text())
        assert told["examples"] == 20
        (run.path / "familiar.json").unlink()


def test_what_hardly_rests_on_its_sources_is_told_whatever_is_usual(run, monkeypatch):
    (cluster,) = generate("test", 1)
    (plain,) = Summarizer.load(run.path).summarize_many([cluster])
    assert plain.support is not None and plain.warnings == []
    monkeypatch.setattr(domain_shift, "_LEAST_SUPPORT", 101)
    (found,) = Summarizer.load(run.path).summarize_many([cluster])
    told = f"almost nothing of the summary is in the paragraphs that it cites: support {plain.support:.0f} of 100"
    assert found.warnings == [told]


@pytest.mark.parametrize(
    "changes",
    [{"examples": 0}, {"examples": -3}, {"usual": {"letters": [2, 1]}}, {"usual": {"letters": [0, float("nan")]}}],
)
def test_what_is_no_range_is_damage_that_is_named(run, data, changes):
    learn(run, data)
    file = run.path / "familiar.json"
    told = json.loads(file.read_text())
    told.pop("crc32", None)
    write_json(file, sealed({name: value for name, value in told.items() if name in ("examples", "usual")} | changes))
    with pytest.raises(UserError, match="contains no valid reference ranges; remove it"):
        Summarizer.load(run.path)
    file.write_text("[" * 200_000)
    with pytest.raises(UserError, match="does not read as JSON"):
        Summarizer.load(run.path)


def test_few_clusters_raise_few_false_alarms(run, data):
    """What is usual of 20 clusters is narrower than it is: any twenty of the valid split, and the whole test split."""
    vocabulary, test = load_tokenizer(data.vocabulary_path), list(data.read("test"))
    table = [signals(row, vocabulary) for row in data.read("valid")]
    shares = []
    for start in range(0, 140, 20):
        few = Familiar(vocabulary, ReferenceRange.of(table[start : start + 20]))
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
    assert Summarizer.load(run.path).familiar.summaries is None
    evaluate(str(run.path), data.path, split="valid", limit=25)
    learned = Summarizer.load(run.path).familiar.summaries
    assert learned.examples == 25 and set(learned.usual) == {"support", "entropy", "paragraphs"}
    evaluate(str(run.path), data.path, split="valid", limit=25, decode={"max_length": 2})  # not as the run decodes
    evaluate(str(run.path), data.path, split="valid", limit=2)
    assert Summarizer.load(run.path).familiar.summaries == learned


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
    newest = run.latest()
    write_json(newest.path / "state.json", newest.state | {"seconds": 1000})  # long enough to decode some clusters
    seal(newest.path)
    train("pht", **given, train=short, decode={"max_length": 8})
    assert json.loads((run.path / "familiar.json").read_text())["summaries"]["examples"] == 24
