"""Headlines, themes and disagreements of summaries."""

import json
import re
import subprocess
import sys

import pytest

import raysum
from raysum.cli.clusters import Output, input_clusters, summarize_clusters, summarizer_in
from raysum.config.sections import LoadConfig
from raysum.errors import UserError

FIRE = "A fire destroyed the old market hall of Porto on Tuesday. Firefighters fought the flames for seven hours."
TRADE = (
    "Traders of the market demand new stalls from the city. The stalls must be cheap, the traders wrote to the city."
)
SHOW = "The museum shows paintings of a Dutch painter. The paintings came to the museum from Leiden."
OTHERS = "The flames were fought by firefighters for nine hours. The city promised stalls to the traders."


def outlined(documents, *parts, system="lead", title="", **settings):
    cluster = {"title": title, "documents": documents}
    return raysum.outline(raysum.load(system).summarize(title, documents, **settings), cluster, parts)


def differing(*documents):
    """Return the values of each disagreement of documents."""
    found = outlined([*documents], "disagreements").disagreements
    return [[claim.value for claim in each.claims] for each in found]


def test_the_headline_is_the_heading_nearest_to_the_summary():
    documents = [f"Market hall burns down\n\n{FIRE}", f"Opening hours of shops\n\n{OTHERS}"]
    head = outlined(documents, "headline").headline
    assert head.text == "Market hall burns down"
    assert documents[0][head.citations[0].start : head.citations[0].end] == head.text


def test_a_headline_without_headings_is_a_shortened_sentence():
    text = "The council of Porto closed the old bridge (1877), which had been damaged by ships in the past two years."
    head = outlined([text], "headline").headline
    assert head.text == "The council of Porto closed the old bridge"
    assert head.citations[0].quote == text
    endless = "So many words without an end " * 6 + "stand here."
    assert outlined([endless], "headline").headline is None


def test_themes_have_all_sentences_once_and_join_those_about_the_same():
    summary = outlined([SHOW, TRADE, FIRE], "themes", words=200)
    numbers = sorted(number for theme in summary.themes for number in theme.sentences)
    assert numbers == [*range(len(summary.sentences))] and len(numbers) == 6
    of = {number: theme.label for theme in summary.themes for number in theme.sentences}
    assert of[0] == of[1] != of[2] == of[3]
    for theme in summary.themes:
        own = " ".join(summary.sentences[number].text for number in theme.sentences).lower()
        assert theme.label and all(word in own for word in re.findall(r"\w+", theme.label.lower()))


def test_a_summary_without_sentences_has_an_empty_outline():
    empty = raysum.load("lead").summarize("", [FIRE]).model_copy(update={"summary": "", "sentences": []})
    outline = raysum.outline(empty, {"documents": [FIRE, SHOW]})
    assert outline.themes == [] and outline.headline is None


def test_an_unknown_part_is_refused_and_all_are_all():
    summary = raysum.load("lead").summarize("", [FIRE])
    with pytest.raises(UserError, match="'head' is no part; choose of headline, themes, disagreements, or all"):
        raysum.outline(summary, {"documents": [FIRE, SHOW]}, ["head"])
    whole, parts = (raysum.outline(summary, {"documents": [FIRE, SHOW]}, *more) for more in ((), ("all",)))
    assert whole == parts and whole.themes


def test_a_sentence_stays_with_the_one_that_it_continues():
    text = f"{TRADE} But the paintings of the museum are safe. {SHOW}"
    summary = outlined([text, FIRE], "themes", words=200)
    at = next(n for n, sentence in enumerate(summary.sentences) if sentence.text.startswith("But"))
    (theme,) = [theme for theme in summary.themes if at in theme.sentences]
    assert at - 1 in theme.sentences


def test_documents_disagree_with_other_numbers_of_the_same():
    summary = outlined([FIRE, OTHERS], "disagreements")
    (found,) = summary.disagreements
    assert found.subject == "Firefighters fought the flames for […]."
    assert [claim.value for claim in found.claims] == ["seven hours", "nine hours"]
    for claim, document in zip(found.claims, (FIRE, OTHERS), strict=True):
        cited = claim.citations[0]
        assert document[cited.start : cited.end] == cited.quote and claim.value in cited.quote


SHIP = "The ship to Lisbon carried {} passengers when it sank in the storm."


