"""`raysum prepare --dry-run`: its report, its commands, and the same report on sources that cannot be read."""

import json
import shlex
import sqlite3
import sys
import tarfile
import zipfile
from contextlib import closing

import pytest

from raysum.__main__ import main
from raysum.prepare.config import PrepareConfig
from raysum.prepare.inspection import inspect
from raysum.sources.suggested_map import suggested_map

FLOOD = "The river rose over the town in the night, and the bridge was closed for a week. "
ARTICLES = [{"title": "Flood", "text": FLOOD * 3}, {"title": "Bridge", "text": FLOOD}]


def rows(count: int, **fields) -> str:
    return "".join(json.dumps({"id": str(number), **fields}) + "\n" for number in range(count))


@pytest.fixture
def repository(tmp_path):
    """A clone with rows in a folder, metadata, a program, a README and a licence."""
    folder = tmp_path / "repo"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text(rows(90, articles=ARTICLES, summary="A flood."))
    (folder / "data" / "dev.jsonl").write_text(rows(4, articles=ARTICLES, summary="A flood closed it."))
    for name in ("README.md", "LICENSE", "data/README.txt"):
        (folder / name).write_text(FLOOD)
    (folder / "run.py").write_text("print()")
    (folder / "package.json").write_text('{"name": "a"}')
    return folder


def zipped(folder):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder.parent))
    return path


def tarred(folder):
    path = folder.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def dry_run(path, **settings):
    return inspect([str(path)], PrepareConfig(out="data", **settings)).to_dict()


