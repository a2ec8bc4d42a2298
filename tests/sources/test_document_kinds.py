"""Kinds of documents beyond text and PDF: their text, title and positions."""

import io
import json
import zipfile
from email.message import EmailMessage

import pptx
import pytest

from helpers.pdf import LONG
from raysum.errors import UserError
from raysum.sources.documents.read import read_document


def zipped(files: dict[str, str]) -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def presentation() -> bytes:
    document = pptx.Presentation()
    for title, text in (("Ferries", "They float.\nThey sink."), ("Trains", "They roll.")):
        slide = document.slides.add_slide(document.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, text
    table = slide.shapes.add_table(1, 2, 0, 9_000_000, 100, 100).table
    table.cell(0, 0).text, table.cell(0, 1).text = "Year", "1893"
    document.core_properties.title = "Traffic"
    document.save(saved := io.BytesIO())
    return saved.getvalue()


NAMESPACES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{full}:1.0"'
    for name, full in {"office": "office", "text": "text", "draw": "drawing"}.items()
)
ODT = f"""<?xml version="1.0"?><office:document-content {NAMESPACES}><office:body><office:text>
<text:tracked-changes><text:p>Deleted.</text:p></text:tracked-changes><text:h>History</text:h>
<text:p>It<text:s/>was <text:span>opened</text:span> in<text:line-break/>1893<office:annotation><text:p>Sure?</text:p>
</office:annotation>.</text:p></office:text></office:body></office:document-content>"""
ODP = f"""<office:document-content {NAMESPACES}><draw:page><text:p>One.</text:p></draw:page><draw:page>
<text:p>Two.</text:p></draw:page></office:document-content>"""
EPUB = {
    "META-INF/container.xml": '<container xmlns="x"><rootfile full-path="b/p.opf"/></container>',
    "b/p.opf": """<package xmlns="y"><metadata><title xmlns="z">Arden</title></metadata><manifest>
      <item id="nav" href="nav.xhtml" properties="nav"/><item id="two" href="c%202.xhtml"/>
      <item id="one" href="one.xhtml"/></manifest>
      <spine><itemref idref="nav"/><itemref idref="one"/><itemref idref="two"/></spine></package>""",
    "b/nav.xhtml": "<html><body><ol><li>Contents</li></ol></body></html>",
    "b/one.xhtml": '<?xml version="1.0" encoding="utf-8"?><html><head><title>x</title></head><body><h1>Käse</h1>'
    "<p>It is <b>h</b>ot.<br/>So.</p></body></html>",
    "b/c 2.xhtml": "<html><body><div>Loose <i>text</i>.<p>It ends.</p></div></body></html>",
}
RTF = r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Times;}}\f0 {\b Fares}\par K\'e4se costs two pence.\par }"
LATEX = r"""\documentclass{article}\title{On \emph{Ferries}}\begin{document}\maketitle
% hidden
\section{History}\label{a} It was \textbf{opened} in 1893~\cite{x}, see \ref{a}. 5\% came.

\begin{itemize}\item One \item Two\end{itemize}
\begin{thebibliography}{9}\bibitem{x} Gone.\end{thebibliography}\end{document}"""
RST = """=====\nTitle\n=====\n\nIt is *hot* in :ref:`Arden <a>`.\nAnd `so on`_.\n\nPart\n----\n\n- one\n- two\n
.. hidden\n
.. include:: /etc/passwd\n\n.. raw:: html\n   :file: /etc/passwd\n\n=== ===\na   b\n=== ===\n\n.. _so on: http://x\n"""
ASCIIDOC = """= Title\nJ. Doe\n:toc:\n\n// hidden\n== Part\n
It is *hot* in https://x.y[Arden].\nAnd so.footnote:[Really.]\n
* one\n** two\n\n[source,c]\n----\ncode();\n----\n\nNOTE: Beware.\n\n|===\n|a |b\n|===\n\nTerm:: It is said.\n
include::/etc/passwd[]\n"""
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Ferries\n", "They *float*."]},
        {"cell_type": "code", "source": "import os"},
        {"cell_type": "markdown", "source": "They sink."},
    ]
}
VTT = """WEBVTT\nKind: captions\n\nNOTE hidden\n00:00\n\nintro\n00:01.000 --> 00:03.000 align:start
<v Ann Lee>The ferry &amp; the\n\n00:03.100 --> 00:05.000\n<v Ann Lee>train left.\n
00:05.500 --> 00:07.000\n<v Bob>Did <c.x>they</c>?\n"""
ROLLING = """WEBVTT\n\n00:01.000 --> 00:03.000\nthe ferry\n
00:03.000 --> 00:05.000\nthe ferry\nwas <00:00:04.000><c>slow</c>\n
00:05.000 --> 00:07.000\nwas slow\nand old\n"""
SPEAKERS = """1\n00:00:01,000 --> 00:00:02,000\nANN: The ferry\n\n2\n00:00:06,000 --> 00:00:07,000\nleft.\n
3\n00:00:08,000 --> 00:00:09,000\n- BOB: At 10:30: yes.\n"""
SGML = """<DOC>\n<DOCNO> A1 </DOCNO>\n<HEADLINE>\nA &amp; B\n</HEADLINE>\n<TEXT>\n<P>\nIt rained.\n</P>
<P>It ended.</P>\n</TEXT>\n</DOC>"""
DOCUMENTS = [
    ("a.pptx", presentation(), ["Ferries", "They float.", "They sink.", "Trains", "They roll.", "Year | 1893"],
     "Traffic", {0: "slide 1", 34: "slide 2"}),
    ("a.odt", zipped({"content.xml": ODT}), ["History", "It was opened in\n1893."], "", {0: "History"}),
    ("a.odp", zipped({"content.xml": ODP}), ["One.", "Two."], "", {0: "slide 1", 6: "slide 2"}),
    ("a.epub", zipped(EPUB), ["Käse", "It is hot. So.", "Loose text.", "It ends."], "Arden", {0: "Käse"}),
    ("a.rtf", RTF, ["Fares", "Käse costs two pence."], "", {}),
    ("a.tex", LATEX, ["History", "It was opened in 1893 , see . 5% came.", "One", "Two"], "On Ferries", {0: "History"}),
    ("a.rst", RST, ["Title", "It is hot in Arden. And so on.", "Part", "one", "two", "a | b"], "Title",
     {0: "Title", 39: "Part"}),
    ("a.adoc", ASCIIDOC, ["Title", "J. Doe", "Part", "It is hot in Arden. And so. Really.", "one", "two", "code();",
     "Beware.", "|a |b", "Term", "It is said."], "Title", {0: "Title", 15: "Part"}),
    ("a.ipynb", json.dumps(NOTEBOOK), ["Ferries", "They float.", "They sink."], "Ferries", {0: "cell 1", 22: "cell 3"}),
    ("a.vtt", VTT, ["The ferry & the train left.", "Did they?"], "", {0: "00:00:01, Ann Lee", 29: "00:00:05, Bob"}),
    ("b.vtt", ROLLING, ["the ferry was slow and old"], "", {0: "00:00:01"}),
    ("a.srt", SPEAKERS, ["The ferry left.", "At 10:30: yes."], "", {0: "00:00:01, ANN", 17: "00:00:08, BOB"}),
    ("APW1.0240", SGML, ["It rained.", "It ended."], "A & B", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "blocks", "title", "sections"), DOCUMENTS, ids=lambda value: str(value)[:9]
)
def test_the_text_of_a_document(tmp_path, name, content, blocks, title, sections):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read_document(tmp_path / name)
    assert found.text.split("\n\n") == blocks
    assert (found.title, dict(found.sections)) == (title, sections)


