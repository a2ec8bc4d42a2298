"""Warnings of clusters and summaries unlike those of the training: their ranges, and when they are learned."""

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


def stored(run: Run) -> dict:
    return json.loads((run.path / "familiar.json").read_text())


def test_foreign_sources_have_a_warning_and_those_of_the_own_domain_have_none(run, data):
    learn(run, data)
    summarizer = Summarizer.load(run.path)
    rows = list(data.read("test"))
    alarms = [row["id"] for row in rows if summarizer.familiar.warnings(row)]
    assert len(alarms) <= 0.05 * len(rows)
    quiet = next(row for row in rows if row["id"] not in alarms)
    assert summarizer.summarize_rows([quiet])[0].warnings == []
    short = [cluster | {"documents": cluster["documents"][:1]} for cluster in generate("test", 40)]
    few = [prepare_example(cluster, data.recipe, summarizer.vocabulary) for cluster in short]
    assert sum(bool(summarizer.familiar.warnings(row)) for row in few) <= 4
    found = {name: summarizer.summarize(name, [text]) for name, text in FOREIGN.items()}
    assert all(len(one.warnings) == 1 for one in found.values()), found
    assert "unlike what the model was trained on" in found["review"].warnings[0]
    assert "of pieces unknown (usual: " in found["chinese"].warnings[0]
    assert "warning: the sources are unlike" in found["german"].render()


def test_a_run_without_ranges_warns_of_nothing(run):
    summarizer = Summarizer.load(run.path)
    assert summarizer.familiar is None and summarizer.summarize("x", [FOREIGN["chinese"]]).warnings == []


NO_RANGES = "contains no valid reference ranges"
DAMAGE = [
    ({"examples": 3}, "was changed since it was written"),  # its checksum is the former one
    *(
        (sealed({"examples": 150, "usual": {"letters": [1, 2]}} | changes), NO_RANGES)
        for changes in (
            {"examples": 0}, {"examples": -3}, {"usual": {"letters": [2, 1]}},
            {"usual": {"letters": [0, float("nan")]}}, {"usual": None},
        )
    ),
    ("{", "does not read as JSON"),
    ("[" * 200_000, "does not read as JSON"),
]  # fmt: skip


def test_damaged_files_are_named_and_evaluation_replaces_them(run, data):
    learn(run, data)
    file = run.path / "familiar.json"
    whole = stored(run)
    for content, message in DAMAGE:
        if isinstance(content, dict):
            content = json.dumps(content if "crc32" in content else whole | content)
        file.write_text(content)
        with pytest.raises(UserError, match=rf"familiar.json.*{message}.*; remove it, and `raysum evaluate \S+ --data"):
            Summarizer.load(run.path)
    evaluate(str(run.path), data.path, split="valid", limit=2)
    assert Summarizer.load(run.path).familiar is not None


def test_ranges_of_a_former_version_still_act(run, data):
    learn(run, data, GOOD)
    known = stored(run)
    assert known["examples"] == 150 and list(known["usual"]) == [*SPELLING, "title"]
    usual = {name: known["usual"][name] for name in SPELLING}
    (run.path / "familiar.json").write_text(json.dumps(sealed({"examples": 150, "usual": usual})))
    summarizer = Summarizer.load(run.path)
    (warning,) = summarizer.summarize("Blender", [FOREIGN["review"]]).warnings
    assert "letters a piece" in warning and "title" not in warning
    first, second = list(data.read("test"))[:2]
    assert summarizer.summarize_rows([first, swap(first, second)])[1].warnings == []


def test_a_title_that_does_not_fit_has_a_warning(run, data):
    learn(run, data)
    familiar, rows = Summarizer.load(run.path).familiar, list(data.read("test"))[:40]
    alarms = [familiar.warnings(swap(row, other)) for row, other in pairwise(rows)]
    assert sum("of the title's pieces in them (usual: 100% to 100%)" in "".join(found) for found in alarms) >= 35
    untitled = [row | {"ids": row["ids"][row["title_tokens"] :], "title_tokens": 0} for row in rows]
    assert not any(map(familiar.warnings, untitled))


