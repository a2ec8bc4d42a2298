"""The factbook: what it promises about its examples, and that its reader and scores see exactly the facts."""

import gzip
import json
import re
from itertools import chain, islice

import pandas as pd
import pytest

from raysum.examples.factbook.corpus import SOURCES, generate, kinds, own_words, write
from raysum.examples.factbook.scorer import Factbook, read_facts, score_citations, score_facts, stated_in
from raysum.metrics.rouge import score
from raysum.metrics.statistics import figure_of
from raysum.prepare.ranking import best_first, lexrank, rank_scores
from raysum.text.cleaning import paragraph_spans
from raysum.text.tfidf import words


def paragraphs(example):
    """(document, paragraph) -> text, as `raysum prepare` cuts them."""
    return {
        (number, position): document["text"][start:end]
        for number, document in enumerate(example["documents"])
        for position, (start, end) in enumerate(paragraph_spans(document["text"]))
    }


def true_facts(example):
    title = example["title"].lower()
    return {(title, f["attribute"], f["value"].lower()): {tuple(p) for p in f["paragraphs"]} for f in example["facts"]}


def read(text, title):
    """The facts of each sentence that states any."""
    return [facts for facts in read_facts(text.split("."), title) if facts]


@pytest.fixture(scope="module")
def examples():
    return list(generate("test", 500))


def test_examples_follow_from_split_and_seed_alone():
    assert list(generate("train", 3)) == list(islice(generate("train", 1000), 3))
    assert next(generate("train", 1)) != next(generate("train", 1, seed=1))
    assert next(generate("train", 1))["summary"] != next(generate("valid", 1))["summary"]


def test_shape_of_an_example(examples):
    for example in examples:
        texts = paragraphs(example)
        assert example["split"] == "test"
        assert 2 <= len(example["documents"]) <= 3 and 7 <= len(texts) <= 10
        assert 3 <= len(example["facts"]) <= 5
        assert all(6 <= len(words(text)) <= 30 for text in texts.values())  # prepare drops shorter paragraphs
        assert all(fact["paragraphs"] for fact in example["facts"])
        about = [text for text in texts.values() if example["title"] in text]
        assert 4 <= len(about) <= 5
        assert len({place for places in true_facts(example).values() for place in places}) == len(about)
    assert len({example["id"] for example in examples}) == len(examples)
    twice = [fact for example in examples for fact in example["facts"] if len(fact["paragraphs"]) > 1]
    assert len(twice) > 100
    assert all(len({document for document, _ in fact["paragraphs"]}) == len(fact["paragraphs"]) for fact in twice)


def test_reader_finds_every_fact_where_it_is_and_nothing_else(examples):
    for example in examples:
        facts = true_facts(example)
        assert facts == stated_in(example["facts"], example["title"])
        assert set(chain.from_iterable(read(example["summary"], example["title"]))) == facts.keys()
        for place, text in paragraphs(example).items():
            statements = set(chain.from_iterable(read(text, example["title"])))
            stated = {fact for fact, places in facts.items() if place in places}
            if example["title"] in text:
                assert statements == stated
            else:
                assert len(statements) == 1 and not stated
                (subject, _, value) = statements.pop()
                assert subject != example["title"].lower() and value in text.lower()


def test_every_phrase_of_every_attribute_is_read_once():
    for kind in kinds():
        for attribute in kind.attributes:
            for phrase in attribute.phrases:
                subject = "vel dorkan" if kind.name == "person" else "dorkan"
                value = {"word": "Mirsul", "person": "Zan Fulgor", "year": "1748"}[attribute.value]
                text = phrase.format(s=subject, v=value)
                assert read(text, "other") == [[(subject, attribute.name, value.lower())]]
                assert len(words(text)) >= 6
                spaced = re.sub(r"([.,])", r" \1 ", text).lower()
                assert read(spaced, "other") == read(text, "other")
                cut_behind_the_last_slot = phrase[: phrase.rindex("}") + 1].format(s=subject, v=value)
                assert read(cut_behind_the_last_slot, "other") == read(text, "other")
        for remark in kind.remarks:
            assert read(remark.format(s="dorkan"), "dorkan") == []


def test_no_word_of_a_name_is_in_two_splits():
    """Of no name, of subjects, values, others and sources: a model of the test split cannot have seen any."""

    def words_of(split):
        examples = list(generate(split, 2000))
        texts = [
            document["source"] + " " + document["text"] for example in examples for document in example["documents"]
        ]
        found = set(re.findall(r"[A-Z][a-z]+", " ".join(texts)))
        return {word for word in map(str.lower, found) if word not in own_words()} - {s.lower() for s in SOURCES}

    train, valid, test = map(words_of, ("train", "valid", "test"))
    assert not train & test and not train & valid and not valid & test
    assert len(train) > 5000 and len(test) > 3000


