"""Rows of sentences: every sentence in its place, labels by greedy ROUGE, documents to pre-train on in parts."""

import itertools
import json

import numpy as np
import pytest

from raysum.data.dataset import Dataset
from raysum.data.recipe import Recipe
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate
from raysum.examples.factbook.corpus import generate
from raysum.metrics import rouge
from raysum.metrics.labels import greedy_labels
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import RowBuilder, prepare_example
from raysum.text.tfidf import words
from raysum.tokenizers.sentence_piece import Vocabulary

LONG = " ".join(f"The river number {number} runs through the valley of Kelm." for number in range(70))
CLUSTER = {
    "id": "c1",
    "title": "Rivers",
    "documents": [
        {"source": "a.txt", "text": "Rivers of Kelm\n\nThe Arno runs\nthrough Florence. It has seven old bridges.\n"},
        "The Tiber runs through Rome. Nobody counted its bridges.",
    ],
    "summary": "The Tiber runs through Rome and has seven old bridges.",
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([*LONG.split(". "), *str(CLUSTER).splitlines()], 150)


def recipe_of(vocabulary: Vocabulary, kind: str, **choices) -> Recipe:
    return Recipe(vocabulary_sha256=vocabulary.sha256, kind=kind, **choices)


def test_each_sentence_is_a_paragraph_of_the_row_in_its_place(vocabulary):
    row = prepare_example(CLUSTER, recipe_of(vocabulary, "extraction", paragraph_tokens=8), vocabulary)
    texts = [CLUSTER["documents"][0]["text"], CLUSTER["documents"][1]]
    assert [" ".join(text.split()) for text in row["text"]] == [
        "The Arno runs through Florence.",
        "It has seven old bridges.",
        "The Tiber runs through Rome.",
        "Nobody counted its bridges.",
    ]
    places = zip(row["document"], row["char_start"], row["char_end"], strict=True)
    assert [texts[document][start:end] for document, start, end in places] == row["text"]
    assert row["document"].tolist() == [0, 0, 1, 1] and row["paragraph"].tolist() == [1, 1, 0, 0]
    assert row["source"] == ["a.txt", "document 2"] and row["title_tokens"] == 0
    encoded = [ids[:8] for ids in vocabulary.encode_all(row["text"])]
    assert np.split(row["ids"], row["paragraph_offsets"][1:-1])[2].tolist() == encoded[2]
    assert np.diff(row["paragraph_offsets"]).tolist() == [*map(len, encoded)]
    assert row["labels"].tolist() == [0, 1, 1, 0]
    assert row["labels"].dtype == np.int8 and row["summary"] == CLUSTER["summary"]


def test_without_a_summary_nothing_is_labelled_and_the_row_is_the_same(vocabulary):
    recipe = recipe_of(vocabulary, "extraction")
    labelled = prepare_example(CLUSTER, recipe, vocabulary)
    bare = prepare_example(CLUSTER | {"summary": None}, recipe, vocabulary)
    assert bare["labels"].tolist() == [0] * 4 and not len(bare["target_ids"])
    for column in ("ids", "paragraph_offsets", "char_start"):
        assert np.array_equal(bare[column], labelled[column])


def test_labels_are_those_of_a_plain_greedy_search():
    for raw in generate("train", 12):
        sentences = [words(line) for document in raw["documents"] for line in document["text"].split(". ")]
        reference = words(raw["summary"])
        assert np.flatnonzero(greedy_labels(sentences, [reference])).tolist() == plain_greedy(sentences, reference)
    assert greedy_labels([["a"], ["b"]], []).tolist() == [0, 0]
    assert greedy_labels([["a"], ["b"], ["a"]], [["a", "c"]]).tolist() == [1, 0, 0]  # the first of equals, once
    two = greedy_labels([["a", "b"], ["c", "d"]], [["a", "b"], ["c", "d"]])
    assert two.tolist() == [1, 1]


def plain_greedy(sentences: list[list[str]], reference: list[str]) -> list[int]:
    def grams(text, size):
        return list(zip(*(text[start:] for start in range(size)), strict=False))

    def value(chosen):
        total = 0.0
        for size in (1, 2):
            wanted = grams(reference, size)
            found = list(itertools.chain.from_iterable(grams(sentences[number], size) for number in chosen))
            common = sum(min(wanted.count(gram), found.count(gram)) for gram in set(wanted))
            total += 2 * common / max(len(wanted) + len(found), 1)
        return total

    chosen: list[int] = []
    while True:
        left = [number for number in range(len(sentences)) if number not in chosen]
        best = max(left, key=lambda number: (value([*chosen, number]), -number), default=None)
        if best is None or value([*chosen, best]) <= value(chosen) + 1e-12:
            return sorted(chosen)
        chosen.append(best)


def test_labelled_sentences_are_nearer_to_the_summary_than_as_many_first_ones(vocabulary):
    recipe = recipe_of(vocabulary, "extraction")
    rows = [prepare_example(raw, recipe, vocabulary) for raw in generate("train", 20)]
    chosen = [" ".join(np.array(row["text"])[row["labels"] > 0]) for row in rows]
    first = [" ".join(row["text"][: row["labels"].sum()]) for row in rows]
    wanted = [row["summary"] for row in rows]
    assert rouge.score(chosen, wanted)["rouge1"].mean() > rouge.score(first, wanted)["rouge1"].mean() + 5


def test_documents_to_pretrain_on_are_rows_of_thirty_sentences_at_most(vocabulary):
    cluster = {"id": "x", "documents": [LONG, "The Arno runs through Florence."], "summary": "All of it is kept here."}
    rows, counts = RowBuilder(recipe_of(vocabulary, "pretraining"), vocabulary).rows(cluster)
    assert [len(row["paragraph_offsets"]) - 1 for row in rows] == [24, 23, 23, 1]
    assert [row["id"] for row in rows] == ["x.1", "x.2", "x.3", "x.4"]
    assert [set(row["document"].tolist()) for row in rows] == [{0}, {0}, {0}, {1}]
    whole = prepare_example(cluster, recipe_of(vocabulary, "extraction"), vocabulary)
    assert np.array_equal(np.concatenate([row["ids"] for row in rows]), whole["ids"])
    assert all(not len(row["target_ids"]) and not row["summary"] for row in rows)
    assert counts["tokens"] == len(whole["ids"]) and counts["tokens_cut"] == 0


def test_a_huge_cluster_is_read_to_a_limit_and_pretrained_on_whole(vocabulary):
    text = " ".join(f"The river number {number} runs through it." for number in range(2100))
    raw = {"id": "x", "documents": [text], "summary": "The river number 2050 runs through it."}
    (row,), counts = RowBuilder(recipe_of(vocabulary, "extraction"), vocabulary).rows(raw)
    assert len(row["text"]) == 2000 and (counts["words"], counts["words_ranked_out"]) == (7 * 2100, 700)
    rows, counts = RowBuilder(recipe_of(vocabulary, "pretraining"), vocabulary).rows(raw)
    assert sum(len(row["text"]) for row in rows) == 2100 and not counts["words_ranked_out"]
    assert counts["words_cleaned_away"] == 0


def corpus(tmp_path, **changes) -> str:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(raw | changes) + "\n" for raw in generate("train", 40)))
    return str(path)


