"""Documents as people have them: PDF, web pages, Markdown, Word, e-mail and text in any encoding."""

import sys
from pathlib import Path

import docx
import pytest

from helpers.pdf import LONG, pdf
from raysum.cli.app import main
from raysum.cli.clusters import input_clusters
from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.sources.documents.office import read_docx
from raysum.sources.documents.read import read_document
from raysum.sources.find import find_sources


def read(path, content):
    path.write_bytes(content)
    found = read_document(path)
    return found.text, found.title, [(name, found.text[start:][:8]) for start, name in found.sections]


def test_the_pages_of_a_pdf(tmp_path):
    lines = [
        LONG,
        "On the way back it was pulled by a steam en-",
        "gine that stood there until its end.",
        "Then it rusted.",
    ]
    content = pdf(["The ferry", *lines], [], [LONG])
    text, title, places = read(tmp_path / "a.pdf", content)
    ending = "On the way back it was pulled by a steam engine that stood there until its end."
    assert text.split("\n\n") == ["The ferry", f"{LONG} {ending}", "Then it rusted.", LONG]
    assert (title, places) == ("Ferries", [("page 1", "The ferr"), ("page 3", "The ferr")])
    assert read(tmp_path / "unnamed", content)[0] == text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (pdf([], []), "holds no text on its 2 pages, as scans do"),
        (pdf([LONG])[:300], "cannot be read as PDF .*fetch it again"),
        (b"%PDF-1.4 nothing", "cannot be read as PDF"),
        (b"", "cannot be read as PDF"),
    ],
)
def test_a_pdf_without_text_is_named(tmp_path, content, told):
    with pytest.raises(UserError, match=rf"a\.pdf {told}"):
        read(tmp_path / "a.pdf", content)


def test_what_a_web_page_tells_without_what_stands_around_it(tmp_path):
    page = f"""<!DOCTYPE html><html><head><meta charset="utf-8"><title>Museum of Arden</title></head><body>
      <nav><a href="/">Home</a> <a href="/shop">Shop</a></nav>
      <article><h1>Museum</h1><p>{LONG}</p><h2>Hours</h2><p>It is open on Sundays, from ten until five, and for schools
      on any other day when the keeper of the museum has been asked for it in time. Käse is sold there.</p></article>
      <footer>Imprint and privacy</footer></body></html>"""
    text, title, places = read(tmp_path / "a.html", page.encode())
    assert text.split("\n\n")[:3] == ["Museum", LONG, "Hours"]
    assert "Käse is sold" in text and "Shop" not in text and "Imprint" not in text
    assert (title, places) == ("Museum", [("Museum", "Museum\n\n"), ("Hours", "Hours\n\nI")])
    assert read(tmp_path / "b.html", b"<p>Tea is hot.")[0].strip() == "Tea is hot."
    assert read(tmp_path / "c.html", b"<div>" * 1000 + b"Tea is hot.")[0] == "Tea is hot."


def test_markdown_without_its_marks(tmp_path):
    source = """---
title: "Tea"
---
# Green *tea*

It is [hot](http://x) and
`green`.

- one
- **two**

Kinds
-----

| a | b |
|---|---|
| 1 | 2 |

```
code
```
"""
    text, title, places = read(tmp_path / "a.md", source.replace("\n", "\r\n").encode())
    assert text.split("\n\n") == ["Green tea", "It is hot and green.", "one", "two", "Kinds", "a | b", "1 | 2", "code"]
    assert (title, places) == ("Tea", [("Green tea", "Green te"), ("Kinds", "Kinds\n\na")])


def test_word_documents(tmp_path):
    document = docx.Document()
    document.add_heading("History", 1)
    document.add_paragraph(LONG)
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Year", "1893"
    document.core_properties.title = "Arden"
    document.save(str(tmp_path / "a.docx"))
    found = read_document(tmp_path / "a.docx")
    assert found.text == f"History\n\n{LONG}\n\nYear | 1893"
    assert (found.title, found.sections) == ("Arden", [(0, "History")])
    for content in (b"", b"PK\x03\x04 no", (tmp_path / "a.docx").read_bytes()[:1000]):
        with pytest.raises(UserError, match=r"b\.docx cannot be read as a Word document"):
            read(tmp_path / "b.docx", content)


def test_e_mail(tmp_path):
    head = "From: a@b.c\r\nSubject: =?utf-8?q?K=C3=A4se?=\r\n"
    plain = f"{head}Content-Type: text/plain; charset=iso-8859-1\r\n\r\nWir essen K\xe4se.\r\n> was before\r\n"
    assert read(tmp_path / "a.eml", plain.encode("latin-1"))[:2] == ("Wir essen Käse.", "Käse")
    page = f"{head}Content-Type: text/html; charset=utf-8\r\n\r\n<h1>Tea</h1><p>{LONG}</p><p>{LONG} Twice.</p>"
    assert LONG in read(tmp_path / "b.eml", page.encode())[0]