BODY = f"{LONG}\n\nIt was slow."
QUOTED = [
    f"{BODY}\n\nOn Mon, 3 May 2024 at 10:00, Bob <b@c.org>\nwrote:\n\n> Old.\n>> Older.\n\n-- \nAnn\nPhone 1\n",
    f"On Mon, Bob wrote:\n> Old: yes.\n\n{BODY}\n",
    f"{BODY}\n\n_________________________\nFrom: Bob <b@c.org>\nSent: Monday\nTo: Ann\nSubject: RE: x\n\nOld.\n",
    f"{BODY}\n\n-----Original Message-----\nFrom: Bob\n\nOld.\n",
    f"{BODY}\n\nAm 03.05.24 um 10:00 schrieb Bob:\n> Alt.\n",
]


@pytest.mark.parametrize("text", QUOTED)
def test_e_mail_without_quoted_messages(tmp_path, text):
    message = EmailMessage()
    message["From"], message["Subject"] = "a@b.org", "Ferry"
    message.set_content(text)
    (tmp_path / "a.eml").write_bytes(message.as_bytes())
    assert read_document(tmp_path / "a.eml").text == BODY


def test_e_mail_as_a_web_page_without_quoted_messages(tmp_path):
    message = EmailMessage()
    message["From"], message["Subject"] = "a@b.org", "Ferry"
    quote = '<div class="gmail_quote">On Mon, Bob wrote:<blockquote>Old.</blockquote></div>'
    message.set_content(f"<html><body><p>{LONG}</p><div>It was<br>slow.</div>{quote}</body></html>", subtype="html")
    (tmp_path / "a.eml").write_bytes(message.as_bytes())
    assert read_document(tmp_path / "a.eml").text == BODY


