"""ROUGE against hand-made pairs and the library, intervals against theory, the other measures against arithmetic."""

import gzip
import json
import random
import sys

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from raysum.errors import UserError
from raysum.metrics.citations import attention_similarity, gold_attention
from raysum.metrics.labels import rouge2_recalls
from raysum.metrics.rouge import CHECKED, METRICS, PROTOCOLS, library, score, signature
from raysum.metrics.statistics import paired_difference, ratio_interval
from raysum.text.sentences import sentence_spans
from raysum.text.wording import fragments, wording

REFERENCE = "The rivers joined the sea.\nBoats were sailing slowly."
PREDICTION = "Boats sailed slowly, rivers.\nThe river joins the sea."


def test_rouge_of_the_papers_counts_sets_over_sentences_that_end_at_full_stops():
    """Found: the sea, the sea, a Boat; wanted: a boat, the sea. Words are the, sea, a, Boat and a, boat, the, sea."""
    row = score(["the sea. the sea.\na Boat"], ["a boat .the  sea"], "pht-paper").iloc[0]
    assert [row["rouge1"], row["rouge1_precision"]] == pytest.approx([100 * 3 / 4] * 2)
    assert row["rouge2_precision"] == pytest.approx(100 * 1 / 4)  # the sea, sea the, sea a, a Boat
    assert row["rouge2_recall"] == pytest.approx(100 * 1 / 3)  # a boat, boat the, the sea
    assert row["rougeL"] == row["rougeLsum"] == pytest.approx(100 * 3 / 4)  # a, the, sea: order of sentences is free


ODD = ["", ".", " ", "..", " . ", "a", "A.", "\n", "the the. the", "U.S. aid", "a b c. c b a", "é ß 日本 . x", "1.5 m"]


def test_rouge_of_the_papers_is_their_package_on_any_text():
    theirs = pytest.importorskip("rouge").Rouge()
    draw = random.Random(3)
    texts = [" ".join(draw.choices(["a", "b", "c", "The", "the", ".", "x.", "\n", " "], k=n)) for n in range(60)]
    texts += [*ODD, *map(str.upper, ODD), REFERENCE, PREDICTION]
    pairs = [(one, other) for one in texts for other in draw.sample(texts, 20)]
    rows = score(*zip(*pairs, strict=True), "pht-paper").to_dict("records")
    compared = 0
    for (found, wanted), row in zip(pairs, rows, strict=True):
        try:
            (expected,) = theirs.get_scores(found, wanted)
        except ValueError:  # "Hypothesis is empty."
            assert not any(row.values())
            continue
        compared += 1
        for metric, values in zip(("rouge1", "rouge2", "rougeL"), expected.values(), strict=True):
            ours = [row[metric], row[f"{metric}_precision"], row[f"{metric}_recall"]]
            assert ours == pytest.approx([100 * values[part] for part in "fpr"], abs=1e-9), (found, wanted, metric)
    assert compared > 1000


def assert_as_the_library(pairs: list[tuple[str, str]]) -> None:
    """Scores of (prediction, reference) by the google protocol are rouge-score's, to the last bit."""
    library = RougeScorer(list(METRICS), use_stemmer=True)
    rows = score(*zip(*pairs, strict=True), "google").to_dict("records")
    for (found, wanted), row in zip(pairs, rows, strict=True):
        for metric, expected in library.score(wanted, found).items():
            ours = [row[metric], row[f"{metric}_precision"], row[f"{metric}_recall"]]
            theirs = [100 * part for part in (expected.fmeasure, expected.precision, expected.recall)]
            assert ours == theirs, (found, wanted, metric)


def test_google_protocol_is_the_library_on_any_text():
    """Few different words make many longest subsequences, of which the library takes certain ones."""
    draw = random.Random(4)
    few = ["a", "b", "c"]
    more = ["the", "The", "running", "runs", "İ", "é", "ß", "日本", "K", "x1", "2,000", "a_b", "Σ's", "\x1c", "\x00"]
    ends = [" ", " ", " ", "\n", "\n\n", ". ", "\r\n", "\u2028", "\x0b"]
    texts = ["".join(draw.choice(words) + draw.choice(ends) for _ in range(draw.choice((1, 2, 5, 20, 60))))
             for words in (few, more, few + more) for _ in range(300)]  # fmt: skip
    texts += [*ODD, REFERENCE, PREDICTION, "\n \n", "a\n\n\nb"]
    assert_as_the_library([(one, other) for one in texts for other in draw.sample(texts, 3)])
    one_line = score(texts, texts[::-1], "ht-paper")
    flat = [text.replace("\n", " ") for text in texts]
    assert one_line.equals(score(flat, flat[::-1], "google"))