@pytest.mark.parametrize(
    ("text", "encoding", "named"),
    [
        ("Käse und Brot", "utf-8-sig", ""),
        ("Käse und Brot", "utf-16", ""),
        ("Käse und Brot, für alle, die hungrig sind", "cp1252", "cp1252"),
        ("Мама мыла раму, а папа читал газету и пил чай с лимоном. Потом они пошли гулять в парк.", "cp1251", "cp1251"),
    ],
)
def test_text_in_any_encoding(tmp_path, capsys, monkeypatch, text, encoding, named):
    monkeypatch.setattr("raysum.sources.documents.text._reported_encodings", set())
    assert read(tmp_path / "a.txt", text.encode(encoding))[0] == text
    said = capsys.readouterr().err
    assert (f"a.txt is not UTF-8; it is read as {named}" in said) if named else said == ""


@pytest.mark.parametrize(("content", "told"), [(b"a\0b", "holds NUL"), (b"\xff\xfea", "as UTF-16, but is invalid at")])
def test_what_is_no_text_is_named(tmp_path, content, told):
    with pytest.raises(UserError, match=told):
        read(tmp_path / "a.txt", content)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "docx", None)
    with pytest.raises(UserError, match=r'a\.docx needs python-docx, .*: pip install .* "\.\[documents\]"'):
        read_docx(b"", "a.docx")


@pytest.fixture
def folder(tmp_path):
    """A cluster of three documents, one of which does not tell its name alone."""
    (tmp_path / "ferry").mkdir()
    (tmp_path / "ferry" / "report.pdf").write_bytes(pdf([LONG], ["It was closed in 1921 after a storm of two days."]))
    (tmp_path / "ferry" / "notes.md").write_text("# Fares\n\nIt cost two pence.")
    (tmp_path / "ferry" / "notes.txt").write_text("It was slow.")
    (tmp_path / "ferry" / "summary.txt").write_text("A ferry.\n")
    return tmp_path


def test_a_folder_of_documents_is_a_cluster(folder):
    (record,) = find_sources([folder])[0].records()
    cluster = read_cluster(record.cluster())
    assert [name for name, _ in cluster.documents] == ["notes.md", "notes.txt", "report"]
    assert (cluster.id, cluster.title, cluster.summaries) == ("ferry", "ferry", ["A ferry."])
    (folder / "ferry" / "report.pdf").write_bytes(b"%PDF-1.4")
    (record,) = find_sources([folder])[0].records()
    assert record.problem == "a document is unreadable" and "report.pdf cannot be read as PDF" in record.detail


def test_a_citation_tells_the_page_or_heading(folder, capsys, monkeypatch):
    files = [str(path) for path in sorted((folder / "ferry").glob("[nr]*"))]
    assert [one["title"] for one in input_clusters(files[-1:])] == ["Ferries"]
    monkeypatch.setattr(sys, "argv", ["raysum", "summarize", "lead", *files, "--title", "Ferry", "--words", "60"])
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr().out
    assert 'report.pdf, page 2, "It was closed in 1921' in shown
    assert 'notes.txt, "It was slow."' in shown or "It was slow" not in shown
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--html", str(folder / "page.html")])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "report.pdf, page 2, “It was closed" in (folder / "page.html").read_text()


def test_files_of_one_name_are_told_apart_and_several_are_called_by_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/notes.txt", "a/notes.html", "b/notes.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("The ferry runs twice a day.")

    def given(*files: str) -> tuple[str, list[str]]:
        (cluster,) = input_clusters(files)
        return cluster["id"], [one["source"] for one in cluster["documents"]]

    assert given("a/notes.txt") == ("notes.txt", ["notes.txt"])
    assert given("a/notes.txt", "a/notes.html") == ("a", ["notes.txt", "notes.html"])
    assert given("a/notes.txt", "b/notes.txt") == ("notes.txt and 1 more", ["a/notes.txt", "b/notes.txt"])


def clusters_of(folder: Path) -> list[tuple[str, int]]:
    """Id and documents of each cluster in a folder."""
    return [
        (record.id, len(record.raw["documents"])) for source in find_sources([folder]) for record in source.records()
    ]


@pytest.fixture
def towns(tmp_path):
    """Three clusters of two documents each."""
    for name in ("c1", "c2", "c3"):
        (tmp_path / "towns" / name).mkdir(parents=True)
        for document in ("a.txt", "b.md"):
            (tmp_path / "towns" / name / document).write_text(f"The town {name} has a river.")
    return tmp_path / "towns"


@pytest.mark.parametrize("stray", ["README.txt", "LICENSE.txt", "README.md", "info.json"])
def test_a_stray_file_beside_folders_of_documents_is_left_out_and_named(towns, capsys, stray):
    (towns / stray).write_text("[1]")
    assert clusters_of(towns) == [("c1", 2), ("c2", 2), ("c3", 2)]
    assert f"{towns}: skipped {stray}; documents are .txt" in capsys.readouterr().err


def test_a_stray_file_beside_folders_of_splits_is_left_out_and_named(towns, capsys):
    (towns / "train").mkdir()
    for name in ("c1", "c2", "c3"):
        (towns / name).rename(towns / "train" / name)
    (towns / "README.txt").write_text("About the towns.")
    assert [source.split for source in find_sources([towns])] == ["train"] and len(clusters_of(towns)) == 3
    assert f"{towns}: skipped README.txt" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "ndjson", "csv", "tsv.gz", "parquet", "arrow", "json"])
