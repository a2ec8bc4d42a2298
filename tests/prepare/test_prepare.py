"""Raw clusters to rows: readers, splits, cleaning, ranking, graphs and the row itself."""

import csv
import gzip
import json
import pickle
import random
import subprocess
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import syntok.segmenter
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from helpers.special_ids import BOS, EOS, SENTENCE_END, TITLE_END
from raysum.cli.clusters import input_clusters
from raysum.config.loading import section_of
from raysum.data.recipe import Recipe, read_recipe
from raysum.data.rows import references, with_reference
from raysum.errors import UserError
from raysum.prepare.config import PrepareConfig
from raysum.prepare.graphs import similarity_graph
from raysum.prepare.job import prepare
from raysum.prepare.paragraphs import split_spans
from raysum.prepare.ranking import best_first, lexrank, rank_scores
from raysum.prepare.row_builder import Rejected, prepare_counted, prepare_example
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources
from raysum.sources.record import Record
from raysum.text import tfidf
from raysum.text.cleaning import bigram_recall, bigrams, is_clone, normalize, on_one_line, paragraph_spans
from raysum.text.names import Sources, unsupported
from raysum.text.sentences import _ASCII_CANDIDATE, _CANDIDATE, quick_sentence_spans, sentence_spans
from raysum.text.tfidf import words
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary

CLUSTER = {
    "id": "lisbon",
    "title": "Lisbon bridge",
    "documents": [
        {
            "source": "Almanac",
            "text": "The bridge of Lisbon was opened in 1966. It is red.\n\n  Boats pass under its deck.  ",
        },
        {"source": "Gazette", "text": "Nothing else is known about the weather of that day."},
    ],
    "summary": "The Lisbon bridge opened in 1966. It is a red bridge.",
}


def read_records(paths: list[Path | str]) -> list[Record]:
    return [record for source in find_sources(paths) for record in source.records()]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    texts = [text for document in CLUSTER["documents"] for text in document["text"].splitlines()]
    return Vocabulary.train([*texts, CLUSTER["summary"], CLUSTER["title"]] * 5, 120)


@pytest.fixture(scope="module")
def recipe(vocabulary) -> Recipe:
    return Recipe(vocabulary_sha256=vocabulary.sha256, min_words=3)


# Readers


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


def as_folder(folder: Path) -> Path:
    cluster = folder / "corpus" / "lisbon"
    cluster.mkdir(parents=True)
    for document in CLUSTER["documents"]:
        (cluster / f"{document['source']}.txt").write_text(document["text"])
    (cluster / "title.txt").write_text("Lisbon bridge\n")
    (cluster / "summary.txt").write_text(CLUSTER["summary"] + "\n")
    return folder / "corpus"


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


# Other shapes

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


