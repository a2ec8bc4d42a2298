"""Long paragraphs are split without loss."""

import numpy as np
import pytest

from raysum.data.recipe import read_recipe
from raysum.prepare.config import PrepareConfig
from raysum.prepare.paragraphs import split_spans
from raysum.prepare.row_builder import RowBuilder, prepare_example
from raysum.text.cleaning import on_one_line

README = "# Title\n\nOne block that was\nwrapped by its\nauthor.\n \nAnother one\r\n\r\n- a list\n- of two\n"


def counted(texts: list[str]) -> list[int]:
    return [sum(1 + len(word) // 10 for word in text.split()) for text in texts]


def test_long_paragraphs_are_split_at_sentence_ends_then_between_words():
    text = "One two three. Four five six. Seven eight nine. Ten."
    assert [text[a:b] for a, b in split_spans(text, 6, counted)] == [
        "One two three. Four five six.",
        "Seven eight nine. Ten.",
    ]
    assert split_spans(text, 10, counted) == [(0, len(text))]
    words_only = " ".join(f"w{i}" for i in range(25)) + ". And so on."
    spans = split_spans(words_only, 10, counted)
    assert " ".join(words_only[a:b] for a, b in spans) == words_only
    assert all(tokens <= 10 for tokens in counted([words_only[a:b] for a, b in spans])) and len(spans) == 3
    huge = "x" * 1000 + " end"
    spans = split_spans(huge, 10, counted)
    assert "".join(huge[a:b] for a, b in spans).replace(" ", "") == huge.replace(" ", "")
    assert max(counted([huge[a:b] for a, b in spans])) <= 10
    assert split_spans("", 10, counted) == []


@pytest.mark.parametrize("given", ["documents", "paragraphs"])
def test_a_new_recipe_loses_nothing_of_long_paragraphs_and_tells_where_each_piece_is(given, recipe, vocabulary):
    review = "The bridge of Lisbon was opened in 1966, \nand it is red. Boats pass under its deck. " * 9
    raw = {"title": "Lisbon bridge", given: [f"{README}\n{review}", "Nothing else is known about the weather."]}
    choices = PrepareConfig(out="x", max_paragraphs=100, paragraph_tokens=40, min_words=1)
    new = choices.recipe(vocabulary.sha256, "none")
    (row,), counts = RowBuilder(new, vocabulary).rows(raw)
    assert counts["tokens_cut"] == counts["words_ranked_out"] == 0 and counts["paragraphs_found"] < len(row["text"])
    assert max(np.diff(row["paragraph_offsets"])) <= 40
    held = sorted(zip(row["document"], row["char_start"], row["char_end"], row["text"], strict=True))
    for document, start, end, text in held:
        assert text == on_one_line(raw[given][document][start:end])
    assert " ".join(text for *_, text in held).split() == " ".join(raw[given]).split()
    numbers = row["paragraph"][row["document"] == 0]
    assert set(numbers) == ({0} if given == "paragraphs" else {0, 1, 2, 3, 4})
    _, lost = RowBuilder(recipe.model_copy(update={"paragraph_tokens": 12}), vocabulary).rows(raw)
    assert lost["tokens_cut"] > 0  # as a recipe of before cuts them


def test_the_first_paragraph_has_room_for_the_title(vocabulary):
    choices = PrepareConfig(out="x", paragraph_tokens=40, min_words=1).recipe(vocabulary.sha256, "none")
    text = "The bridge of Lisbon was opened in 1966. It is red. Boats pass under its deck."
    fits = choices.model_copy(update={"paragraph_tokens": len(vocabulary.encode(text))})
    assert len(prepare_example({"documents": [text]}, fits, vocabulary)["text"]) == 2
    (row,), counts = RowBuilder(fits, vocabulary).rows({"title": "Lisbon", "documents": [text]})
    assert " ".join(sorted(row["text"], key=text.index)) == text and counts["tokens_cut"] == 0


def test_a_recipe_without_a_word_about_paragraphs_is_the_old_one():
    former = {"vocabulary_sha256": "x", "max_paragraphs": 10}
    old = read_recipe(former, "a run")
    assert (old.paragraph_separator, old.long_paragraphs) == ("lines", "cut")
    new = PrepareConfig(out="x")
    assert (new.paragraph_separator, new.long_paragraphs) == ("blank-lines", "split")
