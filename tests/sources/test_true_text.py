"""Documents of 25 kinds that other programs wrote: the words that are read are the words that were written.

It needs pandoc, LibreOffice, Chromium and the extra ``peers`` or ``documents``, and takes some minutes.
"""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

import pytest

from helpers.project import ROOT
from raysum.errors import UserError
from raysum.sources.documents.read import read_document
from raysum.sources.find import find_sources

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PROGRAMS = ("pandoc", "soffice", "chromium")


@dataclass(frozen=True)
class Article:
    """A title, and for each heading its paragraphs; a paragraph that is a list is one of items."""

    name: str
    title: str
    sections: list[tuple[str, list[str | list[str]]]]

    @property
    def blocks(self) -> list[str]:
        """Its texts in their order."""
        found = [self.title]
        for heading, paragraphs in self.sections:
            found.append(heading)
            for paragraph in paragraphs:
                found += [paragraph] if isinstance(paragraph, str) else paragraph
        return found

    @property
    def sentences(self) -> list[str]:
        return [each for block in self.blocks for each in re.split(r"(?<=[.!?]) (?=[A-ZÀ-ЯЁ])", block)]

    def markdown(self) -> str:
        """Its text with every fifth word of a paragraph in bold type or italics, or a link."""
        parts = [f"# {escaped(self.title)}"]
        for heading, paragraphs in self.sections:
            parts.append(f"## {escaped(heading)}")
            for paragraph in paragraphs:
                if isinstance(paragraph, str):
                    parts.append(decorated(paragraph))
                else:
                    parts.append("\n".join(f"- {escaped(item)}" for item in paragraph))
        return "\n\n".join(parts) + "\n"

    def page(self, style: str = "") -> str:
        """A web page with what surrounds the text of most of them."""
        body = ""
        for heading, paragraphs in self.sections:
            body += f"<h2>{html.escape(heading)}</h2>"
            for paragraph in paragraphs:
                if isinstance(paragraph, str):
                    body += f"<p>{html.escape(paragraph)}</p>"
                else:
                    body += "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in paragraph) + "</ul>"
        return f"""<!doctype html><html><head><meta charset="utf-8"><title>{html.escape(self.title)} | The Daily</title>
<style>{style}</style></head><body><header><nav><ul><li><a href="/">Home</a></li><li><a href="/s">Sport</a></li>
</ul></nav></header><div class="cookie-banner"><p>We use cookies to improve your visit.</p><button>Accept all</button>
</div><main><article><h1>{html.escape(self.title)}</h1>{body}</article></main><aside><h3>Most read</h3><ul>
<li><a href="/1">Ten tips</a></li></ul></aside><footer><p>© The Daily. <a href="/p">Privacy</a></p></footer></body>
</html>
"""


def escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~^$@'\"-])", r"\\\1", text)


def decorated(paragraph: str) -> str:
    marks = ("*{}*", "**{}**", "[{}](https://example.org/a)")
    words = paragraph.split(" ")
    for number, word in enumerate(words):
        safe = escaped(word)
        words[number] = marks[number % 3].format(safe) if number % 5 == 3 and word.isalpha() else safe
    return " ".join(words)


def articles(shared: Path) -> list[Article]:
    """An English paper, and a German and a Russian text of this project."""
    import gzip

    with gzip.open(shared / "data" / "scisummnet" / "valid.jsonl.gz", "rt") as lines:
        paper = json.loads(next(lines))
    sections: list[tuple[str, list[str | list[str]]]] = []
    for document in paper["documents"][:4]:
        heading = re.sub(r"^[\d. ]+", "", document["source"])
        sections.append((heading, [" ".join(line.split()) for line in document["text"].split("\n") if line.strip()]))
    sections.append(("Contributions", [["A first measure of success", "A second, smaller one", "No third one"]]))
    own = [Article(*value) for value in json.loads((ROOT / "tests" / "sources" / "articles.json").read_text())]
    return [Article("paper", paper["title"], sections), *own]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def error_rate(article: Article, text: str) -> float:
    """Insertions, deletions and substitutions for each word of the article; a little more than the smallest number."""
    expected, found = words(" ".join(article.blocks)), words(text)
    operations = SequenceMatcher(None, expected, found, autojunk=False).get_opcodes()
    errors = sum(max(b - a, d - c) for kind, a, b, c, d in operations if kind != "equal")
    return errors / len(expected)


# Writers: each creates one document of an article in a folder