def test_paths_find_our_fields_in_rows_of_any_format(tmp_path, recipe, vocabulary):
    (tmp_path / "a.jsonl").write_text(json.dumps(NEWS))
    (tmp_path / "b.json").write_text(json.dumps([NEWS], indent=1))
    (tmp_path / "c.json").write_text(json.dumps({"version": 1, "data": [{"clusters": [NEWS]}]}))
    pq.write_table(pa.Table.from_pylist([NEWS]), tmp_path / "d.parquet")
    with (tmp_path / "e.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, NEWS)
        writer.writeheader()
        writer.writerow({name: value if isinstance(value, str) else json.dumps(value) for name, value in NEWS.items()})
    for name in ("a.jsonl", "b.json", "c.json", "d.parquet", "e.csv"):
        paths = MAPPED | ({"clusters": "data[].clusters[]"} if name == "c.json" else {})
        (record,) = mapped(tmp_path / name, **paths)
        assert not record.problem and record.id == "7"
        assert record.raw["documents"] == [
            {"source": "Almanac", "text": "The bridge was opened in 1966.\n\nIt is red."},
            {"source": "Gazette", "text": "Nothing else is known."},
        ]
        row = prepare_example(record.cluster(), recipe, vocabulary)
        assert row["title"] == "Lisbon bridge" and references(row) == NEWS["abstracts"]


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


def test_what_a_user_says_of_the_shape_and_no_row_has_is_one_line_each(tmp_path, capsys):
    texts = [f"Number {number} is here. It stays ||||| here." for number in range(3)]
    rows = [{"documents": [text], "head": "x", "summary": "It."} for text in texts]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    idle = ["--map title=nope finds nothing", "--separator '#####' does not occur"]
    settings = {"kind": "extraction", "pieces": 60}
    prepare([tmp_path / "a.jsonl"], tmp_path / "idle", map=["title=nope"], separator="#####", **settings)
    told = capsys.readouterr().err
    assert all(told.count(f"{line} in any row\n") == 1 for line in idle)
    prepare([tmp_path / "a.jsonl"], tmp_path / "good", map=["title=head"], separator="|||||", **settings)
    assert "--" not in capsys.readouterr().err.replace("--paragraph-tokens", "")
    input_clusters([str(tmp_path / "a.jsonl")], mapping=FieldMapping.of(["title=nope"], "#####"))
    assert capsys.readouterr().err.splitlines() == idle
    (tmp_path / "b.txt").write_text("One. ##### Two.")
    input_clusters([str(tmp_path / "b.txt")], mapping=FieldMapping.of([], "#####"))
    assert not capsys.readouterr().err


def test_a_row_without_documents_tells_the_keys_that_it_has(tmp_path, recipe, vocabulary):
    with pytest.raises(
        Rejected, match=r"no documents \(found articles, headline; name them with --map documents=...\)"
    ):
        prepare_example({"id": 1, "headline": "x", "articles": ["y"]}, recipe, vocabulary)
    (tmp_path / "a.jsonl").write_text(json.dumps(NEWS))
    (record,) = mapped(tmp_path / "a.jsonl", documents="articles.text")
    with pytest.raises(
        Rejected, match="no documents .nothing at articles.text; found abstracts, articles, headline; name"
    ):
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
def test_documents_may_stand_in_several_columns(tmp_path, pairs, texts, delimiter):
    path = tmp_path / ("rows.csv" if delimiter else "rows.jsonl")
    with path.open("w", newline="") as file:
        if delimiter:
            writer = csv.DictWriter(file, REVIEWS, delimiter=delimiter)
            writer.writeheader()
            writer.writerow(REVIEWS | {"gold": json.dumps(REVIEWS["gold"])})
        else:
            json.dump(REVIEWS, file)
    for given in (pairs, {pairs[0].split("=")[0]: [pair.split("=")[1] for pair in pairs]}):
        mapping = PrepareConfig(out="x", map=given).mapping
        (record,) = (record for source in find_sources([path], mapping) for record in source.records())
        assert record.raw[pairs[0].split("=")[0]] == texts and not record.problem and not mapping.unused_options()


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
    assert [
        len(record.raw["documents"])
        for source in find_sources([tmp_path / "rows.jsonl"], mapping)
        for record in source.records()
    ] == [1]
    assert mapping.unused_options() == ["--map documents=rev3 finds nothing"]


def test_alternatives_are_not_joined_to_one_summary(tmp_path, capsys):
    texts = [f"Number {number} is here. It stays here." for number in range(3)]
    rows = [{"documents": [text], "gold": ["It stays.", "It is here."]} for text in texts]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        UserError,
        match=r"summary is a list of texts .*--map summaries=gold makes each text a.*summary=gold\[\]",
    ):
        prepare([tmp_path / "a.jsonl"], tmp_path / "data", map={"summary": "gold"}, kind="extraction", vocab_size=60)
    prepare([tmp_path / "a.jsonl"], tmp_path / "data", map={"summary": "gold[]"}, kind="extraction", vocab_size=60)
    assert "joins several texts to one summary; --map summaries=gold makes each text" in capsys.readouterr().err
    record, *_ = mapped(tmp_path / "a.jsonl", documents="documents", summaries="gold")
    assert record.raw["summaries"] == rows[0]["gold"]


def test_a_title_may_be_absent(tmp_path, recipe, vocabulary):
    untitled = {name: value for name, value in CLUSTER.items() if name != "title"}
    for raw in (untitled, untitled | {"title": None}, untitled | {"title": " "}):
        row, counts = prepare_counted(raw, recipe, vocabulary)
        assert row["title"] == "" and row["ids"][0] == TITLE_END and counts["without_title"] == 1


# Splits


