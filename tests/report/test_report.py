"""The page of runs, searches and evaluations: what stands in it is what stands in their folders; slow: in a browser."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raysum
from helpers.browsing import BROWSER, Page, look, look_everywhere
from helpers.factbook_data import write_factbook, write_run
from helpers.searches import HOSTILE, write_search, write_tune_results
from raysum.cli.app import main
from raysum.data.dataset import Dataset
from raysum.decode.summary import Citation, Sentence
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate, results_folder
from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.report.examples import _heat, _sources
from raysum.report.gather import NotedSummary, gather
from raysum.report.training import curves
from raysum.runs.folder import Run
from raysum.runtime.storage import append_line
from raysum.tune.spaces import load_space


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"valid": 4, "test": 6})


@pytest.fixture(scope="module")
def run(tmp_path_factory, data) -> Run:
    """A run with metrics and an evaluation."""
    run = write_run(tmp_path_factory.mktemp("runs") / "pht", data, predictor=True)
    settings = run.config.model_copy(update={"data": str(data.path)})
    state = run.checkpoints()[-1].state
    run.create(settings, run.recipe, data.vocabulary_path)
    for step in range(1, 9):
        more = {"lr": 0.001 * step, "tokens_per_s": 900.0 + step, "seconds": 60.0 * step, "grad_norm": 1 / step}
        append_line(run.metrics, {"step": step, "loss": 8.0 / step, **more})
    append_line(run.metrics, {"step": 1, "valid_loss": 2.3456})
    append_line(run.metrics, {"step": 8, "valid_loss": 1.2345})
    assert state["data"] == data.fingerprint
    evaluate(run.path, data.path, split="test", swapped=True)
    return run


@pytest.fixture(scope="module")
def search(tmp_path_factory, run, data) -> Path:
    """The folder of a search of beta as Ray Tune leaves it; one trial of it failed."""
    folder = tmp_path_factory.mktemp("searches") / "beta"
    space = load_space("beta", [f"data={data.path}", f"run={run.path}"])
    samples = [*space.samples()]
    for number, sample in enumerate(samples):
        first = {"rouge2": 1.0, "examples": 1, "time_total_s": 0.5}
        last = {"rouge2": 20.0 - number, "rouge2_low": 18.0 - number, "rouge2_high": 23.0 - number, "words": 7.0}
        error = "ValueError: it broke" if number == len(samples) - 1 else ""
        last |= {"examples": 4, "time_total_s": 1.5}
        write_tune_results(folder, f"trial-{number}", sample, first, last, error=error)
    write_search(folder, **space.config.model_dump(mode="json"))
    (folder / "best.json").write_text(json.dumps({"run": str(run.path)}))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory, run, search) -> Page:
    file = tmp_path_factory.mktemp("pages") / "report.html"
    made = raysum.report([run.path, search], out=file)
    assert made.to_dict() | {"report": ""} == {
        "report": "",
        "runs": ["pht"],
        "searches": ["beta (rates)"],
        "evaluations": [f"pht / data-{Dataset.open(run.config.data).fingerprint[:8]} / test"],
    }
    return Page(file)


def line(page: Page, section: str, name: str) -> list[str]:
    """The cells of the one row ``name`` of a section's tables."""
    (found,) = (cells[1:] for cells in page.cells[section] if cells and cells[0] == name)
    return found


def test_every_section_is_there_and_no_plot_is_empty(page):
    sections = [own["id"] for tag, own in page.tags if tag == "section"]
    wanted = ["curves", "runs", "evaluation", "lengths", "search", "examples", "config", "environment"]
    assert sections == wanted
    assert [own["href"] for tag, own in page.tags if tag == "a"] == [f"#{name}" for name in wanted]
    assert len(page.marks) >= 12 and min(page.marks) > 0


def test_nothing_comes_from_elsewhere(page):
    for _, own in page.tags:
        for name in ("href", "src", "srcset", "action", "data", "xlink:href"):
            assert own.get(name, "#").startswith(("#", "data:,"))
    text = (Path(raysum.__file__).parent / "pages" / "templates" / "page.css").read_text()
    assert "url(" not in text and "@import" not in text


