"""A cluster as a row: ids, offsets, limits, references, and reasons for rejection."""

import json
import time

import numpy as np
import pytest

from helpers.lisbon import CLUSTER, read_records
from helpers.special_ids import BOS, EOS, SENTENCE_END, TITLE_END
from raysum.data.recipe import Recipe
from raysum.data.rows import references, with_reference
from raysum.prepare.graphs import similarity_graph
from raysum.prepare.row_builder import Rejected, RowBuilder, prepare_example
from raysum.text.tfidf import words
from raysum.tokenizers.loading import load_tokenizer


def test_row_of_a_cluster(recipe, vocabulary):
    (row,), counts = RowBuilder(recipe, vocabulary).rows(CLUSTER)
    encode = vocabulary.encode
    first, second, third = (
        "The bridge of Lisbon was opened in 1966. It is red.",
        "Boats pass under its deck.",
        "Nothing else is known about the weather of that day.",
    )
    assert row["text"] == [
        first,
        second,
        third,
    ]  # the title's words are in the first; the others tie, in document order
    assert row["document"].tolist() == [0, 0, 1] and row["paragraph"].tolist() == [0, 1, 0]
    assert row["source"] == ["Almanac", "Gazette"]
    places = zip(row["document"], row["char_start"], row["char_end"], row["text"], strict=True)
    assert all(CLUSTER["documents"][document]["text"][start:end] == text for document, start, end, text in places)
    head = [*encode("Lisbon bridge"), TITLE_END]
    sentences = [head, encode("The bridge of Lisbon was opened in 1966."), encode("It is red."), encode(second)]
    assert row["ids"].tolist() == sum([*sentences, encode(third)], [])
    ends = np.cumsum([len(sentence) for sentence in [*sentences, encode(third)]])
    assert row["sentence_offsets"].tolist() == [0, *ends]
    assert row["paragraph_offsets"].tolist() == [0, *ends[2:]] and row["title_tokens"] == len(head)
    assert row["target_ids"][0] == BOS and row["target_ids"][-1] == EOS
    assert row["target_ids"].tolist().count(SENTENCE_END) == 1
    assert row["rank_score"][0] > row["rank_score"][1] == row["rank_score"][2] == 0
    assert counts["paragraphs_found"] == 3 and counts["tokens_cut"] == 0


def test_limits_cut_paragraphs_and_tokens(recipe, vocabulary):
    small = recipe.model_copy(update={"max_paragraphs": 2, "paragraph_tokens": 8})
    (row,), counts = RowBuilder(small, vocabulary).rows(CLUSTER)
    full = prepare_example(CLUSTER, recipe, vocabulary)
    sizes = np.diff(row["paragraph_offsets"])
    uncut = np.diff(full["paragraph_offsets"])[:2]
    assert sizes.tolist() == np.minimum(uncut, 8).tolist() and uncut[0] > 8 and counts["paragraphs_ranked_out"] == 1
    title = row["ids"].tolist().index(TITLE_END)
    assert title <= 4 and full["ids"].tolist()[:title] == row["ids"].tolist()[:title]
    assert row["sentence_offsets"][-1] == len(row["ids"]) == counts["tokens"] - counts["tokens_cut"]
    assert counts["paragraphs_cut"] == (uncut > 8).sum()
    assert counts["words_ranked_out"] == 10  # "Nothing else is known about the weather of that day"


def test_clones_and_short_paragraphs_go_but_not_the_last_ones(recipe, vocabulary):
    raw = CLUSTER | {"documents": [CLUSTER["summary"], "Red.", "The bridge is known."]}
    (row,), counts = RowBuilder(recipe, vocabulary).rows(raw)
    assert row["text"] == ["The bridge is known."] and row["source"] == ["document 1", "document 2", "document 3"]
    assert counts["paragraphs_cleaned_away"] == 2
    assert prepare_example({"title": "", "documents": ["Red."]}, recipe, vocabulary)["text"] == ["Red."]
    with pytest.raises(Rejected, match="every paragraph is a clone"):
        prepare_example(CLUSTER | {"documents": [CLUSTER["summary"]]}, recipe, vocabulary)


def test_several_references_are_kept_and_none_may_be_copied(recipe, vocabulary):
    first, second, third = CLUSTER["summary"], "The bridge is red.", "Boats pass under its deck."
    raw = CLUSTER | {"summaries": [second, first, " ", third]}
    (row,), counts = RowBuilder(recipe, vocabulary).rows(raw)
    assert references(row) == [first, second, third]
    targets = [with_reference(row, number)["target_ids"].tolist() for number in range(3)]
    assert targets == [vocabulary.encode_summary(text) for text in (first, second, third)]
    assert third not in row["text"] and counts["paragraphs_cleaned_away"] == 1  # it is the third reference
    alone = prepare_example(CLUSTER | {"summary": None, "summaries": [second]}, recipe, vocabulary)
    assert alone["summary"] == second and not len(alone["other_target_offsets"]) and len(alone["target_ids"]) > 2
    with pytest.raises(Rejected, match="summaries is not a list of texts"):
        prepare_example(CLUSTER | {"summaries": second}, recipe, vocabulary)


def test_given_paragraphs_are_not_cut_at_newlines(recipe, vocabulary):
    raw = {"title": "Lisbon", "paragraphs": [" The bridge\nof Lisbon ", "Boats pass under its deck."]}
    row = prepare_example(raw, recipe, vocabulary)
    assert row["text"] == ["The bridge\nof Lisbon", "Boats pass under its deck."]
    assert row["document"].tolist() == [0, 1] and row["char_start"].tolist() == [1, 0]
    assert row["target_ids"].tolist() == [] and row["summary"] == ""


