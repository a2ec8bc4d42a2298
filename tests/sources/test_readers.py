"""Readers of each format: clusters, splits by name, and damaged files."""

import csv
import gzip
import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.lisbon import CLUSTER, as_folder, read_records
from raysum.errors import UserError
from raysum.prepare.row_builder import Rejected, prepare_example
from raysum.sources.find import find_sources
from raysum.text.names import Sources, unsupported


def as_jsonl(folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("\n" + json.dumps(CLUSTER) + "\n\n", encoding="utf-8-sig")
    return path


def as_gzip(folder: Path) -> Path:
    path = folder / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(CLUSTER).encode()))
    return path


def as_csv(folder: Path) -> Path:
    path = folder / "corpus.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, CLUSTER)
        writer.writeheader()
        writer.writerow(CLUSTER | {"documents": json.dumps(CLUSTER["documents"])})
    return path


def as_parquet(folder: Path) -> Path:
    path = folder / "corpus.parquet"
    pq.write_table(pa.Table.from_pylist([CLUSTER]), path)
    return path


@pytest.mark.parametrize("write", [as_jsonl, as_gzip, as_csv, as_parquet, as_folder])
def test_every_format_gives_the_same_cluster(write, tmp_path, recipe, vocabulary):
    (record,) = read_records([write(tmp_path)])
    assert not record.problem
    assert record.raw == CLUSTER
    row = prepare_example(record.raw, recipe, vocabulary)
    assert row["ids"].tolist() == prepare_example(CLUSTER, recipe, vocabulary)["ids"].tolist()


def test_csv_documents_may_be_one_text_and_bad_rows_are_told(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes(b"title,documents\na,one text\nb,[bracket] text\nc\nd,\xe4hnlich\ne,\n")
    one, bracket, short, wrong, empty = read_records([path])
    assert one.raw == {"title": "a", "documents": ["one text"]} and one.where == f"{path}:2"
    assert bracket.raw["documents"] == ["[bracket] text"] and empty.raw["documents"] == []
    assert (short.problem, wrong.problem) == ("not as many fields as the header", "not UTF-8")


def test_bad_lines_are_records_with_file_line_and_reason(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"id": 1, "documents": ["x"]}\nnot json\n\xff\xfe{}\n"text"\n')
    good, broken, binary, text = read_records([path])
    assert good.id == "1" and text.id == "c.jsonl:4"
    with pytest.raises(Rejected, match=r"not JSON \(.*column 1"):
        broken.cluster()
    assert (broken.where, broken.problem) == (f"{path}:2", "not JSON") and "column 1" in broken.detail
    assert (binary.where, binary.problem) == (f"{path}:3", "not UTF-8")
    assert text.raw == "text" and not text.problem


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_sources_in_other_unicode_encodings_are_told_with_the_command_that_helps(tmp_path, name, encoding):
    path, text = tmp_path / name, 'documents\n"Ä b"\n' if name.endswith("csv") else '{"documents": ["Ä b"]}'
    path.write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=rf"{name} is not UTF-8 text; it is UTF-(16|32).*: iconv") as refused:
        find_sources([path])
    command = str(refused.value).partition(": ")[2].replace("OTHER", str(tmp_path / f"b{path.suffix}"))
    subprocess.run(command, shell=True, check=True)
    (record,) = find_sources([tmp_path / f"b{path.suffix}"])[0].records()
    assert record.raw["documents"] == ["Ä b"]


def test_the_samples_are_found_by_name_and_their_summaries_name_what_their_sources_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = find_sources(["samples"])
    assert {source.split: len([*source.records()]) for source in sources} == {"test": 8, "train": 44, "valid": 8}
    for record in read_records(["samples"]):
        cluster = record.cluster()
        texts = [cluster["title"], *(document["text"] for document in cluster["documents"])]
        assert 3 <= len(texts) - 1 <= 5 and all(document["source"] for document in cluster["documents"])
        summary = cluster["summary"]
        assert not [summary[start:end] for start, end in unsupported(summary, Sources(texts))], cluster["id"]
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "own.jsonl").write_text("{}")
    assert [source.path.name for source in find_sources(["samples"])] == ["own.jsonl"]
    with pytest.raises(UserError, match="no such file or folder: samples/trian.jsonl"):
        find_sources(["samples/trian.jsonl"])


def test_a_folder_is_read_in_natural_order_with_splits_by_name(tmp_path):
    for name in ("train.10.jsonl", "train.2.jsonl", "my-dev-set.jsonl.gz", "other.csv", "train-test.parquet"):
        (tmp_path / name).write_bytes(b"x")
    found = [(source.path.name, source.split) for source in find_sources([tmp_path])]
    assert found == [
        ("my-dev-set.jsonl.gz", "valid"),
        ("other.csv", None),
        ("train-test.parquet", None),
        ("train.2.jsonl", "train"),
        ("train.10.jsonl", "train"),
    ]


def test_folders_of_splits_hold_folders_of_clusters(tmp_path):
    for name in ("train/b", "train/a", "val/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.txt").write_text("text")
    sources = find_sources([tmp_path])
    assert [(source.path.name, source.split) for source in sources] == [("train", "train"), ("val", "valid")]
    records = list(sources[0].records())
    assert [record.raw["title"] for record in records] == ["a", "b"]
    (tmp_path / "train/a/2.txt").write_bytes(b"a\0b")
    assert [record.problem for record in sources[0].records()] == ["a document is unreadable", ""]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("none.jsonl", None, "no such file or folder"),
        ("empty.jsonl", b"", "is empty"),
        ("blank.jsonl", b"\n\n", "is empty"),
        ("file.doc", b"x", "unknown format"),
        ("cut.jsonl.gz", gzip.compress(b'{"documents": ["x"]}\n' * 999)[:-12], "cannot be read to its end"),
        ("plain.jsonl.gz", b"{}", "cannot be read to its end"),
        ("c.csv", b"content,heading\nx,y\n", "only content, heading"),
        ("c.parquet", b"PAR1 no", "is not valid Parquet.*; make or fetch the file again"),
        ("c.arrow", b"ARROW1 no", "is not valid Arrow.*; make or fetch the file again"),
    ],
)
def test_damaged_sources_are_errors_of_the_user(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_records([tmp_path / name]))


def test_a_folder_without_clusters_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds neither"):
        find_sources([tmp_path])


def test_a_folder_may_hold_several_references(tmp_path):
    folder = as_folder(tmp_path)
    (folder / "lisbon" / "summary.2.txt").write_text("Red it is.\n")
    (record,) = read_records([folder])
    assert record.raw == CLUSTER | {"summaries": ["Red it is."]}
