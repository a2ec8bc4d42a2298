"""Folders: clusters of documents, what is skipped and reported, and folders that are refused."""

import sys
from pathlib import Path

import pytest

from helpers.lisbon import CLUSTER, as_folder, read_records
from helpers.pdf import LONG, pdf
from raysum.cli.app import main
from raysum.cli.clusters import input_clusters
from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.sources.find import find_sources


def test_title_and_references_are_files_of_a_folder(tmp_path):
    folder = as_folder(tmp_path)
    (folder / "lisbon" / "summary.2.txt").write_text("Red it is.\n")
    (record,) = read_records([folder])
    assert record.raw == CLUSTER | {"summaries": ["Red it is."]}


@pytest.fixture
def folder(tmp_path):
    """A cluster of four documents, two of which have the same name except for the suffix."""
    (tmp_path / "ferry").mkdir()
    (tmp_path / "ferry" / "report.pdf").write_bytes(pdf([LONG], ["It was closed in 1921 after a storm of two days."]))
    (tmp_path / "ferry" / "notes.md").write_text("# Fares\n\nIt cost two pence.")
    (tmp_path / "ferry" / "notes.txt").write_text("It was slow.")
    (tmp_path / "ferry" / "film.srt").write_text("1\n00:00:01,000 --> 00:00:03,500\nThe ferry sank.\n")
    (tmp_path / "ferry" / "summary.txt").write_text("A ferry.\n")
    return tmp_path


def test_a_folder_of_documents_is_a_cluster(folder):
    (record,) = read_records([folder])
    cluster = read_cluster(record.cluster())
    assert [name for name, _ in cluster.documents] == ["film", "notes.md", "notes.txt", "report"]
    assert (cluster.id, cluster.title, cluster.summaries) == ("ferry", "ferry", ["A ferry."])


def test_a_citation_has_the_page_or_heading(folder, capsys, monkeypatch):
    files = [str(path) for path in sorted((folder / "ferry").glob("[nr]*"))]
    assert [one["title"] for one in input_clusters(files[-1:])] == ["Ferries"]
    arguments = ["raysum", "summarize", "lead", *files, "--title", "Ferry", "--words", "60"]
    for options in ([], ["--html", str(folder / "page.html")]):
        monkeypatch.setattr(sys, "argv", [*arguments, *options])
        with pytest.raises(SystemExit, match="0"):
            main()
    shown = capsys.readouterr().out
    assert 'report.pdf, page 2, "It was closed in 1921' in shown
    assert 'notes.txt, "It was slow."' in shown or "It was slow" not in shown
    assert "report.pdf, page 2, “It was closed" in (folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("files", "id", "sources"),
    [
        (["a/notes.txt"], "notes.txt", ["notes.txt"]),
        (["a/notes.txt", "a/notes.html"], "a", ["notes.txt", "notes.html"]),
        (["a/notes.txt", "b/notes.txt"], "notes.txt and 1 more", ["a/notes.txt", "b/notes.txt"]),
    ],
)
def test_single_files_are_named_as_far_as_necessary(tmp_path, monkeypatch, files, id, sources):
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("The ferry runs twice a day.")
    (cluster,) = input_clusters(files)
    assert (cluster["id"], [one["source"] for one in cluster["documents"]]) == (id, sources)


def documents_by_cluster(folder: Path) -> list[tuple[str, int]]:
    return [(record.id, len(record.raw["documents"])) for record in read_records([folder])]


@pytest.fixture
def towns(tmp_path):
    """Three clusters of two documents each."""
    for name in ("c1", "c2", "c3"):
        (tmp_path / "towns" / name).mkdir(parents=True)
        for document in ("a.txt", "b.md"):
            (tmp_path / "towns" / name / document).write_text(f"The town {name} has a river.")
    return tmp_path / "towns"


TOWNS = [("c1", 2), ("c2", 2), ("c3", 2)]


@pytest.mark.parametrize("stray", ["README.txt", "LICENSE.txt", "README.md", "info.json"])
def test_a_stray_file_beside_folders_of_documents_is_skipped(towns, capsys, stray):
    (towns / stray).write_text("[1]")
    assert documents_by_cluster(towns) == TOWNS
    assert f"{towns}: skipped {stray}; documents are .txt" in capsys.readouterr().err


def test_folders_of_splits_hold_folders_of_clusters(towns, capsys):
    for split, names in {"train": ("c2", "c1"), "val": ("c3",)}.items():
        (towns / split).mkdir()
        for name in names:
            (towns / name).rename(towns / split / name)
    (towns / "README.txt").write_text("About the towns.")
    train, valid = find_sources([towns])
    assert (train.path.name, train.split, valid.path.name, valid.split) == ("train", "train", "val", "valid")
    assert [record.raw["title"] for record in train.records()] == ["c1", "c2"]
    assert f"{towns}: skipped README.txt" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "ndjson", "csv", "tsv.gz", "parquet", "arrow", "json"])