def test_summaries_with_less_support_than_usual_have_a_warning(run, data):
    """The clusters are of the own domain; the weights are random, so the summaries are not."""
    learn(run, data, GOOD)
    summarizer = Summarizer.load(run.path)
    summaries = summarizer.summarize_rows(list(data.read("test"))[:20])
    found = [warning for one in summaries for warning in one.warnings if warning.startswith("the summary rests on its")]
    assert len(found) >= 18 and "usual for this model: support " in found[0] and found[0].endswith("(usual: 78 to 81)")
    # Other citations give other support; a truncated summary attends to fewer paragraphs.
    other = summarizer.choose({"citations": "lexical", "max_length": 4})
    assert not any(one.warnings for one in summarizer.summarize_rows(list(data.read("test"))[:20], other))


def test_even_or_uneven_attention_and_low_support_are_outside_of_the_range():
    usual = ReferenceRange.of(GOOD)
    even, one = [0.1] * 10, [0.91] + [0.01] * 9
    for attention, support, expected in [
        (even, 80.0, ["its entropy is 100.0% of the highest (usual: 87.0% to 98.0%)"]),
        (one, 80.0, ["its entropy is 21.7% of the highest (usual: 87.0% to 98.0%)"]),
        ([0.5, 0.5], 80.0, []),  # too few paragraphs for the range
        ([1.0], 70.0, ["support 70 (usual: 78 to 81)"]),
        ([0.2] * 4 + [0.0, 0.04, 0.04, 0.04, 0.04, 0.04], 100.0, []),  # one that was not read
        ([0.2] * 4 + [0.04] * 5, None, []),
    ]:
        assert [text for _, text in usual.unlike(figures(support, attention))] == expected, attention


def test_calibration_decodes_some_of_the_valid_split_within_its_seconds(run, data):
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


def test_only_the_first_three_equal_warnings_are_printed():
    warned = ["the sources are unlike: 1", "the summary rests: 2"]
    plain = Summary(id="x", summary="", sentences=[], attention=[], score=0.0, warnings=warned)
    late = plain.model_copy(update={"warnings": ["another: 3"]})
    printed = Summaries([*[plain] * 5, late]).render()
    assert printed.count("    warning: the sources are unlike: 1\n") == 3 and "    warning: another: 3\n" in printed
    assert printed.endswith("".join(f"\nwarning: {each[:-3]}: 2 more (see --json)" for each in warned))
    assert plain.warnings == warned


def test_a_small_or_missing_valid_split_is_extended_by_the_train_split(tmp_path, run):
    learn(run, write_factbook(tmp_path / "few", {"train": 12, "valid": 7}))
    assert not (run.path / "familiar.json").exists()
    for name, splits in (("small", {"train": 12, "valid": 8}), ("none", {"train": 20})):
        learn(run, write_factbook(tmp_path / name, splits))
        assert stored(run)["examples"] == 20
        (run.path / "familiar.json").unlink()


def test_very_low_support_always_has_a_warning(run, monkeypatch):
    (cluster,) = generate("test", 1)
    (plain,) = Summarizer.load(run.path).summarize_many([cluster])
    assert plain.support is not None and plain.warnings == []
    monkeypatch.setattr(domain_shift, "_LEAST_SUPPORT", 101)
    (found,) = Summarizer.load(run.path).summarize_many([cluster])
    about = "almost nothing of the summary is in the paragraphs that it cites"
    assert found.warnings == [f"{about}: support {plain.support:.0f} of 100"]


def test_few_clusters_raise_few_false_alarms(run, data):
    """Ranges of twenty clusters of the valid split, which are narrower than that of all, and the test split."""
    vocabulary, test = load_tokenizer(data.vocabulary_path), list(data.read("test"))
    table = [signals(row, vocabulary) for row in data.read("valid")]
    shares = []
    for start in range(0, 140, 20):
        few = Familiar(vocabulary, ReferenceRange.of(table[start : start + 20]))
        shares.append(np.mean([bool(few.warnings(row)) for row in test]))
        foreign = [prepare_example({"documents": [text]}, data.recipe, vocabulary) for text in FOREIGN.values()]
        assert all(map(few.warnings, foreign))
    assert np.mean(shares) < 0.05


def test_evaluation_on_the_valid_split_learns_the_ranges(run, data, tmp_path):
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


def test_training_learns_the_ranges_and_so_does_repeating_it(tmp_path):
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
    assert stored(run)["summaries"]["examples"] == 24
