"""The positions of citations: characters of a document or its extracted text, and pages, slides, times or speakers."""

import io
import json

import docx
import pptx
import pytest

from helpers.pdf import LONG, pdf
from raysum.cli.clusters import Output, input_clusters, summarize_clusters, summarizer_in
from raysum.config.sections import LoadConfig

FERRY = "The ferry of Arden was closed in 1921 after a storm of two days."


def presentation() -> bytes:
    document = pptx.Presentation()
    for text in (LONG, FERRY):
        slide = document.slides.add_slide(document.slide_layouts[1])
        slide.placeholders[1].text = text
    document.save(saved := io.BytesIO())
    return saved.getvalue()


def word() -> bytes:
    document = docx.Document()
    for heading, text in (("History", LONG), ("Storms", FERRY)):
        document.add_heading(heading)
        document.add_paragraph(text)
    document.save(saved := io.BytesIO())
    return saved.getvalue()


def page(body: str) -> str:
    return f"<html><body><article><h1>Arden</h1><p>{LONG}</p><p>{LONG}</p><h2>Storms</h2>{body}</article></body></html>"


CELLS = [{"cell_type": "markdown", "source": [text]} for text in (LONG, FERRY)]
MEETING = {
    "meeting_transcripts": [{"speaker": "Ann", "content": LONG}, {"speaker": "Bob", "content": FERRY}],
    "general_query_list": [{"query": "What of the ferry of Arden?", "answer": "It was closed."}],
    "specific_query_list": [],
}
ISSUE = {"title": "Ferry", "body": "", "author": {"login": "ann"}, "comments": [
    {"author": {"login": "bob"}, "body": FERRY, "createdAt": "2024-05-04T00:00:00Z"}]}  # fmt: skip
SUBTITLES = f"WEBVTT\n\n00:01.000 --> 00:03.000\n<v Ann>{LONG}\n\n01:05.000 --> 01:09.000\n<v Bob>{FERRY}\n"
MAILBOX = f"From x\nFrom: Ann <a@b.org>\nSubject: Ferry\nDate: Fri, 3 May 2024 10:00:00 +0200\n\n{FERRY}\n"


def own(origin: object) -> str:
    """A row whose document has fields of the user that have the names of our own."""
    fields = {name: origin for name in ("origin", "places", "pieces", "is_extracted")}
    return json.dumps({"documents": [{"source": "own", "text": f"{LONG}\n\n{FERRY}", **fields}]})


KINDS = [  # a file, the name in the citation, and whether its characters are those of an extracted text
    ("a.txt", f"{LONG}\r\n\r\n{FERRY}", "a.txt", False),
    ("rows.jsonl", json.dumps({"title": "Ferry", "documents": [f"{LONG}\n\n{FERRY}"]}), "document 1", False),
    ("a.md", f"# Arden\n\n{LONG}\n\n## Storms\n\n{FERRY}", "a.md, Storms", False),
    ("a.html", page(f"<p>{FERRY}</p>"), "a.html, Storms", False),
    ("a.pdf", pdf([LONG], [FERRY]), "a.pdf, page 2", True),
    ("a.docx", word(), "a.docx, Storms", True),
    ("a.pptx", presentation(), "a.pptx, slide 2", True),
    ("a.ipynb", json.dumps({"cells": CELLS}), "a.ipynb, cell 2", True),
    ("a.vtt", SUBTITLES, "a.vtt, 00:01:05, Bob", True),
    ("a.mbox", MAILBOX, "Ann, 2024-05-03 10:00", True),
    ("meeting.jsonl", json.dumps(MEETING), "meeting, Bob", True),
    ("issue.json", json.dumps([ISSUE]), "bob, 2024-05-04", False),
    *(("own.jsonl", own(origin), "own", False) for origin in (5, "x", [[[0, "x"]], [], True], {"places": [[0, "x"]]})),
]


@pytest.mark.parametrize(("name", "content", "place", "is_extracted"), KINDS, ids=lambda value: str(value)[:13])
def test_a_citation_names_the_place_and_the_text_that_it_counts_in(tmp_path, name, content, place, is_extracted):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (cluster,) = input_clusters([str(file)])
    settings = LoadConfig(decode={"sentences": 12})
    (summary,) = summarize_clusters(
        [cluster], summarizer_in("lead", settings), Output(html=str(tmp_path / "page.html"))
    )
    note = next(note for note in summary.notes if "closed in 1921" in note.quote)
    document = cluster["documents"][note.document]
    text = document if isinstance(document, str) else document["text"]
    assert text[note.start : note.end] == note.quote
    is_markup = name in ("a.md", "a.html")
    assert (note.name, note.is_extracted) == (place, is_extracted or is_markup)
    start, end = (note.file_start, note.file_end) if is_markup else (note.start, note.end)
    ending = " of the extracted text" * is_extracted
    assert f'{place}, "{note.quote}" chars {start}-{end}{ending}\n' in summary.render()
    assert f"characters {start}–{end}{ending}</span>" in (tmp_path / "page.html").read_text()
    if name == "a.txt" or is_markup:
        assert file.read_bytes().decode()[start:end] == note.quote
