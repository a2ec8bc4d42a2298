"""Datasets to learn ranking from, data that a learned ranker has put in order, and what its best paragraphs hold."""

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from typer.testing import CliRunner

import raysum
from helpers.factbook_data import write_ranker, write_run
from helpers.special_ids import TITLE_END
from raysum.cli.app import app
from raysum.config.loading import load_config
from raysum.data.dataset import RANKER, Dataset
from raysum.data.inspection import check_dataset
from raysum.data.writer import DatasetWriter
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.ranking import recalls
from raysum.examples.factbook.corpus import generate
from raysum.metrics.statistics import paired_difference
from raysum.prepare.config import PrepareConfig
from raysum.prepare.learned import LearnedRanker, keep_ranker
from raysum.prepare.ranking import rank_scores
from raysum.prepare.row_builder import prepare_example
from raysum.prepare.shards import write_shards
from raysum.runs.folder import Run
from raysum.runs.restore import restore_ranker
from raysum.sources.find import find_sources
from raysum.stream.collators.ranking import Ranking
from raysum.text.tfidf import words
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.train.fit import fit

SMALL = {"pieces": 400, "paragraph_tokens": 40}


def clusters(count: int) -> list[dict[str, Any]]:
    """Factbook clusters, each with the documents of seven others besides its own, and its summary as a paragraph."""
    made = [*generate("train", count + 7)]
    for number, raw in enumerate(made[:count]):
        others = chain.from_iterable(other["documents"] for other in made[number + 1 : number + 8])
        clone = {"source": "a clone", "text": " ".join(raw["summary"].split())}
        raw |= {"documents": [clone, *raw["documents"], *others], "split": ""}
    return made[:count]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    made = clusters(24)
    for split, part in (("train", made[:16]), ("test", made[16:])):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, part)))
    return folder


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory) -> Dataset:
    return raysum.prepare(corpus, tmp_path_factory.mktemp("data") / "all", kind="ranking", **SMALL).dataset


@pytest.fixture(scope="module")
def ranker(tmp_path_factory, data) -> Run:
    return write_ranker(tmp_path_factory.mktemp("runs") / "ranker", data)


@pytest.fixture(scope="module")
def ranked(corpus, ranker, tmp_path_factory) -> Dataset:
    out = tmp_path_factory.mktemp("data") / "ranked"
    return raysum.prepare(corpus, out, ranker=str(ranker.path), paragraph_tokens=40, max_paragraphs=10).dataset


def test_rows_for_ranking_have_all_paragraphs_but_clones(data, corpus):
    raws = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    for row, raw in zip(data.read("train"), raws, strict=True):
        lines = ((number, line) for number, one in enumerate(raw["documents"]) for line in one["text"].splitlines())
        wanted = sum(len(words(line)) > 5 for number, line in lines if number)
        found = {*zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)}  # long ones are split
        assert len(found) == wanted > 40 and not any(number == 0 for number, _ in found)
        assert len(row["paragraph_offsets"]) == len(row["text"]) + 1 == len(row["rank_score"]) + 1
    assert data.kind == "ranking" and not any(name.startswith("graph") for name in next(data.read("test")))


def test_settings_that_cut_a_cluster_are_refused_with_the_kind(corpus, tmp_path):
    for idle in ({"max_paragraphs": 30}, {"graph": "similarity"}):
        with pytest.raises(UserError, match=f"kind ranking have all paragraphs.*leave {[*idle][0]} out"):
            raysum.prepare(corpus, tmp_path / "data", kind="ranking", **idle)


def test_the_preset_reads_all_paragraphs_and_learns_of_them(data, tmp_path):
    rows = [*data.read("train", Ranking().columns)]
    arrays = Ranking().pack(rows, load_config("ranker", []).source)
    assert arrays["counts"].tolist() == [len(row["text"]) for row in rows] and arrays["counts"].min() > 40
    settings = [f"data={data.path}", f"out={tmp_path / 'run'}", "model.width=16", "model.hidden=16", "model.dropout=0"]
    steps = ["workers=0", "micro_batches=1", "batch_tokens=9000", "steps=12", "save_every=12", "log_every=1"]
    run = fit(load_config("ranker", [*settings, "optim.warmup_steps=6", *(f"train.{step}" for step in steps)]))
    losses = [json.loads(line)["loss"] for line in run.metrics.read_text().splitlines()]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:2])
    with pytest.raises(UserError, match="dataset of kind 'ranking'; this family reads one of kind 'summarization'"):
        raysum.train("pht", data=str(data.path), out=str(tmp_path / "pht"))