def any_text(draw: random.Random) -> str:
    """Few words in many forms, with signs from all over Unicode, and halves of surrogate pairs."""
    known = ["the", "The", "run", "runs", "running", "\u212aing", "İx", "é", "Größe", "a_b", "2,000", "\ud800", "\x00|"]
    gaps = [" ", " ", " ", "\n", "\r\n", "\x85", "-", "\u2028", "|"]
    words = [*draw.choices(known, k=draw.randrange(30)), *(chr(draw.randrange(0x110000)) for _ in range(3))]
    return "".join(word + draw.choice(gaps) for word in draw.sample(words, len(words)))


def test_recalls_of_many_texts_are_those_of_the_library_on_any_text():
    draw, library, above = random.Random(7), RougeScorer(["rouge2"], use_stemmer=True), 0
    for _ in range(300):
        reference, *texts = [any_text(draw) for _ in range(draw.randrange(1, 12))]
        expected = [library.score(reference, text)["rouge2"].recall for text in texts]
        assert rouge2_recalls(texts, reference).tolist() == expected
        above += sum(0.1 < value < 0.9 for value in expected)
    assert above > 300
    assert rouge2_recalls(["the river runs", "the", ""], "").tolist() == [0, 0, 0]


def scisummnet_pairs(shared, split: str) -> list[tuple[str, str]]:
    """140 words of the documents from the 200th on, and the summary, each a sentence a line."""

    def lines(text: str) -> str:
        return "\n".join(text[start:end] for start, end in sentence_spans(text))

    with gzip.open(shared / f"data/scisummnet/{split}.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    texts = [" ".join(json.dumps(row["documents"], ensure_ascii=False).split()[200:340]) for row in rows]
    return [(lines(text), lines(row["summary"])) for text, row in zip(texts, rows, strict=True)]


def test_google_protocol_is_the_library_on_papers(shared):
    assert_as_the_library(scisummnet_pairs(shared, "test"))


@pytest.mark.long
def test_google_protocol_is_the_library_on_all_papers(shared):
    for split in ("train", "valid"):
        assert_as_the_library(scisummnet_pairs(shared, split))


def test_the_check_of_the_fast_library_holds_the_scores_of_rouge_score():
    scorer = RougeScorer(list(METRICS), use_stemmer=True)
    assert {pair: tuple(scorer.score(*pair)[name].fmeasure for name in METRICS) for pair in CHECKED} == CHECKED


@pytest.fixture
def fresh_library():
    library.cache_clear()
    yield
    library.cache_clear()


def test_rouge_uses_the_fast_library_only_if_it_gives_the_same_scores(monkeypatch, fresh_library):
    fast = pytest.importorskip("rouge_score_rs.rouge_scorer")
    assert isinstance(library().scorer, fast.RougeScorer)
    expected = score([PREDICTION], [REFERENCE])

    library.cache_clear()
    monkeypatch.setattr(fast.RougeScorer, "score", lambda scorer, *pair: RougeScorer(METRICS).score(*pair))  # no stems
    assert isinstance(library().scorer, RougeScorer)
    assert score([PREDICTION], [REFERENCE]).equals(expected)

    library.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score_rs.rouge_scorer", None)
    assert isinstance(library().scorer, RougeScorer)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_of_several_references_the_best_counts_for_each_metric(protocol):
    others = ["Boats sailed.", "The river joins a lake, slowly."]
    row = score([PREDICTION], [[REFERENCE, *others]], protocol).iloc[0]
    alone = score([PREDICTION] * 3, [REFERENCE, *others], protocol)
    for metric in METRICS:
        best = alone.iloc[alone[metric].argmax()]
        assert [row[f"{metric}{part}"] for part in ("", "_precision", "_recall")] == [
            best[f"{metric}{part}"] for part in ("", "_precision", "_recall")
        ]
    if protocol == "google":
        expected = RougeScorer(list(METRICS), use_stemmer=True).score_multi([REFERENCE, *others], PREDICTION)
        assert [row[metric] for metric in METRICS] == [100 * expected[metric].fmeasure for metric in METRICS]
    assert "references up to 3, maximum F1" in signature([PREDICTION], protocol, 3)
    assert "references" not in signature([PREDICTION], protocol)


def test_several_references_by_hand():
    """F1 against three references: 2/3, 1 and 0; the best of two of them: 1, 2/3, 1."""
    texts = ["the red sea", "the sea", "boats"]
    third = 2 * (2 / 2) * (2 / 3) / (2 / 2 + 2 / 3)  # 4/5
    found = {
        way: score(["the sea"], [texts], several=way)["rouge1"].item() / 100 for way in ("best", "mean", "jackknife")
    }
    assert found == pytest.approx({"best": 1, "mean": (third + 1 + 0) / 3, "jackknife": (1 + third + 1) / 3})
    assert score(["the sea"], [texts[:1]], several="jackknife")["rouge1"].item() == pytest.approx(100 * third)
    two = score(["the sea"], [[texts[0], texts[2]]], several="jackknife")  # the best of one, twice: the mean
    assert two["rouge1"].item() == pytest.approx(100 * third / 2)
    assert two["rouge1_recall"].item() == pytest.approx(100 * (2 / 3) / 2)
    assert "references up to 3, jackknifed maximum F1" in signature(["a"], "google", 3, "jackknife")


# What ROUGE-1.5.5 -m -n 2 -a counts, by its rules: hits, predicted and wanted units of ROUGE-1, -2 and -L. Hyphens and
# other signs part words, words of four letters or more are stemmed, counts are clipped, a line is a sentence for L.
BY_HAND = [
    (  # the well known u s firm s firm 2 000 of them | a well known firm of the u s firm 2000
        *("ht-paper", "The well-known U.S. firm's firms, 2,000 of them.", "A well known firm of the\nU.S.; firm 2000"),
        *((8, 12, 10), (3, 11, 9), (5, 12, 10)),
    ),
    # Lin (2004), section 3.2: w1 w2, and w1 w3 w5, are four words of the reference together
    ("graphsum", "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", (4, 10, 5), (1, 9, 4), (4, 10, 5)),
    # each line of the reference is there, but only once
    ("graphsum", "a b", "a b\na b", (2, 2, 4), (1, 1, 3), (2, 2, 4)),
    # of the two words that b a has in another order, the first counts: with the second line there are not two
    ("graphsum", "b a\na x", "a b", (2, 4, 2), (0, 3, 1), (1, 4, 2)),
    # one line: a b is in b a a b
    ("ht-paper", "b a\na b", "a b", (2, 4, 2), (1, 3, 1), (2, 4, 2)),
    # no length limit without -l or -b
    ("ht-paper", "a " + "b " * 500, "a", (1, 501, 1), (0, 500, 0), (1, 501, 1)),
]


@pytest.mark.parametrize(("protocol", "found", "wanted", "one", "two", "longest"), BY_HAND)
def test_the_papers_script_by_hand(protocol, found, wanted, one, two, longest):
    row = score([found], [wanted], protocol).iloc[0]
    published = ("rouge1", "rouge2", PROTOCOLS[protocol].published_l)
    for metric, (hits, predicted, true) in zip(published, (one, two, longest), strict=True):
        precision, recall = hits / predicted, hits / max(true, 1)
        f1 = 2 * precision * recall / (precision + recall) if hits else 0
        ours = [row[metric], row[f"{metric}_precision"], row[f"{metric}_recall"]]
        assert ours == pytest.approx([100 * f1, 100 * precision, 100 * recall])


def test_protocols_differ_where_they_should():
    rows = {name: score([PREDICTION], [REFERENCE], name).iloc[0] for name in PROTOCOLS}
    assert rows["google"]["rougeLsum"] > rows["google"]["rougeL"]  # sentences in another order
    assert rows["ht-paper"]["rougeLsum"] == rows["ht-paper"]["rougeL"] == rows["google"]["rougeL"]
    assert rows["graphsum"][PROTOCOLS["graphsum"].published_l] == rows["google"]["rougeLsum"]
    assert rows["pht-paper"]["rouge1"] < rows["ht-paper"]["rouge1"]  # no stemming, "slowly," is not "slowly"


def test_empty_outputs_score_zero_and_are_counted():
    assert score(["", "the sea"], ["the sea", "the sea"])["rouge1"].tolist() == [0, 100]
    line = signature(["", "the sea"])
    assert "n 2" in line and "empty 1" in line and "rouge-score" in line and "porter" in line and "\n" not in line
    assert len(score([], []).columns) == 3 * len(METRICS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((["a"], []), "1 predictions for 0"), ((["a"], ["a"], "perl"), "'perl'; use one of google")],
)
def test_rouge_refuses(arguments, message):
    with pytest.raises(UserError, match=message):
        score(*arguments)


