"""Paragraph spans, words, clones of the summary and normalization."""

import random

import pytest

from raysum.text import tfidf
from raysum.text.cleaning import bigram_recall, bigrams, is_clone, normalize, on_one_line, paragraph_spans
from raysum.text.tfidf import words


def test_paragraph_spans_are_stripped_lines():
    text = "  one two \r\n\n\t\nthree\n   four  five\u2028six"
    assert [text[a:b] for a, b in paragraph_spans(text)] == ["one two", "three", "four  five\u2028six"]
    assert paragraph_spans(" \n ") == []


def test_bigram_recall_counts_the_summary_below_the_line():
    summary = bigrams(words("the red bridge of Lisbon the red bridge"))  # 7 bigrams, two of them twice
    assert bigram_recall(words("See: the red bridge of Lisbon."), summary) == pytest.approx(4 / 7)
    assert bigram_recall(words("The red bridge of Lisbon. The red bridge!"), summary) == 1
    assert bigram_recall(words("x"), summary) == 0 and bigram_recall(words("a b"), bigrams(["one"])) == 0


def test_clones_are_above_the_limit_only():
    summary = bigrams([str(i) for i in range(11)])  # 10 bigrams
    assert not is_clone([str(i) for i in range(9)], summary, 0.8)  # exactly 0.8
    assert is_clone(["so", *(str(i) for i in range(10))], summary, 0.8)
    assert not is_clone(["a"] * 20, summary, 0.8) and not is_clone(["a"] * 20, bigrams([]), 0.8)


def test_normalization():
    assert normalize("The U.S. & Co, 3.5%", "none") == "The U.S. & Co, 3.5%"
    assert normalize("ÉTÉ", "lower") == "été"
    assert normalize("Surface-oriented (1999).", "lower-split") == "surface - oriented  ( 1999 )  . "


def test_words_of_texts_without_spaces_are_their_characters():
    assert words("Rome 罗马") == ["rome", "罗", "马"] and words("ローマ3世") == ["ロ", "ー", "マ", "3", "世"]
    assert tfidf.count_words("罗马，是首都。 Rome") == 6 and tfidf.count_words("It's 3.5 km - far.") == 5


def test_words_of_plain_texts_are_those_of_the_pattern():
    draw = random.Random(0)
    texts = ["".join(chr(draw.randrange(most)) for _ in range(40)) for most in (128, 0x180, 0xD7FF) * 200]
    for text in texts:
        assert words(text) == words(text, {}) == tfidf._WORD.findall(text.lower())


WRAPPED = "# Title\n\nOne block that was\nwrapped by its\nauthor.\n \nAnother one\r\n\r\n- a list\n- of two\n"


def test_blank_lines_part_paragraphs_where_there_are_any():
    spans = paragraph_spans(WRAPPED, "blank-lines")
    texts = ["# Title", "One block that was\nwrapped by its\nauthor.", "Another one", "- a list\n- of two"]
    assert [WRAPPED[start:end] for start, end in spans] == texts
    assert on_one_line(texts[1]) == "One block that was wrapped by its author."
    lines = "\n\n  one\ntwo\r\nthree\n\n"  # none between two lines
    assert paragraph_spans(lines, "blank-lines") == paragraph_spans(lines) and len(paragraph_spans(lines)) == 3
    assert paragraph_spans(" \n\n ", "blank-lines") == []