def pandoc(suffix: str, form: str = "", *options: str) -> Callable[[Article, Path], Path]:
    def write(article: Article, folder: Path) -> Path:
        file = folder / f"{article.name}{suffix}"
        source = folder / f"{article.name}.pandoc"
        source.write_text(article.markdown())
        to = ["--to", form] if form else []
        command = ["pandoc", "--from=markdown", "--standalone", "--wrap=auto", *to, *options, source, "-o", file]
        subprocess.run(command, check=True, capture_output=True)
        return file

    return write


def office(suffix: str, before: Callable[[Article, Path], Path], *options: str) -> Callable[[Article, Path], Path]:
    def write(article: Article, folder: Path) -> Path:
        source = before(article, folder)
        into, profile = folder / "office", f"-env:UserInstallation=file://{folder}/profile"
        command = ["soffice", profile, "--headless", *options, "--convert-to", suffix[1:], "--outdir", into, source]
        subprocess.run(command, check=True, capture_output=True, timeout=180)
        return (into / source.name).with_suffix(suffix)

    return write


def chromium(style: str = "", *options: str) -> Callable[[Article, Path], Path]:
    def write(article: Article, folder: Path) -> Path:
        page, file = folder / f"{article.name}.page.html", folder / f"{article.name}.pdf"
        page.write_text(article.page(style))
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *options, f"--print-to-pdf={file}", page]
        subprocess.run(command, check=True, capture_output=True, timeout=180)
        return file

    return write


def text(suffix: str, content: Callable[[Article], str | bytes], encoding: str = "") -> Callable[[Article, Path], Path]:
    def write(article: Article, folder: Path) -> Path:
        file, made = folder / f"{article.name}{suffix}", content(article)
        coding = encoding or {"russian": "cp1251"}.get(article.name, "cp1252")
        file.write_bytes(made if isinstance(made, bytes) else made.encode(coding))
        return file

    return write


def plain(article: Article) -> str:
    return "\n\n".join(article.blocks)


def mail(article: Article, subtype: str = "plain", coding: str = "quoted-printable", saved_page: bool = False) -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = article.title, "a@example.org", "b@example.org"
    message["Message-ID"], message["Date"] = f"<{article.name}@example.org>", "Mon, 02 Feb 2026 10:00:00 +0000"
    if subtype == "html" and saved_page:
        message["Snapshot-Content-Location"], body = "https://example.org/a", article.page()
    elif subtype == "html":
        body = "<div>Hello,</div>" + "".join(f"<div>{html.escape(block)}<br></div>" for block in article.blocks)
    else:
        body = plain(article)
    message.set_content(body, subtype=subtype, charset="utf-8", cte=coding)
    return message.as_bytes(policy=SMTP)


def subtitles(article: Article, vtt: bool) -> str:
    mark, parts = "." if vtt else ",", ["WEBVTT\n"] if vtt else []
    for number, sentence in enumerate(article.sentences):
        middle = len(sentence) // 2
        middle = sentence.find(" ", middle) if " " in sentence[middle:] else len(sentence)
        clock = [
            f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{mark}000"
            for second in (4 * number, 4 * number + 3)
        ]
        lines = f"{sentence[:middle].strip()}\n{sentence[middle:].strip()}".strip()
        parts.append(f"{number + 1}\n{clock[0]} --> {clock[1]}\n{lines}\n")
    return "\n".join(parts)


def wire(article: Article) -> str:
    inner = "".join(f"<P>\n{html.escape(block, quote=False)}\n</P>\n" for block in article.blocks)
    return f"<DOC>\n<DOCNO> {article.name} </DOCNO>\n<TEXT>\n{inner}</TEXT>\n</DOC>\n"


def feed(article: Article) -> str:
    body = html.escape("".join(f"<p>{html.escape(block)}</p>" for block in article.blocks))
    return f"""<?xml version="1.0" encoding="utf-8"?><rss version="2.0"><channel><title>News</title><item>
<title>{html.escape(article.title)}</title><link>https://example.org</link><description>{body}</description></item>
</channel></rss>"""


def web_archive(article: Article) -> bytes:
    page = article.page().encode()
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
    head = "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: https://example.org/\r\n"
    head += "WARC-Date: 2026-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:12345678-1234-1234-1234-123456789012>\r\n"
    head += f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    return head.encode() + http + b"\r\n\r\n"


def row(article: Article) -> str:
    return json.dumps({"documents": [{"source": "a", "text": plain(article)}], "summary": "None."}) + "\n"


def sheet(article: Article, folder: Path) -> Path:
    table = folder / f"{article.name}.table.csv"
    quoted = plain(article).replace('"', '""')
    table.write_text(f'documents,summary\n"{quoted}","None."\n', encoding="utf-8")
    return office(".xlsx", lambda _, __: table, "--infilter=CSV:44,34,76,1")(article, folder)