def test_what_is_cut_of_a_long_paragraph_is_not_encoded_for_a_summary(recipe, vocabulary):
    line = "The old bridge of Lisbon is red. Boats pass under its deck! "
    raw = {"title": "Lisbon", "documents": [line * 500, "Nothing else is known about the weather of that day."]}
    (row,), counts = RowBuilder(recipe, vocabulary).rows(raw)
    found = prepare_example(raw, recipe, vocabulary)
    assert counts["tokens"] > 8000  # a dataset's card counts them all
    for name in ("ids", "paragraph_offsets", "sentence_offsets", "char_end"):
        assert found[name].tolist() == row[name].tolist()
    assert found["text"] == row["text"]
    began = time.process_time()
    prepare_example({"title": "Lisbon", "documents": [". " * 1_000_000]}, recipe, vocabulary)
    assert time.process_time() - began < 2.5  # 0.5 to 1.1 s; some 4 s where a million sentences are encoded


def test_paragraphs_without_pieces_are_dropped_before_ranks(recipe, vocabulary):
    raw = {"title": "weather", "documents": ["\u200b \u200b\nweather of that day"], "summary": "\u200b"}
    row = prepare_example(raw, recipe.model_copy(update={"min_words": 1, "ranker": "none"}), vocabulary)
    assert row["text"] == ["weather of that day"] and len(row["rank_score"]) == 1 and not len(row["target_ids"])
    with pytest.raises(Rejected, match="no text"):
        prepare_example({"title": "x", "documents": ["\u200b"]}, recipe, vocabulary)


def test_other_fields_are_kept_where_the_recipe_says_so(recipe, vocabulary):
    raw = CLUSTER | {"url": "https://lisbon", "facts": [{"attribute": "colour"}], "empty": ""}
    kept = prepare_example(raw, recipe.model_copy(update={"keep": ["facts", "url", "empty", "absent"]}), vocabulary)
    assert json.loads(kept["extra"]) == {"facts": raw["facts"], "url": raw["url"]}
    assert prepare_example(raw, recipe, vocabulary)["extra"] == ""


def test_graph_indices_are_ranks(recipe, vocabulary):
    row = prepare_example(CLUSTER, recipe.model_copy(update={"graph": "similarity"}), vocabulary)
    expected = similarity_graph([words(text) for text in row["text"]])
    assert row["graph_row"].tolist() == expected[0].tolist() and len(expected[0])
    assert not len(prepare_example(CLUSTER, recipe, vocabulary)["graph_row"])


@pytest.mark.parametrize(
    "raw, reason",
    [
        ("text", "not an object"),
        ({"title": "x"}, "no documents"),
        ({"title": "x", "documents": []}, "no documents"),
        ({"title": "x", "documents": ["a"], "paragraphs": ["b"]}, "both documents and paragraphs"),
        ({"title": "x", "documents": "a"}, "documents is not a list"),
        ({"title": "x", "documents": [3]}, "a document is neither"),
        ({"title": "x", "documents": [{"source": "a"}]}, "a document is neither"),
        ({"title": 3, "documents": ["a"]}, "title is not a text"),
        ({"title": "x", "documents": ["a"], "summary": ["b"]}, "summary is not a text"),
        ({"title": "x", "documents": [" \n "]}, "no text in the documents"),
        ({"title": "x", "documents": ["\ud800"]}, "not valid Unicode"),
    ],
)
def test_rejections_name_the_reason(raw, reason, recipe, vocabulary):
    with pytest.raises(Rejected, match=reason):
        prepare_example(raw, recipe, vocabulary)


def without_marks(ids: list[int]) -> list[int]:
    return [piece for piece in ids if piece != SENTENCE_END]


def test_published_shards_come_out_of_the_published_vocabulary(shared):
    """Our rows of the shared corpus against the same clusters in the published format, which are in document order."""
    import torch

    vocabulary = load_tokenizer(shared / "data/wikisum_vocab/spm9998_3.model")
    plain = {"ranker": "none", "min_words": 1, "clone_recall": 1.0}
    recipe = Recipe(normalize=vocabulary.suggested_normalization(), vocabulary_sha256=vocabulary.sha256, **plain)
    folder = shared / "data/scisummnet"
    published = torch.load(folder / "ranked_format/WIKI.test.0.pt", weights_only=True)
    equal = total = 0
    for record, example in zip(read_records([folder / "test.jsonl.gz"]), published, strict=False):
        row = prepare_example(record.raw, recipe, vocabulary)
        offsets = row["paragraph_offsets"]
        ours = [row["ids"][a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)]
        assert len(ours) == len(example["src"])
        clean = [i for i, text in enumerate(row["text"]) if not set("&<") & set(text)]  # markup was removed there
        equal += sum(ours[i] == example["src"][i] for i in clean)
        total += len(clean)
        kept, ours, theirs = len(example["tgt"]) - 10, row["target_ids"].tolist(), example["tgt"]
        same_words = without_marks(ours)[:kept] == without_marks(theirs)[:kept]  # theirs is cut, by another splitter
        assert same_words or set("&<") & set(row["summary"])
    assert total > 1000 and equal / total > 0.98


def test_a_title_may_be_absent(tmp_path, recipe, vocabulary):
    untitled = {name: value for name, value in CLUSTER.items() if name != "title"}
    for raw in (untitled, untitled | {"title": None}, untitled | {"title": " "}):
        (row,), counts = RowBuilder(recipe, vocabulary).rows(raw)
        assert row["title"] == "" and row["ids"][0] == TITLE_END and counts["without_title"] == 1
