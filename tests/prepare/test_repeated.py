"""Paragraphs that are there again: near duplicates in a cluster, boilerplate over clusters, the same at inference."""

import json
import random

import pytest

from raysum.data.dataset import Dataset
from raysum.prepare.job import prepare
from raysum.prepare.paragraphs import mark, near_duplicates
from raysum.prepare.row_builder import RowBuilder, prepare_example
from raysum.prepare.sampling import boilerplate, paragraph_marks
from raysum.text.tfidf import words
from raysum.tokenizers.loading import load_tokenizer


def shingles(paragraph: list[str]) -> set[tuple[str, ...]]:
    filled = [*paragraph, *[""] * (3 - len(paragraph))]
    return {*zip(filled, filled[1:], filled[2:], strict=False)}


def by_all_pairs(paragraphs: list[list[str]], limit: float) -> list[bool]:
    """The same, by its definition."""
    sets, again = [shingles(one) for one in paragraphs], list[bool]()
    for number, own in enumerate(sets):
        earlier = (other for other, gone in zip(sets[:number], again, strict=True) if not gone)
        again.append(any(len(own & other) / len(own | other) >= limit for other in earlier))
    return again


@pytest.mark.parametrize("limit", [0.1, 0.34, 0.5, 0.8, 0.9, 1.0])
def test_near_duplicates_are_those_of_all_pairs(limit):
    draw, found = random.Random(0), 0
    for _ in range(150):
        texts = [[draw.choice("abcde") for _ in range(draw.randrange(0, 25))] for _ in range(6)]
        for _ in range(draw.randrange(12)):
            changed = [*draw.choice(texts)]
            for _ in range(draw.randrange(4)):
                changed[draw.randrange(len(changed) + 1) :][:1] = [draw.choice("abcdefg")]
                if changed:
                    changed[draw.randrange(len(changed))] = draw.choice("abcdefg")
            texts.insert(draw.randrange(len(texts) + 1), changed)
        expected = by_all_pairs(texts, limit)
        assert near_duplicates(texts, limit) == expected
        found += sum(expected)
    assert found > 100


def test_many_paragraphs_of_one_form_take_no_square_of_time():
    form = "the page of the archive that has the number {} and no more"
    same = [form.format(number % 7).split() for number in range(20_000)]
    again = near_duplicates(same, 0.5)  # all pairs of them would be 200 million
    assert sum(again) == 19_999 and not again[0]
    assert near_duplicates([], 0.5) == []


def test_boilerplate_stands_in_many_clusters():
    banner, rare = words("We use cookies to improve this site."), words("Only here.")
    clusters = [[banner, banner, words(f"Text {n} of its own.")] + [rare] * (n < 5) for n in range(40)]
    clusters = [paragraph_marks(cluster) for cluster in clusters]
    assert boilerplate(clusters, 0.9) == [mark(banner)]
    assert boilerplate(clusters, 0.125) == boilerplate(clusters, 0.01) == [mark(banner), mark(rare)]
    assert boilerplate(clusters[:4], 0.5) == []  # too few clusters to tell


TOWNS = ("Porto", "Lyon", "Ghent", "Graz", "Turku", "Varna", "Cork", "Bari")
BANNER = "We use cookies to improve what you read on this site."


def clusters(count: int) -> list[dict]:
    found = []
    for number in range(count):
        town = f"{TOWNS[number % 8]} {number}"
        news = f"The bridge of {town} was opened on a rainy day by the mayor and many guests of hers."
        wire = news.replace("many", "some")
        own = f"Nobody in {town} had expected such a storm so late in the year {1900 + number}."
        documents = [f"{BANNER.upper()}\n\n{news}\n\n{own}", f"  {wire}\n\n{BANNER}"]
        found.append({"title": town, "documents": documents, "summary": f"The mayor opened a bridge in {town}."})
    return found


def test_what_is_repeated_goes_and_the_same_at_inference(tmp_path, capsys):
    rows = clusters(30)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = {"pieces": 300, "ranker": "none", "valid": 0.2}
    plain = prepare(tmp_path / "train.jsonl", tmp_path / "plain", **chosen).dataset
    made = prepare(tmp_path / "train.jsonl", tmp_path / "data", near_duplicates=0.6, boilerplate=0.5, **chosen).dataset
    assert "1 paragraphs are boilerplate: they are in at least 50.00% of the clusters" in capsys.readouterr().err
    assert [len(row["text"]) for row in plain.read("train")] == [5] * plain.rows("train")
    counts = {name: sum(made.manifest["splits"][split]["counts"][name] for split in made.splits) for name in
              ("paragraphs_boilerplate", "paragraphs_near_duplicates", "paragraphs_cleaned_away")}  # fmt: skip
    assert counts == {"paragraphs_boilerplate": 60, "paragraphs_near_duplicates": 30, "paragraphs_cleaned_away": 90}
    for row in made.read("train"):
        assert len(row["text"]) == 2
        places = zip(row["document"], row["char_start"], row["char_end"], row["text"], strict=True)
        raw = rows[int(row["title"].split()[1])]
        assert all(raw["documents"][document][start:end] == text for document, start, end, text in places)
    recipe, vocabulary = Dataset.open(made.path).recipe, load_tokenizer(made.vocabulary_path)
    assert recipe.boilerplate_marks == [mark(words(BANNER))]
    again = prepare_example(rows[0] | {"summary": ""}, recipe, vocabulary)
    assert again["text"] == prepare_example(rows[0], recipe, vocabulary)["text"] and len(again["text"]) == 2
    only = RowBuilder(recipe, vocabulary).rows({"title": "T", "documents": [BANNER]})[0][0]
    assert only["text"] == [BANNER]  # nothing else is in it
    assert plain.recipe.boilerplate_marks is None and plain.recipe.near_duplicates is None