def test_paragraphs_are_in_the_order_of_the_scores_of_the_model(ranked, data, ranker):
    model, vocabulary = restore_ranker(str(ranker.path), data.vocabulary_hash, torch.device("cpu")), _pieces(data)
    other_order = 0
    for row, whole in zip(ranked.read("test"), data.read("test"), strict=True):
        scores = row["rank_score"]
        assert len(scores) == 10 and (np.diff(scores) <= 0).all() and len({*scores.tolist()}) > 5
        title = [*vocabulary.encode(row["title"])[:20], TITLE_END]
        by_text = {}
        for text in whole["text"]:  # one paragraph, as a batch of the stream has it
            one = {"ids": np.array([*title, *vocabulary.encode(text)[:40]]), "title_tokens": len(title), "summary": ""}
            one |= {"paragraph_offsets": np.array([0, len(one["ids"])]), "text": [text]}
            batch = Ranking().collate(Ranking().pack([one], load_config("ranker", []).source))
            by_text[text] = model(batch.titles, batch.source).sigmoid().item()
        # The title takes of the first one's tokens, so that it may be two; in rows for ranking that is another one.
        same = {text: score for text, score in zip(row["text"], scores, strict=True) if text in by_text}
        assert len(same) >= 8 and same == pytest.approx({text: by_text[text] for text in same}, abs=2e-5)
        better = [text for text, score in by_text.items() if score > scores[-1] + 2e-5 and text not in same]
        assert len(better) <= 2
        other_order += row["text"][1:] != whole["text"][1:10]
    assert other_order == ranked.rows("test")


def test_a_run_ranks_new_clusters_as_its_data_were(ranked, corpus, ranker, tmp_path):
    assert (ranked.recipe.ranker, ranked.recipe.normalize) == ("learned", "none")
    copied = Dataset.open(shutil.copytree(ranked.path, tmp_path / "data"))
    run = write_run(tmp_path / "pht", copied, predictor=True)
    shutil.rmtree(copied.path)  # the run has all that it needs
    summarizer = Summarizer.load(run.path)
    raws = [json.loads(line) for line in (corpus / "test.jsonl").read_text().splitlines()]
    for raw, row in zip(raws, ranked.read("test"), strict=True):
        found = summarizer.prepare({name: raw[name] for name in ("id", "title", "documents")})
        # Without a summary there is nothing that a paragraph is a clone of.
        kept = [text for text in found["text"] if text != raw["documents"][0]["text"]]
        assert kept == row["text"][: len(kept)] and len(kept) > 8
        exact = summarizer.prepare(raw)
        for name in ("ids", "paragraph_offsets", "rank_score", "document", "char_start"):
            np.testing.assert_array_equal(exact[name], row[name])
    assert summarizer.summarize(raws[0]["title"], raws[0]["documents"]).sentences
    (run.path / RANKER).write_bytes(b"other")
    with pytest.raises(UserError, match=f"{RANKER} is not the ranker that ordered the paragraphs"):
        Summarizer.load(run.path)
    (run.path / RANKER).unlink()
    with pytest.raises(UserError, match=f"{RANKER} is missing"):
        Summarizer.load(run.path)


def test_paragraphs_of_ids_are_decoded_to_be_ranked(ranked):
    vocabulary = _pieces(ranked)
    known = LearnedRanker.beside(ranked.vocabulary_path, ranked.recipe)
    row = next(ranked.read("test"))
    texts = [vocabulary.decode(ids.tolist()) for ids in np.split(row["ids"], row["paragraph_offsets"][1:-1])][1:]
    raw = {"paragraph_ids": [vocabulary.encode(text) for text in texts[::-1]], "title": row["title"]}
    found = prepare_example(raw, ranked.recipe, vocabulary, known)
    again = prepare_example({"paragraphs": texts, "title": row["title"]}, ranked.recipe, vocabulary, known)
    assert found["rank_score"].tolist() == again["rank_score"].tolist() and (np.diff(found["rank_score"]) <= 0).all()
    plain = ranked.recipe.model_copy(update={"ranker": "tfidf", "ranker_sha256": None})
    kept = prepare_example(raw, plain, vocabulary)
    assert kept["ids"].tolist() == [token for ids in raw["paragraph_ids"] for token in ids]  # as they came


def test_a_trained_run_takes_the_ranker_along(ranked, tmp_path):
    settings = ["train.steps=1", "train.workers=0", "train.micro_batches=1", "train.batch_tokens=800"]
    sizes = ["model.width=16", "model.heads=2", "model.ffn=16", "model.encoder=L", "model.decoder=P"]
    run = fit(load_config("pht", [f"data={ranked.path}", f"out={tmp_path / 'run'}", *settings, *sizes]))
    assert (run.path / RANKER).read_bytes() == (ranked.path / RANKER).read_bytes()


def test_a_dataset_without_its_ranker_is_refused(ranked, tmp_path):
    copied = shutil.copytree(ranked.path, tmp_path / "data")
    content = bytearray((copied / RANKER).read_bytes())
    content[-1] ^= 1
    (copied / RANKER).write_bytes(content)
    with pytest.raises(UserError, match=f"{RANKER} is not the ranker of the dataset"):
        check_dataset(str(copied))
    (copied / RANKER).unlink()
    with pytest.raises(UserError, match=f"it lacks {RANKER}"):
        Dataset.open(copied)