def means_of(scores) -> np.ndarray:
    return np.stack([scores, np.ones(len(scores))], axis=1)


def test_the_interval_of_a_mean_repeats_and_is_as_wide_as_theory_says(monkeypatch):
    monkeypatch.setattr("raysum.metrics.statistics.RESAMPLES", 4000)
    scores = np.random.default_rng(1).normal(30, 10, 400)
    interval = ratio_interval(means_of(scores))
    assert interval == ratio_interval(means_of(scores))
    assert interval.value == pytest.approx(scores.mean())
    half = 1.96 * scores.std() / np.sqrt(len(scores))
    assert interval.low == pytest.approx(interval.value - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.value + half, abs=0.1 * half)


def test_pieces_of_a_large_resampling_are_all_drawn(monkeypatch):
    scores = np.random.default_rng(2).normal(size=50)
    whole = ratio_interval(means_of(scores))
    monkeypatch.setattr("raysum.metrics.statistics._DRAWS_AT_ONCE", 170)
    assert ratio_interval(means_of(scores)) == pytest.approx(whole)


def test_ratio_interval_is_of_sums_not_of_ratios():
    interval = ratio_interval([(1, 1), (0, 4), (8, 10)])
    assert interval.value == pytest.approx(9 / 15)
    assert interval.low < 9 / 15 < interval.high
    assert ratio_interval([(0, 0), (0, 0)]) == (0, 0, 0)