def test_prepare_makes_datasets_of_both_kinds_and_evaluation_reads_labelled_ones(tmp_path):
    source = corpus(tmp_path)
    made = prepare(source, tmp_path / "labelled", kind="extraction", vocab_size=400)
    dataset = made.dataset
    assert (dataset.kind, dataset.recipe.kind) == ("extraction", "extraction")
    row = next(dataset.read("train", ["ids", "labels", "text", "paragraph_offsets"]))
    assert len(row["labels"]) == len(row["text"]) == len(row["paragraph_offsets"]) - 1 and row["labels"].sum() > 0
    assert made.to_dict()["rows"] == 40 and made.to_dict()["words_kept"] > 0.9
    found = evaluate("oracle", dataset.path, decode={"words": 44})
    assert found.systems["oracle"]["rouge1"] > 20
    bare = corpus(tmp_path, summary=None)
    unlabelled = prepare(bare, tmp_path / "bare", kind="pretraining", vocab=str(dataset.vocabulary_path))
    documents = sum(len(raw["documents"]) for raw in generate("train", 40))
    told = unlabelled.to_dict()
    assert (told["rows_in"], told["rows"]) == (40, documents)
    assert "text" not in next(unlabelled.dataset.read("train"))
    assert Dataset.open(tmp_path / "bare").references("train") == 0
    with pytest.raises(UserError, match="pretraining dataset, without summaries"):
        evaluate("lead", unlabelled.dataset.path)


def test_what_holds_of_paragraphs_alone_is_refused_for_sentences(tmp_path):
    for changes in ({"ranker": "lexrank"}, {"max_paragraphs": 10}, {"graph": "similarity"}):
        with pytest.raises(UserError, match=f"kind extraction have all sentences.*leave {[*changes][0]} out"):
            prepare(corpus(tmp_path), tmp_path / "data", kind="extraction", vocab_size=400, **changes)
    with pytest.raises(UserError, match="kind"):
        prepare(corpus(tmp_path), tmp_path / "data", kind="sentences", vocab_size=400)
    assert not (tmp_path / "data").exists()


def test_a_cluster_without_a_sentence_is_counted(tmp_path):
    path = tmp_path / "bad.jsonl"
    rows = [*generate("train", 20), {"id": "none", "documents": ["—— * ——"], "summary": "Something."}]
    path.write_text("".join(json.dumps(raw) + "\n" for raw in rows))
    told = prepare(path, tmp_path / "data", kind="extraction", vocab_size=400).to_dict()
    assert told["rejected"] == {"no text in the documents": 1} and told["rows"] == 20
