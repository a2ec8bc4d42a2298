"""Human evaluation: blinded sheets, the page, and judges whose true preference is found again."""

import csv
import json
import random
import re
import shutil
import subprocess
from collections import Counter
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raysum.errors import UserError
from raysum.research.human.analysis import human_analyze
from raysum.research.human.designs import DESIGNS, tasks_of
from raysum.research.human.outputs import read_texts
from raysum.research.human.sheets import human_sheets

SYSTEMS = ["zeta", "omega", "kappa", "sigma"]  # in the order of their worth, the best first
CLUES = {"zeta": "red", "omega": "green", "kappa": "blue", "sigma": "brown"}  # words by which a judge knows worth
WORTH = {clue: 4.0 - place for place, clue in enumerate(CLUES.values())}


@pytest.fixture
def outputs(tmp_path) -> Path:
    return written(tmp_path / "evaluation", SYSTEMS)


def written(folder: Path, systems: list[str], count: int = 24) -> Path:
    """An evaluation folder: summaries whose colour alone tells how good they are."""
    folder.mkdir()
    with (folder / "outputs.jsonl").open("w", encoding="utf-8") as file:
        for n in range(count):
            texts = {name: f"House {n}\nis {CLUES[name]}." for name in systems}
            line = {"id": f"test-{n:03}", "reference": f"The house {n} is white, née </script>.", "notes": {}, **texts}
            file.write(json.dumps(line) + "\n")
    return folder


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines))


def write(file: Path, rows: list[dict[str, str]], delimiter: str = ",") -> None:
    with file.open("w", encoding="utf-8-sig", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def key_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "key.json").read_text())


