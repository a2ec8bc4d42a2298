"""Files and folders that hold many documents: databases, spreadsheets, mailboxes, chats, issues, feeds and WARC."""

import io
import json
import mailbox
import sqlite3
import zipfile
from email.message import EmailMessage

import pytest
import xlsxwriter
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from helpers.lisbon import read_records
from helpers.pdf import LONG
from raysum.errors import UserError
from raysum.prepare.cluster import read_cluster
from raysum.sources.documents.file_positions import Origin
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.find import find_sources


def read(path, *maps, **options):
    sources = find_sources([path], FieldMapping.of(maps, **options))
    return [record for source in sources for record in source.records()]


def texts(record) -> list[tuple[str, str]]:
    return read_cluster(record.cluster()).documents


def test_a_table_of_an_sqlite_database(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as database:
        database.execute("create table news (id integer, rev1 text, rev2 text, summary text, photo blob)")
        row = (7, "It rained.", "It poured.", "Rain.", b"\xff\0")
        database.execute("insert into news values (?, ?, ?, ?, ?)", row)
    (record,) = read(path, "documents=rev*")
    assert (record.id, texts(record)[1][1], record.raw["summary"]) == ("7", "It poured.", "Rain.")
    with sqlite3.connect(path) as database:
        database.execute('create table "a b" (documents text)')
        database.execute("insert into \"a b\" values ('One.')")
    with pytest.raises(UserError, match="a.db has the tables news, a b; name one with --format sqlite:NAME"):
        read(path)
    (record,) = read(path, format="sqlite:a b")
    assert record.raw == {"documents": ["One."]}
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UserError, match="a.db cannot be read as an SQLite database"):
        read(path, format="sqlite:news")


def workbook(sheets: dict[str, list[list]]) -> bytes:
    book = xlsxwriter.Workbook(saved := io.BytesIO())
    for name, rows in sheets.items():
        sheet = book.add_worksheet(name)
        for number, row in enumerate(rows):
            sheet.write_row(number, 0, row)
    book.close()
    return saved.getvalue()


def test_a_sheet_of_a_spreadsheet(tmp_path):
    rows = [["id", "documents", "summary"], [1, "Käse.", "Cheese."], [], ["b", '["One.", "Two."]', ""]]
    (tmp_path / "a.xlsx").write_bytes(workbook({"About": [["x"]], "Data": rows}))
    first, second = read(tmp_path / "a.xlsx")
    assert (first.id, first.raw["documents"], second.raw["documents"]) == ("1.0", ["Käse."], ["One.", "Two."])
    (tmp_path / "b.xlsx").write_bytes(workbook({"A": rows, "B": rows}))
    with pytest.raises(UserError, match="b.xlsx has the tables A, B; name one with --format xlsx:NAME"):
        read(tmp_path / "b.xlsx")
    assert len(read(tmp_path / "b.xlsx", format="xlsx:B")) == 2
    (tmp_path / "none.xlsx").write_bytes(workbook({"About": [["x"]]}))
    with pytest.raises(UserError, match="none.xlsx has no table with rows; leave it out"):
        read(tmp_path / "none.xlsx")
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("xl/workbook.xml", bytes(1 << 20) * 1100)
    for name, content, message in (("c.xlsx", b"PK\3\4 no", "cannot be read"), ("bomb.xlsx", None, "is too large")):
        if content:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} {message}"):
            read(tmp_path / name)


def test_a_sheet_with_one_far_cell_ends_no_process(tmp_path, capfd):
    rows = [["documents", "summary"], ["One.", "Two."]]
    content = io.BytesIO()
    book = xlsxwriter.Workbook(content)
    sheet = book.add_worksheet("Data")
    for number, row in enumerate(rows):
        sheet.write_row(number + 2, 1, row)
    sheet.write_string(1 << 17, 9, "Far.")
    book.close()
    (tmp_path / "a.xlsx").write_bytes(content.getvalue())
    first, far = read(tmp_path / "a.xlsx")
    assert first.raw == {"documents": ["One."], "summary": "Two.", "": ""} and first.where.endswith("a.xlsx:4")
    assert far.raw[""] == "Far." and far.where.endswith(f":{(1 << 17) + 1}")
    for corner in ((1 << 20) - 1, (1 << 14) - 1), ((1 << 19), 5000):
        book = xlsxwriter.Workbook(tmp_path / "far.xlsx")
        book.add_worksheet("Data").write_row(0, 0, rows[0])
        book.get_worksheet_by_name("Data").write_string(*corner, "Far.")
        book.close()
        with pytest.raises(UserError, match="far.xlsx cannot be read as a spreadsheet within"):
            read(tmp_path / "far.xlsx")
    assert capfd.readouterr() == ("", "")


