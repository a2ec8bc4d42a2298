"""Kinds of bad input, through the command line: each is one message that names the thing, soon, and nothing is lost.

More of them: rows in test_hostile_rows.py, formats in test_formats.py, documents in test_documents.py, datasets in
test_damage.py, disks in test_full_disk.py, kills in test_prepare_kills.py.
"""

import errno
import gzip
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raysum.cli.app import main
from raysum.tokenizers.sentence_piece import Vocabulary

pytestmark = pytest.mark.timeout(60)
TEXT = "The Elbe has {} bridges and rises in valley 3 near the old town."
ROWS = [
    {"id": f"r{i}", "title": "Elbe", "documents": [TEXT.format(i)], "summary": "It has bridges."} for i in range(20)
]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
LIST = json.dumps(ROWS).encode()
LATIN = json.dumps([*ROWS, ROWS[0] | {"title": "Straße"}], ensure_ascii=False).encode("latin-1")
CELLS = b"documents,summary\n" + b"The Elbe has bridges,It has.\n" * 20
PAIR = b"The Elbe has bridges ||||| and more of it\n"
IDS = b'[{"src": [[9, 4000]], "tgt": [1, 9, 2]}]'
MAIL = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (i, i) for i in range(2000))
PREPARE = "prepare raw --out data --vocab {vocabulary}"
TRAIN = "train pht data=set out=run train.workers=0 train.steps=1"
Make = Callable[[Path], object]


def file(name: str, content: bytes) -> Make:
    return lambda folder: (folder / name).write_bytes(content)


def table(name: str, rows: pa.Table, harm: Make = lambda path: None) -> Make:
    def make(folder: Path) -> None:
        pq.write_table(rows, folder / name, compression="none", use_dictionary=False)
        harm(folder / name)

    return make


def arrow(folder: Path) -> None:
    rows = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    cut(900)(folder / "a.arrow")


def saved(value: object) -> Make:
    return lambda folder: torch.save(value, folder / "a.pt")


def zipped(name: str) -> Make:
    def make(folder: Path) -> None:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("rows", LINES)

    return make


def cut(size: int) -> Make:
    return lambda path: os.truncate(path, size)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[300:900] = b"\xff" * 600
    path.write_bytes(content)


def both(*makes: Make) -> Make:
    return lambda folder: [make(folder) for make in makes]


def link(name: str, to: str) -> Make:
    return lambda folder: (folder / name).symlink_to(to)


def pipe(name: str) -> Make:
    return lambda folder: os.mkfifo(folder / name)


def cluster(make: Make) -> Make:
    """Of two clusters of documents one is so."""

    def made(folder: Path) -> None:
        for name in ("good", "bad"):
            (folder / name).mkdir()
            (folder / name / "a.txt").write_text(TEXT)
        make(folder / "bad")

    return made


