"""A run that extracts: its sentences, their places, its rules and settings, from raw text and from a dataset."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import raysum
from helpers import small_runs
from helpers.servers import serving
from helpers.small_runs import write_labeller
from raysum.config.decoding import ExtractConfig
from raysum.config.loading import load_config
from raysum.config.sections import Config, LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.sentences import SentenceScorer
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate
from raysum.extract.summarizer import take
from raysum.extract.systems import Lead, SourceTexts
from raysum.prepare.job import prepare
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.train.fit import fit
from raysum.train.validation_metric import choose_length

SMALL = {"width": 16, "ffn": 32, "heads": 2, "layers": 1}
CLUSTERS = [*generate("test", 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Datasets ``labelled`` and ``bare``, and a ``run`` of random weights that takes three sentences."""
    folder = tmp_path_factory.mktemp("extracting")
    for split, count in (("train", 60), ("valid", 20)):
        lines = [json.dumps(raw) + "\n" for raw in generate(split, count)]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    sources = [folder / "train.jsonl", folder / "valid.jsonl"]
    labelled = prepare(sources, folder / "labelled", kind="extraction", vocab_size=400).dataset
    prepare(sources, folder / "bare", kind="pretraining", vocab=str(labelled.vocabulary_path))
    for name, task in (("run", "extraction"), ("pretrained", "pretraining")):
        write_labeller(folder / name, labelled, task)
    Run(folder / "run").set_extract({"sentences": 3})
    return folder


def places(summary) -> list[tuple[int, int, int]]:
    return [(c.document, c.start, c.end) for sentence in summary.sentences for c in sentence.citations]


def test_the_best_sentences_are_taken_and_cited_to_the_character(folder):
    extractor = raysum.load(str(folder / "run"))
    scorer = SentenceScorer(Run(folder / "run"), LoadConfig())
    for raw, summary in zip(CLUSTERS, extractor.summarize_many(CLUSTERS), strict=True):
        row = scorer.row(raw)
        best = sorted(np.argsort(-scorer.scores(row), kind="stable")[:3])
        assert places(summary) == [(row["document"][n], row["char_start"][n], row["char_end"][n]) for n in best]
        assert summary.id == raw["id"] and len(summary.sentences) == 3 and summary.support == 100
        for sentence in summary.sentences:
            (cited,) = sentence.citations
            document = raw["documents"][cited.document]
            assert document["text"][cited.start : cited.end] == cited.quote and cited.source == document["source"]
            assert sentence.text == " ".join(cited.quote.split())


def test_all_sentences_of_many_documents_are_scored(folder):
    scorer = SentenceScorer(Run(folder / "run"), LoadConfig())
    many = {"id": "m", "documents": [text for raw in generate("test", 60) for text in raw["documents"]]}
    row = scorer.row(many)
    scores = scorer.scores(row)
    assert len(scores) == len(row["text"]) > Run(folder / "run").config.source.max_paragraphs + 300
    assert len({*row["document"].tolist()}) == len(many["documents"])
    summary = raysum.load(str(folder / "run")).summarize("", many["documents"], sentences=len(scores), readable=False)
    assert len(summary.sentences) == len(scores)


def test_a_requested_limit_replaces_the_tuned_one(folder):
    extractor = raysum.load(str(folder / "run"))
    raw = CLUSTERS[0]
    titled = raw["title"], raw["documents"]
    assert len(extractor.summarize(*titled, sentences=1).sentences) == 1
    long = extractor.summarize(*titled, words=60)
    assert len(long.sentences) > 3 and 30 < len(long.summary.split()) <= 60
    both = extractor.summarize(*titled, words=60, sentences=2)
    assert len(both.sentences) == 2
    assert raysum.load(str(folder / "run"), words=60).summarize(*titled).summary == long.summary
    for wrong in ({"num_beams": 4}, {"sentences": 0}, {"redundancy": "bigram"}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            extractor.summarize(*titled, **wrong)
    for dtype in ("bf16", "int8"):
        assert len(raysum.load(str(folder / "run"), dtype=dtype, device="cpu").summarize(*titled).sentences) == 3


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"sentences": 3, "redundancy": 1}, [0, 1, 2]),
        ({"sentences": 3, "redundancy": "trigram"}, [0, 2]),
        ({"sentences": 2, "redundancy": "mmr"}, [0, 2]),
        ({"sentences": 9, "redundancy": 0.7}, [0, 2]),
        ({"words": 11, "redundancy": 1}, [0, 1]),
    ],
)
def test_redundancy(changes, taken):
    texts = ["the red fox ran far", "the red fox ran far home", "blue owls sleep all day", "the red fox ran far away"]
    assert take(Lead(), SourceTexts(texts), ExtractConfig(**changes)) == taken