def split_of(told: object, by_file: str | None, name: str = "a", **settings: object) -> str | None:
    return PrepareConfig(out="x", **settings).choose_split(Record("c:1", {"id": name, "split": told}), by_file)


def test_split_comes_from_the_option_then_the_row_then_the_file():
    assert split_of("train", "valid", split="test") == "test"
    assert split_of("Dev", "train") == "valid"
    assert split_of("fold 3", "train") is None
    assert split_of(None, "valid") == "valid"
    assert split_of("", None) == "train"


def test_held_out_shares_are_stable_and_of_the_right_size():
    splits = [split_of(None, None, f"id{i}", valid=0.1, test=0.2) for i in range(4000)]
    assert splits == [split_of(None, None, f"id{i}", valid=0.1, test=0.2) for i in range(4000)]
    shares = [splits.count(split) / 4000 for split in ("train", "valid", "test")]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.02)
    records = [Record(f"c:{i}", {"id": f"id{i}"}) for i in range(52)]
    for many, valid, test, counts in ((9, 0.2, 0.2, (2, 2)), (52, 0.1, 0.1, (5, 5)), (20, 0, 0.01, (0, 1))):
        config = PrepareConfig(out="x", valid=valid, test=test).drawn(records[:many])
        found = [config.choose_split(one, None) for one in records[:many]]
        assert (found.count("valid"), found.count("test")) == counts
        again = pickle.loads(
            pickle.dumps(PrepareConfig(out="x", valid=valid, test=test).drawn(records[many - 1 :: -1]))
        )
        assert found == [again.choose_split(one, None) for one in records[:many]]
    with pytest.raises(UserError, match="hold out all clusters"):
        section_of(PrepareConfig, {"out": "x", "valid": 0.6, "test": 0.6})


# Cleaning


def test_paragraph_spans_are_stripped_lines():
    text = "  one two \r\n\n\t\nthree\n   four  five\u2028six"
    assert [text[a:b] for a, b in paragraph_spans(text)] == ["one two", "three", "four  five\u2028six"]
    assert paragraph_spans(" \n ") == []


def test_bigram_recall_counts_the_summary_below_the_line():
    summary = bigrams(words("the red bridge of Lisbon the red bridge"))  # 7 bigrams, two of them twice
    assert bigram_recall(words("See: the red bridge of Lisbon."), summary) == pytest.approx(4 / 7)
    assert bigram_recall(words("The red bridge of Lisbon. The red bridge!"), summary) == 1
    assert bigram_recall(words("x"), summary) == 0 and bigram_recall(words("a b"), bigrams(["one"])) == 0


def test_clones_are_above_the_limit_only():
    summary = bigrams([str(i) for i in range(11)])  # 10 bigrams
    assert not is_clone([str(i) for i in range(9)], summary, 0.8)  # exactly 0.8
    assert is_clone(["so", *(str(i) for i in range(10))], summary, 0.8)
    assert not is_clone(["a"] * 20, summary, 0.8) and not is_clone(["a"] * 20, bigrams([]), 0.8)


def test_normalization():
    assert normalize("The U.S. & Co, 3.5%", "none") == "The U.S. & Co, 3.5%"
    assert normalize("ÉTÉ", "lower") == "été"
    assert normalize("Surface-oriented (1999).", "lower-split") == "surface - oriented  ( 1999 )  . "


# Sentences


def test_sentences_of_a_summary_are_those_of_syntok():
    hard = "Dr. A. Smith met J. K. Doe, e.g. in Rome (cf. Fig. 3). They paid 3.5 euros. It was late."
    starts = [s[0].offset for p in syntok.segmenter.process(hard) for s in p]
    assert [a for a, _ in sentence_spans(hard)] == starts and len(starts) > 2
    plain = "It was opened in 1966. The bridge is painted. Nobody knows why!"
    assert [plain[a:b] for a, b in sentence_spans(plain)] == [
        "It was opened in 1966.",
        "The bridge is painted.",
        "Nobody knows why!",
    ]
    assert sentence_spans("   ") == []


def test_candidates_of_plain_texts_are_those_of_all_texts():
    draw, found = random.Random(1), 0
    for _ in range(300):
        text = "".join(draw.choices("aB1.!?\"')]{} \n\t\x1c", k=40))
        spans = [candidate.span() for candidate in _ASCII_CANDIDATE.finditer(text)]
        assert spans == [candidate.span() for candidate in _CANDIDATE.finditer(text)]
        found += len(spans)
    assert found > 300


