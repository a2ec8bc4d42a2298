"""Rows that no reader, pickle or shard can take: each is set aside with its reason, and the others are prepared."""

import csv
import gzip
import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers.lisbon import read_records
from raysum.data.dataset import REJECTED
from raysum.data.recipe import Recipe
from raysum.errors import UserError
from raysum.prepare import paragraphs, row_builder
from raysum.prepare.job import prepare
from raysum.prepare.row_builder import RowBuilder
from raysum.sources import folders, jsonl, record, tables
from raysum.sources.pairing import read_pairs
from raysum.sources.published import read_torch_list
from raysum.sources.tensor2tensor import read_wikis
from raysum.text.cleaning import pieces
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary

GOOD = {
    "id": "a",
    "title": "Elbe",
    "documents": ["The Elbe has 5 bridges and rises in valley 3."],
    "summary": "Bridges.",
}
TOO_DEEP, TWICE, TOO_LONG = "nested too deep", "an object has the same key twice", "longer than 64 MiB"
NO_DOCUMENT = "a document is neither a text nor an object with source and text"
NO_UNICODE, NO_SPLIT = "a text is not valid Unicode", "split is none of train, valid, test"
NO_JSON = "a kept field cannot be written as JSON"


def line(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


def with_text(field: str, text: str) -> str:
    return f'{json.dumps({name: value for name, value in GOOD.items() if name != field})[:-1]}, "{field}": {text}}}'


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


LINES = {  # a row as it stands in the file, and why it is rejected; None: it is not
    **{with_text(field, deep(n)): TOO_DEEP for field in (*GOOD, "split", "facts") for n in (65, 990, 100_000)},
    with_text("facts", deep(63)): None,
    with_text("facts", "[" * 63 + "1" + "]" * 63): None,
    line(title=5): "title is not a text",
    line(title=float("inf")): "title is not a text",
    line(documents=None): "no documents",
    line(documents=[None]): NO_DOCUMENT,
    line(documents=[["a nested list"]]): NO_DOCUMENT,
    line(documents={"text": "x"}): "documents is not a list",
    line(documents=[{"source": 3, "text": "x"}]): NO_DOCUMENT,
    line(documents=["\ud800"]): NO_UNICODE,
    line(title="\ud800"): NO_UNICODE,
    line(id="\udfff"): NO_UNICODE,
    line(facts="\ud800"): None,  # kept as JSON, which can say it
    line(facts={"\ud800": 1}): None,
    line(split="\ud800"): NO_SPLIT,
    line(split=["train"]): NO_SPLIT,
    line(documents=["The Elbe has\0 5 bridges."], id="\0"): None,
    with_text("facts", "1e400"): None,
    with_text("id", "1e400"): None,
    with_text("id", "9" * 5000): "not JSON",
    '{"title": "a", "title": "b", "documents": ["x y z"]}': TWICE,
    with_text("facts", '[{"a": 1, "a": 2}]'): TWICE,
    line(summary=""): "summary is empty",
    line(summary=" \n"): "summary is empty",
    line(summary=None): None,
    "null": "not an object with title and documents",
    "1e400": "not an object with title and documents",
    '{"title": "x"': "not JSON",
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("vocabulary") / "small.model"
    Vocabulary.train([*GOOD["documents"], "Bridges of 0 1 2 4 6 7 8 9 Elbe valleys"] * 9, 60, path)
    return str(path)


def rejected(source: Path, vocabulary: str, kind: str = "summarization") -> dict[str, str]:
    """Reason by row number of the rejected rows of a prepared source; those that are left were prepared."""
    out = source.parent / "data"
    found = prepare(source, out, vocab=vocabulary, keep=["facts"], max_rejected=1, kind=kind).to_dict()
    lines = [json.loads(line) for line in (out / REJECTED).read_text().splitlines()]
    assert found["rejected"] == Counter(line["reason"] for line in lines)
    return {line["where"].rpartition(":")[2]: line["reason"] for line in lines}


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("summarization", ""), ("summarization", ".gz"), ("extraction", ""), ("pretraining", "")],
)
def test_each_bad_line_is_rejected_and_the_others_are_prepared(tmp_path, vocabulary, kind, suffix):
    content = "\n".join([*LINES, line()]).encode()
    (tmp_path / f"rows.jsonl{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    expected = {str(number): reason for number, reason in enumerate(LINES.values(), 1) if reason}
    if kind == "pretraining":  # needs no summaries
        expected = {number: reason for number, reason in expected.items() if reason != "summary is empty"}
    assert rejected(tmp_path / f"rows.jsonl{suffix}", vocabulary, kind) == expected


def write_csv(path: Path, rows: Iterable[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_bad_rows_of_csv(tmp_path, vocabulary):
    cells = [deep(65), "[" * 100_000, '[{"text": "a", "text": "b"}]', "[null]", "[[[", "a\0b"]  # "[[[" is a text
    text = GOOD["documents"][0]
    rows = [["documents", "summary"], *([cell, "Bridges."] for cell in cells), [text, ""], [text, "Bridges."]]
    reasons = [TOO_DEEP, TOO_DEEP, TWICE, NO_DOCUMENT, None, "NUL characters", "summary is empty"]
    expected = {str(number): reason for number, reason in enumerate(reasons, 2) if reason}
    assert rejected(write_csv(tmp_path / "rows.csv", rows), vocabulary) == expected


def test_bad_rows_of_parquet(tmp_path, vocabulary):
    (tmp_path / "rows").mkdir()
    wrong = pa.array([b"Elbe", b"\xff\xfe", b"Elbe"]).view(pa.string())
    columns = {"documents": [GOOD["documents"]] * 3, "summary": ["Bridges."] * 3}
    tables = {
        "bytes": {"facts": [b"\xff", None, b"x"]},
        "date": {"facts": [datetime(2020, 1, 1), None, None]},
        "year": {"facts": pa.array([None, 1 << 60, None], pa.timestamp("us"))},
        "text": {"title": wrong},
        "nested": {"facts": pa.array([[wrong[0]], [wrong[1]], None])},
        "map": {"facts": pa.array([[("a", 1)], None, None], pa.map_(pa.string(), pa.int64()))},
        "none": {"title": pa.nulls(3), "facts": [float("nan")] * 3},
    }
    for number, (name, values) in enumerate(tables.items()):
        pq.write_table(pa.table(columns | values), tmp_path / "rows" / f"{number}-{name}.parquet")
    prepare(tmp_path / "rows", tmp_path / "data", vocab=vocabulary, keep=["facts"], max_rejected=1)
    found = [json.loads(line) for line in (tmp_path / "data" / REJECTED).read_text().splitlines()]
    assert [(Path(row["where"]).name, row["reason"]) for row in found] == [
        ("0-bytes.parquet:1", NO_JSON),
        ("0-bytes.parquet:3", NO_JSON),
        ("1-date.parquet:1", NO_JSON),
        ("2-year.parquet:2", "a field is unreadable"),
        ("3-text.parquet:2", "a field is unreadable"),
        ("4-nested.parquet:2", "a field is unreadable"),
    ]
    assert found[4]["detail"].startswith("title: 'utf-8' codec can't decode") and found[4]["row"]["documents"]


def test_rows_above_the_limit_are_passed_over(tmp_path, vocabulary, monkeypatch):
    assert record.LONGEST == 64 << 20
    for module in (record, tables, folders):
        monkeypatch.setattr(module, "LONGEST", 4000)
    text, long = GOOD["documents"][0], "x" * 9000
    first, second, third, fourth = (tmp_path / name for name in ("a.csv", "b.jsonl.gz", "c.parquet", "d"))
    lines = f"{text}\n" * 200
    write_csv(first, [["documents"], [text], [long], [f"{text}\n{long}\n{text}"], [lines], [text]])
    second.write_bytes(gzip.compress(f"{line()}\n{line(documents=[long])}\n{line()}\n{long}".encode()))
    pq.write_table(pa.table({"documents": [text, long, text]}), third)
    for name, content in (("1", text), ("2", long)):
        (fourth / name).mkdir(parents=True)
        (fourth / name / "a.txt").write_text(content)
    found = {path: [(r.where, r.problem) for r in read_records([path])] for path in tmp_path.iterdir()}
    assert [problem for _, problem in found[first]] == ["", TOO_LONG, TOO_LONG, TOO_LONG, ""]
    assert found[first][-1][0] == f"{first}:{first.read_text().count(chr(10))}"
    assert found[second] == [(f"{second}:{n}", problem) for n, problem in enumerate(("", TOO_LONG, "", TOO_LONG), 1)]
    assert [problem for _, problem in found[third]] == ["", TOO_LONG, ""]
    assert [problem for _, problem in found[fourth]] == ["", TOO_LONG]


def test_a_line_above_the_limit_is_never_held(tmp_path):
    asked = []

    def readline(most: int) -> bytes:
        asked.append(most)
        return b"x" * most if len(asked) < 9 else b"\n"

    lines = record.bounded_lines(readline)
    assert next(lines) is None and len(asked) == 9 and max(asked) == (64 << 20) + 1
    assert [r.problem for r in jsonl.json_records([None, b"{}"], "x")] == [TOO_LONG, ""]


def test_links_out_of_a_folder_of_pairs_or_of_fetched_pages_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("A secret.\n")
    (folder := tmp_path / "corpus").mkdir()
    (folder / "train.src").write_text("The town has a river.\n")
    (folder / "train.tgt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="train.tgt is a link out of its folder"):
        [*read_pairs(folder / "train.src")]
    (shard := folder / "wiki" / "shard").mkdir(parents=True)
    (shard / "wiki_content.tfrecords-00001").write_bytes(b"")
    for name in ("wiki_urls.json-00001", "references.tfrecords.gz-00001"):
        (shard / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="needs wiki_urls.json-00001"):
        [*read_wikis(shard / "wiki_content.tfrecords-00001")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.story", "train.src"])
def test_one_invalid_byte_leaves_a_row_of_utf8(tmp_path, name, capsys):
    text = ("Die Brücke in Köln ist lang. " * 9).encode() + b"\xff"
    row = b'{"title": "a", "documents": ["' + text + b'"]}'
    table = b"title%sdocuments\na%s" + text + b"\n"
    tables = {"csv": table % (b",", b","), "tsv": table % (b"\t", b"\t")}
    contents = tables | {"jsonl": row + b"\n", "json": b"[" + row + b"]"}
    (tmp_path / name).write_bytes(contents.get(name.rpartition(".")[2], text + b"\n"))
    (record,) = read_records([tmp_path / name])
    assert not record.problem and "Köln ist lang. \ufffd" in str(record.raw)
    assert "1 invalid UTF-8 byte, read as U+FFFD" in capsys.readouterr().err


def test_links_to_pairs_that_lie_in_one_folder_are_read(tmp_path):
    (blobs := tmp_path / "blobs").mkdir()
    (folder := tmp_path / "snapshot").mkdir()
    for name in ("train.src", "train.tgt"):
        (blobs / name).write_text("The town has a river.\n")
        (folder / name).symlink_to(blobs / name)
    (record,) = read_pairs(folder / "train.src")
    assert record.raw["summary"] == "The town has a river."


def test_a_compressed_list_of_torch_is_refused(tmp_path):
    torch.save([{"document": "Tea. " * 99}], saved := tmp_path / "saved.pt")
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            after.writestr(name, before.read(name))
    with pytest.raises(UserError, match="a.pt is compressed"):
        [*read_torch_list(tmp_path / "a.pt")]


class Harmful:
    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize(
    ("value", "most", "message"),
    [
        ([Harmful()], None, r"more than lists, numbers and texts \(print\); loading it could run code"),
        ({"a": 1}, None, "holds one dict and no list of clusters"),
        ([{"a": 1}], 200, "is not a readable list saved by torch"),
    ],
)
def test_only_whole_lists_of_plain_objects_are_loaded_by_torch(tmp_path, capsys, value, most, message):
    torch.save(value, tmp_path / "train.pt")
    (tmp_path / "train.pt").write_bytes((tmp_path / "train.pt").read_bytes()[:most])
    with pytest.raises(UserError, match=message):
        read_records([tmp_path / "train.pt"])
    assert capsys.readouterr().out == ""


def test_columns_of_one_name_are_told(tmp_path):
    write_csv(tmp_path / "rows.csv", [["title", "documents", "title"], ["a", "b", "c"]])
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["documents", "documents"])
    pq.write_table(table, tmp_path / "rows.parquet")
    for name, column in (("rows.csv", "title"), ("rows.parquet", "documents")):
        with pytest.raises(UserError, match=f"has the column `{column}` twice"):
            read_records([tmp_path / name])


def test_a_file_name_that_is_not_unicode(tmp_path, vocabulary):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xe4.jsonl"))
    path.write_text(line() + "\n")
    dataset = prepare(path, tmp_path / "data", vocab=vocabulary).dataset
    assert dataset.manifest["sources"] == [f"{tmp_path}/r\\udce4.jsonl"]


@pytest.mark.parametrize("text", ["'x' * size", "'Elbe valley 3 bridges ' * (size // 22)", "'a. ' * (size // 3)"])
def test_one_large_document_takes_a_few_times_its_size(vocabulary, text):
    """Encoded at once, it took 60 times its size."""
    script = f"""
from raysum.data.recipe import Recipe
from raysum.tokenizers.loading import load_tokenizer
from raysum.prepare.row_builder import prepare_example
from raysum.runtime.processes import peak_rss_mb
vocabulary, size = load_tokenizer({vocabulary!r}), 3 << 20
recipe, text = Recipe(vocabulary_sha256=vocabulary.sha256), {text}
before = peak_rss_mb()
row = prepare_example({{"title": "Elbe", "documents": [text]}}, recipe, vocabulary)
assert row["text"] == [text.rstrip()] and 0 < len(row["ids"]) <= 100
print((peak_rss_mb() - before) / 3)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) < 25


def test_long_paragraphs_give_the_ids_that_they_gave_whole(vocabulary, monkeypatch):
    loaded = load_tokenizer(vocabulary)
    recipe = Recipe(vocabulary_sha256=loaded.sha256, paragraph_tokens=40, normalize="lower-split")
    raw = {"title": "Elbe", "documents": [f"Sentence {n} of the Elbe has, in all, 5 words. " * 30 for n in range(9)]}
    (whole,), counted = RowBuilder(recipe, loaded).rows(raw)
    monkeypatch.setattr(row_builder, "_MIN_HEAD", 40)
    monkeypatch.setattr(row_builder, "_CHARACTERS_PER_TOKEN", 5)
    monkeypatch.setattr(paragraphs, "_LARGE", 1000)
    (cut,), counted_in_pieces = RowBuilder(recipe, loaded).rows(raw)
    assert counted_in_pieces == counted and counted["tokens_cut"] > 5000
    assert {key: str(value) for key, value in cut.items()} == {key: str(value) for key, value in whole.items()}


def test_pieces_are_cut_before_spaces_and_lose_nothing():
    assert list(pieces("ab cd efghijk l", 5)) == ["ab", " cd", " efgh", "ijk l"]
    assert list(pieces("ab", 5)) == ["ab"] and list(pieces("", 5)) == [""]


def test_clusters_without_summary_are_told(tmp_path, vocabulary, capsys):
    (tmp_path / "rows.jsonl").write_text("\n".join([line(), line(summary=None), json.dumps({"documents": ["x"]})]))
    (tmp_path / "folder" / "one").mkdir(parents=True)
    (tmp_path / "folder" / "one" / "a.txt").write_text("text")
    prepare([tmp_path / "rows.jsonl", tmp_path / "folder"], tmp_path / "data", vocab=vocabulary)
    assert "3 of 4 clusters have no `summary`" in capsys.readouterr().err