def test_pairing_sees_a_small_constant_gain_that_single_intervals_hide():
    first = np.random.default_rng(3).normal(30, 10, 200)
    second = first - 0.5 + np.random.default_rng(4).normal(0, 1, 200)
    difference = paired_difference(means_of(first), means_of(second))
    assert 0 < difference.low < difference.value < difference.high < 1
    assert ratio_interval(means_of(first)).low < ratio_interval(means_of(second)).high
    with pytest.raises(ValueError, match="paired"):
        paired_difference(means_of(first), means_of(second[1:]))


def test_few_pairs_prove_little_whatever_their_gaps():
    pairs = [paired_difference(means_of(np.arange(n) + 5.0), means_of(np.arange(n))) for n in (1, 3, 5)]
    assert [one.p for one in pairs] == [1, 0.25, 0.0625]


def test_gold_attention_follows_shared_rare_words():
    paragraphs = ["the river rises", "the comet shines", "no word of it", "the comet returned"]
    gold = gold_attention("the comet returned", paragraphs)
    assert gold.sum() == pytest.approx(1)
    assert gold[3] > gold[1] > gold[0] > gold[2] == 0
    assert gold_attention("xyz", ["a b", "c d"]).tolist() == [0.5, 0.5]
    assert gold_attention("xyz", ["...", "!"]).tolist() == [0.5, 0.5]


def test_attention_similarity():
    assert attention_similarity([0.2, 0.8], [0.1, 0.4]) == pytest.approx(1)
    assert attention_similarity([1, 0], [0, 1]) == 0
    assert attention_similarity([1, 0], [0.5, 0.5]) == pytest.approx(np.sqrt(0.5))
    assert attention_similarity([0, 0], [0.5, 0.5]) == 0
    with pytest.raises(ValueError, match="2 paragraphs, gold over 3"):
        attention_similarity([1, 0], [1, 0, 0])


def plain_fragments(said: list[str], source: list[str]) -> list[list[str]]:
    """F(A, S) as figure 3 of Grusky et al. (2018) writes it."""
    found, i = [], 0
    while i < len(said):
        f: list[str] = []
        j = 0
        while j < len(source):
            if said[i] == source[j]:
                i2, j2 = i, j
                while i2 < len(said) and j2 < len(source) and said[i2] == source[j2]:
                    i2, j2 = i2 + 1, j2 + 1
                if len(f) < i2 - i:
                    f = said[i:i2]
                j = j2
            else:
                j += 1
        i += max(len(f), 1)
        found += [f] if f else []
    return found


def test_fragments_are_those_of_the_papers_algorithm():
    draw = random.Random(6)
    for _ in range(500):
        letters = "abcdef"[: draw.randint(1, 6)]
        said, source = (draw.choices(letters + "xy"[:end], k=draw.randint(0, 30)) for end in (1, 2))
        assert fragments(said, source) == [len(f) for f in plain_fragments(said, source)]
    assert fragments(list("aab"), list("aaab")) == [2, 1]  # not 3: the paper goes on after the first run


def test_wording_of_a_summary_by_hand():
    found = wording("The red fox sleeps. The red fox ran.", ["A fox: the RED fox", "sleeps and ran"])
    assert [found[f"novel{n}"] for n in range(1, 5)] == pytest.approx([0, 100 * 3 / 7, 100 * 4 / 6, 100])
    assert found["repeated"] == pytest.approx(100 * 1 / 6) and found["coverage"] == 100
    assert found["density"] == pytest.approx((9 + 1 + 9 + 1) / 8)  # nothing runs over the end of a text
    assert wording("", ["a"]) == {} and wording("new", ["old"]) == {"novel1": 100, "coverage": 0, "density": 0}
    assert wording("b c", ["a b c d"]) == {"novel1": 0, "novel2": 0, "coverage": 100, "density": 2}