def test_quick_sentences_keep_abbreviations_and_initials_together():
    text = 'Prof. E. Ito et al. (2001) met Inc. boards. "Why?" he asked. 1999 was late'
    assert [text[a:b] for a, b in quick_sentence_spans(text)] == [
        "Prof. E. Ito et al. (2001) met Inc. boards.",
        '"Why?" he asked.',
        "1999 was late",
    ]


@pytest.mark.parametrize(
    "sentences",
    [
        [
            "А. С. Пушкин родился в 1799 г. и умер в Петербурге.",
            "Он жил на ул. Мойка, т.е. в центре.",
            "Это правда?",
            "Да!",
        ],
        ["佛罗伦萨位于阿诺河畔。", "价格是3.5元！", "他问：“真的吗？”", "是的。"],
        ["東京は首都です。", "本当ですか？！", "はい。"],
        ["هل زرتها من قبل؟", "إنها عاصمة توسكانا!", "نعم، د. أحمد هناك."],
        ["दिल्ली राजधानी है।", "यहाँ लोग रहते हैं।"],
        ["Am 3. Oktober kam z. B. Dr. Müller.", "Im 19. Jahrhundert war es u.a. Nr. 5."],
        ["The U.S. Army came at 5 p.m.", "It left St. Paul, e.g. by bus.", "They had maps, food, etc.", "The end."],
        ["1. Take the first of 12.", "Then stop."],
        ["¿Está en la Av. Libertad?", "¡Sí, con el Sr. López!"],
    ],
)
def test_sentences_of_many_languages_end_where_they_end(sentences):
    joint = "" if any("\u3040" < character < "\u9fff" for character in sentences[0]) else " "
    text = joint.join(sentences)
    assert [text[a:b] for a, b in quick_sentence_spans(text)] == sentences
    if joint == "":
        assert sentence_spans(text) == quick_sentence_spans(text)


# Ranking and graphs

TEXTS = ["red bridge red deck", "blue river", "the red river bridge of the town", "", "blue river blue deck"]


def test_tfidf_scores_are_those_of_scikit_learn():
    vectorizer = TfidfVectorizer(token_pattern=r"\w+")
    matrix = vectorizer.fit_transform(TEXTS)
    title = "Red deck, red sky"
    expected = cosine_similarity(matrix, vectorizer.transform([title]))[:, 0]
    scores = rank_scores("tfidf", words(title), [words(text) for text in TEXTS])
    assert scores == pytest.approx(expected, abs=1e-12)
    assert best_first(scores).tolist() == [0, 2, 4, 1, 3]


def test_equal_scores_keep_document_order():
    assert best_first(np.array([0.0, 1, 0, 1, 0])).tolist() == [1, 3, 0, 2, 4]
    assert rank_scores("none", ["red"], [["red"], ["blue"]]).tolist() == [0, 0]


def test_a_title_that_matches_nothing_leaves_the_order_to_lexrank():
    paragraphs = [words(text) for text in TEXTS]
    assert rank_scores("tfidf", ["unheard"], paragraphs).tolist() == lexrank(TEXTS).tolist()
    assert rank_scores("tfidf", [], paragraphs).tolist() == rank_scores("lexrank", ["red"], paragraphs).tolist()


def test_lexrank_is_the_stationary_distribution():
    similarity = cosine_similarity(TfidfVectorizer(token_pattern=r"\w+").fit_transform(TEXTS))
    similarity[3] = 1  # a paragraph without words leads anywhere
    walk = 0.15 / 5 + 0.85 * (similarity / similarity.sum(1, keepdims=True)).T
    values, vectors = np.linalg.eig(walk)
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    assert lexrank(TEXTS) == pytest.approx(expected / expected.sum(), abs=1e-7)
    assert lexrank([]).shape == (0,) and lexrank(["alone"]).tolist() == [1]