def test_it_is_evaluated_beside_lead_and_lexrank_of_the_same_length(folder):
    found = raysum.evaluate(folder / "run", folder / "labelled", split="valid", limit=10)
    assert [*found.systems] == ["run", "lead", "lexrank", "mmr"] and found.examples == 10
    assert all("3 sentences at most" in how for how in found.how.values())
    (written,) = (folder / "run" / "evaluation").rglob("outputs.jsonl")
    lines = list(read_lines(written))
    raw = {raw["id"]: raw for raw in generate("valid", 20)}
    for line in lines:
        for system in found.systems:
            for sentence in line["notes"][system]["sentences"]:
                for cited in sentence["citations"]:
                    text = raw[line["id"]]["documents"][cited["document"]]["text"]
                    assert text[cited["start"] : cited["end"]] == cited["quote"]
    loaded = raysum.load(str(folder / "run"))
    assert lines[0]["run"] == loaded.summarize_many([raw[lines[0]["id"]]])[0].summary
    longer = raysum.evaluate(folder / "run", folder / "labelled", split="valid", limit=4, decode={"words": 40})
    assert all("40 words at most" in how for how in longer.how.values())
    alone = raysum.evaluate("lead", folder / "labelled", split="valid", limit=4, decode={"sentences": 2})
    assert "2 sentences" in alone.how["lead"]


def test_the_number_of_sentences_is_the_best_one_on_the_valid_split(folder):
    run, dataset = Run(folder / "run"), Dataset.open(folder / "labelled")
    before = run.extract
    choose_length(run, dataset)
    chosen = run.extract.sentences
    assert chosen >= 1
    values = {}
    for count in (chosen, chosen + 1, max(chosen - 1, 1)):
        table = raysum.evaluate(run.path, dataset.path, split="valid", decode={"sentences": count})
        values[count] = sum(table.systems["run"][name] for name in ("rouge1", "rouge2", "rougeL"))
    assert max(values, key=values.get) == chosen
    run.set_extract({"sentences": before.sentences})


@pytest.mark.parametrize(
    ("target", "data", "message"),
    [
        ("pretrained", "labelled", "reads one of kind 'pretraining', made by `raysum prepare --kind pretraining`"),
        ("run", "bare", "reads one of kind 'extraction', made by `raysum prepare --kind extraction`"),
    ],
)
def test_a_dataset_of_another_kind_is_refused(folder, target, data, message):
    with pytest.raises(UserError, match=message):
        raysum.evaluate(folder / target, folder / data, split="valid")


def test_wrong_requests_are_one_message(folder, tmp_path):
    with pytest.raises(UserError, match="writes no summaries: its model is a hibert"):
        raysum.load(str(folder / "pretrained"))
    with pytest.raises(UserError, match="words is for lead, lead3, lexrank, mmr, oracle and runs that extract"):
        raysum.load(str(small_runs.write_run(tmp_path)), words=50)
    with pytest.raises(UserError, match="'x' cannot be summarized: no text in the documents"):
        raysum.load(str(folder / "run")).summarize_many([{"id": "x", "documents": ["— * —"]}])
    with pytest.raises(UserError, match="swapped and checkpoints are for runs that generate text"):
        raysum.evaluate(folder / "run", folder / "labelled", split="valid", terms=True)
    with pytest.raises(UserError, match="its decoding cannot be searched"):
        raysum.tune("beta", f"data={folder / 'labelled'}", f"run={folder / 'run'}", f"out={tmp_path / 'search'}")
    (folder / "run" / "extract.yaml").write_text("sentences: none\n")
    with pytest.raises(UserError, match="sentences: .*extract.yaml, line 1"):
        raysum.load(str(folder / "run"))
    Run(folder / "run").set_extract({"sentences": 3})
    corpus = "".join(json.dumps(raw | {"summary": None}) + "\n" for raw in generate("train", 30))
    (tmp_path / "bare.jsonl").write_text(corpus)
    bare = prepare(tmp_path / "bare.jsonl", tmp_path / "data", kind="extraction", vocab_size=300)
    with pytest.raises(UserError, match="no row .* has a summary"):
        fit(config("hibert_tiny", bare.dataset.path, tmp_path / "out", 1))