@pytest.mark.parametrize(("name", "told"), [("nowhere", "no ranker 'nowhere': give tfidf"), ("learned", "no ranker")])
def test_a_ranker_that_is_none_is_refused(name, told, corpus, tmp_path):
    with pytest.raises(UserError, match=told):
        raysum.prepare(corpus, tmp_path / "data", ranker=name)


def test_other_runs_and_vocabularies_are_refused(corpus, ranked, ranker, tmp_path):
    other = write_run(tmp_path / "pht", ranked)
    with pytest.raises(UserError, match="is no ranker: its model is a family"):
        raysum.prepare(corpus, tmp_path / "data", ranker=str(other.path))
    pieces = tmp_path / "other.model"
    Vocabulary.train([document["text"] for raw in clusters(2) for document in raw["documents"]], 200, pieces)
    with pytest.raises(UserError, match="was trained with another vocabulary"):
        raysum.prepare(corpus, tmp_path / "data", ranker=str(ranker.path), vocab=str(pieces))
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_pool_of_actors_makes_the_same_dataset(ray_session, corpus, ranker, tmp_path):
    config, loaded = (
        PrepareConfig(out="data", ranker=str(ranker.path), paragraph_tokens=40),
        load_tokenizer(ranker.vocabulary),
    )
    for name in ("here", "ray"):
        (tmp_path / name).mkdir()
        recipe = config.recipe(loaded.sha256, "none", keep_ranker(ranker, loaded, tmp_path / name))
        writer = DatasetWriter(tmp_path / name, "summarization", recipe, loaded)
        write_shards(find_sources([corpus]), writer, config, tmp_path / "kept", on_ray=name == "ray")
    here, ray = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("here", "ray"))
    assert here == ray and RANKER in here and Dataset.open(tmp_path / "ray").rows("train") == 16


def test_recall_is_of_the_best_paragraphs_as_one_text():
    texts = ["c x", "a b", "d", *["y"] * 9, "e"]
    row: Any = {"text": texts, "summary": "a b\nc d e"}
    order = np.array([1, 0, 2, *range(3, 13)])  # a b c x d y y
    found = recalls(row, order)
    assert found == pytest.approx({"recall5": 80, "recall10": 80, "recall20": 100, "recall40": 100})
    first = recalls(row, np.array([2, 0, 1, *range(3, 13)]))  # d c x a b: in that order a b alone
    assert first["recall5"] == pytest.approx(40)


def test_a_ranker_is_compared_with_similarity_and_lexrank(data, ranker, tmp_path):
    result = raysum.evaluate(ranker.path, data.path, split="test", out=tmp_path / "found")
    assert [*result.systems] == ["ranker", "tf-idf", "LexRank"] and result.examples == 8
    library, expected = RougeScorer(["rougeL"], use_stemmer=True), {"ranker": [], "tf-idf": []}
    model = restore_ranker(str(ranker.path), data.vocabulary_hash, torch.device("cpu"))
    known = LearnedRanker(model, _pieces(data), "none", 100)
    for row in data.read("test"):
        similar = rank_scores("tfidf", words(row["title"]), [words(text) for text in row["text"]])
        for name, scores in (("ranker", known.scores(row["title"], row["text"])), ("tf-idf", similar)):
            best = [row["text"][place] for place in np.argsort(-scores, kind="stable")[:20]]
            expected[name].append(100 * library.score(row["summary"], " ".join(best))["rougeL"].recall)
    for name, values in expected.items():
        figures = result.systems[name]
        assert figures["recall20"] == pytest.approx(np.mean(values))
        assert figures["recall20_low"] < figures["recall20"] < figures["recall20_high"]
        assert figures["recall5"] < figures["recall10"] < figures["recall20"] < figures["recall40"]
    gap = result.differences["ranker - tf-idf"]
    pairs = [np.stack([values, np.ones(8)], 1) for values in expected.values()]
    wanted = paired_difference(*pairs)
    assert [gap[f"recall20{end}"] for end in ("", "_low", "_high", "_p")] == pytest.approx([*wanted])
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"outputs.jsonl", "scores.parquet", "table.json"}
    printed = CliRunner().invoke(app, ["evaluate", str(ranker.path), f"data={data.path}", "split=test", "limit=3"])
    assert "ROUGE-L recall, best 40" in printed.stdout and "LexRank" in printed.stdout
    compared = raysum.compare(tmp_path / "found", metrics=["recall5"]).differences["ranker - LexRank"]
    assert compared["recall5"] == pytest.approx(result.differences["ranker - LexRank"]["recall5"])
    raysum.report([tmp_path / "found"], tmp_path / "page.html")


def test_what_takes_paragraphs_reads_rows_for_ranking_too(data):
    table = raysum.evaluate("lexrank", data.path, split="test", limit=3)
    assert [*table.systems] == ["lexrank"]


def _pieces(dataset: Dataset) -> Vocabulary:
    return load_tokenizer(dataset.vocabulary_path)
