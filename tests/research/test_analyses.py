"""The measurements of the papers, against the same by hand."""

import json
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rouge_score.rouge_scorer import RougeScorer

from helpers.factbook_data import write_factbook, write_model, write_ranker, write_run
from raysum import systems
from raysum.data.dataset import Dataset
from raysum.decode.scores import shares
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import evaluate
from raysum.evaluate.ranking import learned, similarity
from raysum.metrics import rouge
from raysum.metrics.citations import gold_attention
from raysum.models.family.spec import FamilySpec
from raysum.models.systems.specs import GraphSumSpec, TdmcaSpec, TxlSpec
from raysum.research.analyses import attention_table, boxes, compression, plot_ranks, ranks, recall
from raysum.runs.folder import Run
from raysum.runtime.checksums import SEAL
from raysum.tokenizers.loading import load_tokenizer

SIZES: dict[str, Any] = {"width": 16, "ffn": 32, "heads": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"test": 12}, graph="similarity")


@pytest.fixture(scope="module")
def rows(data) -> list[Any]:
    return [*data.read("test")]


@pytest.fixture(scope="module")
def pht(tmp_path_factory, data) -> Run:
    return write_run(tmp_path_factory.mktemp("runs") / "pht", data, predictor=True)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory, data) -> Run:
    return write_ranker(tmp_path_factory.mktemp("runs") / "ranker", data)


def test_both_orders_are_scored_and_compared(data, rows, ranker):
    found = recall(data.path, ranker.path, best=(2, 4, 40))
    assert found.attrs["paragraphs"] == np.mean([len(row["text"]) for row in rows])
    library = RougeScorer(["rougeL"], use_stemmer=True)
    orders = {"similarity": similarity, "ranker": learned(ranker, EvaluateConfig(data=str(data.path)), data)}
    figures, means = found.set_index(["order", "best"]), {}
    for name, scores in orders.items():
        texts = [" ".join(row["text"][place] for place in np.argsort(-scores(row), kind="stable")[:2]) for row in rows]
        pairs = zip(rows, texts, strict=True)
        means[name] = np.mean([100 * library.score(row["summary"], text)["rougeL"].recall for row, text in pairs])
        line = figures.loc[name, 2]
        assert line["recall"] == pytest.approx(means[name]) and line["low"] < line["recall"] < line["high"]
    assert figures.loc["ranker - similarity", 2]["recall"] == pytest.approx(means["ranker"] - means["similarity"])
    assert (figures["examples"] == len(rows)).all()


SPECS = {
    "tdmca": partial(TdmcaSpec, layers="LM", block=32),
    "txl": partial(TxlSpec, layers=2, segment=32, memory=32),
    "graphsum": partial(GraphSumSpec, local_layers=1, graph_layers=1, decoder_layers=1),
} | {decoder: partial(FamilySpec, encoder="LG", decoder=decoder, pooling_heads=2) for decoder in ("FF", "P", "V")}


@pytest.mark.parametrize("name", SPECS)
def test_every_system_has_attention_that_is_compared(name, data, rows, tmp_path):
    run = Run(tmp_path / name)
    write_model(run, SPECS[name](vocabulary=len(load_tokenizer(data.vocabulary_path)), **SIZES), data)
    evaluate(run.path, data.path, scorers=["attention"], out=str(tmp_path / "out"))
    lines = [json.loads(line) for line in (tmp_path / "out" / "outputs.jsonl").read_text().splitlines()]
    similarities = []
    for row, line in zip(rows, lines, strict=True):
        attention = np.array(line["notes"][name]["attention"])
        assert attention.shape == (len(row["text"]),) and attention.min() >= 0
        assert attention.sum() == pytest.approx(1, abs=1e-5) and attention.std() > 1e-4
        similarities.append(_cosine(attention, gold_attention(row["summary"], row["text"])))
    table = attention_table(tmp_path / "out").set_index("system")
    assert [*table.index] == [name, "lead", "lexrank", "lead-paper", "lexrank-paper"]
    own = table.loc[name]
    assert own["attention"] == pytest.approx(np.mean(similarities)) and own["low"] <= own["attention"] <= own["high"]
    texts = [gold_attention(line["lead"], row["text"]) for row, line in zip(rows, lines, strict=True)]
    gold = [gold_attention(row["summary"], row["text"]) for row in rows]
    assert table.loc["lead", "attention"] == pytest.approx(np.mean([*map(_cosine, texts, gold)]))


def test_one_table_of_several_evaluations(data, pht, tmp_path):
    one = evaluate(pht.path, data.path, limit=4, out=str(tmp_path / "one"))
    table = attention_table(one, evaluate("lead", data.path, limit=4), evaluate("mmr", data.path, limit=4))
    assert [*table["system"]] == ["pht", "lead", "lexrank", "lead-paper", "lexrank-paper", "mmr"]
    assert (table["examples"] == 4).all()
    pd.testing.assert_frame_equal(attention_table(tmp_path / "one"), table[:5])
    with pytest.raises(UserError, match="lead was evaluated without the scorer attention"):
        attention_table(evaluate("lead", data.path, scorers=["rouge"]))
    with pytest.raises(UserError, match=r"table\.json is missing"):
        attention_table(data.path)


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def test_boxes_by_hand():
    values = [np.array([share]) for share in (1, 2, 3, 4, 5, 6, 7, 8, 100)]
    first, second = boxes([*values[:-1], np.array([100, 7])])
    box = {"low_whisker": 1, "q1": 3, "median": 5, "q3": 7, "high_whisker": 8, "mean": 136 / 9, "outliers": [100]}
    assert first == {"rank": 1, "n": 9} | box  # whiskers within 7 + 1.5 * (7 - 3)
    assert second["n"] == 1 and second["median"] == second["low_whisker"] == 7
    assert boxes([]) == []