@pytest.mark.parametrize(
    ("first", "second", "is_different"),
    [
        ("12", "15", True),
        ("twelve", "12", False),
        ("1,200", "1200", False),
        ("1.5 million", "1,500,000", False),
        ("at least 12", "15", False),
        ("at least 15", "12", True),
        ("more than 12", "15", False),
        ("up to 15", "12", False),
        ("about 100", "104", False),
        ("about 100", "140", True),
        ("12", "no", False),
    ],
)
def test_numbers_contradict_each_other(first, second, is_different):
    assert bool(differing(SHIP.format(first), SHIP.format(second))) is is_different


def test_other_units_names_and_documents_with_both_numbers_do_not_disagree():
    ship = SHIP.format("12")
    assert differing(ship, SHIP.format("15"))
    assert not differing(ship, ship.replace("12 passengers", "15 containers"))
    assert not differing(ship, SHIP.format("15").replace("Lisbon", "Vigo"))
    assert not differing(ship, f"{SHIP.format('15')} Later it was said that 12 passengers were on it.")
    assert not differing(f"{ship} {SHIP.format('15')}")
    assert differing("The hall was built in 1914 by the city.", "The hall was built in 1917 by the city.")


def test_a_part_of_the_same_number_disagrees():
    cracks = "Inspectors found cracks in {} of {} twelve main hangers."
    assert differing(cracks.format("two", "the"), cracks.format("three", "its"))
    assert differing(cracks.format("2", "the"), cracks.format("3", "the").replace("twelve", "12"))
    assert not differing(cracks.format("two", "the"), cracks.format("2", "its"))
    assert not differing(cracks.format("two", "the"), cracks.format("three", "the").replace("twelve", "14")), (
        "both differ"
    )


def test_a_sentence_does_not_cite_another_number_in_words():
    sentence, other = (
        "Firefighters fought the flames for seven hours.",
        "Firefighters fought the flames for nine hours.",
    )
    summary = raysum.load("lead").summarize("", [sentence, other], sentences=1)
    assert [citation.document for citation in summary.sentences[0].citations] == [0]


def test_the_command_prints_the_outline(tmp_path):
    for name, text in (("a.txt", FIRE), ("b.txt", OTHERS)):
        (tmp_path / name).write_text(text)

    def run(*options):
        command = [sys.executable, "-m", "raysum", "summarize", "lead", "a.txt", "b.txt", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = run("--outline", "disagreements,headline", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["disagreements"][0]["claims"][1]["value"] == "nine hours" and "themes" not in summary
    refused = run("--outline", "headline,topics")
    assert refused.returncode == 2 and "'topics' is no part; choose of headline, themes" in refused.stderr


def test_the_page_has_contents_date_system_and_command(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"title": title, "documents": [FIRE, OTHERS]}) + "\n" for title in ("Porto", "A & B"))
    )
    command = ["raysum", "summarize", "lead", "--server", "http://me:secret@host:8000/x"]
    monkeypatch.setattr(sys, "argv", command)
    page = tmp_path / "page.html"
    clusters = input_clusters([str(tmp_path / "rows.jsonl")])
    output = Output(["headline", "themes", "disagreements"], str(page), "runs/pht")
    found = summarize_clusters(clusters, summarizer_in("lead", LoadConfig()), output)
    assert "  documents disagree:" in found.render()
    html = page.read_text()
    assert re.findall(r'<li><a href="#(\w+)">(.*?)</a>', html) == [("c1", "Porto"), ("c2", "A &amp; B")]
    assert re.findall(r'<section id="(\w+)">', html) == ["c1", "c2"]
    assert "runs/pht" in html and "raysum summarize lead --server http://host:8000/x" in html and "secret" not in html
    assert re.search(r"<header>20\d\d-\d\d-\d\d \d\d:\d\d", html)
    assert html.count("<td>nine hours</td>") == 2 and "<title>2 summaries</title>" in html


def test_rows_of_ids_keep_their_summary_without_an_outline():
    cluster = {"id": "x", "documents": ["..."]}
    summary = raysum.load("lead").summarize("", [FIRE])
    (found,) = summarize_clusters([cluster], lambda _: [summary], Output(["themes"]))
    assert found.summary == summary.summary and "'x' has no outline: no sentence" in found.warnings[0]
