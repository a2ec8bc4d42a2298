"""Formats of rows: tiny files made by hand, or by the library that makes such files."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers.lisbon import read_records
from raysum.errors import UserError
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources
from raysum.sources.record import Rejected
from raysum.text.names import Sources, unsupported

TEA = [{"source": "Almanac", "text": "Tea is hot."}, {"source": "Gazette", "text": "Tea is green."}]
RAIN = [{"source": "Almanac", "text": "Rain falls."}]
ROWS = [
    {"id": "a", "title": "Tea", "documents": TEA, "summary": "Tea."},
    {"id": "b", "title": "Rain", "documents": RAIN, "summary": "Rain."},
]
LINES = b"\xef\xbb\xbf\n" + b"\r\n\n".join(json.dumps(row).encode() for row in ROWS)
LIST = json.dumps(ROWS, indent=1).encode()
TABLE = pa.Table.from_pylist(ROWS)


def cells(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ROWS[0], delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(row | {"documents": json.dumps(row["documents"])} for row in ROWS)
    return text.getvalue().encode()


def arrow(new) -> bytes:
    sink = io.BytesIO()
    with new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def saved(save, value) -> bytes:
    sink = io.BytesIO()
    save(value, sink)
    return sink.getvalue()


FILES = {
    "c.jsonl": LINES,
    "c.ndjson.gz": gzip.compress(LINES),
    "c.json": LIST,
    "c.json.gz": gzip.compress(LIST),
    "c.csv": cells(","),
    "c.csv.gz": gzip.compress(cells(",")),
    "c.tsv": cells("\t"),
    "c.tsv.gz": gzip.compress(cells("\t")),
    "c.parquet": saved(pq.write_table, TABLE),
    "data-00000-of-00001.arrow": arrow(pa.ipc.new_stream),
    "c.arrow": arrow(pa.ipc.new_file),
    "c.pt": saved(torch.save, ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_the_rows_are_the_same_in_every_format(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    assert [record.raw for record in read_records([tmp_path / name])] == ROWS
    if not name.endswith(("csv", "tsv", ".gz")):
        (tmp_path / name).rename(tmp_path / "clusters")
        assert [record.raw for record in read_records([tmp_path / "clusters"])] == ROWS  # by the first bytes


def test_a_format_may_be_required(tmp_path):
    (tmp_path / "c.data").write_bytes(cells("\t"))
    with pytest.raises(UserError, match="unknown format; raysum reads .jsonl.*name it with --format"):
        find_sources([tmp_path / "c.data"])
    (source,) = find_sources([tmp_path / "c.data"], FieldMapping.of([], format="tsv"))
    assert [record.raw for record in source.records()] == ROWS
    with pytest.raises(ValueError, match=r"unknown format 'tvs'; .*\(jsonl, .*\(wikihow"):
        FieldMapping.of([], format="tvs")


@pytest.mark.parametrize(
    ("value", "splits", "ids"),
    [
        ({"data": ROWS}, [None, None], ["a", "b"]),
        ({"dev": ROWS[:1], "test": ROWS[1:]}, ["dev", "test"], ["a", "b"]),
        ({"x": TEA[0] | {"documents": ["A."]}, "y": {"documents": ["B."]}}, [None, None], ["x", "y"]),
        (ROWS[0], [None], ["a"]),
        ({"articles": [{"text": "A."}]}, [None], [None]),  # one cluster
        ({"data": ["a"]}, [None], [None]),
    ],
)
def test_a_json_object_may_hold_the_rows(tmp_path, value, splits, ids):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(value))
    found = [record.raw for record in find_sources([path])[0].records()]
    assert ([row.get("split") for row in found], [row.get("id") for row in found]) == (splits, ids)


def test_csv_documents_may_be_one_text_and_bad_rows_are_rejected(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes(b"title,documents\na,one text\nb,[bracket] text\nc\nd,\xe4hnlich\ne,\n")
    one, bracket, short, wrong, empty = read_records([path])
    assert one.raw == {"title": "a", "documents": ["one text"]} and one.where == f"{path}:2"
    assert bracket.raw["documents"] == ["[bracket] text"] and empty.raw["documents"] == []
    assert (short.problem, wrong.raw["documents"]) == ("not as many fields as the header", ["\xe4hnlich"])


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


ENCODED = {
    "a.jsonl": '{"documents": ["Ä b\u2028c"], "id": "x"}\n',
    "a.json": '[{"documents": ["Ä b\u2028c"], "id": "x"}]',
    "a.csv": 'documents,id\n"Ä b\u2028c",x\n',
    "a.csv.gz": 'documents|id\n"Ä b\u2028c"|x\n',
}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ENCODED)
def test_rows_in_any_unicode_encoding(tmp_path, name, encoding):
    content = ENCODED[name].encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (record,) = read_records([tmp_path / name])
    assert (record.raw["documents"], record.id) == (["Ä b\u2028c"], "x")


@pytest.mark.parametrize("encoding", ["cp1251", "cp1252"])
def test_lines_in_an_old_encoding_beside_lines_in_utf8(tmp_path, monkeypatch, encoding):
    text = {"cp1251": "Мама мыла раму, а папа читал газету и пил чай.", "cp1252": "Käse über alles, für Åse."}[encoding]
    rows = [f'{{"documents": ["{text}"], "id": {n}}}\n'.encode(encoding if n % 2 else "utf-8") for n in range(9)]
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "new" / "cache"))
    (tmp_path / "c.jsonl").write_bytes(b"".join(rows))
    assert [record.raw["documents"] for record in read_records([tmp_path / "c.jsonl"])] == [[text]] * 9


def test_quotes_without_a_partner_are_ordinary_characters(tmp_path):
    rows = ["id\tdocuments\tsummary", 'a\t6\' tall, 34" waist\t"Good" fit', 'b\t"Great" he said\tGreat', 'c\t"x\ty"']
    (tmp_path / "c.csv").write_text("\n".join(rows))
    found = [(record.raw["documents"], record.raw["summary"]) for record in read_records([tmp_path / "c.csv"])]
    assert found == [(["6' tall, 34\" waist"], '"Good" fit'), (['"Great" he said'], "Great"), (['"x'], 'y"')]


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
        ("image.csv", b"\x89PNG" + bytes(200), "is not text, but an image; run OCR"),
        ("c.parquet", b"PAR1 no", "is not valid Parquet.*; make or fetch the file again"),
        ("c.arrow", b"ARROW1 no", "is not valid Arrow.*; make or fetch the file again"),
    ],
)
def test_damaged_sources_are_errors_of_the_user(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_records([tmp_path / name])


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
    assert [(source.path.name, source.split) for source in find_sources([tmp_path])] == [
        ("my-dev-set.jsonl.gz", "valid"),
        ("other.csv", None),
        ("train-test.parquet", None),
        ("train.2.jsonl", "train"),
        ("train.10.jsonl", "train"),
    ]


def test_folders_that_hugging_face_saved_are_splits(tmp_path, capsys):
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "data-00000-of-00001.arrow").write_bytes(arrow(pa.ipc.new_stream))
        (tmp_path / split / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    found = [(source.split, record.id) for source in find_sources([tmp_path]) for record in source.records()]
    assert found == [("train", "a"), ("train", "b"), ("valid", "a"), ("valid", "b")]
    assert not capsys.readouterr().err