def test_lexrank_is_that_of_all_pairs_multiplied_out():
    rng = np.random.default_rng(0)
    paragraphs = [[f"w{i}" for i in rng.zipf(1.3, rng.integers(0, 30)).clip(max=500)] for _ in range(300)]
    texts = [" ".join(paragraph) for paragraph in paragraphs]
    similarity = cosine_similarity(TfidfVectorizer(token_pattern=r"\w+").fit_transform(texts))
    similarity[[not paragraph for paragraph in paragraphs]] = 1
    walk = 0.15 / 300 + 0.85 * (similarity / similarity.sum(1, keepdims=True)).T
    scores, before = np.full(300, 1 / 300), np.zeros(300)
    while np.abs(scores - before).sum() >= 1e-8:
        scores, before = walk @ scores, scores
    assert rank_scores("lexrank", [], paragraphs) == pytest.approx(scores, rel=1e-12)


def test_lexrank_of_many_paragraphs_stays_small():
    rng = np.random.default_rng(0)
    names = np.array([f"w{i}" for i in range(3000)])
    paragraphs = [["the", *names[rng.integers(3000, size=20)]] for _ in range(20_000)]  # all pairs share a word
    tracemalloc.start()
    scores = rank_scores("tfidf", ["unheard"], paragraphs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.sum() == pytest.approx(1) and peak < 60e6  # a byte of each pair would be 400 MB


def test_similarity_graph_is_symmetric_without_loops():
    rows, columns, values = similarity_graph([words(text) for text in TEXTS])
    dense = np.zeros((5, 5))
    dense[rows, columns] = values
    expected = cosine_similarity(TfidfVectorizer(token_pattern=r"\w+").fit_transform(TEXTS))
    np.fill_diagonal(expected, 0)
    assert dense == pytest.approx(np.where(expected > 0.1, expected, 0), abs=1e-6)
    assert (dense > 0).any() and rows.dtype == np.int16 and values.dtype == np.float32


# The row


def test_row_of_a_cluster(recipe, vocabulary):
    row, counts = prepare_counted(CLUSTER, recipe, vocabulary)
    encode = vocabulary.encode
    first, second, third = (
        "The bridge of Lisbon was opened in 1966. It is red.",
        "Boats pass under its deck.",
        "Nothing else is known about the weather of that day.",
    )
    assert row["text"] == [
        first,
        second,
        third,
    ]  # the title's words are in the first; the others tie, in document order
    assert row["document"].tolist() == [0, 0, 1] and row["paragraph"].tolist() == [0, 1, 0]
    assert row["source"] == ["Almanac", "Gazette"]
    places = zip(row["document"], row["char_start"], row["char_end"], row["text"], strict=True)
    assert all(CLUSTER["documents"][document]["text"][start:end] == text for document, start, end, text in places)
    head = [*encode("Lisbon bridge"), TITLE_END]
    sentences = [head, encode("The bridge of Lisbon was opened in 1966."), encode("It is red."), encode(second)]
    assert row["ids"].tolist() == sum([*sentences, encode(third)], [])
    ends = np.cumsum([len(sentence) for sentence in [*sentences, encode(third)]])
    assert row["sentence_offsets"].tolist() == [0, *ends]
    assert row["paragraph_offsets"].tolist() == [0, *ends[2:]] and row["title_tokens"] == len(head)
    assert row["target_ids"][0] == BOS and row["target_ids"][-1] == EOS
    assert row["target_ids"].tolist().count(SENTENCE_END) == 1
    assert row["rank_score"][0] > row["rank_score"][1] == row["rank_score"][2] == 0
    assert counts["paragraphs_found"] == 3 and counts["tokens_cut"] == 0


def test_limits_cut_paragraphs_and_tokens(recipe, vocabulary):
    small = recipe.model_copy(update={"max_paragraphs": 2, "paragraph_tokens": 8})
    row, counts = prepare_counted(CLUSTER, small, vocabulary)
    full = prepare_example(CLUSTER, recipe, vocabulary)
    sizes = np.diff(row["paragraph_offsets"])
    uncut = np.diff(full["paragraph_offsets"])[:2]
    assert sizes.tolist() == np.minimum(uncut, 8).tolist() and uncut[0] > 8 and counts["paragraphs_ranked_out"] == 1
    title = row["ids"].tolist().index(TITLE_END)
    assert title <= 4 and full["ids"].tolist()[:title] == row["ids"].tolist()[:title]
    assert row["sentence_offsets"][-1] == len(row["ids"]) == counts["tokens"] - counts["tokens_cut"]
    assert counts["paragraphs_cut"] == (uncut > 8).sum()
    assert counts["words_ranked_out"] == 10  # "Nothing else is known about the weather of that day"


def test_clones_and_short_paragraphs_go_but_not_the_last_ones(recipe, vocabulary):
    raw = CLUSTER | {"documents": [CLUSTER["summary"], "Red.", "The bridge is known."]}
    row, counts = prepare_counted(raw, recipe, vocabulary)
    assert row["text"] == ["The bridge is known."] and row["source"] == ["document 1", "document 2", "document 3"]
    assert counts["paragraphs_cleaned_away"] == 2
    assert prepare_example({"title": "", "documents": ["Red."]}, recipe, vocabulary)["text"] == ["Red."]
    with pytest.raises(Rejected, match="every paragraph is a clone"):
        prepare_example(CLUSTER | {"documents": [CLUSTER["summary"]]}, recipe, vocabulary)


def test_several_references_are_kept_and_none_may_be_copied(recipe, vocabulary):
    first, second, third = CLUSTER["summary"], "The bridge is red.", "Boats pass under its deck."
    raw = CLUSTER | {"summaries": [second, first, " ", third]}
    row, counts = prepare_counted(raw, recipe, vocabulary)
    assert references(row) == [first, second, third]
    targets = [with_reference(row, number)["target_ids"].tolist() for number in range(3)]
    assert targets == [vocabulary.encode_summary(text) for text in (first, second, third)]
    assert third not in row["text"] and counts["paragraphs_cleaned_away"] == 1  # it is the third reference
    alone = prepare_example(CLUSTER | {"summary": None, "summaries": [second]}, recipe, vocabulary)
    assert alone["summary"] == second and not len(alone["other_target_offsets"]) and len(alone["target_ids"]) > 2
    with pytest.raises(Rejected, match="summaries is not a list of texts"):
        prepare_example(CLUSTER | {"summaries": second}, recipe, vocabulary)


def test_a_folder_may_hold_several_references(tmp_path):
    folder = as_folder(tmp_path)
    (folder / "lisbon" / "summary.2.txt").write_text("Red it is.\n")
    (record,) = read_records([folder])
    assert record.raw == CLUSTER | {"summaries": ["Red it is."]}


def test_given_paragraphs_are_not_cut_at_newlines(recipe, vocabulary):
    raw = {"title": "Lisbon", "paragraphs": [" The bridge\nof Lisbon ", "Boats pass under its deck."]}
    row = prepare_example(raw, recipe, vocabulary)
    assert row["text"] == ["The bridge\nof Lisbon", "Boats pass under its deck."]
    assert row["document"].tolist() == [0, 1] and row["char_start"].tolist() == [1, 0]
    assert row["target_ids"].tolist() == [] and row["summary"] == ""


def test_what_is_cut_of_a_long_paragraph_is_not_encoded_for_a_summary(recipe, vocabulary):
    line = "The old bridge of Lisbon is red. Boats pass under its deck! "
    raw = {"title": "Lisbon", "documents": [line * 500, "Nothing else is known about the weather of that day."]}
    row, counts = prepare_counted(raw, recipe, vocabulary)
    found = prepare_example(raw, recipe, vocabulary)
    assert counts["tokens"] > 8000  # a dataset's card counts them all
    for name in ("ids", "paragraph_offsets", "sentence_offsets", "char_end"):
        assert found[name].tolist() == row[name].tolist()
    assert found["text"] == row["text"]
    began = time.process_time()
    prepare_example({"title": "Lisbon", "documents": [". " * 1_000_000]}, recipe, vocabulary)
    assert time.process_time() - began < 1  # some 4 s where a million sentences are encoded


def test_paragraphs_without_pieces_are_dropped_before_ranks(recipe, vocabulary):
    raw = {"title": "weather", "documents": ["\u200b \u200b\nweather of that day"], "summary": "\u200b"}
    row = prepare_example(raw, recipe.model_copy(update={"min_words": 1, "ranker": "none"}), vocabulary)
    assert row["text"] == ["weather of that day"] and len(row["rank_score"]) == 1 and not len(row["target_ids"])
    with pytest.raises(Rejected, match="no text"):
        prepare_example({"title": "x", "documents": ["\u200b"]}, recipe, vocabulary)


def test_other_fields_are_kept_where_the_recipe_says_so(recipe, vocabulary):
    raw = CLUSTER | {"url": "https://lisbon", "facts": [{"attribute": "colour"}], "empty": ""}
    kept = prepare_example(raw, recipe.model_copy(update={"keep": ["facts", "url", "empty", "absent"]}), vocabulary)
    assert json.loads(kept["extra"]) == {"facts": raw["facts"], "url": raw["url"]}
    assert prepare_example(raw, recipe, vocabulary)["extra"] == ""


def test_graph_indices_are_ranks(recipe, vocabulary):
    row = prepare_example(CLUSTER, recipe.model_copy(update={"graph": "similarity"}), vocabulary)
    expected = similarity_graph([words(text) for text in row["text"]])
    assert row["graph_row"].tolist() == expected[0].tolist() and len(expected[0])
    assert not len(prepare_example(CLUSTER, recipe, vocabulary)["graph_row"])


@pytest.mark.parametrize(
    "raw, reason",
    [
        ("text", "not an object"),
        ({"title": "x"}, "no documents"),
        ({"title": "x", "documents": []}, "no documents"),
        ({"title": "x", "documents": ["a"], "paragraphs": ["b"]}, "both documents and paragraphs"),
        ({"title": "x", "documents": "a"}, "documents is not a list"),
        ({"title": "x", "documents": [3]}, "a document is neither"),
        ({"title": "x", "documents": [{"source": "a"}]}, "a document is neither"),
        ({"title": 3, "documents": ["a"]}, "title is not a text"),
        ({"title": "x", "documents": ["a"], "summary": ["b"]}, "summary is not a text"),
        ({"title": "x", "documents": [" \n "]}, "no text in the documents"),
        ({"title": "x", "documents": ["\ud800"]}, "not valid Unicode"),
    ],
)
def test_rejections_name_the_reason(raw, reason, recipe, vocabulary):
    with pytest.raises(Rejected, match=reason):
        prepare_example(raw, recipe, vocabulary)


def without_marks(ids: list[int]) -> list[int]:
    return [piece for piece in ids if piece != SENTENCE_END]


def test_published_shards_come_out_of_the_published_vocabulary(shared):
    """Our rows of the shared corpus against the same clusters in the published format, which are in document order."""
    import torch

    vocabulary = load_tokenizer(shared / "data/wikisum_vocab/spm9998_3.model")
    plain = {"ranker": "none", "min_words": 1, "clone_recall": 1.0}
    recipe = Recipe(normalize=vocabulary.suggested_normalization(), vocabulary_sha256=vocabulary.sha256, **plain)
    folder = shared / "data/scisummnet"
    published = torch.load(folder / "ranked_format/WIKI.test.0.pt", weights_only=True)
    equal = total = 0
    for record, example in zip(read_records([folder / "test.jsonl.gz"]), published, strict=False):
        row = prepare_example(record.raw, recipe, vocabulary)
        offsets = row["paragraph_offsets"]
        ours = [row["ids"][a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)]
        assert len(ours) == len(example["src"])
        clean = [i for i, text in enumerate(row["text"]) if not set("&<") & set(text)]  # markup was removed there
        equal += sum(ours[i] == example["src"][i] for i in clean)
        total += len(clean)
        kept, ours, theirs = len(example["tgt"]) - 10, row["target_ids"].tolist(), example["tgt"]
        same_words = without_marks(ours)[:kept] == without_marks(theirs)[:kept]  # theirs is cut, by another splitter
        assert same_words or set("&<") & set(row["summary"])
    assert total > 1000 and equal / total > 0.98


# Long paragraphs

README = "# Title\n\nOne block that was\nwrapped by its\nauthor.\n \nAnother one\r\n\r\n- a list\n- of two\n"


def test_blank_lines_part_paragraphs_where_there_are_any():
    spans = paragraph_spans(README, "blank-lines")
    texts = ["# Title", "One block that was\nwrapped by its\nauthor.", "Another one", "- a list\n- of two"]
    assert [README[start:end] for start, end in spans] == texts
    assert on_one_line(texts[1]) == "One block that was wrapped by its author."
    lines = "\n\n  one\ntwo\r\nthree\n\n"  # none between two lines
    assert paragraph_spans(lines, "blank-lines") == paragraph_spans(lines) and len(paragraph_spans(lines)) == 3
    assert paragraph_spans(" \n\n ", "blank-lines") == []


def counted(texts: list[str]) -> list[int]:
    return [sum(1 + len(word) // 10 for word in text.split()) for text in texts]


def test_long_paragraphs_are_split_at_sentence_ends_then_between_words():
    text = "One two three. Four five six. Seven eight nine. Ten."
    assert [text[a:b] for a, b in split_spans(text, 6, counted)] == [
        "One two three. Four five six.",
        "Seven eight nine. Ten.",
    ]
    assert split_spans(text, 10, counted) == [(0, len(text))]
    words_only = " ".join(f"w{i}" for i in range(25)) + ". And so on."
    spans = split_spans(words_only, 10, counted)
    assert " ".join(words_only[a:b] for a, b in spans) == words_only
    assert all(tokens <= 10 for tokens in counted([words_only[a:b] for a, b in spans])) and len(spans) == 3
    huge = "x" * 1000 + " end"
    spans = split_spans(huge, 10, counted)
    assert "".join(huge[a:b] for a, b in spans).replace(" ", "") == huge.replace(" ", "")
    assert max(counted([huge[a:b] for a, b in spans])) <= 10
    assert split_spans("", 10, counted) == []


@pytest.mark.parametrize("given", ["documents", "paragraphs"])
def test_a_new_recipe_loses_nothing_of_long_paragraphs_and_tells_where_each_piece_is(given, recipe, vocabulary):
    review = "The bridge of Lisbon was opened in 1966, \nand it is red. Boats pass under its deck. " * 9
    raw = {"title": "Lisbon bridge", given: [f"{README}\n{review}", "Nothing else is known about the weather."]}
    choices = PrepareConfig(out="x", max_paragraphs=100, paragraph_tokens=40, min_words=1)
    new = choices.recipe(vocabulary.sha256, "none")
    row, counts = prepare_counted(raw, new, vocabulary)
    assert counts["tokens_cut"] == counts["words_ranked_out"] == 0 and counts["paragraphs_found"] < len(row["text"])
    assert max(np.diff(row["paragraph_offsets"])) <= 40
    held = sorted(zip(row["document"], row["char_start"], row["char_end"], row["text"], strict=True))
    for document, start, end, text in held:
        assert text == on_one_line(raw[given][document][start:end])
    assert " ".join(text for *_, text in held).split() == " ".join(raw[given]).split()
    numbers = row["paragraph"][row["document"] == 0]
    assert set(numbers) == ({0} if given == "paragraphs" else {0, 1, 2, 3, 4})
    _, lost = prepare_counted(raw, recipe.model_copy(update={"paragraph_tokens": 12}), vocabulary)
    assert lost["tokens_cut"] > 0  # as a recipe of before cuts them


def test_the_first_paragraph_has_room_for_the_title(vocabulary):
    choices = PrepareConfig(out="x", paragraph_tokens=40, min_words=1).recipe(vocabulary.sha256, "none")
    text = "The bridge of Lisbon was opened in 1966. It is red. Boats pass under its deck."
    fits = choices.model_copy(update={"paragraph_tokens": len(vocabulary.encode(text))})
    assert len(prepare_example({"documents": [text]}, fits, vocabulary)["text"]) == 2
    row, counts = prepare_counted({"title": "Lisbon", "documents": [text]}, fits, vocabulary)
    assert " ".join(sorted(row["text"], key=text.index)) == text and counts["tokens_cut"] == 0


def test_a_recipe_without_a_word_about_paragraphs_is_the_old_one():
    former = {"vocabulary_sha256": "x", "max_paragraphs": 10}
    old = read_recipe(former, "a run")
    assert (old.paragraph_separator, old.long_paragraphs) == ("lines", "cut")
    new = PrepareConfig(out="x")
    assert (new.paragraph_separator, new.long_paragraphs) == ("blank-lines", "split")


def test_words_of_plain_texts_are_those_of_the_pattern():
    draw = random.Random(0)
    texts = ["".join(chr(draw.randrange(most)) for _ in range(40)) for most in (128, 0x180, 0xD7FF) * 200]
    for text in texts:
        assert words(text) == words(text, {}) == tfidf._WORD.findall(text.lower())