@pytest.mark.parametrize("decoder", ["P", "F"])
def test_attention_by_rank_sums_to_one_over_a_source(decoder, data, rows, tmp_path):
    run = write_run(tmp_path / "run", data, decoder=decoder)
    found = ranks(run.path, data.path, "test")
    sizes = [len(row["text"]) for row in rows]
    for _, part in found.groupby("of"):
        assert part["n"].tolist() == [sum(size >= rank for size in sizes) for rank in part["rank"]]
        assert (part["n"] * part["mean"]).sum() == pytest.approx(len(rows), abs=1e-4)
    gold = [gold_attention(row["summary"], row["text"])[0] for row in rows]
    assert found.set_index(["of", "rank"]).loc[("reference", 1), "median"] == pytest.approx(np.median(gold))
    few = ranks(run.path, data.path, "test", limit=5, seed=3)
    pd.testing.assert_frame_equal(few, ranks(run.path, data.path, "test", limit=5, seed=3))
    assert few["n"].max() == 5 and not few["median"].equals(ranks(run.path, data.path, "test", limit=5)["median"])
    assert plot_ranks(found, tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")


def test_ranks_go_as_far_as_the_model_reads(data, tmp_path):
    run = write_run(tmp_path / "run", data)
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("max_paragraphs: 30", "max_paragraphs: 3"))
    (run.path / SEAL).unlink()
    found = ranks(run.path, data.path, "test")
    assert found.groupby("of")["rank"].max().to_dict() == {"model": 3, "reference": 3}
    assert found.groupby("of").apply(lambda part: (part["n"] * part["mean"]).sum()).tolist() == pytest.approx([12, 12])


def test_compression_is_to_remove_the_other_paragraphs_by_hand(data, rows, pht):
    found = compression(pht.path, data.path, keep=[3, 99], protocol="google").set_index(["keep", "metric", "part"])
    assert [*found.index.unique("keep")] == [0, 3, 99]
    assert found.loc[99, "value"].equals(found.loc[0, "value"]) and (found.loc[99, "difference"] == 0).all()
    assert found.loc[0, "difference"].isna().all()
    summarizer = Summarizer.load(pht.path)
    left = [_without(row, _strongest(summarizer, row, 3)) for row in rows]
    values = {}
    for keep, some in ((0, rows), (3, left)):
        texts = ["\n".join(part.text for part in one.sentences) for one in summarizer.summarize_rows(some)]
        values[keep] = rouge.score(texts, [row["summary"] for row in rows]).mean()
        for part, end in (("f1", ""), ("precision", "_precision"), ("recall", "_recall")):
            assert found.loc[(keep, "rouge1", part), "value"] == pytest.approx(values[keep][f"rouge1{end}"])
    line = found.loc[(3, "rouge1", "recall")]
    assert line["difference"] == pytest.approx(values[3]["rouge1_recall"] - values[0]["rouge1_recall"])
    assert line["difference_low"] < line["difference"] < line["difference_high"] and 0 < line["p"] <= 1
    assert "google: as rouge-score" in found.attrs["protocol"]


def test_compression_needs_what_predicts_attention(data, tmp_path):
    with pytest.raises(UserError, match="keep_paragraphs=5 needs the attention predictor"):
        compression(write_run(tmp_path / "run", data).path, data.path)


def _strongest(summarizer: Summarizer, row: Any, most: int) -> list[int]:
    kind, model = systems.kind(summarizer.model.spec), summarizer.model
    memory = model.encode(kind.collate(kind.pack([row], summarizer.source)).source)
    predicted = shares(summarizer.predictor(model.paragraphs(memory), memory.paragraph_mask))
    return sorted(predicted[0].argsort(descending=True)[:most].tolist())


def _without(row: Any, kept: list[int]) -> Any:
    """``row`` as if it never had other paragraphs than ``kept``: the title opens the first that is left."""
    parts = np.split(row["ids"], row["paragraph_offsets"][1:-1])
    title, parts[0] = parts[0][: row["title_tokens"]], parts[0][row["title_tokens"] :]
    parts = [parts[place] for place in kept]
    parts[0] = np.concatenate([title, parts[0]])
    columns = {name: row[name][kept] for name in ("document", "paragraph", "char_start", "char_end")}
    texts = [row["text"][place] for place in kept]
    offsets = np.cumsum([0, *map(len, parts)])
    return row | columns | {"ids": np.concatenate(parts), "paragraph_offsets": offsets, "text": texts}
