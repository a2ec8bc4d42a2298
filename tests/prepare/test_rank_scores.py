"""TF-IDF and LexRank scores, and the similarity graph."""

import tracemalloc

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from raysum.prepare.graphs import similarity_graph
from raysum.prepare.ranking import best_first, lexrank, rank_scores
from raysum.text.tfidf import words

TEXTS = ["red bridge red deck", "blue river", "the red river bridge of the town", "", "blue river blue deck"]


def test_tfidf_scores_are_those_of_scikit_learn():
    vectorizer = TfidfVectorizer(token_pattern=r"\w+")
    matrix = vectorizer.fit_transform(TEXTS)
    title = "Red deck, red sky"
    expected = cosine_similarity(matrix, vectorizer.transform([title]))[:, 0]
    scores = rank_scores("tfidf", words(title), [words(text) for text in TEXTS])
    assert scores == pytest.approx(expected, abs=1e-12)
    assert best_first(scores).tolist() == [0, 2, 4, 1, 3]


def test_equal_scores_keep_document_order():
    assert best_first(np.array([0.0, 1, 0, 1, 0])).tolist() == [1, 3, 0, 2, 4]
    assert rank_scores("none", ["red"], [["red"], ["blue"]]).tolist() == [0, 0]


def test_a_title_that_matches_nothing_leaves_the_order_to_lexrank():
    paragraphs = [words(text) for text in TEXTS]
    assert rank_scores("tfidf", ["unheard"], paragraphs).tolist() == lexrank(TEXTS).tolist()
    assert rank_scores("tfidf", [], paragraphs).tolist() == rank_scores("lexrank", ["red"], paragraphs).tolist()


def test_lexrank_is_the_stationary_distribution():
    similarity = cosine_similarity(TfidfVectorizer(token_pattern=r"\w+").fit_transform(TEXTS))
    similarity[3] = 1  # a paragraph without words leads anywhere
    walk = 0.15 / 5 + 0.85 * (similarity / similarity.sum(1, keepdims=True)).T
    values, vectors = np.linalg.eig(walk)
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    assert lexrank(TEXTS) == pytest.approx(expected / expected.sum(), abs=1e-7)
    assert lexrank([]).shape == (0,) and lexrank(["alone"]).tolist() == [1]


def test_lexrank_is_that_of_all_pairs_multiplied_out():
    rng = np.random.default_rng(0)
    paragraphs = [[f"w{i}" for i in rng.zipf(1.3, rng.integers(0, 30)).clip(max=500)] for _ in range(300)]
    texts = [" ".join(paragraph) for paragraph in paragraphs]
    similarity = cosine_similarity(TfidfVectorizer(token_pattern=r"\w+").fit_transform(texts))
    similarity[[not paragraph for paragraph in paragraphs]] = 1
    walk = 0.15 / 300 + 0.85 * (similarity / similarity.sum(1, keepdims=True)).T
    scores, before = np.full(300, 1 / 300), np.zeros(300)
    while np.abs(scores - before).sum() >= 1e-8:
        scores, before = walk @ scores, scores
    assert rank_scores("lexrank", [], paragraphs) == pytest.approx(scores, rel=1e-12)


def test_lexrank_of_many_paragraphs_stays_small():
    rng = np.random.default_rng(0)
    names = np.array([f"w{i}" for i in range(3000)])
    paragraphs = [["the", *names[rng.integers(3000, size=20)]] for _ in range(20_000)]  # all pairs share a word
    tracemalloc.start()
    scores = rank_scores("tfidf", ["unheard"], paragraphs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.sum() == pytest.approx(1) and peak < 60e6  # a byte of each pair would be 400 MB


def test_similarity_graph_is_symmetric_without_loops():
    rows, columns, values = similarity_graph([words(text) for text in TEXTS])
    dense = np.zeros((5, 5))
    dense[rows, columns] = values
    expected = cosine_similarity(TfidfVectorizer(token_pattern=r"\w+").fit_transform(TEXTS))
    np.fill_diagonal(expected, 0)
    assert dense == pytest.approx(np.where(expected > 0.1, expected, 0), abs=1e-6)
    assert (dense > 0).any() and rows.dtype == np.int16 and values.dtype == np.float32