ROW_TABLE = pa.Table.from_pylist(ROWS)
SOURCES: dict[str, tuple[Make, str]] = {  # what lies in the folder `raw`, and what is said of it
    "JSON lines with the line ends of old": (file("a.jsonl", LINES.replace(b"\n", b"\r")), "1 not JSON (first: raw/a"),
    "a JSON list that is cut": (file("a.json", LIST[:-40]), "raw/a.json is not a JSON list (Unterminated string"),
    "a JSON list under another name": (
        file("a.jsonl", json.dumps(ROWS, indent=1).encode()),
        "name a file with a list of clusters .json",
    ),
    "a number as JSON": (file("a.json", b"5"), "1 not an object with title and documents (first: raw/a.json:1"),
    "a list of numbers inside of an object": (file("a.json", b'{"data": [1, 2]}'), "found data; name them with --map"),
    "CSV as JSON lines": (file("a.jsonl", CELLS), "not JSON (first: raw/a.jsonl:1"),
    "gzip without its suffix": (file("a.jsonl", gzip.compress(LINES)), "but gzipped; let its name end in .gz"),
    "a zip archive as JSON lines": (zipped("a.jsonl"), "raw/a.jsonl is not text, but a ZIP archive"),
    "a zip archive as a saved list": (zipped("a.pt"), "is not a readable list saved by torch: it is cut, damaged or"),
    "Parquet as JSON lines": (table("a.jsonl", ROW_TABLE), "but Parquet; let its name end in .parquet"),
    "JSON lines as CSV": (file("a.csv", LINES), "raw/a.csv has no column `documents`"),
    "rows of an unknown split": (
        file("a.jsonl", LINES.replace(b'"id"', b'"split": "trian", "id"')),
        "20 split is none of train, valid, test (first: raw/a.jsonl:1, 'trian')",
    ),
    "a header alone": (file("a.csv", CELLS[:18]), "raw/a.csv is empty: it holds no cluster"),
    "a gzip file with more behind": (file("a.jsonl.gz", gzip.compress(LINES) + b"more"), "a.jsonl.gz cannot be read"),
    "Parquet with damaged pages": (table("a.parquet", ROW_TABLE, flipped), "a.parquet is not valid Parquet"),
    "Parquet of numbers": (
        table("a.parquet", pa.table({"documents": [1, 2]})),
        "2 documents is not a list (first: raw",
    ),
    "Parquet without rows": (table("a.parquet", ROW_TABLE.slice(0, 0)), "a.parquet is empty: it holds no cluster"),
    "Arrow that is cut": (arrow, "a.arrow cannot be read to its end"),
    "PRIMERA of wrong types": (saved([{"text": 5, "tgt": "a"}]), "1 paragraphs is not a list (first: raw/a.pt:1"),
    "a .src of empty lines": (both(file("a.src", b"\n" * 9), file("a.tgt", PAIR * 9)), "9 no documents (first: raw/a"),
    "e-mail that is nested deep": (cluster(file("a.eml", MAIL)), "raw/bad/a.eml cannot be read as e-mail"),
    "a document that is gone": (cluster(link("b.txt", "gone.txt")), "bad/b.txt is not a regular file"),
    "a pipe among documents": (cluster(pipe("b.txt")), "bad/b.txt is not a regular file"),
    "a link to itself": (
        both(file("a.jsonl", LINES), link("b.jsonl", "b.jsonl")),
        "no such file or folder: raw/b.jsonl",
    ),
    "a link to nothing": (both(file("a.jsonl", LINES), link("b.jsonl", "gone")), "no such file or folder: raw/b.jsonl"),
    "a pipe": (both(file("a.jsonl", LINES), pipe("b.jsonl")), "raw/b.jsonl is neither a file nor a folder"),
    "a device": (link("a.jsonl", "/dev/zero"), "raw: skipped links out of the folder: a.jsonl"),
    "one bad file of two": (both(file("a.jsonl", LINES), file("b.parquet", b"PAR1")), "b.parquet is not valid"),
    "one empty file of two": (both(file("a.jsonl", LINES), file("b.jsonl", b"")), "raw/b.jsonl is empty"),
}
VERBS: dict[str, tuple[str, str]] = {  # commands beside good clusters in `raw`, and what is said
    "ids without their vocabulary": (
        "prepare ids.json --out data",
        "ids.json holds ids, which need their own vocabulary",
    ),
    "a vocabulary that is cut": ("prepare raw --out data --vocab cut.model", "cut.model is not a SentencePiece model"),
    "a folder without a tokenizer": (
        "prepare raw --out data --vocab raw",
        "raw/tokenizer.json: No such file or direct",
    ),
    "a file in the way of the folder": (
        "prepare raw --out cut.model/data --vocab {vocabulary}",
        "cut.model/data: File",
    ),
    "a place that takes nothing": (
        "prepare raw --out /proc/data --vocab {vocabulary}",
        "cannot write /proc/data: No such",
    ),
    "a dataset as raw clusters": ("prepare good --out data", "good is a dataset made by `raysum prepare`; give"),
    "a shard as raw clusters": ("prepare good/train-00000.parquet --out data", "is a shard of a dataset"),
    "raw clusters as a dataset": (TRAIN.replace("set", "raw"), "raw is not a dataset: it has no manifest.json"),
    "a dataset of another kind": (TRAIN.replace("set", "labelled"), "labelled is a dataset of kind 'extraction'"),
}
DATASETS: dict[str, tuple[Make, str]] = {
    "a pipe as a shard": (
        lambda path: ((path / "train-00000.parquet").unlink(), os.mkfifo(path / "train-00000.parquet")),
        "set is incomplete: it lacks train-00000.parquet",
    ),
    "what a killed prepare left": (lambda path: path.rename(path.with_name(".set.unfinished")), "no dataset set; make"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Clusters in ``raw``, and datasets of them: ``good`` and ``labelled``."""
    from raysum.prepare.job import prepare

    place = tmp_path_factory.mktemp("faults")
    (place / "raw").mkdir()
    (place / "raw" / "a.jsonl").write_bytes(LINES)
    Vocabulary.train([row["documents"][0] for row in ROWS] * 3, 75, place / "good.model")
    prepare(place / "raw", place / "good", vocab=str(place / "good.model"))
    prepare(place / "raw", place / "labelled", vocab=str(place / "good.model"), kind="extraction")
    (place / "cut.model").write_bytes((place / "good.model").read_bytes()[:300])
    (place / "ids.json").write_bytes(IDS)
    return place


@pytest.fixture
def ask(place, tmp_path, monkeypatch, capsys) -> Callable[[str], tuple[int, str, str]]:
    """A command in ``tmp_path``: its exit code, its messages, and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(command: str) -> tuple[int, str, str]:
        arguments = command.format(vocabulary=place / "good.model").split()
        monkeypatch.setattr(sys, "argv", ["raysum", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        return int(end.value.code or 0), told.err, told.out

    return run


def held(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(ask: Callable[[str], tuple[int, str, str]], command: str, words: str) -> None:
    """One message with the ``words``, and nothing is changed or left but a file of rejected rows."""
    before = held(Path())
    code, told, _ = ask(command)
    assert code == 2 and told.count("raysum: ") == 1 and "Traceback" not in told, told
    assert words in told, told
    left = held(Path())
    left.pop("data.rejected.jsonl", None)
    assert left == before


@pytest.mark.parametrize("kind", SOURCES)
def test_bad_sources_are_refused(ask, tmp_path, kind):
    make, words = SOURCES[kind]
    (tmp_path / "raw").mkdir()
    make(tmp_path / "raw")
    refused(ask, PREPARE, words)


@pytest.mark.parametrize("kind", VERBS)
def test_bad_commands_are_refused(ask, place, tmp_path, kind):
    command, words = VERBS[kind]
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    refused(ask, command, words)


@pytest.mark.parametrize("command", [TRAIN, "data check set", "data show set"])
@pytest.mark.parametrize("kind", DATASETS)
def test_bad_datasets_are_refused(ask, place, tmp_path, kind, command):
    harm, words = DATASETS[kind]
    shutil.copytree(place / "good", tmp_path / "set")
    harm(tmp_path / "set")
    refused(ask, command, words)


FEW = "not as many fields as the header"
ONCE_MORE = LINES + LINES[: LINES.index(b"\n") + 1]
COUNTED: dict[str, tuple[Make, dict[str, int], str]] = {  # also: rows that are rejected, and what is said
    "JSON lines in UTF-16": (file("a.jsonl", LINES.decode().encode("utf-16")), {}, ""),
    "a JSON list in Latin-1": (file("a.json", LATIN), {}, ""),
    "a story in Latin-1": (file("a.story", "Straße\n\n@highlight\n\nx".encode("latin-1")), {}, ""),
    "one row in Latin-1": (file("a.jsonl", LINES + b'{"documents": ["Die Stra\xdfe."]}'), {}, ""),
    "mixed line ends and a mark": (file("a.jsonl", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n", 3)), {}, ""),
    "a quote that never ends": (file("a.csv", CELLS + b'"The Elbe,x\nThe Elbe,x\n'), {}, ""),
    "a row of too few cells": (file("a.tsv", CELLS.replace(b",", b"\t") + b"Elbe\n"), {FEW: 1}, ""),
    "ids that come twice": (file("a.jsonl", ONCE_MORE), {}, "1 of 21 clusters have the id of another, such as 'r0'"),
    "a list beside lines": (
        both(file("a.jsonl", LINES), file("b.json", LIST)),
        {},
        "raw: skipped b.json beside other files of rows",
    ),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_what_can_be_read_is_and_the_others_are_counted(ask, tmp_path, kind):
    make, rejected, words = COUNTED[kind]
    (tmp_path / "raw").mkdir()
    make(tmp_path / "raw")
    code, told, printed = ask(f"{PREPARE} --json")
    found = json.loads(printed.splitlines()[-1])
    assert code == 0 and found["rejected"] == rejected, (told, found)
    assert found["rows"] + sum(rejected.values()) == found["rows_in"] and words in told


def test_a_vocabulary_of_rows_of_an_unknown_split_names_the_split(ask, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES.replace(b'"id"', b'"split": "trian", "id"'))
    refused(ask, "prepare a.jsonl --out data", "split is none of train, valid, test ('trian')")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS, errno.ESTALE])
def test_faults_of_disks_and_permissions_are_one_message(ask, tmp_path, monkeypatch, code):
    """They may come at any place, so that the command line reports them."""

    def fail(self, *arguments, **options):
        raise OSError(code, os.strerror(code), str(self))

    (tmp_path / "a.jsonl").write_bytes(LINES)
    monkeypatch.setattr("raysum.sources.find.find_sources", fail)
    monkeypatch.setattr("raysum.prepare.job.find_sources", fail)
    refused(ask, "prepare a.jsonl --out data", f"{os.strerror(code)}; check its permissions and its disk")


def test_the_same_file_named_twice_is_said(ask, place, tmp_path):
    shutil.copytree(place / "raw", tmp_path / "raw")
    code, told, _ = ask(f"{PREPARE} raw/a.jsonl")
    assert code == 0 and "20 of 40 clusters have the id of another" in told
