"""Damaged and hostile documents of every format, by a seed."""

import io
import random
import zipfile
from collections.abc import Callable, Iterator

import docx

TEXT = "The ferry across the river Sarsu was opened in 1893 by the town of Arden, and it carried forty passengers."
_BODY = "word/document.xml"
_HEAD = b"From: a@b.c\r\nSubject: =?utf-8?q?K=C3=A4se?=\r\n"


def word(body: str = "", parts: dict[str, bytes] | None = None) -> bytes:
    """A Word document; ``body`` is XML that follows its paragraphs, and ``parts`` replace or join those of the file."""
    document = docx.Document()
    document.add_heading("History", 1)
    document.add_paragraph(TEXT)
    table = document.add_table(2, 2)
    table.cell(0, 0).text, table.cell(1, 1).text = "Year", "1893"
    document.save(saved := io.BytesIO())
    made = io.BytesIO()
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            content = before.read(name)
            if name == _BODY:
                content = content.replace(b"<w:sectPr", body.encode() + b"<w:sectPr", 1)
            after.writestr(name, (parts or {}).get(name, content))
        for name in {*(parts or {})} - {*before.namelist()}:
            after.writestr(name, parts[name])
    return made.getvalue()


def table(cell: str) -> str:
    """A table of one row, whose cell has the properties ``cell``."""
    return f"<w:tbl><w:tr><w:tc><w:tcPr>{cell}</w:tcPr><w:p/></w:tc></w:tr></w:tbl>"


def bomb(size: int) -> bytes:
    """A Word document with a picture that unpacks to ``size`` bytes."""
    with zipfile.ZipFile(io.BytesIO(word())) as parts:
        types, links = (parts.read(name) for name in ("[Content_Types].xml", "word/_rels/document.xml.rels"))
    picture = b'<Default Extension="png" ContentType="image/png"/></Types>'
    kind = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
    link = b'<Relationship Id="rId99" Type="' + kind + b'" Target="media/a.png"/></Relationships>'
    changed = {
        "[Content_Types].xml": types.replace(b"</Types>", picture),
        "word/_rels/document.xml.rels": links.replace(b"</Relationships>", link),
        "word/media/a.png": bytes(size),
    }
    return word(parts=changed)


def hostile() -> Iterator[tuple[str, bytes]]:
    """Names and contents of documents that ask for much time or memory, or that libraries stumble at."""
    yield "picture.docx", bomb(220 << 20)
    yield "span.docx", word(table('<w:gridSpan w:val="99999999"/>'))
    yield "word.docx", word(table('<w:gridSpan w:val="x"/>'))
    yield "merged.docx", word(table("<w:vMerge/>"))
    yield "bare.docx", word(parts={"word/document.xml": b'<w:document xmlns:w="http://x"/>'})
    yield "long.eml", _HEAD + b"Content-Type: text/plain; " + b"a=b; " * 20_000 + b"\r\n\r\nTea.\r\n"
    yield "parts.eml", _HEAD + b"Content-Type: text/plain; " + b"x*0*=a;" * 10_000 + b"\r\n\r\nTea.\r\n"
    yield "undefined.eml", _HEAD + b"Content-Type: text/plain; charset=undefined\r\n\r\nTea.\r\n"
    yield "nul.eml", _HEAD + b"Content-Type: text/plain; charset=a\0b\r\n\r\nTea.\r\n"
    yield "deep.eml", b"Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n" * 2_000
    yield "comment.html", b"<!-- nothing -->"
    yield "code.html", b"<?php echo 1; ?>"
    yield "deep.html", b"<div>" * 100_000 + b"Tea."
    yield "brackets.md", b"[" * 50_000 + b"](" * 50_000
    yield "stars.md", b"*a **b " * 30_000
    yield (
        "loop.pdf",
        b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 1 0 R /Kids [1 0 R] >>\nendobj\ntrailer << /Root 1 0 R >>",
    )


def fuzzed(seed: int, count: int, pdf: Callable[..., bytes]) -> Iterator[tuple[str, bytes]]:
    """``count`` documents, each a sound one with bytes flipped, cut, repeated, or put elsewhere; ``pdf`` makes one."""
    rng = random.Random(seed)
    page = f"<html><head><meta charset=utf-8><title>A</title></head><body><article><h1>H</h1><p>{TEXT}</p></article>"
    sound = {
        "a.docx": word(table('<w:gridSpan w:val="2"/>')),
        "body.docx": _body(word(table('<w:gridSpan w:val="2"/>'))),
        "a.pdf": pdf([TEXT, "It was slow."], [TEXT]),
        "a.html": page.encode() * 2,
        "a.eml": _HEAD
        + b"Content-Type: multipart/alternative; boundary=x\r\n\r\n--x\r\n\r\n"
        + TEXT.encode()
        + b"\r\n--x--",
        "a.mht": _HEAD + b"Content-Type: text/html; charset=utf-8\r\n\r\n" + page.encode(),
        "a.md": f"# Head\n\n* {TEXT}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n".encode(),
        "a.txt": f"{TEXT} Käse, Мама мыла раму.".encode(),
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
        yield f"{number}-{name}", word(parts={_BODY: bytes(content)}) if name == "body.docx" else bytes(content)


def _body(document: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(document)) as parts:
        return parts.read(_BODY)
