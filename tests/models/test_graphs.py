"""Graphs between paragraphs: made from text, carried by datasets, read by models, in training and for raw text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.small_datasets import write_dataset
from helpers.small_models import objective_of
from helpers.small_runs import write_random_run
from helpers.small_trainings import trained
from raysum.config.decoding import SourceConfig
from raysum.config.loading import load_config
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.data.recipe import Recipe
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.examples import check_readable
from raysum.models.batch import Source
from raysum.models.family.spec import FamilySpec
from raysum.prepare.graphs import discourse_graph
from raysum.prepare.row_builder import prepare_example
from raysum.runs.folder import Run
from raysum.stream.collators.base import kind_of
from raysum.stream.collators.summarization import Summarization, cut_graph, cut_source
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.train.fit import fit

TEXTS = [
    "The bridge of Old Arden was built by Mary Stone in 1820, and it stands today.",
    "However, the bridge fell into the river after a storm of three days.",
    "Mary Stone had left Old Arden long before that storm came to the valley.",
    "Arden is a town of three thousand people, says the gazette of that year.",
    "Bread was cheap, and the people of the town ate well for once.",
]
SIZES = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 4, "encoder": "LG", "decoder": "PF", "graph_heads": 2}
DRY = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}


def dense(edges, size: int) -> np.ndarray:
    graph = np.zeros((size, size))
    graph[edges[0], edges[1]] = edges[2]
    return graph


# From text


def test_discourse_graph_counts_names_and_markers():
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 7)]
    graph = dense(discourse_graph(TEXTS, places), 5)
    expected = np.zeros((5, 5))
    expected[0, 1] = 1  # "However" opens the paragraph after 0 in document 0
    expected[0, 2] = 0.2 * 2  # Mary Stone and Old Arden; "Arden" alone is another name
    assert graph == pytest.approx(expected + expected.T)
    rows, columns, values = discourse_graph(TEXTS, places)
    assert rows.dtype == columns.dtype == np.int16 and values.dtype == np.float32
    assert list(zip(rows, columns, strict=True)) == sorted(zip(rows, columns, strict=True))


def test_a_marker_connects_only_to_the_paragraph_right_before_it():
    for places in ([(0, 0), (0, 2)], [(0, 0), (1, 1)], [(0, 1), (0, 0)]):
        assert not len(discourse_graph(TEXTS[:2], places)[0])
    turned = discourse_graph(TEXTS[1::-1], [(0, 1), (0, 0)])  # ranked in another order than they stand
    assert dense(turned, 2).tolist() == [[0, 1], [1, 0]]
    assert not len(discourse_graph(["It rains.", "Thenceforth it rained."], [(0, 0), (0, 1)])[0])


def test_a_word_that_opens_a_sentence_is_a_name_only_if_it_is_never_small():
    texts = ["Rivers are wet.", "Rivers run.", "Arden sleeps.", "Arden wakes.", "All rivers end."]
    graph = dense(discourse_graph(texts, [(i, 0) for i in range(5)]), 5)
    assert graph[2, 3] == pytest.approx(0.2) and graph.sum() == pytest.approx(0.4)


def test_lower_cased_text_falls_back_on_rare_words():
    texts = ["the mill of arden", "the inn of arden", "the old inn", "of the inn", "the inn"]
    graph = dense(discourse_graph(texts, [(i, 0) for i in range(5)]), 5)
    assert graph[0, 1] == pytest.approx(0.2) and graph.sum() == pytest.approx(0.4)  # "the", "inn": short or common
    assert not len(discourse_graph([], [])[0])


def test_the_recipe_chooses_the_graph(tmp_path):
    vocabulary = Vocabulary.train(TEXTS * 20, 120, tmp_path / "v.model")
    raw = {"title": "Arden", "documents": ["\n".join(TEXTS[:2]), "\n".join(TEXTS[2:])]}
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, graph="discourse", ranker="none")
    row = prepare_example(raw, recipe, vocabulary)
    assert row["text"] == TEXTS
    expected = discourse_graph(TEXTS, list(zip(row["document"], row["paragraph"], strict=True)))
    assert dense([row[f"graph_{name}"] for name in ("row", "col", "value")], 5).tolist() == dense(expected, 5).tolist()
    assert dense(expected, 5)[0, 1] == 1


# To the model


def row_of(sizes: list[int], edges: dict[tuple[int, int], float]) -> dict[str, np.ndarray]:
    pairs = np.array(list(edges)).reshape(-1, 2)
    return {
        "ids": np.arange(10, 10 + sum(sizes)),
        "title_tokens": 0,
        "paragraph_offsets": np.cumsum([0, *sizes]),
        "target_ids": np.array([4, 9, 5]),
        "graph_row": pairs[:, 0].astype(np.int16),
        "graph_col": pairs[:, 1].astype(np.int16),
        "graph_value": np.array(list(edges.values()), np.float32),
    }


def test_the_graph_is_cut_as_the_source_is():
    edges = {(0, 2): 0.1, (0, 3): 0.2, (2, 3): 0.3, (3, 4): 0.4, (1, 2): 0.5, (4, 2): 0.6}
    row = row_of([4, 0, 3, 5, 2], edges)  # paragraph 1 is empty: 2 takes its place
    for limits, expected in [
        ({}, {(0, 1): 0.1, (0, 2): 0.2, (1, 2): 0.3, (2, 3): 0.4, (3, 1): 0.6}),
        ({"max_paragraphs": 4}, {(0, 1): 0.1, (0, 2): 0.2, (1, 2): 0.3}),
        ({"max_tokens": 7}, {(0, 1): 0.1}),
        ({"max_tokens": 4}, {}),
    ]:
        _, lengths = cut_source(row, SourceConfig(**limits))
        found = cut_graph(row, len(lengths))
        pairs = list(zip(found[0].tolist(), found[1].tolist(), strict=True))
        assert dict(zip(pairs, found[2].tolist(), strict=True)) == pytest.approx(expected)


def test_batches_carry_the_graph_of_each_example_and_only_when_asked():
    rows = [row_of([2, 3, 1], {(0, 1): 0.5, (1, 0): 0.5, (2, 0): 0.7}), row_of([4], {}), row_of([1, 1], {(1, 0): 0.9})]
    kind = Summarization(graph=True)
    graph = kind.collate(kind.pack(rows, SourceConfig())).source.graph
    expected = torch.zeros(3, 3, 3)
    expected[0, 0, 1] = expected[0, 1, 0] = 0.5
    expected[0, 2, 0], expected[2, 1, 0] = 0.7, 0.9
    assert torch.equal(graph, expected)
    plain = Summarization()
    assert plain.collate(plain.pack(rows, SourceConfig())).source.graph is None
    assert not any(column.startswith("graph") for column in plain.columns)
    assert {"graph_row", "graph_col", "graph_value"} <= set(kind.columns)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("graphs") / "data", {"train": 120, "valid": 20}, graph=True)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    out = tmp_path_factory.mktemp("graph-runs") / "run"
    decode = {"num_beams": 2, "max_length": 8, "batch_examples": 4}
    return trained(data, out, 20, SIZES | DRY, decode=decode)


def test_a_model_with_graph_heads_trains_and_decodes(run, data):
    rows = list(Dataset.open(data).read("valid"))
    summarizer = Summarizer.load(run.path)
    together = summarizer.summarize_rows(rows)
    for row, summary in zip(rows[:6], together, strict=False):
        (alone,) = summarizer.summarize_rows([row])
        assert alone.summary == summary.summary and alone.score == pytest.approx(summary.score, abs=1e-5)
    without = [row | {"graph_value": np.zeros_like(row["graph_value"])} for row in rows]
    changed = [s.score for s in summarizer.summarize_rows(without)]
    several = np.array([len(row["paragraph_offsets"]) > 2 for row in rows])
    differs = ~np.isclose([s.score for s in together], changed, atol=1e-6)
    assert differs[several].mean() > 0.9 and not differs[~several].any()


def test_the_loss_of_a_batch_is_that_of_its_examples_in_any_order(run, data):
    kind = kind_of(run.config.model, Dataset.open(data))
    rows = list(Dataset.open(data).read("valid", kind.columns))[:9]
    objective = objective_of(Summarizer.load(run.path).model, 0.0).eval()

    def loss(of: list[dict]) -> float:
        return objective(kind.collate(kind.pack(of, run.config.source))).item()

    with torch.no_grad():
        whole = loss(rows)
        assert loss(rows[::-1]) == pytest.approx(whole, rel=1e-5)
        assert sum(loss([row]) for row in rows) == pytest.approx(whole, rel=1e-5)
        wrong = [row | {"graph_value": row["graph_value"][::-1] ** 4} for row in rows]
        assert loss(wrong) != pytest.approx(whole, rel=2e-6)


def test_data_without_a_graph_is_refused(run, tmp_path):
    bare = Dataset.open(write_dataset(tmp_path / "bare", {"train": 8}))
    spec = load_config("ht-graph").model
    assert isinstance(spec, FamilySpec) and (spec.graph_heads, spec.encoder) == (1, "LLLLLGG")
    with pytest.raises(UserError, match="--graph similarity or --graph discourse"):
        fit(Config(model=SIZES, data=str(bare.path), out=str(tmp_path / "run")))
    with pytest.raises(UserError, match="holds no graph"):
        check_readable(run, bare)


def test_raw_text_gets_the_graph_of_the_recipe(tmp_path, monkeypatch):
    vocabulary = Vocabulary.train(TEXTS * 20, 120, tmp_path / "v.model")
    spec = FamilySpec(vocabulary=len(vocabulary), **SIZES)
    write_random_run(tmp_path / "run", tmp_path / "v.model", spec, seed=3)
    Run(tmp_path / "run").create(
        Run.open(tmp_path / "run").config,
        Recipe(vocabulary_sha256=vocabulary.sha256, graph="discourse").model_dump(),
        None,
    )
    summarizer = Summarizer.load(tmp_path / "run")
    seen: list[Source] = []
    encode = summarizer.model.encode
    monkeypatch.setattr(summarizer.model, "encode", lambda source: seen.append(source) or encode(source))
    summarizer.summarize_many([{"title": "x", "documents": ["Bread is cheap in Old Arden today."]}, cluster := raw()])
    row = summarizer.prepare(cluster)
    expected = discourse_graph(row["text"], list(zip(row["document"], row["paragraph"], strict=True)))
    place = seen[0].counts.tolist().index(5)
    assert seen[0].graph[place].numpy() == pytest.approx(dense(expected, 5))
    assert seen[0].graph[place].any() and not seen[0].graph[1 - place].any()


def raw() -> dict:
    return {"title": "Arden", "documents": ["\n".join(TEXTS[:2]), "\n".join(TEXTS[2:])]}
