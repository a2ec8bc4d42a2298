"""Hostile and damaged documents: each is read or refused, in bounded time and memory, and none ends a prepare."""

import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

from helpers.fuzzed_documents import fuzzed, hostile
from helpers.pdf import LONG, pdf
from raysum.errors import UserError
from raysum.sources.documents import sandbox
from raysum.sources.documents.read import parse_document, read_document
from raysum.sources.find import find_sources
from raysum.sources.published import read_pairs, read_torch_list
from raysum.sources.tensor2tensor import read_wikis

# Reads the file that it is given, in a process of its own: prints the error, if any, and the most MiB of a child.
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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A cluster of every hostile document, with a sound one beside it."""
    folder = tmp_path_factory.mktemp("hostile") / "corpus"
    for name, content in hostile():
        (folder / name).mkdir(parents=True)
        (folder / name / name).write_bytes(content)
        (folder / name / "sound.txt").write_text(LONG)
    return folder


@pytest.mark.slow
def test_hostile_documents_reject_their_cluster_and_no_other(corpus):
    (source,) = find_sources([corpus])
    found = {record.id: record for record in source.records()}
    assert len(found) == len([*corpus.iterdir()])
    for name in ("picture.docx", "span.docx", "word.docx", "bare.docx", "comment.html", "loop.pdf"):
        assert found[name].problem == "a document is unreadable" and name in found[name].detail
    for name in ("undefined.eml", "nul.eml"):
        assert {one["text"] for one in found[name].raw["documents"]} == {"Tea.", LONG}


@pytest.mark.parametrize("name", ["picture.docx", "span.docx"])
def test_a_reader_has_limited_memory(corpus, name):
    command = [sys.executable, "-c", READ, str(corpus / name / name)]
    told, most = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert name in told and int(most) < 400


def test_a_reader_that_was_killed_is_replaced(tmp_path):
    (tmp_path / "a.md").write_text("# Tea\n\nIt is hot.")
    before = read_document(tmp_path / "a.md")
    with pytest.raises(UserError, match="span.docx"):
        parse_document(dict(hostile())["span.docx"], "span.docx", "span.docx")
    assert read_document(tmp_path / "a.md") == before


def test_damaged_documents_are_read_or_refused():
    read = set()
    for name, content in fuzzed(0, 80, pdf):
        try:
            parse_document(content, name, name)
            read.add(name.partition("-")[2])
        except UserError as error:
            assert name in str(error)
    assert read == {
        "body.docx",
        "a.pdf",
        "a.html",
        "a.eml",
        "a.mht",
        "a.md",
        "a.txt",
    }  # the ZIP of a.docx has checksums


@pytest.mark.long
def test_five_hundred_damaged_documents():
    """Prints what they took; the seed is that of the environment's RAYSUM_SEED."""
    times, refused = [], 0
    for name, content in fuzzed(int(os.environ.get("RAYSUM_SEED", 1)), 500, pdf):
        began = time.perf_counter()
        try:
            parse_document(content, name, name)
        except UserError as error:
            refused += name in str(error)
        times.append((time.perf_counter() - began, name))
    sandbox.end()  # children count once they have ended
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(json.dumps({"refused": refused, "slowest": sorted(times)[-3:], "most MiB": most}))


def test_links_out_of_a_folder_are_left_out_and_listed(tmp_path, capsys):
    secret, corpus = tmp_path / "secret.txt", tmp_path / "corpus"
    secret.write_text("A secret.")
    for name in ("c1", "c2"):
        (corpus / name).mkdir(parents=True)
        (corpus / name / "a.txt").write_text(f"The town {name} has a river.")
    (corpus / "c1" / "b.txt").symlink_to(secret)
    (corpus / "c1" / "c.txt").symlink_to(corpus / "c2" / "a.txt")
    (corpus / "c3").symlink_to(tmp_path)
    (corpus / "d.jsonl").symlink_to(secret)
    (source,) = find_sources([corpus])
    texts = {record.id: [one["text"] for one in record.raw["documents"]] for record in source.records()}
    rivers = [f"The town {name} has a river." for name in ("c1", "c2")]
    assert texts == {"c1": rivers, "c2": rivers[1:]}
    said = capsys.readouterr().err
    assert "c3, d.jsonl" in said and "c1/b.txt" in said and "secret" not in said


def test_links_out_of_a_folder_of_pairs_or_of_fetched_pages_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("A secret.\n")
    (folder := tmp_path / "corpus").mkdir()
    (folder / "train.src").write_text("The town has a river.\n")
    (folder / "train.tgt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="train.tgt is a link out of its folder"):
        [*read_pairs(folder / "train.src")]
    (shard := folder / "wiki" / "shard").mkdir(parents=True)
    (shard / "wiki_content.tfrecords-00001").write_bytes(b"")
    for name in ("wiki_urls.json-00001", "references.tfrecords.gz-00001"):
        (shard / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="needs wiki_urls.json-00001"):
        [*read_wikis(shard / "wiki_content.tfrecords-00001")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.story", "train.src"])
def test_one_invalid_byte_leaves_a_row_of_utf8(tmp_path, name, capsys):
    text = ("Die Brücke in Köln ist lang. " * 9).encode() + b"\xff"
    row = b'{"title": "a", "documents": ["' + text + b'"]}'
    table = b"title%sdocuments\na%s" + text + b"\n"
    tables = {"csv": table % (b",", b","), "tsv": table % (b"\t", b"\t")}
    contents = tables | {"jsonl": row + b"\n", "json": b"[" + row + b"]"}
    (tmp_path / name).write_bytes(contents.get(name.rpartition(".")[2], text + b"\n"))
    (source,) = find_sources([tmp_path / name])
    (record,) = source.records()
    assert not record.problem and "Köln ist lang. \ufffd" in str(record.raw)
    assert "1 invalid UTF-8 byte, read as U+FFFD" in capsys.readouterr().err


def test_links_to_pairs_that_lie_in_one_folder_are_read(tmp_path):
    (blobs := tmp_path / "blobs").mkdir()
    (folder := tmp_path / "snapshot").mkdir()
    for name in ("train.src", "train.tgt"):
        (blobs / name).write_text("The town has a river.\n")
        (folder / name).symlink_to(blobs / name)
    (record,) = read_pairs(folder / "train.src")
    assert record.raw["summary"] == "The town has a river."


def test_a_compressed_list_of_torch_is_refused(tmp_path):
    torch.save([{"document": "Tea. " * 99}], saved := tmp_path / "saved.pt")
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            after.writestr(name, before.read(name))
    with pytest.raises(UserError, match="a.pt is compressed"):
        [*read_torch_list(tmp_path / "a.pt")]


def test_guessing_an_encoding_takes_little_memory():
    """And a text that is longer than what is looked at keeps all its letters."""
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
