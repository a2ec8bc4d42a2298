"""`--map` and `--separator`: fields of other names and shapes."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysum.cli.clusters import input_clusters
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.prepare.config import PrepareConfig
from raysum.prepare.job import prepare
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources
from raysum.sources.record import Record, Rejected

NEWS = {
    "id": 7,
    "headline": "Lisbon bridge",
    "articles": [
        {"site": {"name": "Almanac"}, "body": ["The bridge was opened in 1966.", "It is red."]},
        {"site": {"name": "Gazette"}, "body": ["Nothing else is known."]},
    ],
    "abstracts": ["It is red.", "Opened in 1966."],
}
MAPPED = {
    "documents": "articles[].body",
    "source": "articles[].site.name",
    "title": "headline",
    "summaries": "abstracts[]",
}


def mapped(path: Path, separator: str | None = None, **paths: str) -> list[Record]:
    config = PrepareConfig(out="x", map=paths, separator=separator)
    return [record for source in find_sources([path], config.mapping) for record in source.records()]


def write_csv(path: Path, row: dict[str, Any], delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        cells = [value if isinstance(value, str) else json.dumps(value) for value in row.values()]
        csv.writer(file, delimiter=delimiter).writerows([row, cells])


def test_paths_find_our_fields_in_rows_of_any_format(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(NEWS))
    (tmp_path / "b.json").write_text(json.dumps([NEWS], indent=1))
    (tmp_path / "c.json").write_text(json.dumps({"version": 1, "data": [{"clusters": [NEWS]}]}))
    pq.write_table(pa.Table.from_pylist([NEWS]), tmp_path / "d.parquet")
    write_csv(tmp_path / "e.csv", NEWS)
    for name in ("a.jsonl", "b.json", "c.json", "d.parquet", "e.csv"):
        paths = MAPPED | ({"clusters": "data[].clusters[]"} if name == "c.json" else {})
        (record,) = mapped(tmp_path / name, **paths)
        assert not record.problem and record.id == "7"
        assert record.raw["documents"] == [
            {"source": "Almanac", "text": "The bridge was opened in 1966.\n\nIt is red."},
            {"source": "Gazette", "text": "Nothing else is known."},
        ]
        assert record.raw["title"] == "Lisbon bridge" and record.raw["summaries"] == NEWS["abstracts"]


def test_a_separator_parts_one_text_into_documents(tmp_path):
    path = tmp_path / "multi_news.jsonl"
    path.write_text(json.dumps({"document": "One text. ||||| Another\nof two lines.|||||", "summary": ["a", "b"]}))
    (record,) = mapped(path, "|||||", documents="document", summary="summary[]")
    assert record.raw["documents"] == ["One text.", "Another\nof two lines."] and record.raw["summary"] == "a\nb"
    path.write_text(json.dumps({"documents": "One ||||| two"}))
    assert mapped(path, "|||||")[0].raw["documents"] == ["One", "two"]
    path.write_text(json.dumps({"documents": [{"source": "a", "text": "One ||||| two |||||"}, {"text": "x"}, ""]}))
    named = [{"source": "a, part 1", "text": "One"}, {"source": "a, part 2", "text": "two"}, {"text": "x"}]
    assert mapped(path, "|||||")[0].raw["documents"] == named


def test_a_separator_parts_texts_in_folders_which_have_no_fields_to_map(tmp_path):
    folder = tmp_path / "corpus" / "Florence"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("One ||||| two")
    (record,) = mapped(tmp_path / "corpus", "|||||")
    assert [document["text"] for document in record.raw["documents"]] == ["One", "two"]
    with pytest.raises(UserError, match=r"--map .*corpus is plain text"):
        mapped(tmp_path / "corpus", title="head")


def test_options_without_effect_are_reported_once_each(tmp_path, capsys):
    rows = [
        {"documents": [f"Number {n} is here. It stays ||||| here."], "head": "x", "summary": "It."} for n in range(3)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    idle = ["--map title=nope finds nothing", "--separator '#####' does not occur"]
    settings = {"kind": "extraction", "pieces": 60}
    prepare([tmp_path / "a.jsonl"], tmp_path / "idle", map=["title=nope"], separator="#####", **settings)
    messages = capsys.readouterr().err
    assert all(messages.count(f"{line} in any row\n") == 1 for line in idle)
    prepare([tmp_path / "a.jsonl"], tmp_path / "good", map=["title=head"], separator="|||||", **settings)
    assert "--" not in capsys.readouterr().err.replace("--paragraph-tokens", "")
    input_clusters([str(tmp_path / "a.jsonl")], mapping=FieldMapping.of(["title=nope"], "#####"))
    assert capsys.readouterr().err.splitlines() == idle
    (tmp_path / "b.txt").write_text("One. ##### Two.")
    input_clusters([str(tmp_path / "b.txt")], mapping=FieldMapping.of([], "#####"))
    assert not capsys.readouterr().err


def test_a_row_without_documents_is_rejected_with_its_keys(tmp_path):
    with pytest.raises(Rejected, match=r"no documents \(found articles, headline; name them with --map documents="):
        read_cluster({"id": 1, "headline": "x", "articles": ["y"]})
    (tmp_path / "a.jsonl").write_text(json.dumps(NEWS))
    (record,) = mapped(tmp_path / "a.jsonl", documents="articles.text")
    with pytest.raises(Rejected, match="no documents .nothing at articles.text; found abstracts, articles, headline"):
        record.cluster()
    (record,) = mapped(tmp_path / "a.jsonl", documents="articles[].body", source="headline")
    assert (record.problem, record.detail) == ("not as many sources as documents", "1 and 2")
    (tmp_path / "c.csv").write_text("article,highlights\nx,y\n")
    (record,) = mapped(tmp_path / "c.csv", documents="article", summary="highlights")
    assert record.raw == {"article": "x", "highlights": "y", "documents": ["x"], "summary": "y"}
    with pytest.raises(UserError, match="no column `articel`, only article, highlights"):
        mapped(tmp_path / "c.csv", documents="articel")


@pytest.mark.parametrize(
    "pair", ["documents", "documents=", "text=a", "documents=a..b", "documents=[].a", "title=a[0]"]
)
def test_wrong_paths_are_named(pair):
    with pytest.raises(UserError, match="is not field=path, such as documents=articles"):
        section_of(PrepareConfig, {"out": "x", "map": [pair]})


REVIEWS = {"id": "7", "rev10": "Tenth.", "rev2": "Second, or\tso.", "rev1": "", "gold": ["One way.", "Another way."]}


@pytest.mark.parametrize(
    ("pairs", "texts"),
    [
        (["documents=rev2,rev10"], ["Second, or\tso.", "Tenth."]),
        (["documents=rev2, rev10"], ["Second, or\tso.", "Tenth."]),
        (["documents=rev10", "documents=rev2"], ["Tenth.", "Second, or\tso."]),
        (["documents=rev*"], ["Second, or\tso.", "Tenth."]),
        (["paragraphs=rev?"], ["Second, or\tso."]),
        (["documents=rev2,gold"], ["Second, or\tso.", "One way.", "Another way."]),
    ],
)
@pytest.mark.parametrize("delimiter", [",", "\t", ";", None])
def test_documents_may_be_in_several_columns(tmp_path, pairs, texts, delimiter):
    path = tmp_path / ("rows.csv" if delimiter else "rows.jsonl")
    path.write_text(json.dumps(REVIEWS))
    if delimiter:
        write_csv(path, REVIEWS, delimiter)
    kind = pairs[0].partition("=")[0]
    for values in (pairs, {kind: [pair.partition("=")[2] for pair in pairs]}):
        mapping = PrepareConfig(out="x", map=values).mapping
        (record,) = (record for source in find_sources([path], mapping) for record in source.records())
        assert record.raw[kind] == texts and not record.problem and not mapping.unused_options()


def test_paths_that_cannot_be_meant_are_named(tmp_path):
    (tmp_path / "rows.csv").write_text("id\trev1\trev2\tgold\n1\tOne.\tTwo.\tBoth.\n")
    for paths in ("rev1,rev3", "rev3", "rve*"):
        with pytest.raises(UserError, match=r"no column `r.*`, only id, rev1, rev2, gold; name one with --map docum"):
            mapped(tmp_path / "rows.csv", documents=paths)
    with pytest.raises(UserError, match="no column `glod`.*; name one with --map summary=COLUMN"):
        mapped(tmp_path / "rows.csv", documents="rev*", summary="glod")
    with pytest.raises(UserError, match="maps summary twice, to gold and rev1; it takes one path"):
        section_of(PrepareConfig, {"out": "x", "map": ["summary=gold", "documents=rev2", "summary=rev1"]})
    (tmp_path / "rows.jsonl").write_text(json.dumps(REVIEWS))
    mapping = PrepareConfig(out="x", map=["documents=rev1,rev2,rev3"]).mapping
    (source,) = find_sources([tmp_path / "rows.jsonl"], mapping)
    assert [len(record.raw["documents"]) for record in source.records()] == [1]
    assert mapping.unused_options() == ["--map documents=rev3 finds nothing"]


def test_alternatives_are_not_joined_to_one_summary(tmp_path, capsys):
    gold = ["It stays.", "It is here."]
    rows = [{"documents": [f"Number {number} is here. It stays here."], "gold": gold} for number in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"summary is a list of texts .*--map summaries=gold .*summary=gold\[\]"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "data", map={"summary": "gold"}, kind="extraction", vocab_size=60)
    prepare([tmp_path / "a.jsonl"], tmp_path / "data", map={"summary": "gold[]"}, kind="extraction", vocab_size=60)
    assert "joins several texts to one summary; --map summaries=gold" in capsys.readouterr().err
    record, *_ = mapped(tmp_path / "a.jsonl", documents="documents", summaries="gold")
    assert record.raw["summaries"] == gold
