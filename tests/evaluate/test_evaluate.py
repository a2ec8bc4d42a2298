"""Evaluation: the extractive systems, the swapped control, scores by example and overall, and the whole on a run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.factbook_data import write_factbook, write_ranker, write_run
from helpers.special_ids import TITLE_END
from raysum.data.dataset import MANIFEST, Dataset
from raysum.decode.summarizer import Summarizer
from raysum.decode.summary import Citation, Sentence, Summary
from raysum.errors import UserError
from raysum.evaluate import scorers
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems, evaluate, results_folder
from raysum.evaluate.scorers import means
from raysum.evaluate.systems import Extracted, PaperBaseline, swap
from raysum.extract.summarizer import load
from raysum.metrics.citations import gold_attention
from raysum.metrics.rouge import unread
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import as_sentences
from raysum.runs.folder import Run
from raysum.sources.find import find_sources
from raysum.systems import extractive
from raysum.text.tfidf import count_words
from raysum.tokenizers.loading import load_tokenizer

BASELINES = ["lead", "lexrank", "lead-paper", "lexrank-paper"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"valid": 6, "test": 12})


@pytest.fixture(scope="module")
def run(tmp_path_factory, data) -> Run:
    return write_run(tmp_path_factory.mktemp("runs") / "pht", data, predictor=True)


@pytest.fixture(scope="module")
def rows(data) -> list[dict]:
    return list(data.read("test"))


def score(rows: list[dict], summaries: list[Summary]) -> pd.DataFrame:
    return scorers.score_table(rows, summaries, scorers.scorers_of(None))


def figures_of(rows: list[dict], texts: list[str]) -> dict[str, float]:
    return means(score(rows, [said(text) for text in texts]))


def said(*sentences: str, cited: tuple[Citation, ...] = (), attention: tuple[float, ...] = ()) -> Summary:
    parts = [Sentence(text=text, citations=list(cited)) for text in sentences]
    return Summary(id="x", summary=" ".join(sentences), sentences=parts, attention=list(attention), score=0.0)


def compared(data: Dataset, split: str, *names: str, **settings):
    config = EvaluateConfig(data=str(data.path), **settings)
    return compare_systems([*map(Extracted.named, names)], data, split, config)


def outputs(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]


def plain_row(title: str, paragraphs: list[str], summary: str) -> dict:
    places = {name: np.arange(len(paragraphs)) for name in ("document", "paragraph")}
    places |= {"char_start": np.zeros(len(paragraphs)), "char_end": np.array([*map(len, paragraphs)])}
    source = ["a document"] * len(paragraphs)
    return {"id": "x", "title": title, "text": paragraphs, "summary": summary, "extra": "", "source": source, **places}


FOX = ["The dog sleeps.", "The red fox jumps over the river.", "A red fox jumps over it.", "The fox jumps and jumps."]


@pytest.mark.parametrize(
    ("name", "row", "texts"),
    [
        (
            "lead-paper",
            plain_row("The Mill", ["One two three. Four five.", "Six seven eight."], "a b c d e f g h"),
            ["The Mill", "One two three.", "Four five.", "Six"],
        ),
        ("lexrank-paper", plain_row("Fox", FOX, "one two three four"), ["The red fox jumps"]),
    ],
)
def test_the_papers_baselines_take_the_length_of_the_reference(name, row, texts):
    (output,) = Extracted.named(name).summarize([row], [row])
    assert [sentence.text for sentence in output.sentences] == texts


@pytest.mark.parametrize("system", [*map(Extracted.named, ("lead-paper", "lead3", "mmr"))])
def test_what_is_taken_is_cited_to_its_paragraph(rows, system):
    for row, one in zip(rows, system.summarize(rows, rows), strict=True):
        places = [*zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)]
        cited = [(part, citation) for part in one.sentences for citation in part.citations[:1]]
        assert len(cited) == len(one.sentences) - (system.name == "lead-paper") > 0
        for part, citation in cited:
            paragraph = row["text"][places.index((citation.document, citation.paragraph))]
            assert " ".join(part.text.split()) in " ".join(paragraph.split())


def test_empty_summaries_are_counted(data):
    """They have found none of what the teacher cites."""
    extra = '{"citations": [{"sentence": "a", "paragraphs": [[0, 0]]}]}'
    row = plain_row("T", ["One two three."], "a b") | {"extra": extra}
    right = [Citation(document=0, paragraph=0, weight=1.0)]
    figures = means(scorers.score_table([row] * 3, [said(), said("One two", cited=right), said()], [scorers.Cited()]))
    assert figures["empty"] == 2 and figures["cited_recall"] == pytest.approx(100 / 3)
    assert figures["cited_precision"] == 100

    result = evaluate("lead", data.path, split="valid")
    result.systems["lead"]["empty"] = 6
    assert "\nempty summaries, of 6: lead 6\n" in "\n".join(map(str, result.render().renderables))


def test_oracle_is_the_best_of_the_extractive_systems(rows):
    systems = [PaperBaseline(extractive(name)) for name in ("lead", "lexrank", "oracle")]
    *others, oracle = (score(rows, system.summarize(rows, rows))["rouge2_recall"].mean() for system in systems)
    assert oracle > max(others)


LAYOUTS = [
    "Florence lies on the river Arno.\nIt is the capital of Tuscany today.\nMillions of people visit it each year.",
    "The Tiber is the river of Rome in Italy. It\nrises on Mount Fumaiolo and runs through the old\ncity to the sea."
    " Its floods were\nfeared in old times by everyone.",
    "Venice was built upon the water of a lagoon. It has bridges.\n\nIts canals are the streets of the whole city.",
    "佛罗伦萨位于阿诺河畔，是托斯卡纳的首府。大教堂于一四三六年完工！罗马自一八七一年起是意大利的首都。",
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> tuple[Dataset, list[dict]]:
    """Clusters of whose documents a dataset keeps every paragraph, and these clusters."""
    folder = tmp_path_factory.mktemp("samples")
    clusters = [record.cluster() for source in find_sources(["samples/valid.jsonl"]) for record in source.records()]
    clusters.append({"id": "layouts", "title": "Italy", "documents": LAYOUTS, "summary": "Rome lies on the Tiber."})
    (folder / "all.jsonl").write_text("\n".join(json.dumps({**cluster, "split": "train"}) for cluster in clusters))
    return prepare(folder / "all.jsonl", folder / "data", vocab_size=1000, max_paragraphs=1000).dataset, clusters


@pytest.mark.parametrize("words", [1, 10, 44, 100])
@pytest.mark.parametrize("name", ["lead", "lead3", "lexrank", "mmr", "oracle"])
def test_a_system_is_evaluated_as_it_is_served(samples, name, words, tmp_path):
    data, clusters = samples
    result = evaluate(name, data.path, decode={"words": words}, out=tmp_path / "out", scorers=["rouge", "support"])
    written = {line["id"]: (line[name], line["notes"][name]["warnings"]) for line in outputs(tmp_path / "out")}
    served = load(name, words=words).summarize_many(clusters)
    assert written == {summary.id: (summary.summary, summary.warnings) for summary in served}
    assert result.systems[name]["empty"] == 0 and result.systems[name]["support"] == 100


def test_sentences_of_a_row_cite_their_places_in_the_documents(samples):
    data, clusters = samples
    documents = {cluster["id"]: cluster["documents"] for cluster in clusters}
    for row in data.read("train"):
        sentences = as_sentences(row)
        for number, text in enumerate(sentences["text"]):
            document = documents[row["id"]][sentences["document"][number]]
            whole = document if isinstance(document, str) else document["text"]
            found = whole[sentences["char_start"][number] : sentences["char_end"][number]]
            assert found.split() == text.split()


def test_the_papers_baselines_are_evaluated_by_name_and_not_served(data):
    cut = evaluate("lexrank-paper", data.path, split="valid")
    assert list(cut.systems) == ["lexrank-paper"]
    assert cut.systems["lexrank-paper"]["length_ratio"] == pytest.approx(100)
    shorter = evaluate("lead-paper", data.path, split="valid", decode={"words": 7})
    assert set(shorter.scores["words"]) == {7}
    with pytest.raises(UserError, match="leave out sentences, or evaluate lead"):
        evaluate("lead-paper", data.path, split="valid", decode={"sentences": 2})
    with pytest.raises(UserError, match="lead-paper is a system, not a folder.*accept lead"):
        load("lead-paper")


def test_swap_puts_another_clusters_paragraphs_behind_the_own_title(data, rows):
    row, other = rows[0], rows[1]
    vocabulary, mixed = load_tokenizer(data.vocabulary_path), swap(row, other)

    def paragraphs(of: dict) -> list[list[int]]:
        return [part.tolist() for part in np.split(of["ids"], of["paragraph_offsets"][1:-1])]

    first, *rest = paragraphs(mixed)
    title, body = first[: first.index(TITLE_END)], first[first.index(TITLE_END) :]
    other_first, *other_rest = paragraphs(other)
    assert vocabulary.decode(title) == row["title"] != other["title"]
    assert body == other_first[other_first.index(TITLE_END) :] and rest == other_rest
    assert mixed["text"] == other["text"] and mixed["summary"] == row["summary"] and mixed["extra"] == row["extra"]
    starts = mixed["sentence_offsets"]
    assert starts[-1] == mixed["paragraph_offsets"][-1] == len(mixed["ids"]) and (np.diff(starts) > 0).all()
    again = swap(row, row)
    assert all((again[key] == row[key]).all() for key in ("ids", "paragraph_offsets", "sentence_offsets"))


def test_the_reference_scores_everything_and_another_summary_no_fact(rows):
    references = [row["summary"] for row in rows]
    own, strange = figures_of(rows, references), figures_of(rows, [*references[1:], references[0]])
    assert own["rouge1"] == own["rouge2"] == own["facts_f1"] == 100
    assert own["facts_right"] == own["facts_total"] > 0 == own["facts_wrong"]
    assert strange["facts_right"] == 0 < strange["facts_wrong"] and strange["rouge2"] < 50


def test_rows_without_facts_are_scored_by_what_else_they_have(rows):
    for extra in ("", '{"other": 1}'):
        for mixed in ([rows[0] | {"extra": extra}, *rows[1:3]], [*rows[1:3], rows[0] | {"extra": extra}]):
            figures = figures_of(mixed, [row["summary"] for row in mixed])
            facts = sum(len(json.loads(row["extra"])["facts"]) for row in rows[1:3])
            assert figures["facts_f1"] == figures["rouge2"] == 100 and figures["facts_total"] == facts
    assert "facts_f1" not in figures_of([row | {"extra": ""} for row in rows[:2]], ["x", "x"])


def test_intervals_are_made_where_they_are_asked_for(rows):
    scores = score(rows, [said(row["summary"]) for row in (*rows[1:], rows[0])])
    every, some = means(scores), means(scores, {"rouge2"})
    bounds = {name for name in every if name.endswith(("_low", "_high"))}
    assert some == {name: value for name, value in every.items() if name not in bounds or "rouge2" in name}


def test_citations_are_scored_against_the_paragraphs_that_state_the_facts(rows):
    row = rows[0]
    true = sorted({tuple(place) for fact in json.loads(row["extra"])["facts"] for place in fact["paragraphs"]})
    others = sorted({*zip(row["document"].tolist(), row["paragraph"].tolist(), strict=True)} - set(true))

    def figures(places: list[tuple[int, int]]) -> dict[str, float]:
        cited = tuple(Citation(document=d, paragraph=p, weight=1 / len(places)) for d, p in places)
        return means(score([row], [said(row["summary"].replace("\n", " "), cited=cited)]))

    right, wrong, everything = figures(true), figures(others), figures([*true, *others])
    assert (right["citation_precision"], right["citation_recall"]) == (100, 100)
    assert (wrong["citation_precision"], wrong["citation_recall"]) == (0, 0)
    assert 0 < everything["citation_precision"] < 100
    assert everything["random_precision"] == everything["citation_precision"] and everything["random_recall"] == 100
    assert right["lexical_precision"] == wrong["lexical_precision"]  # by words, whatever was cited


def test_attention_like_the_references_words_is_most_similar(rows):
    gold = gold_attention(rows[0]["summary"], rows[0]["text"])
    least = (gold == gold.min()).astype(float)
    summaries = [said("x", attention=tuple(attention.tolist())) for attention in (gold, least)]
    alike, different = score([rows[0]] * 2, summaries)["attention_similarity"]
    assert alike == pytest.approx(1) and different < 0.7


def test_facts_and_citations_are_summed_before_they_are_divided():
    scores = pd.DataFrame({"rouge1": [10.0, 30.0], "facts_right": [1, 0], "facts_wrong": [0, 6], "facts_total": [1, 2]})
    figures = means(scores)
    assert figures["rouge1"] == 20 and figures["rouge1_low"] == 10 and figures["rouge1_high"] == 30
    assert figures["facts_f1"] == pytest.approx(100 * 2 * 1 / (1 + 6 + 3))
    assert figures["facts_f1_low"] == 0 and figures["facts_f1_high"] == 100


def test_the_difference_in_facts_is_that_of_a_plain_paired_bootstrap_of_all_facts_together(data):
    result = compared(data, "test", "lexrank", "mmr", "oracle")
    columns = ("facts_right", "facts_wrong", "facts_total")
    counts = {name: part[[*columns]].to_numpy().tolist() for name, part in result.scores.groupby("system")}

    def f1(examples: list[list[int]]) -> float:
        right, wrong, true = map(sum, zip(*examples, strict=True))
        return 100 * 2 * right / (right + wrong + true)

    for other in ("mmr", "oracle"):
        gaps = []
        for drawn in np.random.default_rng(0).integers(12, size=(1000, 12)).tolist():
            ours, theirs = ([counts[name][example] for example in drawn] for name in ("lexrank", other))
            gaps.append(f1(ours) - f1(theirs))
        gap = result.differences[f"lexrank - {other}"]
        assert list(gap) == [name + end for name in ("facts_f1", "rouge2") for end in ("", "_low", "_high", "_p")]
        assert gap["facts_f1"] == pytest.approx(f1(counts["lexrank"]) - f1(counts[other]))
        facts = {name: figures["facts_f1"] for name, figures in result.systems.items()}
        assert gap["facts_f1"] == pytest.approx(facts["lexrank"] - facts[other]) != 0
        assert [gap["facts_f1_low"], gap["facts_f1_high"]] == pytest.approx(np.quantile(gaps, [0.025, 0.975]).tolist())
        assert gap["facts_f1_low"] < gap["facts_f1_high"]


def test_without_facts_there_is_a_difference_in_rouge_alone(data):
    both, none = (
        compared(data, "valid", "lead-paper", "lexrank-paper", scorers=names)
        for names in (["attention", "rouge"], ["attention"])
    )
    assert list(both.differences["lead-paper - lexrank-paper"]) == ["rouge2", "rouge2_low", "rouge2_high", "rouge2_p"]
    assert none.differences == {}


def test_evaluating_a_run_saves_and_returns_the_same(run, data):
    result = evaluate(str(run.path), data.path, split="test", limit=5, swapped=True)
    assert list(result.systems) == ["pht", "swapped", *BASELINES] and result.examples == 5
    assert "rouge-score" in result.protocol and "n 5" in result.protocol
    folder = results_folder(run, data, "test", limit=5)
    assert folder.name == "test-first-5" and not results_folder(run, data, "test").exists()
    assert json.loads((folder / "table.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    lines, rows = outputs(folder), list(data.read("test"))[:5]
    assert [line["reference"] for line in lines] == [row["summary"] for row in rows]
    saved = pd.read_parquet(folder / "scores.parquet")
    again = score(rows, [said(line["pht"]) for line in lines])  # one line a summary: only Lsum needs sentences
    for metric in ("rouge1", "rouge2", "rougeL"):
        assert saved[saved.system == "pht"][metric].tolist() == again[metric].tolist()
        assert result.systems["pht"][metric] == pytest.approx(again[metric].mean())
    rouge2 = {name: figures["rouge2"] for name, figures in result.systems.items()}
    assert result.differences["pht - lead"]["rouge2"] == pytest.approx(rouge2["pht"] - rouge2["lead"])
    citing = {name for name, figures in result.systems.items() if "citation_precision" in figures}
    assert citing == {"pht", *BASELINES}
    assert any(line["swapped"] != line["pht"] for line in lines)


def test_another_precision_is_named_and_has_its_own_folder(run, data):
    result = evaluate(str(run.path), data.path, split="test", limit=3, dtype="int8")
    assert result.how["pht"].endswith(", int8")
    assert (results_folder(run, data, "test", "int8", 3) / "table.json").is_file()
    assert not (results_folder(run, data, "test", limit=3) / "table.json").exists()


def test_the_results_of_two_datasets_stand_side_by_side(run, data, tmp_path):
    shutil.copytree(data.path, tmp_path / data.path.name)
    manifest = json.loads((data.path / MANIFEST).read_text()) | {"fingerprint": "another"}
    del manifest["crc32"]  # of the manifest itself
    (tmp_path / data.path.name / MANIFEST).write_text(json.dumps(manifest))
    other = Dataset.open(tmp_path / data.path.name)
    for each in (data, other):
        evaluate(str(run.path), each.path, split="test", limit=2)
        assert (results_folder(run, each, "test", limit=2) / "table.json").is_file()
    assert results_folder(run, data, "test") != results_folder(run, other, "test")


def test_alignment_is_in_the_name_and_an_extractive_system_stands_alone(run, data, tmp_path):
    both = evaluate(str(run.path), data.path, split="valid", decode={"beta": 0.8}, out=tmp_path / "out")
    usual = int(np.ceil(np.mean([count_words(row["summary"]) for row in data.read("valid")])))
    alone = evaluate("lead", data.path, split="valid", decode={"words": usual})
    assert list(both.systems) == ["pht+align", *BASELINES] and list(alone.systems) == ["lead"]
    assert alone.systems["lead"] == both.systems["lead"] and alone.differences == {}
    assert both.place == str(tmp_path / "out") and alone.place == ""
    assert (tmp_path / "out" / "scores.parquet").is_file() and not results_folder(run, data, "valid").exists()


def test_systems_that_extract_take_their_own_settings(data):
    short = evaluate("mmr", data.path, split="valid", decode={"words": 20})  # sentences have 8 to 12
    assert list(short.systems) == ["mmr"] and 10 < short.systems["mmr"]["words"] <= 20
    for name in ("mmr", "lexrank"):
        assert 80 < evaluate(name, data.path, split="valid").systems[name]["words"] <= 100


def test_the_rows_of_table_2_are_one_model_with_one_term_each(run, data, capsys, tmp_path):
    options = {"split": "test", "limit": 5, "terms": True}
    result = evaluate(str(run.path), data.path, **options, decode={"keep_paragraphs": 3, "structural_coverage": 0.7})
    assert list(result.systems) == ["plain", "strCov", "attAlign", *BASELINES]
    assert "without the row extProb: it needs a learned ranker" in capsys.readouterr().err
    assert result.weights == {"strCov": {"structural_coverage": 0.7}, "attAlign": {"beta": 0.4}}
    folder = results_folder(run, data, "test", "terms", 5)
    saved = json.loads((folder / "table.json").read_text())
    assert saved == json.loads(json.dumps(result.to_dict())) and saved["weights"]["attAlign"] == {"beta": 0.4}
    gap = result.differences["plain - attAlign"]
    assert gap["rouge2"] == pytest.approx(result.systems["plain"]["rouge2"] - result.systems["attAlign"]["rouge2"])
    assert gap["rouge2_low"] <= gap["rouge2"] <= gap["rouge2_high"]
    summarizer, rows = Summarizer.load(run.path), list(data.read("test"))[:5]
    for name, changes in {"plain": {}, "strCov": {"structural_coverage": 0.7}, "attAlign": {"beta": 0.4}}.items():
        summaries = summarizer.summarize_rows(rows, summarizer.choose(changes))
        assert [line[name] for line in outputs(folder)] == [summary.summary for summary in summaries]

    ranker = write_ranker(tmp_path / "ranker", data)
    asked = {"ranker": str(ranker.path), "beta": 0.3}
    ranked = evaluate(str(run.path), data.path, **options, decode=asked, out=tmp_path / "out")
    assert list(ranked.systems) == ["plain", "strCov", "extProb", "attAlign", *BASELINES]
    assert (ranked.weights["extProb"], ranked.weights["attAlign"]) == ({"extractive": 0.3}, {"beta": 0.3})
    assert "without" not in capsys.readouterr().err
    assert ranked.systems["plain"] == result.systems["plain"]


def test_table_shows_each_system_and_the_protocol(data):
    from rich.console import Console

    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    result = evaluate("lexrank", data.path, split="valid", protocol="pht-paper")
    console.print(result.render())
    console.print(compared(data, "valid", "lexrank-paper", "lead-paper").render())
    text = " ".join(console.export_text().split())  # lines are as long as the table is wide
    assert "not saved; --out FOLDER does" in text and "pht-paper" in text and "facts right" in text
    assert f"{result.systems['lexrank']['rouge2']:.2f} ±" in text
    number = r"[+-]\d+\.\d"
    interval = rf"\[{number}, {number}\]"
    assert re.search(rf"lexrank-paper - lead-paper: {number} facts F1 {interval}, {number}\d ROUGE-2 \[", text)


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    """Datasets with another vocabulary, without summaries, and of one example."""
    folder = tmp_path_factory.mktemp("others")
    write_factbook(folder / "vocabulary", {"test": 2}, pieces=350)
    write_factbook(folder / "bare", {"test": 2}, summaries=False)
    write_factbook(folder / "single", {"test": 1})
    return folder


@pytest.mark.parametrize(
    ("target", "folder", "settings", "message"),
    [
        ("run", None, {"split": "dev"}, "no split 'dev'"),
        ("run", None, {}, "several splits"),
        ("run", "vocabulary", {}, "another vocabulary"),
        ("run", "bare", {}, "no example with a reference summary"),
        ("run", "single", {"swapped": True}, "two examples"),
        ("run", "none", {}, "not a dataset|no dataset"),
        ("run", "single", {"decode": {"beta": -1}}, "beta"),
        ("run", "single", {"reference_length": True}, "reference_length is for systems that extract"),
        ("lead", "single", {"protocol": "perl"}, "unknown ROUGE protocol 'perl'"),
        ("lead", "single", {"references": "worst"}, "references"),
        ("lexrank", "single", {"decode": {"beta": 1}}, "unknown key .beta.*words"),
        ("lexrank", "single", {"dtype": "int8"}, "dtype=int8"),
        ("leed", "single", {}, "no run folder leed"),
    ],
)
def test_mistakes_are_named(run, data, others, target, folder, settings, message):
    with pytest.raises(UserError, match=message):
        evaluate(str(run.path) if target == "run" else target, others / folder if folder else data.path, **settings)


def test_a_trials_scorer_and_systems_without_training_load_no_heavy_library(data):
    def loaded(code: str, *names: str) -> str:
        code = f"import sys, raysum; {code}; print([name for name in {names!r} if name in sys.modules])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    trial = "import raysum.tune.decoding, raysum.evaluate.scorers, raysum.evaluate.examples"
    assert loaded(trial, "torch", "ray.tune", "sklearn") == "[]\n"
    lead = f"raysum.evaluate('lead', {str(data.path)!r}, split='valid')"
    assert loaded(lead, "torch", "nltk", "scipy", "sklearn", "matplotlib") == "[]\n"


def test_wording_is_scored_and_shown_in_a_table_of_its_own(rows, data):
    figures = evaluate("lead-paper", data.path, split="test").systems["lead-paper"]
    assert figures["novel1"] == 0 == figures["novel1_low"] and figures["coverage"] == 100 == figures["length_ratio"]
    assert figures["density"] > 5 and figures["repeated"] < 10
    twice = figures_of(rows, [row["summary"] + " " + row["summary"] for row in rows])
    assert twice["length_ratio"] == 200 and twice["repeated"] > 40
    short = evaluate("lead-paper", data.path, split="test", scorers=["wording"], decode={"words": 5})
    words = np.mean([len(row["summary"].split()) for row in rows])
    assert short.systems["lead-paper"]["length_ratio"] == pytest.approx(100 * 5 / words)


def test_one_reference_counts_alike_in_each_way(data):
    best, jackknife = (evaluate("lead", data.path, split="test", references=way) for way in ("best", "jackknife"))
    assert best.systems == jackknife.systems


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data) -> Run:
    """A run of three checkpoints, of which the second and third are the best."""
    run = write_run(tmp_path_factory.mktemp("kept") / "pht", data)
    weights = load_file(run.checkpoint("1").weights)
    for step in (2, 3):
        torch.manual_seed(step)
        run.add_weights(step, {name: value + 0.3 * torch.randn_like(value) for name, value in weights.items()}, {})
    losses = ({"step": step, "valid_loss": loss} for step, loss in ((1, 3.0), (2, 2.0), (3, 2.5)))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in losses))
    return run


def test_scores_are_averaged_over_the_best_checkpoints(trained, data):
    result = evaluate(trained.path, data.path, split="test", limit=5, checkpoints=2)
    assert list(result.systems) == ["pht", "pht@2", "pht@3", *BASELINES]
    alone = [evaluate(trained.path, data.path, split="test", limit=5, checkpoint=step) for step in ("2", "3")]
    for step, one in zip("23", alone, strict=True):
        assert result.systems[f"pht@{step}"] == one.systems["pht"]
    differ = 0
    for name in ("rouge1", "rougeL_precision", "words", "novel1", "repeated"):
        by_step = np.array([one.scores[one.scores.system == "pht"][name] for one in alone])
        differ += by_step[0].tolist() != by_step[1].tolist()
        assert result.scores[result.scores.system == "pht"][name].tolist() == pytest.approx(by_step.mean(0).tolist())
    assert differ > 1 and result.systems["pht"]["words_low"] < result.systems["pht"]["words_high"]
    assert result.how["pht"] == "mean scores of pht@2, pht@3" and "pht - pht@2" in result.differences
    for settings, message in (({"checkpoints": 4}, "3 of 4 checkpoints"), ({"terms": True}, "leave out terms")):
        with pytest.raises(UserError, match=message):
            evaluate(trained.path, data.path, split="test", **{"checkpoints": 2, **settings})


def test_weights_are_averaged_over_the_best_checkpoints(trained):
    loaded = {which: Summarizer.load(trained.path, which) for which in ("2", "3", "average:2", "average:1")}
    second, third, mean, best = (one.model.state_dict() for one in loaded.values())
    assert all(torch.allclose(mean[name], (second[name] + third[name]) / 2, atol=1e-6) for name in second)
    assert all(torch.equal(best[name], second[name]) for name in second)
    assert not torch.equal(second["embedding.weight"], third["embedding.weight"])


CHINESE = "佛罗伦萨位于阿尔诺河畔。大教堂于1436年完工。"
RUSSIAN = "Флоренция стоит на реке Арно."


@pytest.mark.parametrize(
    ("text", "protocol", "message"),
    [
        (CHINESE, "google", "counts only a-z and 0-9"),
        (RUSSIAN, "google", "counts only a-z and 0-9"),
        ("In 1436 it was 完工。", "google", None),
        ("", "google", None),
        (RUSSIAN, "pht-paper", None),
        (CHINESE, "pht-paper", "pht-paper counts words between blanks"),
        (" ".join(CHINESE), "pht-paper", None),
    ],
)
def test_references_of_another_script_are_not_counted_and_that_is_told(text, protocol, message):
    found = unread([text], protocol)
    assert found is None if message is None else message in found


def test_evaluate_says_once_that_rouge_counts_nothing_of_such_references(tmp_path, capsys):
    texts = [f"第{number}座桥建成。它很美。河水很深。" for number in range(4)]
    lines = [json.dumps({"documents": [text], "summary": text[:7]}) + "\n" for text in texts]
    (tmp_path / "zh.jsonl").write_text("".join(lines))
    data = prepare([tmp_path / "zh.jsonl"], tmp_path / "zh", kind="extraction", vocab_size=60).dataset
    capsys.readouterr()
    table = evaluate("lead", data.path, split="train")
    told = [line for line in capsys.readouterr().err.splitlines() if "ROUGE by google counts" in line]
    assert len(told) == 1 and "--protocol pht-paper" in told[0]
    assert table.systems["lead"]["rouge2"] == 0