def test_figures_are_those_of_the_folders(page, run, search, data):
    table = json.loads((results_folder(run, data, "test") / "table.json").read_text())
    assert [cells for cells in page.cells["evaluation"] if cells[0] == ""] == [["", *table["systems"]]]
    for name in ("rouge1", "rouge2", "facts_f1", "support", "words"):
        figure = FIGURES[name]
        wanted = [cell(figures, name, figure) for figures in table["systems"].values()]
        assert line(page, "evaluation", figure.label) == wanted and any(wanted)
    assert line(page, "runs", "its validation loss") == ["2.3456"]  # of the one checkpoint, that of step 1
    assert line(page, "runs", "steps") == ["8"] and line(page, "runs", "encoder") == ["L"]
    trials = [cells for cells in page.cells["search"] if cells[0].startswith("beta=")]
    assert [cells[1] for cells in trials[:2]] == ["20.00 ±2.50", "19.00 ±2.50"] and trials[0][-1] == "1.5 s"
    assert trials[-1] == ["beta=1,alignment_when=step", "ValueError: it broke"]
    assert len(trials) == len(load_space("beta").points)


def test_a_trial_that_was_tried_again_counts_once(tmp_path, search):
    copy = Path(shutil.copytree(search, tmp_path / "beta"))
    (failed,) = (file.parent for file in copy.glob("tune/*/error.txt"))
    before = gather([copy]).searches[0].trials
    again = Path(shutil.copytree(failed, failed.with_name("again")))
    (again / "error.txt").unlink()
    append_line(again / "result.json", json.loads((again / "result.json").read_text().splitlines()[-1]))
    after = gather([copy]).searches[0].trials
    assert before[-1].error == "ValueError: it broke" and len(after) == len(before)
    assert not any(trial.error for trial in after)


def test_mixes_stand_by_quality_over_parameters_and_time(tmp_path):
    for number, (encoder, loss) in enumerate({"LLL": 3.0, "LLG": 2.5, "GG": 4.0}.items()):
        result = {"valid_loss": loss, "step": 50, "parameters": 1000 + number, "train_seconds": 60.0 + number}
        config = {"model.encoder": encoder, "model.decoder": "PPP"}
        write_tune_results(tmp_path, encoder, config, result | {"time_total_s": 70.0})
    write_search(tmp_path, **load_space("layer_mix").config.model_dump(mode="json"))
    raysum.report(tmp_path, out=tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert [cells[:4] for cells in page.cells["search"]] == [
        ["trial", "valid loss", "step", "parameters"],
        ["encoder=LLG,decoder=PPP", "2.5000", "50", "1,001"],
        ["encoder=LLL,decoder=PPP", "3.0000", "50", "1,000"],
        ["encoder=GG,decoder=PPP", "4.0000", "50", "1,002"],
    ]
    # A dot a trial and the best so far; validations, over parameters, over time, by quality; lines, dots of the best.
    assert page.marks == [4, 3, 3, 3, 3, 6]
    assert "The search has not ended" in page.texts["search"]
    for title in ("valid loss by parameters", "valid loss by seconds of training", "Trials by valid loss"):
        assert title in page.texts["search"]


def test_training_is_drawn_point_by_point(tmp_path, run):
    found = gather([run.path]).runs[0]
    assert found.validations == {1: 2.3456, 8: 1.2345}
    assert found.lines["loss"].dropna().tolist() == [8.0 / step for step in range(1, 9)]
    raysum.report(run.path, out=tmp_path / "page.html")
    assert "pht, step 8: 1.234" in (tmp_path / "page.html").read_text()


def test_a_validation_between_two_lines_of_metrics_has_a_time(tmp_path, run):
    copied = Run(shutil.copytree(run.path, tmp_path / "pht"))
    lines = [{"step": step, "loss": 1.0, "seconds": 60.0 * step} for step in (2, 4)]
    copied.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in [*lines, {"step": 3, "valid_loss": 2.0}]))
    html = curves(gather([copied.path]).runs)
    assert html.count("<title>pht, step 3: 2</title>") == 2  # over steps and over time


def test_pieces_of_a_split_paragraph_are_in_the_order_of_the_document_and_share_its_attention():
    row = {
        key: np.array(values)
        for key, values in {"document": [0, 0], "paragraph": [0, 0], "char_start": [20, 0]}.items()
    }
    row |= {"text": ["The second piece.", "The first piece."], "source": ["a"]}
    (pieces,) = _sources([], row).values()
    assert [text for _, text in pieces] == ["The first piece.", "The second piece."]
    note = Citation(document=0, paragraph=0, weight=1.0)
    summary = NotedSummary(sentences=[Sentence(text="A.", citations=[note])], attention=[0.25, 0.5])
    assert 'style="--share:0.75' in _heat(summary, row)


