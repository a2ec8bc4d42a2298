"""Hostile and damaged documents: each is read or refused, in bounded time and memory, and none ends a prepare."""

import io
import json
import os
import random
import resource
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from functools import cache

import docx
import pytest

from helpers.lisbon import read_records
from helpers.pdf import LONG, pdf
from raysum.errors import UserError
from raysum.sources.documents import sandbox
from raysum.sources.documents.read import parse_document, read_document

# Reads a file in a process of its own: prints the text or the error, and the most MiB of a child.
READ = """
import resource, sys
from pathlib import Path
from raysum.errors import UserError
from raysum.sources.documents.read import read_document
try:
    print(read_document(Path(sys.argv[1])).text[:10])
except UserError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""
BODY = "word/document.xml"
HEAD = b"From: a@b.c\r\nSubject: =?utf-8?q?K=C3=A4se?=\r\n"


def word(body: str = "", parts: dict[str, bytes] | None = None) -> bytes:
    """Return a Word document; ``body`` is XML that follows its paragraphs, and ``parts`` replace or join its files."""
    document = docx.Document()
    document.add_heading("History", 1)
    document.add_paragraph(LONG)
    table = document.add_table(2, 2)
    table.cell(0, 0).text, table.cell(1, 1).text = "Year", "1893"
    document.save(saved := io.BytesIO())
    contents = unpacked(saved.getvalue())
    contents[BODY] = contents[BODY].replace(b"<w:sectPr", body.encode() + b"<w:sectPr", 1)
    with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as after:
        for name, content in (contents | (parts or {})).items():
            after.writestr(name, content)
    return packed.getvalue()


def unpacked(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        return {name: parts.read(name) for name in parts.namelist()}


def table(cell: str) -> str:
    """Return a table of one row, whose cell has the properties ``cell``."""
    return f"<w:tbl><w:tr><w:tc><w:tcPr>{cell}</w:tcPr><w:p/></w:tc></w:tr></w:tbl>"


def bomb(size: int) -> bytes:
    """Return a Word document with a picture that unpacks to ``size`` bytes."""
    types, links, parts = "[Content_Types].xml", "word/_rels/document.xml.rels", unpacked(word())
    picture = b'<Default Extension="png" ContentType="image/png"/></Types>'
    kind = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
    link = b'<Relationship Id="rId99" Type="' + kind + b'" Target="media/a.png"/></Relationships>'
    changed = {
        types: parts[types].replace(b"</Types>", picture),
        links: parts[links].replace(b"</Relationships>", link),
    }
    return word(parts=changed | {"word/media/a.png": bytes(size)})


@cache
def hostile() -> dict[str, bytes]:
    """Return documents that take much time or memory, or that libraries fail on."""
    return {
        "picture.docx": bomb(220 << 20),
        "span.docx": word(table('<w:gridSpan w:val="99999999"/>')),
        "word.docx": word(table('<w:gridSpan w:val="x"/>')),
        "merged.docx": word(table("<w:vMerge/>")),
        "bare.docx": word(parts={BODY: b'<w:document xmlns:w="http://x"/>'}),
        "long.eml": HEAD + b"Content-Type: text/plain; " + b"a=b; " * 20_000 + b"\r\n\r\nTea.\r\n",
        "parts.eml": HEAD + b"Content-Type: text/plain; " + b"x*0*=a;" * 10_000 + b"\r\n\r\nTea.\r\n",
        "undefined.eml": HEAD + b"Content-Type: text/plain; charset=undefined\r\n\r\nTea.\r\n",
        "nul.eml": HEAD + b"Content-Type: text/plain; charset=a\0b\r\n\r\nTea.\r\n",
        "deep.eml": b"Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n" * 2_000,
        "comment.html": b"<!-- nothing -->",
        "code.html": b"<?php echo 1; ?>",
        "deep.html": b"<div>" * 100_000 + b"Tea.",
        "brackets.md": b"[" * 50_000 + b"](" * 50_000,
        "stars.md": b"*a **b " * 30_000,
        "loop.pdf": b"%PDF-1.4\n1 0 obj\n<</Type/Catalog /Pages 1 0 R /Kids [1 0 R]>>\nendobj\ntrailer <</Root 1 0 R>>",
    }


def fuzzed(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield ``count`` sound documents with bytes that are flipped, cut, repeated, or moved."""
    rng, merged = random.Random(seed), word(table('<w:gridSpan w:val="2"/>'))
    page = f"<html><head><meta charset=utf-8><title>A</title></head><body><article><h1>H</h1><p>{LONG}</p></article>"
    alternatives = b"Content-Type: multipart/alternative; boundary=x\r\n\r\n--x\r\n\r\n%b\r\n--x--" % LONG.encode()
    sound = {
        "a.docx": merged,
        "body.docx": unpacked(merged)[BODY],
        "a.pdf": pdf([LONG, "It was slow."], [LONG]),
        "a.html": page.encode() * 2,
        "a.eml": HEAD + alternatives,
        "a.mht": HEAD + b"Content-Type: text/html; charset=utf-8\r\n\r\n" + page.encode(),
        "a.md": f"# Head\n\n* {LONG}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n".encode(),
        "a.txt": f"{LONG} Käse, Мама мыла раму.".encode(),
    }
    for number in range(count):
        name = rng.choice([*sound])
        content = bytearray(sound[name])
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            start = rng.randrange(max(len(content), 1))
            piece = content[start : start + rng.choice([1, 4, 40, 400])]
            change = rng.choice(["flip", "cut", "repeat", "end", "splice", "number"])
            if change == "flip" and content:
                content[start] ^= 1 << rng.randrange(8)
            elif change == "cut":
                del content[start : start + len(piece)]
            elif change == "repeat":
                content[start:start] = piece * rng.choice([2, 100, 1000])
            elif change == "end" and start:
                del content[start:]
            elif change == "splice":
                content[start // 2 : start // 2] = piece
            else:
                content[start:start] = str(rng.choice([0, -1, 2**31, 2**64, 10**30])).encode()
        yield f"{number}-{name}", word(parts={BODY: bytes(content)}) if name == "body.docx" else bytes(content)


@pytest.mark.slow
def test_hostile_documents_reject_their_cluster_and_no_other(tmp_path):
    for name, content in hostile().items():
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(content)
        (tmp_path / name / "sound.txt").write_text(LONG)
    found = {record.id: record for record in read_records([tmp_path])}
    assert found.keys() == hostile().keys()
    for name in ("picture.docx", "span.docx", "word.docx", "bare.docx", "comment.html", "loop.pdf"):
        assert found[name].problem == "a document is unreadable" and name in found[name].detail
    for name in ("undefined.eml", "nul.eml"):
        assert {one["text"] for one in found[name].raw["documents"]} == {"Tea.", LONG}


@pytest.mark.parametrize("name", ["picture.docx", "span.docx"])
def test_a_reader_has_limited_memory(tmp_path, name):
    (tmp_path / name).write_bytes(hostile()[name])
    command = [sys.executable, "-c", READ, str(tmp_path / name)]
    message, most = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert name in message and int(most) < 400


def test_a_killed_reader_is_replaced(tmp_path):
    (tmp_path / "a.md").write_text("# Tea\n\nIt is hot.")
    before = read_document(tmp_path / "a.md")
    with pytest.raises(UserError, match="span.docx"):
        parse_document(hostile()["span.docx"], "span.docx", "span.docx")
    assert read_document(tmp_path / "a.md") == before


def read_or_refuse(name: str, content: bytes) -> bool:
    """Return whether the document is read; a message names one that is not."""
    try:
        parse_document(content, name, name)
    except UserError as error:
        assert name in str(error)
        return False
    return True


def test_damaged_documents_are_read_or_refused():
    read = {name.partition("-")[2] for name, content in fuzzed(0, 80) if read_or_refuse(name, content)}
    # The ZIP of a.docx has checksums.
    assert read == {"body.docx", "a.pdf", "a.html", "a.eml", "a.mht", "a.md", "a.txt"}


@pytest.mark.long
def test_five_hundred_damaged_documents():
    """Prints their times and memory; RAYSUM_SEED in the environment is the seed."""
    times, refused = [], 0
    for name, content in fuzzed(int(os.environ.get("RAYSUM_SEED", 1)), 500):
        began = time.perf_counter()
        refused += not read_or_refuse(name, content)
        times.append((time.perf_counter() - began, name))
    sandbox.end()  # children count once they have ended
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(json.dumps({"refused": refused, "slowest": sorted(times)[-3:], "most MiB": most}))


def test_guessing_an_encoding_takes_little_memory():
    """A text that is longer than the sample keeps all its letters."""
    text = "Мама мыла раму и пол.\n" * 200_000
    tracemalloc.start()
    assert parse_document(text.encode("cp1251"), "a.txt", "a.txt").text == text
    assert tracemalloc.get_traced_memory()[1] < 120 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Мама мыла раму. ".encode() * 20 + b"\xff", "Мама мыла раму. " * 20 + "\ufffd"),
        ("It’s a “ferry”. ".encode() * 9 + b"\x92", "It’s a “ferry”. " * 9 + "\ufffd"),
        ("Käse und Brot. ".encode("cp1252") * 9, "Käse und Brot. " * 9),
        (b"It is shut. " * 90 + "It’s shut.".encode() + b"\xff", "It is shut. " * 90 + "It’s shut.\ufffd"),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "md", "eml"])
def test_one_invalid_byte_leaves_utf8(tmp_path, content, expected, suffix):
    head = b"Subject: A\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" if suffix == "eml" else b""
    (tmp_path / f"a.{suffix}").write_bytes(head + content)
    assert read_document(tmp_path / f"a.{suffix}").text.strip() == expected.strip()