def test_a_repository_is_refused_with_the_folder_that_has_rows(tmp_path, suffix):
    place = tmp_path / "repository"

    def write(*names: str) -> None:
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("About the data.")

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=f"repository holds {message}"):
            find_sources([place])

    write("README.md", "LICENSE.txt", "CHANGELOG.md", "requirements.txt", "setup.py", ".gitattributes")
    write("dataset_info.json")
    refused("neither files .* nor folders of documents .*, only CHANGELOG.md, LICENSE.txt")
    write(f"data/en/train.{suffix}")
    refused("its files of rows in .*repository/data/en: give that in")
    if suffix != "json":
        write("package.json")
        refused("its files of rows in .*repository/data/en: give that in")
        (place / "package.json").unlink()
    write(f"data/all.{suffix}", "data/README.md")
    for name in ("notes.md", "docs/guide.md", "docs/README.md", "examples/use.txt"):
        write(name)
        if suffix != "json":  # such a file beside documents may be a setting
            refused("its files of rows in [^ ]*repository/data: give that")


def test_datasets_and_runs_beside_clusters_are_skipped(towns):
    for name, files in {"data": ["manifest.json", "train.parquet"], "run": ["config.yaml", "metrics.jsonl"]}.items():
        (towns / "made" / name).mkdir(parents=True)
        for file in files:
            (towns / "made" / name / file).write_text("{}")
    assert documents_by_cluster(towns) == TOWNS


def test_a_readme_is_no_document_of_a_cluster(towns, capsys):
    for file in ("README.md", "LICENSE-MIT.txt", "Readme.de.txt", "citations.txt", "license dispute.txt"):
        (towns / "c1" / file).write_text("About this town.")
    assert documents_by_cluster(towns) == [("c1", 4), ("c2", 2), ("c3", 2)]
    message = capsys.readouterr().err
    assert "skipped c1/LICENSE-MIT.txt, c1/README.md, c1/Readme.de.txt; documents are .txt" in message


def test_folders_with_two_kinds_of_clusters_are_refused(towns):
    (towns / "metadata.csv").write_text("name,year\nc1,2001\n")
    with pytest.raises(UserError, match=r"both files \(metadata.csv\) and folders of documents \(c1/, c2/, c3/\)"):
        find_sources([towns])
    (towns / "metadata.csv").unlink()
    for number in range(6):
        (towns / f"{number}.txt").write_text("A document?")
    with pytest.raises(UserError, match=r"both files \(0.txt, .*4.txt and 1 more\) and folders of documents \(c1"):
        find_sources([towns])
    (towns / "title.txt").write_text("Towns")
    assert documents_by_cluster(towns) == [("towns", 6)]


def test_an_abstract_and_a_name_describe_a_cluster(tmp_path):
    for name, text in (("text", "It rained."), ("abstract", "Rain."), ("name", "A day"), ("summary.1", "Wet.")):
        (tmp_path / f"{name}.txt").write_text(text)
    (record,) = read_records([tmp_path])
    assert record.raw["title"] == "A day" and record.raw["summary"] == "Rain." and record.raw["summaries"] == ["Wet."]
    assert [document["text"] for document in record.raw["documents"]] == ["It rained."]


def test_what_is_not_read_is_skipped_and_reported(towns, capsys):
    (towns / "c2" / "15.jpg").write_bytes(b"\xff\xd8")
    (towns / "c2" / "sub").mkdir()
    (towns / "c2" / "sub" / "16.txt").write_text("A part.")
    (towns / "D.log").write_text("said")
    (towns / "empty").mkdir()
    (towns / "c3" / "gone.txt").symlink_to(towns / "gone.txt")
    assert len(read_records([towns])) == 3
    assert find_sources([towns])[0].size == 6 * len("The town c1 has a river.")
    assert f"{towns}: skipped D.log, empty/, c2/15.jpg, c2/sub/; documents are .txt" in capsys.readouterr().err
    assert documents_by_cluster(towns / "c2") == [("c2", 2)]
    assert f"{towns}/c2: skipped 15.jpg, sub/; documents" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"empty holds neither files .* nor folders of documents \(.txt, .text, .md"):
        find_sources([towns / "empty"])


def test_all_unreadable_documents_are_named_at_once(towns):
    (towns / "c2" / "a.txt").write_bytes(b"a\0b")
    (towns / "c2" / "c.pdf").write_bytes(b"%PDF-1.4")
    (_, record, _) = read_records([towns])
    assert record.problem == "a document is unreadable"
    assert "c2/a.txt is not text" in record.detail and "c2/c.pdf cannot be read as PDF" in record.detail
    with pytest.raises(UserError, match=r"a.txt is not text.*; .*c.pdf cannot be read as PDF"):
        input_clusters([str(towns / "c2" / name) for name in ("a.txt", "b.md", "c.pdf")])


def test_links_out_of_a_folder_are_skipped_and_reported(tmp_path, towns, capsys):
    secret = tmp_path / "secret.txt"
    secret.write_text("A secret.")
    (towns / "c1" / "c.txt").symlink_to(secret)
    (towns / "c1" / "d.txt").symlink_to(towns / "c2" / "a.txt")
    (towns / "c4").symlink_to(tmp_path)
    (towns / "d.jsonl").symlink_to(secret)
    texts = {record.id: [one["text"] for one in record.raw["documents"]] for record in read_records([towns])}
    rivers = {name: f"The town {name} has a river." for name in ("c1", "c2", "c3")}
    assert texts.pop("c1") == [rivers["c1"]] * 2 + [rivers["c2"]]
    assert texts == {name: [rivers[name]] * 2 for name in ("c2", "c3")}
    message = capsys.readouterr().err
    assert "c4, d.jsonl" in message and "c1/c.txt" in message and "secret" not in message