def answered(design: str, row: dict[str, str], noise: random.Random, spread: float) -> dict[str, str]:
    """What a judge says who sees the row alone."""
    shown = {name: WORTH[row[name].split()[-1].strip(".")] for name in row if re.fullmatch("[A-D]|summary", name)}
    found = {name: worth + noise.gauss(0, spread) for name, worth in shown.items()}
    ranked = sorted(found, key=found.__getitem__, reverse=True)
    if design == "best-worst":
        return {"best": ranked[0], "worst": ranked[-1]}
    if design == "pairwise":
        return {"preferred": ranked[0]}
    if design == "ranking":
        return {f"rank_{name}": str(place) for place, name in enumerate(ranked, 1)}
    if design == "questions":
        return {"answer": "White." if found["summary"] > 2.5 else "-"}
    five = str(min(max(round(found["summary"] + 0.5), 1), 5))
    return dict.fromkeys(("informativeness", "fluency", "conciseness"), five) | {"consistency": str(int(five) // 2)}


def judge(folder: Path, design: str, spread: float = 1.0, share: float = 1.0) -> None:
    """Fill in all sheets."""
    for file in sorted((folder / "sheets").glob("*.csv")):
        noise, rows = random.Random(file.name), rows_of(file)
        for row in rows[: round(share * len(rows))]:
            row.update(answered(design, row, noise, spread))
        write(file, rows)


def made(outputs: Path, design: str, name: str = "study", **settings) -> Path:
    out = outputs.parent / name
    if design == "questions":
        file = outputs.parent / "questions.csv"
        write(file, [{"id": f"test-{n:03}", "question": f"Colour of house {n}?", "answer": "white"} for n in range(24)])
        settings["questions"] = str(file)
    human_sheets(outputs, design=design, out=str(out), **{"items": 20, **settings})
    return out


def sheet_of(folder: Path) -> tuple[Path, list[dict[str, str]]]:
    """The first judge's sheet and its rows."""
    file = folder / "sheets" / "judge-1.csv"
    return file, rows_of(file)


@pytest.mark.parametrize("design", DESIGNS)
def test_sheets_do_not_tell_whose_a_summary_is(outputs, design):
    folder = made(outputs, design)
    files = sorted((folder / "sheets").iterdir())
    assert [file.name for file in files][:3] == ["instructions.txt", "judge-1.csv", "judge-1.html"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not [name for name in [*SYSTEMS, "evaluation", "test-0"] if name in text], file
    for row in sheet_of(folder)[1]:
        assert "reference" in row or design == "questions"
        assert all("\n" not in cell for cell in row.values())
    assert "zeta" in (folder / "key.json").read_text()


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("judges", [1, 3, 5])
def test_each_system_is_as_often_at_each_place_for_every_judge(design, judges):
    items = [f"item {n}" for n in range(20)]
    sheets = tasks_of(DESIGNS[design], items, SYSTEMS, judges, dict.fromkeys(items, 2), 7)
    assert len(sheets) == judges and len({json.dumps([task.item for task in sheet]) for sheet in sheets}) == judges
    for sheet in sheets:
        places = Counter((place, one) for task in sheet for place, one in enumerate(task.systems))
        assert len(places) == len(sheet[0].systems) * len(SYSTEMS)
        assert len(set(places.values())) == 1, places
        if design == "rating":  # one after another: each system as often first, second, ... of its item
            turns = Counter((number % 4, task.systems[0]) for number, task in enumerate(sheet))
            assert set(turns.values()) == {5}
        if design == "questions":  # a judge never reads two summaries of an item
            assert len({(task.item, task.systems) for task in sheet}) == 20
    if design not in ("questions", "pairwise"):  # judges see the same systems of an item: they can agree
        shown = [sorted((task.item, *sorted(task.systems)) for task in sheet) for sheet in sheets]
        assert all(one == other for one, other in pairwise(shown))


def test_places_are_balanced_over_judges_where_items_do_not_divide():
    sheets = tasks_of(DESIGNS["ranking"], ["a", "b", "c", "d", "e"], SYSTEMS, 4, {}, 1)
    places = Counter((place, one) for sheet in sheets for task in sheet for place, one in enumerate(task.systems))
    assert set(places.values()) == {5}


def test_the_seed_alone_decides(outputs):
    files = {}
    for name, seed in {"one": 5, "again": 5, "other": 6}.items():
        folder = made(outputs, "best-worst", name, seed=seed)
        files[name] = {file.name: file.read_bytes() for file in [*(folder / "sheets").iterdir(), folder / "key.json"]}
    assert files["one"] == files["again"]
    assert files["one"]["judge-1.csv"] != files["other"]["judge-1.csv"]


@pytest.mark.parametrize("design", DESIGNS)
def test_the_true_preference_of_judges_is_found_again(outputs, design):
    folder = made(outputs, design, judges=5, items=24)
    judge(folder, design)
    found = human_analyze(folder)
    assert list(found.to_pandas().index) == SYSTEMS  # the best first
    assert found.answered == found.asked and found.waiting == 0
    far = [one for one in found.tests if {one["first"], one["second"]} == {"zeta", "sigma"}]
    assert far and all(one["significant"] for one in far), far
    assert all(one["p"] < found.level for one in found.anova.values())
    assert all(0.1 < alpha < 0.9 for alpha in found.agreement.values()), found.agreement
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["share"] == 100.0


@pytest.mark.parametrize("design", DESIGNS)
def test_judges_who_prefer_nothing_find_nothing(outputs, design):
    folder = made(outputs, design, judges=8 if design == "questions" else 4)  # of 4 systems: two judges read the same
    judge(folder, design, spread=1000)
    found = human_analyze(folder)
    assert not [one for one in found.tests if one["significant"]]
    assert all(abs(alpha) < 0.25 for alpha in found.agreement.values()), found.agreement


@pytest.mark.parametrize("design", DESIGNS)
def test_judges_who_agree_wholly(outputs, design):
    folder = made(outputs, design, judges=5)
    judge(folder, design, spread=0)
    found = human_analyze(folder)
    assert set(found.agreement.values()) == {1.0}
    json.dumps(found.to_dict(), allow_nan=False)
    assert "NaN" not in str(found.render().caption)


def test_best_worst_by_hand(outputs):
    folder = made(outputs, "best-worst", items=4, judges=1, systems=SYSTEMS[:3])
    judge(folder, "best-worst", spread=0)
    file, rows = sheet_of(folder)
    rows[0]["best"], rows[0]["worst"] = rows[0]["worst"].lower(), f" {rows[0]['best']} "  # the other way about
    write(file, rows, delimiter=";")
    found = human_analyze(folder)
    assert found.scores["zeta"] == {"rating": 50.0, "best": 75.0, "worst": 25.0, "n": 4}
    assert found.scores["omega"] == {"rating": 0.0, "best": 0.0, "worst": 0.0, "n": 4}
    # Values 100, 100, 100, -100 against 0 four times and their opposites: between 2 * 4 * 50**2 / 2, within 60,000 / 9.
    assert found.anova["rating"]["F"] == pytest.approx(10000 / (60000 / 9))
    assert found.agreement == {"rating": None}  # of one judge


def test_ranks_by_hand_with_ties_and_gaps(outputs):
    folder = made(outputs, "ranking", items=2, judges=1, systems=SYSTEMS[:3])
    file, rows = sheet_of(folder)
    given = [{"red": "1", "green": "1.0", "blue": "3"}, {"red": "2", "green": "3", "blue": "1"}]
    for row, ranks in zip(rows, given, strict=True):
        row.update({f"rank_{name}": ranks[row[name].split()[-1].strip(".")] for name in "ABC"})
    write(file, rows)
    scores = human_analyze(folder).scores
    assert scores["zeta"] == {"rank": 1.5, "rank_1": 50.0, "rank_2": 50.0, "rank_3": 0.0, "n": 2}
    assert scores["omega"]["rank"] == 2.0 and scores["kappa"]["rank"] == 1.5  # 1, 1, 3 reads as 1, 1, 2


def test_preferences_by_hand(outputs):
    folder = made(outputs, "pairwise", items=10, judges=1, systems=SYSTEMS[:2])
    judge(folder, "pairwise", spread=0)
    file, rows = sheet_of(folder)
    rows[3] |= {"preferred": "AB".strip(rows[3]["preferred"]), "comment": "shorter"}
    write(file, rows)
    found = human_analyze(folder)
    (said,) = found.comments
    assert said["comment"] == "shorter" and said["systems"][rows[3]["preferred"]] == "omega"
    (test,) = found.tests
    assert (test["first"], test["second"], test["share"], test["n"]) == ("omega", "zeta", 10.0, 10)
    assert test["p"] == pytest.approx(2 * (1 + 10) / 2**10)


def test_marks_are_asked_for_and_counted(outputs):
    folder = made(outputs, "questions", items=8, judges=1)
    file, rows = sheet_of(folder)
    for row, answer in zip(rows, ["white", "WHITE!", "-", "whitish", "Whitish ", "-", "black", "white"], strict=True):
        row["answer"] = answer
    write(file, rows)
    found = human_analyze(folder)
    assert found.waiting == 3 and found.answered == 8 and not found.tests
    assert all(one == {"n": 0} for one in found.scores.values())  # of what is marked by itself most is right
    assert "scores wait for the marks (1, 0.5 or 0) of 3 answers in marks.csv" in str(found.render().caption)
    marks = rows_of(folder / "marks.csv")
    assert {(row["expected"], row["answer"], row["mark"]) for row in marks} >= {("white", "whitish", "")}
    assert not any(name in (folder / "marks.csv").read_text() for name in SYSTEMS)
    for row in marks:
        row["mark"] = "0,5" if "hitish" in row["answer"] else "0"
    write(folder / "marks.csv", marks)
    found = human_analyze(folder)
    expected = Counter()
    for task, score in zip(key_of(folder)["judges"]["judge-1"], [100, 100, 0, 50, 50, 0, 0, 100], strict=True):
        expected[task["systems"][0]] += score / 2
    assert {name: one["score"] for name, one in found.scores.items()} == expected
    assert found.waiting == 0
    rows[3]["answer"] = "-"
    rows[4]["answer"] = "pinkish"
    write(file, rows)
    assert human_analyze(folder).waiting == 1
    kept = {row["answer"].casefold(): row["mark"] for row in rows_of(folder / "marks.csv")}
    assert kept == {"whitish": "0.5", "black": "0", "pinkish": ""}  # a mark that no answer needs today is not lost
    marks[0]["mark"] = "2"
    write(folder / "marks.csv", marks)
    with pytest.raises(UserError, match=r"marks.csv, line 2: mark is '2'; it must be 1, 0.5, 0"):
        human_analyze(folder)


def test_questions_of_the_factbook_are_read_from_references(tmp_path):
    text = "The river Surrol rises at Tunsel and was mapped by Gen Menzan."
    (tmp_path / "outputs.jsonl").write_text(json.dumps({"id": "a", "reference": text, "x": "1", "y": "2"}))
    human_sheets(tmp_path, design="questions", items=1, judges=2, out=str(tmp_path / "study"))
    asked = [["Surrol: which spring?", "Tunsel"], ["Surrol: which surveyor?", "Gen Menzan"]]
    assert key_of(tmp_path / "study")["questions"] == {"a": asked}


def test_what_is_there_of_half_filled_sheets_counts(outputs):
    folder = made(outputs, "best-worst")
    judge(folder, "best-worst", share=0.5)
    file, rows = sheet_of(folder)
    rows[0]["worst"] = ""  # half of an answer
    write(file, rows)
    found = human_analyze(folder)
    assert found.judges == {"judge-1": (9, 20), "judge-2": (10, 20), "judge-3": (10, 20)}
    assert sum(one["n"] for one in found.scores.values()) == 3 * 29
    assert "judge-1 9 of 20" in str(found.render().caption) and found.to_dict()["share"] == 48.3


def test_a_filled_copy_beside_the_blank_sheet_counts_once(outputs):
    folder = made(outputs, "pairwise", items=6)
    filled = folder / "sheets" / "judge-1.csv"
    blank = filled.read_bytes()
    judge(folder, "pairwise", spread=0)
    shutil.copy(filled, folder / "sheets" / "judge-1-filled.csv")
    filled.write_bytes(blank)
    assert human_analyze(folder).answered == 3 * 36
    judge(folder, "pairwise", spread=50)
    with pytest.raises(UserError, match=r"judge-1.csv, line \d+ answers task \d+ in another way than .*-filled.csv"):
        human_analyze(folder)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"best": "E"}, "best is 'E'; it must be A, B, C, or empty"),
        ({"best": "A", "worst": "A"}, "best and worst are the same summary"),
        ({"study": "0123456789"}, "is of study 0123456789, and .*key.json of"),
        ({"judge": "Ann"}, "'Ann' has no task"),
        ({"task": "999"}, "'judge-1' has no task '999'"),
        ({"task": "²"}, "'judge-1' has no task '²'"),
        ({"task": "9" * 5000}, "'judge-1' has no task '999"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(outputs, cells, message):
    folder = made(outputs, "best-worst")
    judge(folder, "best-worst")
    file, rows = sheet_of(folder)
    rows[1] |= cells
    write(file, rows)
    with pytest.raises(UserError, match=f"judge-1.csv, line 3.*{message}"):
        human_analyze(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: column 'study' is missing"),
        (b"study,judge,task,best\n", "line 1: column 'worst' is missing; there must be study, judge, task, best"),
        ("study,judge,task,best,worst\n,,,ä,".encode("latin-1"), "is not UTF-8 text"),
        ("study,judge\n".encode("utf-16"), "is not UTF-8 text .*iconv -f UTF-16"),
        (b"study,judge,task,best,worst\n1,2\n", "line 2 has 2 cells, not 5"),
        (b'study,judge,task,best,worst\n"1,2\n', "line 2 is no CSV"),
    ],
)
def test_a_broken_sheet_is_one_message(outputs, content, message):
    folder = made(outputs, "best-worst")
    (folder / "sheets" / "judge-1.csv").write_bytes(content)
    with pytest.raises(UserError, match=f"judge-1.csv.*{message}"):
        human_analyze(folder)


def test_summaries_that_are_cut_as_in_the_papers_are_judged_only_if_they_are_named(tmp_path):
    texts = {"pht": "It is red.", "lead": "It is blue.", "lead-paper": "House It is"}
    (tmp_path / "outputs.jsonl").write_text(json.dumps({"id": "a", "reference": "It is red.", "notes": {}, **texts}))
    assert read_texts([tmp_path])[1] == ["lead", "pht"]
    assert read_texts([tmp_path], ["pht", "lead-paper"])[1] == ["lead-paper", "pht"]


@pytest.mark.parametrize("systems", [3, ["lead"]])
def test_a_key_that_was_changed_is_told(outputs, systems):
    folder = made(outputs, "rating")
    (folder / "key.json").write_text(json.dumps(key_of(folder) | {"systems": systems}))
    with pytest.raises(UserError, match="key.json was changed since it was written; put back a copy"):
        human_analyze(folder)


def test_what_is_no_study_is_one_message(outputs, tmp_path):
    with pytest.raises(UserError, match="has no key.json; give the folder that raysum human sheets wrote"):
        human_analyze(tmp_path)
    folder = made(outputs, "rating")
    with pytest.raises(UserError, match="no sheet in .* has an answer yet"):
        human_analyze(folder)
    with pytest.raises(UserError, match="study exists already"):
        made(outputs, "rating")
    for file in (folder / "sheets").glob("*.csv"):
        file.unlink()
    with pytest.raises(UserError, match="has no sheet; put the judges' CSV files there"):
        human_analyze(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"items": 25}, "there are 24 examples to draw from, not 25; give --items 24"),
        ({"systems": ["zeta", "etaz"]}, "no system 'etaz' in these outputs; there are .*reference.* zeta"),
        ({"systems": ["etaz"]}, "no system 'etaz' in these outputs; there are .*reference.* zeta"),
        ({"systems": ["zeta"]}, "judges compare two systems at least, and here is zeta"),
        ({"design": "best"}, "design"),
        ({"questions": "q.csv"}, "--questions is of the design `questions`"),
        ({"design": "questions"}, "no scorer asks questions .* give --questions"),
    ],
)
def test_studies_that_cannot_be_made(outputs, settings, message):
    with pytest.raises(UserError, match=message):
        human_sheets(outputs, **{"design": "best-worst", "out": str(outputs.parent / "no"), **settings})
    assert not (outputs.parent / "no").exists()