def test_the_threads_of_a_mailbox(tmp_path):
    box = mailbox.mbox(tmp_path / "a.mbox")
    mails = [
        ("Ann <a@b.org>", "Ferry", "<1@x>", "", "It sank."),
        ("Bob <b@b.org>", "Tea", "<2@x>", "", "It is hot."),
        (
            "=?utf-8?q?K=C3=A4the?= <k@b.org>",
            "Re: Ferry",
            "<3@x>",
            "<1@x>",
            "When?\n\nOn Mon, Ann wrote:\n> It sank.\n",
        ),
        ("c@b.org", "AW: Tea", "<4@x>", "", "And green.\n>From here."),
    ]
    for sender, subject, id, answered, text in mails:
        message = EmailMessage()
        message["From"], message["Subject"], message["Message-ID"], message["Date"] = (
            sender,
            subject,
            id,
            "Fri, 3 May 2024 10:00:00 +0200",
        )
        if answered:
            message["In-Reply-To"] = answered
        message.set_content(text)
        box.add(message)
    box.flush()
    ferry, tea = read(tmp_path / "a.mbox")
    assert (ferry.id, ferry.raw["title"], tea.raw["title"]) == ("1@x", "Ferry", "Tea")
    assert texts(ferry) == [("Ann, 2024-05-03 10:00", "It sank."), ("Käthe, 2024-05-03 10:00", "When?")]
    assert [text for _, text in texts(tea)] == ["It is hot.", "And green."]


def test_a_slack_export(tmp_path):
    users = [{"id": "U1", "name": "ann", "profile": {"display_name": "", "real_name": "Ann Lee"}}]
    messages = [
        {"type": "message", "user": "U1", "text": "See <@U1> &amp; <https://x.y|this>", "ts": "1714730400.1"},
        {"type": "message", "subtype": "channel_join", "user": "U1", "text": "joined", "ts": "1714730401"},
        {"type": "message", "username": "bot", "text": "Done.", "ts": "1714730460"},
    ]
    files = {
        "users.json": users,
        "channels.json": [],
        "general/2024-05-03.json": messages,
        "random/2024-05-03.json": [],
    }
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        for name, value in files.items():
            archive.writestr(name, json.dumps(value))
    (record,) = read(tmp_path / "export.zip")
    (document,) = record.raw["documents"]
    assert (record.id, document["text"]) == ("general", "Ann Lee: See @Ann Lee & this\nbot: Done.")
    places = [(0, "Ann Lee, 2024-05-03 10:00"), (29, "bot, 2024-05-03 10:01")]
    assert Origin.of(document).places == places


def test_a_discord_channel_and_a_github_issue(tmp_path):
    author = {"name": "ann7", "nickname": "Ann"}
    messages = [{"timestamp": f"2024-05-0{n}T10:00:00+00:00", "content": f"Day {n}.", "author": author} for n in (1, 2)]
    (tmp_path / "d.json").write_text(
        json.dumps({"guild": {}, "channel": {"id": 5, "name": "general"}, "messages": messages})
    )
    (record,) = read(tmp_path / "d.json")
    assert texts(record) == [("2024-05-01", "Ann: Day 1."), ("2024-05-02", "Ann: Day 2.")]
    comments = [{"author": {"login": "bob"}, "body": "Confirmed.", "createdAt": "2024-05-04T00:00:00Z"}]
    issue = {"number": 3, "title": "It leaks", "body": "A lot.", "author": {"login": "ann"}, "comments": comments}
    (tmp_path / "issues.json").write_text(json.dumps([issue, issue | {"comments": 0}]))
    first, second = read(tmp_path / "issues.json")
    assert (first.id, first.raw["title"], texts(first)) == (
        "3",
        "It leaks",
        [("ann", "A lot."), ("bob, 2024-05-04", "Confirmed.")],
    )
    assert texts(second) == [("ann", "A lot.")]


FEED = f"""<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY x SYSTEM "file:///etc/passwd">]><rss><channel><title>News</title>
<item><title>Flood</title><description>Short.</description><content:encoded xmlns:content="x"><![CDATA[<p>{LONG}</p>
<p>It ended.</p>]]></content:encoded></item><item><title>Sun &x;</title></item></channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><entry><title>Flood</title>
<summary type="html">&lt;p&gt;It rained.&lt;/p&gt;</summary></entry></feed>"""


@pytest.mark.parametrize(
    ("name", "feed", "expected"),
    [
        ("a.rss", FEED, [("Flood", f"Flood\n\n{LONG}\n\nIt ended."), ("Sun &x;", "Sun &x;")]),
        ("feed.xml", ATOM, [("Flood", "Flood\n\nIt rained.")]),
    ],
)
def test_feeds(tmp_path, name, feed, expected):
    (tmp_path / name).write_text(feed)
    (record,) = read(tmp_path / name)
    assert (record.raw["title"], texts(record)) == ("News", expected)


@pytest.mark.parametrize("is_gzipped", [False, True])
def test_the_pages_of_a_warc_archive(tmp_path, is_gzipped):
    path = tmp_path / ("a.warc.gz" if is_gzipped else "a.warc")
    pages = [
        (
            "http://a/1",
            "200 OK",
            "text/html; charset=utf-8",
            f"<html><body><article><p>{LONG}</p></article></body></html>",
        ),
        ("http://a/2", "404 Not Found", "text/html", "Gone"),
        ("http://a/3", "200 OK", "image/png", "x"),
        ("http://a/4", "200 OK", "text/plain", "Plain."),
    ]
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=is_gzipped)
        for url, status, kind, body in pages:
            headers = StatusAndHeaders(status, [("Content-Type", kind)], protocol="HTTP/1.0")
            content = io.BytesIO(body.encode())
            writer.write_record(writer.create_warc_record(url, "response", payload=content, http_headers=headers))
    (record,) = read_records([path])
    assert texts(record) == [("http://a/1", LONG), ("http://a/4", "Plain.")]
    path.write_bytes(b"WARC no" if not is_gzipped else path.read_bytes()[:90])
    with pytest.raises(UserError, match="is not a sound WARC|is empty|no documents"):
        texts(read_records([path])[0])