def test_a_web_page_without_banners_bylines_and_comments(tmp_path):
    comments = "".join(f"<div class=comment><p>I think that number {n} is wrong: {LONG}</p></div>" for n in range(9))
    page = f"""<html><head><title>Ferry</title><meta charset="windows-1251"></head><body>
      <div class="cookie-banner"><p>We use cookies to improve this site, and you can accept or reject them.</p></div>
      <article><h1>Ferry</h1><p>By Ann Lee, Staff Writer</p><p>{LONG}</p><p>Мама мыла раму. {LONG}</p>
      <p>By noon it was full, and {LONG}</p></article><section id="comments">{comments}</section></body></html>"""
    (tmp_path / "a.html").write_bytes(page.encode("cp1251"))
    blocks = read_document(tmp_path / "a.html").text.split("\n\n")
    assert blocks == [
        "Ferry",
        LONG,
        f"Мама мыла раму. {LONG}",
        f"By noon it was full, and {LONG}",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\x89PNG\r\n" + bytes(99), "is an image; run OCR"),
        ("a.txt", b"\xd0\xcf\x11\xe0\xa1\xb1" + bytes(99), "is a document of Office 97 to 2003.*save it as .docx"),
        ("a.doc", b"\0\0\1\2\3" * 99, "is binary; save its text as .txt"),
        ("a.epub", b"PK", "cannot be read as EPUB"),
        ("a.rtf", b"plain", r"is no Rich Text, which begins with \{"),
        ("a.ipynb", b"{}", "is not a Jupyter notebook"),
        ("a.odt", zipped({"x": ""}), "cannot be read as OpenDocument"),
    ],
)
def test_other_files_are_identified_with_advice(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} {message}"):
        read_document(tmp_path / name)


def test_latex_of_pandoc_and_of_papers(tmp_path):
    path = tmp_path / "a.tex"
    path.write_text(
        r"""\documentclass{article}\newcommand{\name}{Vaporetto}\def\x{boat}\begin{document}\author{A. Lee}
\hypertarget{h}{\section{History}\label{h}} The \href{https://example.org}{ferry} \name{} is a \x,
\citep[see][p. 3]{k} says.

\begin{tabular}{ll}\multicolumn{2}{c}{Fares}\end{tabular}\index{fares}\includegraphics[width=1cm]{a.png}

See \url{https://x.y} and \verb|a_b|. \bibliographystyle{plain}\bibliography{refs}\textcolor\end{document}"""
    )
    blocks = read_document(path).text.split("\n\n")
    assert blocks == ["History", "The ferry Vaporetto is a boat, says.", "Fares", "See https://x.y and a_b."]


def test_a_page_without_layout_keeps_its_headings_and_lists(tmp_path):
    path = tmp_path / "a.html"
    paragraph = "<p>The ferry carries people across the river when the bridge is closed to all of them.</p>"
    path.write_text(
        f"<html><body><h1>Ferries</h1>{paragraph}<ul><li>One boat</li></ul><h2>Fares</h2>{paragraph}</body>"
    )
    read = read_document(path).text.split("\n\n")
    assert read[0] == "Ferries" and read[2:4] == ["One boat", "Fares"]


def test_numbered_roles_keep_their_names(tmp_path):
    path = tmp_path / "a.rst"
    path.write_text("As :pep:`492` and :rfc:`2822` say, :class:`Dict` is ordered.\n")
    assert read_document(path).text == "As PEP 492 and RFC 2822 say, Dict is ordered."