def test_a_pronoun_belongs_to_the_last_subject_named():
    text = "It rises at Malgo. The river Dorkan drains Virsa and joins Benlu. It passes Gorfen"
    assert read(text, "Tenzil") == [
        [("tenzil", "spring", "malgo")],
        [("dorkan", "basin", "virsa"), ("dorkan", "mouth", "benlu")],
        [("dorkan", "town", "gorfen")],
    ]


FACTS = [
    {"attribute": "basin", "value": "Virsa", "paragraphs": [[0, 1], [1, 0]]},
    {"attribute": "mouth", "value": "Benlu", "paragraphs": [[1, 2]]},
    {"attribute": "surveyor", "value": "Zan Fulgor", "paragraphs": [[0, 3]]},
]


def facts_f1(scores):
    """Of a corpus, in 0 to 100, as evaluation has it."""
    return figure_of("facts_f1", Factbook.figures["facts_f1"], pd.DataFrame(scores))["facts_f1"]


def test_facts_are_right_wrong_or_missing():
    true = stated_in(FACTS, "Dorkan")
    summary = "The river Dorkan drains Virsa and joins Malgo. It drains Virsa."
    other = "Ferries on Tenzil land below Gorfen."
    found = score_facts(summary + " " + other, true, "Dorkan")
    assert found == {"facts_right": 1, "facts_wrong": 2, "facts_total": 3}
    assert score_facts("", true, "Dorkan") == {"facts_right": 0, "facts_wrong": 0, "facts_total": 3}
    again = score_facts("dorkan joins benlu . it joins benlu .", true, "Dorkan")
    assert again == {"facts_right": 1, "facts_wrong": 0, "facts_total": 3}
    assert facts_f1([found, again]) == pytest.approx(40)


def test_citations_count_only_for_sentences_with_a_right_fact():
    cited = {
        "The river Dorkan drains Virsa and joins Benlu.": {(0, 1), (1, 2), (0, 0)},
        "It was mapped by Zan Fulgor.": {(1, 2)},
        "It passes Gorfen.": {(0, 3)},  # not true: whatever it cites is not counted
    }
    read = read_facts(list(cited), "Dorkan")
    found = score_citations(read, list(cited.values()), stated_in(FACTS, "Dorkan"))
    assert found == {"correct": 2, "given": 4, "true": 4}


def test_extractive_baselines_stay_clearly_behind_a_perfect_gatherer(examples):
    """Lead has ROUGE-2 of at least 8, a model has room above 1.5 times that, and boilerplate alone is worth little."""

    def cut(texts, example):
        return " ".join(" ".join(texts).split()[: len(example["summary"].split())])

    def figures(outputs):
        scores = score(outputs, [example["summary"] for example in chosen])
        facts = [
            score_facts(output, stated_in(example["facts"], example["title"]), example["title"])
            for output, example in zip(outputs, chosen, strict=True)
        ]
        return scores["rouge2"].mean(), facts_f1(facts)

    chosen = examples[:200]
    leads, central, swapped = [], [], []
    for example, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
        texts = list(paragraphs(example).values())
        order = best_first(rank_scores("tfidf", words(example["title"]), [words(text) for text in texts]))
        leads.append(cut([example["title"], *(texts[i] for i in order)], example))
        central.append(cut([texts[i] for i in best_first(lexrank(texts))], example))
        swapped.append(other["summary"].replace(other["title"], example["title"]))
    (lead, lead_facts), (lex, lex_facts), (boilerplate, invented) = map(figures, (leads, central, swapped))
    assert figures([example["summary"] for example in chosen]) == (pytest.approx(100), 100)
    assert 8 <= lead <= 25 and lex <= 25
    assert 20 <= lead_facts <= 50 and lex_facts <= 50
    assert boilerplate < 20 and invented == 0


def test_write_gives_the_same_bytes_again(tmp_path):
    first = write(tmp_path / "one", train=20, valid=3, test=2)
    second = write(tmp_path / "two", train=20, valid=3, test=2)
    for split, count in (("train", 20), ("valid", 3), ("test", 2)):
        path = first / f"{split}.jsonl.gz"
        assert path.read_bytes() == (second / path.name).read_bytes()
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            assert [json.loads(line) for line in lines] == list(generate(split, count))