def test_systems_of_several_evaluations_are_judged_together(tmp_path):
    one, other = written(tmp_path / "1", SYSTEMS[:2]), written(tmp_path / "2", SYSTEMS[1:], 20)
    human_sheets([one, other], design="ranking", out=str(tmp_path / "study"), systems=[*SYSTEMS, "reference"])
    assert set(key_of(tmp_path / "study")["systems"]) == {*SYSTEMS, "reference"}
    row = sheet_of(tmp_path / "study")[1][0]
    assert "reference" not in row and "E" in row  # it stands among the others
    text = (other / "outputs.jsonl").read_text()
    for changed, name in ((text.replace("green", "grey"), "omega"), (text.replace("white", "pink"), "reference")):
        (other / "outputs.jsonl").write_text(changed)
        with pytest.raises(UserError, match=f"the text of '{name}' for test-000 is another one"):
            human_sheets([one, other], design="ranking", out=str(tmp_path / "b"))
    with pytest.raises(UserError, match="has no outputs.jsonl; give one that raysum evaluate wrote"):
        human_sheets(tmp_path, design="ranking", out=str(tmp_path / "b"))


def test_texts_are_no_formulas_for_spreadsheets(outputs):
    text = (outputs / "outputs.jsonl").read_text().replace("House", "=HYPERLINK(1)")
    (outputs / "outputs.jsonl").write_text(text)
    assert not re.search('(^|[,"])=HYPER', (made(outputs, "rating") / "sheets" / "judge-1.csv").read_text())


BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
CLICKS = """<script>
addEventListener("load", async () => {
  if (!localStorage.getItem(store)) {
    document.querySelector("input[name='1-best'][value=B]").click();
    document.querySelector("input[name='1-worst'][value=B]").click();
    window.name = document.querySelector("#task-1 .wrong").textContent;
    document.querySelector("input[name='1-worst'][value=C]").click();
    const line = document.querySelector("input[name='1-comment']");
    line.value = '=short, "dry"\\n'; line.dispatchEvent(new Event("input"));
    return location.reload();
  }
  let blob; URL.createObjectURL = given => { blob = given; return "#"; };
  document.getElementById("save").click();
  document.getElementById("next").click();
  const checked = [...document.querySelectorAll("input:checked")].map(input => input.name + input.value);
  const bytes = [...new Uint8Array(await blob.arrayBuffer())];
  const result = {checked, bytes, told: window.name, focus: document.activeElement.name,
    count: document.getElementById("count").textContent, done: document.querySelectorAll(".done").length,
    text: document.querySelector("#task-1 .reference p").textContent};
  document.body.append(make("pre", {id: "result", textContent: JSON.stringify(result)}));
});
</script></html>"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium-headless-shell or chromium is installed")
def test_the_page_keeps_what_was_clicked_and_saves_a_sheet(outputs, tmp_path):
    folder = made(outputs, "best-worst", judges=1)
    sheet = folder / "sheets" / "judge-1.html"
    html = sheet.read_text(encoding="utf-8")
    assert "<title>judge-1</title>" in html and "{{" not in html
    assert not re.search(r"(src|href)=|https?:|url\(|fetch\(|import ", html)
    clicked = tmp_path / "clicked.html"
    clicked.write_text(html.replace("</html>", CLICKS), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(BROWSER), *flags, "--virtual-time-budget=8000", "--dump-dom", clicked.as_uri()]
    dom = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.decode()
    result = json.loads(unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert result["told"] == "Best and worst are the same summary: change one."
    assert result["checked"] == ["1-bestB", "1-worstC"] and result["focus"] == "2-best"
    assert (result["count"], result["done"]) == ("1 of 20 answered", 1)
    assert result["text"].endswith("is white, née </script>.")
    (folder / "sheets" / "judge-1-filled.csv").write_bytes(bytes(result["bytes"]))
    (row, *_) = rows_of(folder / "sheets" / "judge-1-filled.csv")
    assert row["comment"] == ' =short, "dry"'
    assert human_analyze(folder).judges == {"judge-1": (1, 20)}
    key = key_of(folder)["judges"]["judge-1"][0]["systems"]
    assert [name for name, one in human_analyze(folder).scores.items() if one["n"] and one["best"]] == [key[1]]


def test_the_command_line_makes_and_analyzes_a_study(outputs, capsys, monkeypatch):
    from raysum.cli.app import main

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["raysum", "human", *arguments])
        with pytest.raises(SystemExit, match=str(code)):
            main()
        return capsys.readouterr()[code > 0]

    out = str(outputs.parent / "study")
    options = ["--design", "ranking", "items=8", "--judges", "2", "--out", out, "--json"]
    assert json.loads(run("sheets", str(outputs), *options))["tasks"] == 8
    judge(Path(out), "ranking", spread=0)
    shown = run("analyze", out)
    assert "16 of 16 answers (100 %)" in shown and "rank: kappa - omega: +1.00, p < 0.0001 *" in shown
    assert "has no key.json" in run("analyze", str(outputs), code=2)
