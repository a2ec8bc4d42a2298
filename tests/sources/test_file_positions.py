"""Citations of Markdown, web pages and e-mail have their characters in the file as it is."""

import base64
import html
import quopri
import random
import re
import time

import pytest

import raysum
from raysum.sources.documents.file_positions import Origin, file_span
from raysum.sources.documents.read import parse_document, raw_document

FIRST = "The ferry of Arden was closed in 1921 after a storm that had lasted for two days and nights."
SECOND = "The new bridge carries cars, trams and bicycles over the Vel river to the town of Lower Arden."
THIRD = "Most of the people in the valley had asked for this bridge since the flood of the year 1899."
MARKDOWN = f"""---
title: Ferries
---
# Ferries of Arden

{FIRST.replace("ferry", "[ferry](https://example.org/ferry_(ship) 'The ferry')").replace("storm", "**storm**")}

![The bridge in winter](bridge.png)

* {SECOND.replace("cars", "*cars*").replace("Vel", "`Vel`")}

| year | event |
|---|---|
| 1899 | flood |

{THIRD.replace(" had asked", chr(10) + "had asked")}
AT&amp;T paid for it, wrote the *Caf&eacute; Times* to <ann@example.org>.
"""
PAGE = f"""<?xml version="1.0" encoding="utf-8"?>
<html><head><title>Ferries</title><script>var a = "{FIRST}";</script><style>p {{ color: red }}</style></head><body>
<nav><a href="/">Home</a> <a href="/f">Ferries of Arden</a></nav><!-- {SECOND} -->
<article><h1>Ferries of Arden</h1>
<p>{FIRST.replace("storm", '<b class="x">sto</b>rm').replace("Arden", "<a href='/arden'>Arden</a>")}</p>
<p>{SECOND.replace("cars, trams", "cars,&nbsp;trams")}
The caf&eacute; &#8220;Zur F&#xE4;hre&#8221; is open on all days of the week.</p>
<p>{THIRD}</p><p>{FIRST}</p></article></body></html>"""
MAIL = f"From: Ann <a@example.org>\r\nSubject: Ferries of Arden\r\n\r\n{FIRST}\r\n\r\n{SECOND}\r\n-- \r\nAnn\r\n"
QUOTED = (
    "From: Ann <a@example.org>\nSubject: F\nContent-Type: text/plain; charset=utf-8\n"
    "Content-Transfer-Encoding: quoted-printable\n\n"
    + quopri.encodestring(
        f"{FIRST}\n\nDie Fähre über die Vel wurde wegen der Stürme geschlossen, schrieb die Zeitung.\n".encode()
    ).decode()
)
HEAD = "From: a@example.org\nSubject: F\nContent-Type: text/html; charset=utf-8\n\n"
HTML_MAIL = f"{HEAD}<html><body><p>{FIRST}</p><p>{SECOND}</p></body></html>\n"
FILES = {
    "a.md": MARKDOWN,
    "crlf.md": MARKDOWN.replace("\n", "\r\n"),
    "a.html": PAGE,
    "a.eml": MAIL,
    "q.eml": QUOTED,
    "h.eml": HTML_MAIL,
}


def cited(name, content):
    """Return the citations of all sentences of a file, and its document."""
    document = raw_document(parse_document(content.encode(), name, name), name)
    summary = raysum.load("lead").summarize("", [document], sentences=50, readable=False, redundancy=1.0)
    return [sentence.citations[0] for sentence in summary.located({"documents": [document]}).sentences], document


def letters(text):
    return "".join(filter(str.isalnum, text))


def plain(text, name):
    """Return the text of a part of a file by other means than the package's."""
    if name == "q.eml":
        text = quopri.decodestring(text.encode()).decode()
    text = text.replace("<ann@example.org>", "ann@example.org")
    text = re.sub(r"\]\(\S+(?: '[^']*')?\)", "", text) if name.endswith("md") else text
    return html.unescape(re.sub(r"<[^>]*>", "", text))


@pytest.mark.parametrize("name", FILES)
def test_all_sentences_are_found_in_the_file(name):
    content = FILES[name]
    citations, document = cited(name, content)
    assert len(citations) >= 2
    for citation in citations:
        assert document["text"][citation.start : citation.end] == citation.quote
        part = content[citation.file_start : citation.file_end]
        assert letters(plain(part, name)) == letters(citation.quote)
        assert citation.characters == f"chars {citation.file_start}-{citation.file_end}"


def test_a_repeated_paragraph_is_found_where_it_is():
    citations, _ = cited("a.html", PAGE)
    places = [citation.file_start for citation in citations if citation.quote == FIRST]
    assert places == [PAGE.index("The ferry of <a"), PAGE.index(FIRST, PAGE.index("<h1>"))]
    assert [c.file_start for c in citations] == sorted(c.file_start for c in citations)
    assert PAGE[places[1] : places[1] + len(FIRST)] == FIRST


def test_positions_of_base64_and_other_files_are_not_invented():
    head = "From: a@example.org\nContent-Transfer-Encoding: base64\n\n"
    encoded = head + base64.encodebytes(FIRST.encode()).decode()
    for name, content in (("b.eml", encoded), ("a.rst", f"Ferries\n=======\n\n{FIRST}\n")):
        citations, _ = cited(name, content)
        assert [citation.file_start for citation in citations] == [None]
        assert citations[0].characters.endswith("of the extracted text")


def test_random_documents_are_found_within_the_time_of_reading():
    draw = random.Random(3)
    names = ["river", "bridge", "harbour", "ferry", "winter", "council", "market", "station"]
    lines = [" ".join(draw.choices(names, k=draw.randint(6, 30))).capitalize() + "." for _ in range(3000)]
    marked = [" ".join(f"**{word}**" if draw.random() < 0.2 else word for word in line.split(" ")) for line in lines]
    content = "\n\n".join(marked)
    began = time.process_time()
    document = raw_document(parse_document(content.encode(), "a.md", "a.md"), "a.md")
    assert time.process_time() - began < 20
    start = 0
    for line in lines[:200]:
        start = document["text"].index(line, start)
        span = file_span(Origin.of(document).pieces, start, start + len(line), line)
        assert letters(content[slice(*span)]) == letters(line)
        assert content.count("\n\n", 0, span[0]) == document["text"].count("\n\n", 0, start)
        start += len(line)