def run(monkeypatch, arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["raysum", *shlex.split(arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


@pytest.mark.parametrize("packed", [lambda folder: folder, zipped, tarred])
def test_a_repository_and_its_archives(repository, packed, monkeypatch, tmp_path):
    path = packed(repository)
    found = dry_run(path)
    assert found["files"] == {"jsonl": 2, "json": 1, "other (.py)": 1, "never data": 3}
    assert found["encodings"] == {"UTF-8": 4} and "holds its files of rows in" in found["problem"]
    assert found["commands"] == [f"raysum prepare {path}/data --out data"]
    assert found["splits"] == {"valid": 4, "train": 90}
    assert {*found["documents"]} == {2} and {*found["words"]} == {18, 52} and {*found["summary"]} == {2, 4}
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, found["commands"][0].removeprefix("raysum ") + " --vocab-size 60") == 0


ROWS = {
    "reviews.jsonl": rows(9, reviews=[{"stars": 3, "body": FLOOD}] * 3, abstract="A flood.", subject="River"),
    "columns.csv": "rev1,rev2,gold_summary\n" + f'"{FLOOD}","{FLOOD}",A flood.\n' * 9,
    "lists.tsv": "text\thighlights\n" + f'{FLOOD}\t["A flood.", "Closed."]\n' * 9,
    "unknown.dat": rows(9, body=FLOOD, tldr="A flood."),
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("reviews.jsonl", "--map 'documents=reviews[].body' --map summary=abstract --map title=subject"),
        ("columns.csv", "--map 'documents=rev*' --map summary=gold_summary"),
        ("lists.tsv", "--map documents=text --map summaries=highlights"),
        ("unknown.dat", "--map documents=body --map summary=tldr"),
    ],
)
def test_columns_of_other_names_are_mapped(tmp_path, monkeypatch, name, options):
    (tmp_path / name).write_text(ROWS[name])
    monkeypatch.chdir(tmp_path)
    found = dry_run(name)
    assert found["commands"] == [f"raysum prepare {name} {options} --out data --valid 0.05 --test 0.05"]
    assert run(monkeypatch, found["commands"][0].removeprefix("raysum ") + " --vocab-size 60") == 0


def test_the_tables_of_a_database(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("create table news (body text, abstract text)")
        database.execute("create table people (name text)")
        database.executemany("insert into news values (?, ?)", [(FLOOD, "A flood.")] * 9)
        database.execute("insert into people values ('Ann')")
        database.commit()
    mapping = "--map documents=body --map summary=abstract --format sqlite:news"
    command = f"raysum prepare {tmp_path}/a.db {mapping} --out data --valid 0.05 --test 0.05"
    assert dry_run(tmp_path / "a.db")["commands"] == [command]


def test_rows_without_text_give_no_mapping(tmp_path):
    (tmp_path / "board.json").write_text(json.dumps([{"panels": [{"type": "graph", "id": 1}] * 26}]))
    assert dry_run(tmp_path / "board.json")["commands"] == []
    assert suggested_map([{"a": 1, "b": "x"}]) == suggested_map([]) == []


def test_folders_that_can_be_read_in_several_ways(tmp_path):
    for number in range(4):
        for folder, text in (("old", FLOOD * 2), ("new", "A flood."), ("deep/x", FLOOD)):
            (tmp_path / "pairs" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "pairs" / folder / f"n{number}.txt").write_text(text)
        (tmp_path / "plain" / f"c{number}").mkdir(parents=True)
        (tmp_path / "plain" / f"c{number}" / "a.0400").write_text(FLOOD)
    pairs = tmp_path / "pairs"
    held_out = "--out data --valid 0.05 --test 0.05"
    assert dry_run(pairs)["commands"] == [
        f"raysum summarize lexrank {pairs}",
        f"raysum prepare {pairs}/old --summaries {pairs}/new {held_out}",
    ]
    assert dry_run(tmp_path / "plain")["commands"] == [f"raysum summarize lexrank {tmp_path}/plain --format text"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("c.jsonl", "3 sampled clusters: not JSON (first: c0.jsonl:1, Unterminated"),
        ("c.json", "3 sampled clusters: not JSON (first: c0.json:1, Unterminated"),
        ("c.csv", "has no column"),
    ],
)
def test_broken_files_of_rows_are_no_prose(name, problem, tmp_path):
    for number in range(3):
        row = f'{{"document": "The river rose {number} metres in March.", "summary": "It rose'
        path = tmp_path / name.replace(".", f"{number}.")
        path.write_text("Rivers rise,slowly\nin March,they say\n" if path.suffix == ".csv" else f"{row}\n")
    found = dry_run(tmp_path)
    assert found["commands"] == [] and problem in found["problem"]


def test_prose_with_unknown_suffixes_beside_a_summary_is_offered(tmp_path):
    for number in range(3):
        (tmp_path / f"c{number}").mkdir()
        for name, text in (("a.xyz", FLOOD * 2), ("b.xyz", FLOOD), ("summary.txt", "A flood.")):
            (tmp_path / f"c{number}" / name).write_text(text)
    (command,) = dry_run(tmp_path)["commands"]
    assert command.startswith(f"raysum prepare {tmp_path} --format text --out data")


def test_files_beside_folders_of_documents(tmp_path):
    for number in range(3):
        (tmp_path / f"c{number}").mkdir()
        (tmp_path / f"c{number}" / "a.txt").write_text(FLOOD)
        (tmp_path / f"rows{number}.jsonl").write_text(rows(5, documents=[FLOOD], summary="A flood."))
    found = dry_run(tmp_path)
    assert "holds both files" in found["problem"]
    assert found["commands"][0].startswith(f"raysum prepare {tmp_path}/*.jsonl --out data")


def test_tables_beside_tables_of_metadata(tmp_path):
    for split in ("train", "test"):
        notes = "".join(f'{number},"{FLOOD * 3}",A flood closed the bridge of the town.\n' for number in range(4))
        (tmp_path / f"{split}.csv").write_text(f"encounter,talk,note\n{notes}")
        (tmp_path / f"{split}_metadata.csv").write_text("encounter,age\n1,52\n2,71\n")
    files = f"{tmp_path}/test.csv {tmp_path}/train.csv"
    assert dry_run(tmp_path)["commands"] == [
        f"raysum prepare {files} --map documents=talk --map summary=note --out data"
    ]


def test_rows_of_other_names_in_an_archive(tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "set" / f"{name}.jsonl").write_text(ROWS["unknown.dat"])
    path = zipped(tmp_path / "set")
    assert dry_run(path)["commands"] == [f"raysum prepare {path} --map documents=body --map summary=tldr --out data"]


def test_encodings_and_other_kinds(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.txt").write_bytes(("Straße und Übergänge über den Fluß. " * 9).encode("cp1252"))
    (tmp_path / "c" / "b.txt").write_bytes(FLOOD.encode("utf-16"))
    (tmp_path / "c" / "photo.x").write_bytes(b"\xff\xd8\xff" + bytes(200))
    (tmp_path / ".hidden").write_text(FLOOD)
    found = dry_run(tmp_path)
    assert found["files"] == {"text": 2, "an image": 1}
    assert found["encodings"] == {"cp1252": 1, "UTF-16": 1}


def test_the_report_is_printed_for_a_dry_run_and_for_unreadable_sources(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(ROWS["reviews.jsonl"])
    assert run(monkeypatch, "prepare rows.jsonl --dry-run") == 0
    shown = capsys.readouterr().out
    assert run(monkeypatch, "prepare rows.jsonl --out data") == 2
    printed = capsys.readouterr().err
    assert "columns: id (1 word), reviews (51 words), abstract (2 words), subject (1 word)" in shown
    assert "clusters: about 9 (no split 9), by jsonl" in shown and shown.splitlines()[0] in printed
    assert shown.splitlines()[-1] in printed and not (tmp_path / "data").exists()
    (tmp_path / "notes.log").write_text(f"It rained, and {FLOOD}\n" * 9)
    assert run(monkeypatch, "prepare notes.log --dry-run") == 2
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    assert run(monkeypatch, "prepare photo.png --dry-run") == 2
    assert run(monkeypatch, "prepare nothing --dry-run") == 2
    assert run(monkeypatch, "prepare rows.jsonl") == 2
    ended = capsys.readouterr()
    assert "1 an image: photo.png" in ended.out and "run OCR on it first" in ended.err
    assert "no such file or folder: nothing" in ended.err and "--out is missing" in ended.err


@pytest.mark.parametrize("ids", [5, "five", [1, 2], [["a"]], [[1.5]], {"a": 1}, None, [None]])
def test_ranked_rows_whose_ids_are_no_lists_are_rejected(tmp_path, ids):
    (tmp_path / "rows.jsonl").write_text(rows(5, paragraph_ids=ids, target_ids=[1, 2]))
    assert "ids are no lists of whole numbers" in dry_run(tmp_path / "rows.jsonl")["problem"]


def test_an_out_that_links_to_nothing_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(rows(5, documents=[FLOOD], summary="A flood."))
    (tmp_path / "data").symlink_to("nowhere")
    assert run(monkeypatch, "prepare rows.jsonl --out data --vocab-size 60") == 2
    told = capsys.readouterr().err
    assert "data exists already; remove it" in told and told.count("\n") == 1 and (tmp_path / "data").is_symlink()


def test_an_occupied_out_is_one_message_without_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(ROWS["reviews.jsonl"])  # not readable as it is
    (tmp_path / "data").write_text("mine")
    assert run(monkeypatch, "prepare rows.jsonl --out data") == 2
    told = capsys.readouterr().err
    assert told.startswith("raysum: ") and "data exists already; remove it" in told and told.count("\n") == 1
    assert (tmp_path / "data").read_text() == "mine"


def test_an_empty_folder_and_rows_with_nul_are_named_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, "prepare empty --out data") == 2
    assert capsys.readouterr().err.count("empty holds neither") == 1
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "a.txt").touch()
    assert run(monkeypatch, "prepare blank --out data --dry-run") == 2
    assert "no cluster with words can be read" in capsys.readouterr().err
    (tmp_path / "rows.csv").write_bytes(b"id,documents,summary\n1,a\0b,sum\n")
    assert run(monkeypatch, "prepare rows.csv --out data") == 2
    assert "rows.csv:2: NUL characters" in capsys.readouterr().err


def test_a_problem_of_the_settings_gives_no_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(rows(5, documents=[FLOOD], summary="A flood."))
    assert run(monkeypatch, "prepare rows.jsonl --out data --vocab nowhere.model") == 2
    assert "clusters:" not in capsys.readouterr().err


def test_a_headline_is_a_summary_only_without_a_better_column():
    texts = {"report1": FLOOD * 2, "report2": FLOOD * 2, "headline": "A flood in Lyon"}
    note = "The river left its bed and many people lost their houses."
    assert {"title=headline", "summary=note"} < {*suggested_map([texts | {"note": note}])}
    assert {"title=headline", "summary=tldr"} < {*suggested_map([texts | {"tldr": "Flood."}])}
    assert "summary=headline" in suggested_map([texts])


def test_rows_of_a_small_file_are_counted(tmp_path):
    rows = [f'"{FLOOD * (1 + number % 7)}","A flood."' for number in range(173)]
    (tmp_path / "a.csv").write_text("\n".join(["documents,summary", *rows]))
    assert sum(dry_run(tmp_path / "a.csv")["splits"].values()) == 173