def test_a_repository_is_refused_with_the_folder_that_has_rows(tmp_path, suffix):
    place = tmp_path / "repository"
    for name in ("README.md", "LICENSE.txt", "CHANGELOG.md", "requirements.txt", "setup.py", ".gitattributes"):
        place.mkdir(exist_ok=True)
        (place / name).write_text("About the data.")
    (place / "dataset_info.json").write_text("{}")
    with pytest.raises(UserError, match=r"repository holds neither files .* nor .*, only CHANGELOG.md, LICENSE.txt"):
        find_sources([place])
    (place / "data" / "en").mkdir(parents=True)
    (place / "data" / "en" / f"train.{suffix}").write_text("rows")
    with pytest.raises(UserError, match="repository holds its files of rows in .*repository/data/en: give that in"):
        find_sources([place])
    if suffix != "json":
        (place / "package.json").write_text("{}")
        with pytest.raises(UserError, match="repository holds its files of rows in .*repository/data/en: give that in"):
            find_sources([place])
        (place / "package.json").unlink()
    (place / "data" / f"all.{suffix}").write_text("rows")
    (place / "data" / "README.md").write_text("More about the data.")
    for name in ("notes.md", "docs/guide.md", "docs/README.md", "examples/use.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("How to use it.")
        if suffix != "json":  # such a file beside documents may be a setting
            with pytest.raises(
                UserError, match="repository holds its files of rows in [^ ]*repository/data: give that"
            ):
                find_sources([place])


def test_datasets_and_runs_beside_clusters_are_left_out(towns):
    for name, files in {"data": ["manifest.json", "train.parquet"], "run": ["config.yaml", "metrics.jsonl"]}.items():
        (towns / "made" / name).mkdir(parents=True)
        for file in files:
            (towns / "made" / name / file).write_text("{}")
    assert clusters_of(towns) == [("c1", 2), ("c2", 2), ("c3", 2)]


def test_a_readme_is_no_document_of_a_cluster(towns, capsys):
    for file in ("README.md", "LICENSE-MIT.txt", "Readme.de.txt", "citations.txt", "license dispute.txt"):
        (towns / "c1" / file).write_text("About this town.")
    assert clusters_of(towns) == [("c1", 4), ("c2", 2), ("c3", 2)]
    told = "skipped c1/LICENSE-MIT.txt, c1/README.md, c1/Readme.de.txt; documents are .txt"
    assert told in (said := capsys.readouterr().err) and "except files such as README" in said


def test_what_may_be_clusters_or_not_is_refused_with_both_named(towns):
    (towns / "metadata.csv").write_text("name,year\nc1,2001\n")
    with pytest.raises(UserError, match=r"both files \(metadata.csv\) and folders of documents \(c1/, c2/, c3/\)"):
        find_sources([towns])
    (towns / "metadata.csv").unlink()
    for number in range(4):
        (towns / f"{number}.txt").write_text("A document?")
    with pytest.raises(UserError, match=r"both files \(0.txt, 1.txt, 2.txt, 3.txt\) and folders of documents \(c1"):
        find_sources([towns])
    (towns / "title.txt").write_text("Towns")
    assert clusters_of(towns) == [("towns", 4)]


def test_what_of_a_folder_of_documents_is_not_read_is_named(towns, capsys):
    (towns / "c2" / "15.jpg").write_bytes(b"\xff\xd8")
    (towns / "c2" / "sub").mkdir()
    (towns / "c2" / "sub" / "16.txt").write_text("A part.")
    (towns / "D.log").write_text("said")
    (towns / "empty").mkdir()
    (towns / "c3" / "gone.txt").symlink_to(towns / "gone.txt")
    assert len([*find_sources([towns])[0].records()]) == 3
    assert find_sources([towns])[0].size == 6 * len("The town c1 has a river.")
    assert f"{towns}: skipped D.log, empty/, c2/15.jpg, c2/sub/; documents are .txt" in capsys.readouterr().err
    assert clusters_of(towns / "c2") == [("c2", 2)]
    assert f"{towns}/c2: skipped 15.jpg, sub/; documents" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"empty holds neither files .* nor folders of documents \(.txt, .text, .md"):
        find_sources([towns / "empty"])


def test_all_documents_that_do_not_read_are_named_at_once(towns):
    (towns / "c2" / "a.txt").write_bytes(b"a\0b")
    (towns / "c2" / "c.pdf").write_bytes(b"%PDF-1.4")
    (_, record, _) = find_sources([towns])[0].records()
    assert "c2/a.txt is not text" in record.detail and "c2/c.pdf cannot be read as PDF" in record.detail
    with pytest.raises(UserError, match=r"a.txt is not text.*; .*c.pdf cannot be read as PDF"):
        input_clusters([str(towns / "c2" / name) for name in ("a.txt", "b.md", "c.pdf")])
