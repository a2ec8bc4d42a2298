"""Documents as people have them: PDF, web pages, Markdown, Word, e-mail, subtitles and text in any encoding."""

import resource
import sys

import docx
import pytest

from helpers.pdf import LONG, pdf
from raysum.errors import UserError
from raysum.sources.documents import sandbox
from raysum.sources.documents.office import read_docx
from raysum.sources.documents.read import read_document


def read(path, content):
    """Return the text, the title, and the name and first letters of each section."""
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


def test_a_web_page_without_its_menus(tmp_path):
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
    toml = read(tmp_path / "b.md", b'+++\npath = "x"\ntitle = "Tea"\n+++\n\nIt is hot.')
    assert toml[:2] == ("It is hot.", "Tea")
    front = '---\ntitle: "Tea"\n---\n'
    blocks = ["# Green *tea*\n\nIt is [hot](http://x) and\n`green`.", "- one\n- **two**", "Kinds\n-----"]
    blocks += ["| a | b |\n|---|---|\n| 1 | 2 |", "```\ncode\n```\n"]
    source = front + "\n\n".join(blocks)
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
    with pytest.raises(UserError, match=r"b\.docx cannot be read as a Word document"):
        read(tmp_path / "b.docx", (tmp_path / "a.docx").read_bytes()[:1000])


def test_e_mail(tmp_path):
    head = "From: a@b.c\r\nSubject: =?utf-8?q?K=C3=A4se?=\r\n"
    plain = f"{head}Content-Type: text/plain; charset=iso-8859-1\r\n\r\nWir essen K\xe4se.\r\n> was before\r\n"
    assert read(tmp_path / "a.eml", plain.encode("latin-1"))[:2] == ("Wir essen Käse.", "Käse")
    page = f"{head}Content-Type: text/html; charset=utf-8\r\n\r\n<h1>Tea</h1><p>{LONG}</p><p>{LONG} Twice.</p>"
    assert LONG in read(tmp_path / "b.eml", page.encode())[0]


FERRY = """1
00:00:01,000 --> 00:00:03,500 X1:10
<i>The ferry across the Sarsu</i>
{\\an8}was opened in 1893.

2
00:00:03,600 --> 00:00:06,000
It carried 40
passengers.

3
01:02:10,000 --> 01:02:12,000
2 < 3 people came back.
"""


@pytest.mark.parametrize("content", [FERRY.encode(), FERRY.replace("\n", "\r\n").encode("utf-16")])
def test_the_cues_of_subtitles_become_paragraphs_at_pauses(tmp_path, content):
    text, _, times = read(tmp_path / "ferry.srt", content)
    first = "The ferry across the Sarsu was opened in 1893. It carried 40 passengers."
    assert text == f"{first}\n\n2 < 3 people came back."
    assert times == [("00:00:01", "The ferr"), ("01:02:10", "2 < 3 pe")]


def test_long_speech_has_paragraphs_of_whole_sentences(tmp_path):
    times = [f"00:{n // 60:02}:{n % 60:02}" for n in range(90)]
    cues = [f"{n}\n{time},000 --> {time},900\nIt is {n} now.\n" for n, time in enumerate(times)]
    paragraphs = read(tmp_path / "long.srt", "\n".join(cues).encode())[0].split("\n\n")
    assert [len(paragraph.split()) for paragraph in paragraphs] == [60] * 6
    assert all(paragraph.startswith("It is") and paragraph.endswith("now.") for paragraph in paragraphs)


@pytest.mark.parametrize("unit", ["00:00:01,000 --> ", "<", "{\\", "1\n", "00:00:01,000 --> 00:00:02,000\n\n", " "])
def test_hostile_subtitles_are_read_in_linear_time(tmp_path, unit):
    content = "00:00:01,000 --> 00:00:02,000\nHello.\n" + unit * (2_000_000 // len(unit))
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert read(tmp_path / "a.srt", content.encode())[0].startswith("Hello.")
    sandbox.end()  # children count once they have ended
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began < 20


@pytest.mark.parametrize(
    ("text", "encoding", "reported"),
    [
        ("Käse und Brot", "utf-8-sig", ""),
        ("Käse und Brot", "utf-16", ""),
        ("Käse und Brot, für alle, die hungrig sind", "cp1252", "cp1252"),
        ("Мама мыла раму, а папа читал газету и пил чай с лимоном. Потом они пошли гулять в парк.", "cp1251", "cp1251"),
    ],
)
def test_text_in_any_encoding(tmp_path, capsys, monkeypatch, text, encoding, reported):
    monkeypatch.setattr("raysum.sources.documents.text._reported_encodings", set())
    assert read(tmp_path / "a.txt", text.encode(encoding))[0] == text
    messages = capsys.readouterr().err
    assert (f"a.txt is not UTF-8; it is read as {reported}" in messages) if reported else messages == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"a\0b", "holds NUL"),
        ("a.txt", b"\xff\xfea", "as UTF-16, but is invalid at"),
        ("a.pdf", pdf([], []), "holds no text on its 2 pages, as scans do"),
        ("a.pdf", pdf([LONG])[:300], "cannot be read as PDF .*fetch it again"),
        ("a.pdf", b"%PDF-1.4 nothing", "cannot be read as PDF"),
        ("a.pdf", b"", "cannot be read as PDF"),
        ("a.docx", b"", "cannot be read as a Word document"),
        ("a.docx", b"PK\x03\x04 no", "cannot be read as a Word document"),
        ("a.srt", b"", "has no subtitles"),
        ("a.srt", b"1\nno time\ntext", "has no subtitles"),
        ("a.srt", b"00:00:01 --> 00:00:02\ntext", "has no subtitles"),
    ],
)
def test_documents_without_text_are_refused(tmp_path, name, content, message):
    with pytest.raises(UserError, match=f"{name}.* {message}"):
        read(tmp_path / name, content)


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "docx", None)
    with pytest.raises(UserError, match=r'a\.docx needs python-docx, .*: pip install .* "\.\[documents\]"'):
        read_docx(b"", "a.docx")