def test_examples_are_the_best_the_middle_and_the_worst_with_their_sources(page, run, data):
    folder = results_folder(run, data, "test")
    scores = pd.read_parquet(folder / "scores.parquet").query("system == 'pht'").set_index("id")["rouge2"]
    chosen = gather([run.path]).evaluations[0].examples
    values = [scores[example.output.id] for example in chosen]
    assert values[0] == scores.max() and values[-1] == scores.min() and values == sorted(values, reverse=True)
    rows = {row["id"]: row for row in data.read("test")}
    for example in chosen:
        for text in rows[example.output.id]["text"]:
            assert " ".join(text.split()) in " ".join(re.sub(r"\[\d+\]", "", page.texts["examples"]).split())
    assert "all attention" in page.texts["examples"]
    notes = {name for tag, own in page.tags if tag == "mark" for name in own["class"].split()}
    cited = {
        name for tag, own in page.tags if own.get("class", "").startswith("s ") for name in own["class"].split()[1:]
    }
    assert notes and notes <= cited


@pytest.mark.parametrize("left", ["nothing", "a damaged file"])
def test_without_the_dataset_what_is_cited_is_quoted(tmp_path, run, data, left, capsys):
    copy, moved = Run(shutil.copytree(run.path, tmp_path / "pht")), tmp_path / "data"
    if left != "nothing":
        shutil.copytree(data.path, moved)
        (moved / data.files("test")[0].relative_to(data.path)).write_bytes(b"PAR1")
    copy.create(copy.config.model_copy(update={"data": str(moved)}), copy.recipe, data.vocabulary_path)
    raysum.report(copy.path, out=tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert "Cited" in page.texts["examples"] and "all attention" not in page.texts["examples"]
    assert [tag for tag, _ in page.tags].count("mark") > 0
    assert ("The report quotes" in capsys.readouterr().err) == (left != "nothing")


def test_text_from_data_is_escaped(tmp_path, run, data):
    copy = shutil.copytree(run.path, tmp_path / "<b>x")
    folder = results_folder(Run(copy), data, "test")
    outputs = [json.loads(text) for text in (folder / "outputs.jsonl").read_text().splitlines()]
    for output in outputs:
        output["id"] = output["reference"] = output["pht"] = HOSTILE
        for sentence in output["notes"]["pht"]["sentences"]:
            sentence["text"] = HOSTILE
            sentence["unsupported"] = [{"start": 0, "end": 8, "text": "<script>"}]
            for citation in sentence["citations"]:
                citation["quote"] = citation["source"] = HOSTILE
        output["notes"]["pht"]["warnings"] = [HOSTILE]
    (folder / "outputs.jsonl").write_text("".join(json.dumps(output) + "\n" for output in outputs))
    table = json.loads((folder / "table.json").read_text())
    table["systems"][HOSTILE] = table["systems"]["pht"]
    table["how"] = {HOSTILE: HOSTILE}
    table["differences"][HOSTILE] = next(iter(table["differences"].values()))
    (folder / "table.json").write_text(json.dumps(table | {"protocol": HOSTILE}))
    (folder / "scores.parquet").unlink()  # without it the first examples are shown
    raysum.report(copy, out=tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert [tag for tag, own in page.tags if tag == "script" or "onclick" in own] == ["script"]
    assert page.texts["examples"].count(HOSTILE) > 6 and HOSTILE in page.texts["evaluation"]


def test_what_is_missing_is_told_with_the_command_that_makes_it(tmp_path, data):
    bare = write_run(tmp_path / "bare", data)
    raysum.report(bare.path, out=tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert "raysum evaluate" in page.texts["evaluation"] and "raysum tune beta" in page.texts["search"]
    assert "raysum train" in page.texts["curves"] and not page.marks
    assert not page.texts.keys() & {"lengths", "examples"}


def test_runs_of_one_name_are_told_apart(tmp_path, run):
    content = gather([shutil.copytree(run.path, tmp_path / name / "pht") for name in ("first", "second")])
    names = ["first/pht", "second/pht"]
    assert names == [one.name for one in content.runs] == [one.name.split(" / ")[0] for one in content.evaluations]


def test_runs_and_an_evaluation_alone_stand_side_by_side(tmp_path, run, data):
    other = Path(shutil.copytree(run.path, tmp_path / "other"))
    shutil.rmtree(other / "evaluation")
    own = results_folder(run, data, "test")
    alone = Path(shutil.copytree(own, tmp_path / "elsewhere" / "test"))
    raysum.report([run.path, other, alone], out=tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert ["", "pht", "other"] in page.cells["runs"]
    assert ["where they differ", "pht", "other"] not in page.cells.get("config", [])  # their configs are the same
    beside = next(cells for cells in page.cells["evaluation"] if len(cells) == 3)
    assert beside[1].endswith("test: pht") and beside[2] == "elsewhere / test: pht"
    assert "No evaluation of other" in page.texts["evaluation"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("metrics.jsonl", "nonsense\n", "line 1 is not a JSON object"),
        ("metrics.jsonl", '{"step": "last", "loss": 1.0}\n', "damaged at step"),
        ("metrics.jsonl", '{"step": 3, "loss": 1e400}\n', "line 1: the number 1e400 is too large"),
        (
            "metrics.jsonl",
            '{"step": ' + "9" * 400 + ', "loss": 1.0}\n',
            "line 1: the number 99999999999999999999 is too large",
        ),
        ("metrics.jsonl", '{"step": ' + "9" * 40 + ', "loss": 1.0}\n', "damaged at step"),
        ("metrics.jsonl", '{"step": 3, "loss": 1e308}\n', "damaged at loss"),
        ("metrics.jsonl", '{"step": 3, "seconds": Infinity}\n', "damaged at seconds"),
        ("metrics.jsonl", '{"step": 3, "loss": [1]}\n', "damaged at loss"),
        ("table.json", '{"systems":', "does not read as JSON"),
        ("table.json", "[]", "is damaged at its beginning"),
        ("table.json", '{"systems": {"pht": {"rouge2": "high"}}, "examples": 1}', "damaged at systems.pht.rouge2"),
        (
            "outputs.jsonl",
            '{"id": "a", "reference": "b", "notes": {"pht": {"sentences": 3}}}\n',
            "damaged at notes.pht",
        ),
        ("scores.parquet", "PAR1", "cannot be read"),
        ("config.yaml", "train: [", "config.yaml"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, run, data, name, text, told):
    copy = Path(shutil.copytree(run.path, tmp_path / "run"))
    inside = results_folder(Run(copy), data, "test") / name
    file = inside if inside.exists() else copy / name
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(told)) as error:
        raysum.report(copy, out=tmp_path / "page.html")
    assert name in str(error.value) and not (tmp_path / "page.html").exists()


def test_an_evaluation_without_its_outputs_is_told(tmp_path, run, capsys):
    copy = Run(shutil.copytree(run.path, tmp_path / "pht"))
    (outputs,) = copy.evaluation.rglob("outputs.jsonl")
    outputs.write_text("")
    raysum.report(copy.path, tmp_path / "report.html")
    assert f"{outputs} is empty: no summaries are shown; evaluate once more" in capsys.readouterr().err


def test_only_a_page_is_written_over(tmp_path, run):
    copy = Path(shutil.copytree(run.path, tmp_path / "run"))
    before = (copy / "config.yaml").read_text()
    with pytest.raises(UserError, match="config.yaml is not an HTML page .* choose another --out"):
        raysum.report(copy, out=copy / "config.yaml")
    assert (copy / "config.yaml").read_text() == before
    for _ in range(2):
        raysum.report(copy, out=tmp_path / "page.html")


@pytest.mark.parametrize("text", ["space: 3", "space: {kind: decode}", "space: {about: x, kind: decode, search: 1}"])
def test_a_damaged_search_is_named(tmp_path, text):
    (tmp_path / "search.yaml").write_text(text)
    with pytest.raises(UserError, match=r"search\.yaml|space|search"):
        raysum.report(tmp_path, out=tmp_path / "page.html")


@pytest.mark.parametrize(
    ("path", "out", "message"),
    [
        (".", "page.html", "has no run, search or evaluation"),
        ("none", "page.html", "does not exist"),
        ("run", "none/page.html", "cannot write"),
        ("run", ".", "cannot write"),
    ],
)
def test_wrong_folders_and_files_end_with_code_2(tmp_path, run, monkeypatch, capsys, path, out, message):
    (tmp_path / "run").symlink_to(run.path)
    monkeypatch.setattr(sys, "argv", ["raysum", "report", str(tmp_path / path), "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium-headless-shell (a Debian package)")
def test_a_browser_shows_the_page_without_errors_or_requests(tmp_path, run, search):
    raysum.report([run.path, search], out=tmp_path / "page.html")
    file, text = tmp_path / "watched.html", (tmp_path / "page.html").read_text()
    found = look_everywhere(file, text)
    assert found["sizes"] and found["lit"] > 0
    file.write_text(file.read_text().replace("</body>", '<img src="http://127.0.0.1:9/x"><script>x()</script></body>'))
    _, requests, said = look(file, 1200, 1)  # what is wrong would be seen
    assert "ReferenceError" in said and {*requests} == {"http://127.0.0.1:9/x"}