DOCX, ODT, SLIDES = pandoc(".docx"), pandoc(".odt"), pandoc(".pptx", "pptx", "--slide-level=2")
COLUMNS = "article { column-count: 2 } body { font-size: 9pt }"
SCREEN = "nav, aside, footer, .cookie-banner { display: none }"
TEXTS: dict[str, Callable[[Article, Path], Path]] = {
    "text, UTF-8": text(".txt", plain, "utf-8"),
    "text, UTF-16": text(".txt", plain, "utf-16"),
    "text, Windows": text(".txt", lambda article: plain(article).replace("\n", "\r\n")),
    "Markdown": pandoc(".md", "gfm"),
    "HTML, pandoc": pandoc(".html"),
    "HTML, with banners": text(".html", Article.page, "utf-8"),
    "HTML, LibreOffice": office(".html", DOCX),
    "docx, pandoc": DOCX,
    "docx, LibreOffice": office(".docx", ODT),
    "odt, pandoc": ODT,
    "odt, LibreOffice": office(".odt", DOCX),
    "pptx, pandoc": SLIDES,
    "odp, LibreOffice": office(".odp", SLIDES),
    "rtf, pandoc": pandoc(".rtf"),
    "rtf, LibreOffice": office(".rtf", DOCX),
    "EPUB 3": pandoc(".epub"),
    "EPUB 2": pandoc(".epub", "epub2"),
    "LaTeX": pandoc(".tex"),
    "reST": pandoc(".rst"),
    "AsciiDoc": pandoc(".adoc", "asciidoc"),
    "notebook": pandoc(".ipynb"),
    "e-mail, plain": text(".eml", mail),
    "e-mail, HTML": text(".eml", lambda article: mail(article, "html", "base64")),
    "saved page (MHTML)": text(".mhtml", lambda article: mail(article, "html", saved_page=True)),
    "SGML": text(".sgml", wire, "utf-8"),
    "srt": text(".srt", lambda article: subtitles(article, vtt=False), "utf-8"),
    "vtt": text(".vtt", lambda article: subtitles(article, vtt=True), "utf-8"),
}
ROWS: dict[str, Callable[[Article, Path], Path]] = {
    "mbox": text(".mbox", lambda article: b"From a@example.org Mon Feb  2 10:00:00 2026\n" + mail(article) + b"\n"),
    "feed": text(".rss", feed, "utf-8"),
    "WARC": text(".warc", web_archive),
    "rows": text(".jsonl", row, "utf-8"),
    "xlsx": sheet,
}
PDFS: dict[str, Callable[[Article, Path], Path]] = {
    "PDF, LibreOffice": office(".pdf", DOCX),
    "PDF, slides": office(".pdf", SLIDES),
    "PDF, Chromium with running heads": chromium(SCREEN),
    "PDF, Chromium, two columns": chromium(SCREEN + COLUMNS, "--no-pdf-header-footer"),
}


def read_text(path: Path) -> str:
    document = read_document(path)
    return document.text


def read_rows(path: Path) -> str:
    (record,) = (record for source in find_sources([str(path)]) for record in source.records())
    assert not record.problem, record.problem
    return "\n".join(each if isinstance(each, str) else each["text"] for each in record.raw["documents"])


@pytest.fixture(scope="module")
def rates(shared, tmp_path_factory) -> dict[str, dict[str, float]]:
    """The error rate of each kind and article."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    found: dict[str, dict[str, float]] = {}
    for number, (kind, write) in enumerate((TEXTS | ROWS | PDFS).items()):
        for article in articles(shared):
            if kind == "text, Windows" and article.name == "paper":
                continue
            folder = tmp_path_factory.mktemp(f"{number}-{article.name}")
            file = write(article, folder)
            try:
                read = (read_rows if kind in ROWS else read_text)(file)
            except UserError as error:
                read = ""
                print(kind, article.name, error)
            found.setdefault(kind, {})[article.name] = error_rate(article, read)
    for kind, each in found.items():
        print(f"{kind:32}", *(f"{name} {100 * rate:5.1f} %" for name, rate in each.items()))
    return found


def test_text_formats_have_at_most_three_errors_in_a_hundred_words(rates):
    assert len(rates) >= 25 and sum(map(len, rates.values())) >= 60
    worse = {kind: each for kind, each in rates.items() if kind not in PDFS and max(each.values()) > 0.03}
    assert not worse


def test_pdf_has_at_most_ten_errors_in_a_hundred_words(rates):
    assert all(max(rates[kind].values()) <= 0.1 for kind in PDFS)