def config(preset: str, data: Path, out: Path, steps: int, **train: Any) -> Config:
    sizes = [f"model.{key}={value}" for key, value in SMALL.items()]
    settings = {"steps": steps, "workers": 0, "threads": 1, "micro_batches": 2, "batch_tokens": 600, "log_every": 1}
    settings |= {"validate_every": 10, "save_every": 10, **train}
    pairs = [f"train.{key}={json.dumps(value)}" for key, value in settings.items()]
    fixed = [f"data={data}", f"out={out}", "optim.lr=0.01", "optim.schedule=constant"]
    return load_config(preset, [*fixed, *sizes, *pairs])


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in read_lines(run.metrics) if "loss" in line]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_text_to_a_served_run(folder, tmp_path):
    stage = fit(config("hibert_tiny_pretraining", folder / "bare", tmp_path / "one", 20))
    assert sum(losses(stage)[-4:]) < sum(losses(stage)[:4])
    fit(config("hibert_tiny_pretraining", folder / "bare", tmp_path / "parts", 7))
    parts = fit(config("hibert_tiny_pretraining", folder / "bare", tmp_path / "parts", 20))
    assert losses(parts) == losses(stage) and parts.validations()[20] == stage.validations()[20]  # bit for bit
    second = fit(config("hibert_tiny_pretraining", folder / "bare", tmp_path / "two", 10, start=str(stage.path)))
    assert losses(second)[0] < losses(stage)[0]
    tuned = fit(config("hibert_tiny", folder / "labelled", tmp_path / "tuned", 20, start=str(second.path)))
    assert min(tuned.validations().values()) < 0.7 and tuned.extract.sentences
    found = raysum.evaluate(tuned.path, folder / "labelled", split="valid")
    assert found.systems["tuned"]["rouge1"] > 5
    local = raysum.load(str(tuned.path)).summarize_many(CLUSTERS[:1])[0].to_dict()
    with serving(tuned.path) as server:
        server.wait_until_ready()
        assert server.client.health() == {"status": "ok", "run": "tuned", "step": tuned.best().step}
        raw = CLUSTERS[0]
        answer = server.client.summarize(raw["title"], raw["documents"], id=raw["id"])
        assert answer == local | {"model": {"run": tuned.name, "step": 20}}
        for sentence in answer["sentences"]:
            (cited,) = sentence["citations"]
            assert raw["documents"][cited["document"]]["text"][cited["start"] : cited["end"]] == cited["quote"]
        fewer = server.client.summarize(raw["title"], raw["documents"], words=12, redundancy="trigram")
        assert len(fewer["summary"].split()) <= 12
        with pytest.raises(UserError, match="422: options.sentences"):
            server.client.summarize(raw["title"], raw["documents"], sentences=10_001)
        with pytest.raises(UserError, match="unknown key .num_beams"):
            server.client.summarize(raw["title"], raw["documents"], num_beams=2)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_ray_the_same_sentences_are_masked(folder, tmp_path):
    alone = fit(config("hibert_tiny_pretraining", folder / "bare", tmp_path / "alone", 10))
    two = fit(config("hibert_tiny_pretraining", folder / "bare", tmp_path / "two", 10, workers=2))
    assert losses(two) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_trains_runs_that_extract(folder, tmp_path, ray_session):
    settings = {"steps": 2, "validate_every": 2, "save_every": 2, "micro_batches": 1, "batch_tokens": 600}
    shared = {f"model.{key}": value for key, value in SMALL.items()} | {f"train.{k}": v for k, v in settings.items()}
    space = {"about": "window and rate", "kind": "train", "preset": "hibert_tiny", "config": shared}
    space |= {"search": {"model.window": {"grid": [4]}}, "metric": "valid_loss"}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    found = raysum.tune(str(tmp_path / "space.yaml"), f"data={folder / 'labelled'}", f"out={tmp_path / 'search'}")
    assert [trial.error for trial in found.trials] == [None] and found.run.extract.sentences
    assert len(raysum.load(str(tmp_path / "search")).summarize_many(CLUSTERS[:1])[0].sentences) >= 1
