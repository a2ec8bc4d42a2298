"""Teachers that answer nonsense, much or secrets, and places for their answers that are not what they should be."""

import gzip
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import raysum
from helpers.teaching_server import Running, saved, teaching
from raysum.errors import UserError

KEY = "sk-A1b2C3d4E5f6G7h8"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with teaching() as running:
        yield running


@pytest.fixture
def server(running, tmp_path, monkeypatch) -> Running:
    running.control(script=[], rules=[])
    rows = [{"id": f"c{n}", "title": f"Bridge {n}", "documents": [f"Bridge {n} was built. It fell."]} for n in range(3)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSUM_TEACHER_KEY", KEY)
    return running


def taught(server: Running, source: str = "c.jsonl", out: str = "t.jsonl", **settings: Any) -> dict[str, Any]:
    settings = {"concurrency": 1, "retries": 0, "timeout": 20.0} | settings
    return raysum.teach(source, out, server.url, "tiny", **settings).figures


def rows(name: str = "t.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def completion(content: Any = "It stands.", **more: Any) -> dict[str, Any]:
    return {
        "choices": [{"message": {"content": content}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        **more,
    }


def always(server: Running, **act: Any) -> None:
    server.control(rules=[{"when": "", **act}])


@pytest.mark.parametrize(
    ("content", "summary"),
    [
        ("<think>It never ends.", None),
        ("<think>a</think> <think>b</think> It stands.", "It stands."),
        ("of this I think</think>\nIt stands.", "It stands."),  # where the server's template began the thought
        ("It\x1b[2J \x9b31mstands\x85.", "It[2J 31mstands."),
        (f"My key is {KEY}.", "My key is ***."),
    ],
)
def test_what_is_taken_of_an_answer(server, content, summary):
    always(server, content=content)
    figures = taught(server)
    assert figures["rejected"] == ({} if summary else {"the answer is empty": 3})
    assert [row["summary"] for row in rows()] == [summary] * 3 * bool(summary)


@pytest.mark.parametrize(
    "usage", [[1], "abc", 7, {"prompt_tokens": True, "completion_tokens": 10**30}, {"prompt_tokens": -5}]
)  # fmt: skip
def test_a_nonsense_count_is_none(server, usage):
    always(server, told=completion(usage=usage))
    assert taught(server)["tokens"] == {"prompt": 0, "completion": 0}
    with pytest.raises(UserError, match="does not report the cost of answers"):
        taught(server, out="b.jsonl", budget=10**6)


def test_the_name_of_a_served_model_is_kept_short_and_without_secrets(server):
    always(server, told=completion(model=f"\x1b[31m{KEY}" + "m" * 100_000))
    taught(server)
    assert rows()[0]["teacher"]["served"].startswith("[31m***mmm") and os.path.getsize("t.jsonl") < 3000


def test_packed_answers_are_not_unpacked(server):
    """A gzipped gzip of a GiB is a few KB."""
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packed.compress(b" " * (1 << 20)) for _ in range(16)) + packed.flush()
    headers = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    always(server, raw=headers + bomb.decode("latin1"))
    with pytest.raises(UserError, match="something else than a chat completion"):
        taught(server)
    always(server, raw=headers.replace(str(len(bomb)), "9") + gzip.compress(b"x")[:9].decode("latin1"))
    with pytest.raises(UserError, match="something else than a chat completion"):
        taught(server)


@pytest.mark.parametrize("shift", range(0, 20, 3))
def test_no_part_of_a_key_is_told(server, shift):
    """What a server says is cut, and the cut may go through the key."""
    always(server, status=401, message="x" * (285 + shift) + KEY)
    with pytest.raises(UserError) as told:
        taught(server)
    assert "sk-" not in str(told.value)


def test_a_redirection_is_not_followed_and_the_key_stays(server):
    always(server, status=307, headers={"Location": f"{server.root}/elsewhere"})
    with pytest.raises(UserError, match="answers 307, a redirection; give the address that it leads to"):
        taught(server)
    assert "/elsewhere" not in server.seen["paths"]


def test_a_terminal_obeys_no_message(server, capsys):
    twice = '{"documents": ["It stands."], "\x1b[2J": 1, "\x1b[2J": 2}'.replace("\x1b", "\\u001b")
    Path("d.jsonl").write_text(Path("c.jsonl").read_text() + twice)
    taught(server, "d.jsonl", out="d-taught.jsonl")
    assert r"an object has the same key twice (\x1b[2J)" in capsys.readouterr().err
    always(server, status=400, message="\x1b[2Jno\x9b31m \u202egnp")
    with pytest.raises(UserError, match=r"answers 400: \\x1b\[2Jno\\x9b31m \\u202egnp"):
        taught(server)


# Files


def damaged(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        told = [json.loads(line) for line in content.splitlines()]
        return b"".join(json.dumps(one | change(one) if "key" in one else one).encode() + b"\n" for one in told)

    return edit


@pytest.mark.parametrize(
    ("edit", "asked"),
    [
        (lambda content: content, 0),
        (lambda content: content + b'{"k', 0),
        (lambda content: content + b'{"key": ' * 100_000, 0),
        (damaged(lambda one: {"more": 1}), 3),
        (damaged(lambda one: {"text": None}), 3),
        (damaged(lambda one: {"reason": 5}), 3),
        (damaged(lambda one: {"prompt_tokens": -(10**9)}), 3),
        (damaged(lambda one: {"completion_tokens": True}), 3),
    ],
)
def test_answers_of_an_older_version_are_taken_over_and_damaged_ones_asked_for_again(server, edit, asked):
    taught(server)
    answers = Path("t.jsonl.answers")
    lines = "".join(json.dumps(row) + "\n" for row in [{"prompt": "1f", "text": "{documents}"}, *saved(answers)])
    answers.write_bytes(edit(lines.encode()))
    assert taught(server)["answers"] == asked and all(row["summary"] for row in rows())


def linked(path: str) -> None:
    Path(path).symlink_to("c.jsonl")


def copied(path: str) -> None:
    Path(path).write_bytes(Path("c.jsonl").read_bytes())


@pytest.mark.parametrize(
    ("make", "place", "source", "words"),
    [
        (copied, "t.jsonl.answers", "t.jsonl.answers", "t.jsonl.answers would be read as one of the clusters"),
        (copied, "t.jsonl.rejected.jsonl", "t.jsonl.rejected.jsonl", "would be read as one of the clusters"),
        (linked, "t.jsonl.answers", "c.jsonl", "t.jsonl.answers would be read as one of the clusters"),
        (copied, "t.jsonl.answers", "c.jsonl", "t.jsonl.answers holds no answers"),
        (lambda path: Path(path).write_bytes(b"[" * 100_000), "t.jsonl.answers", "c.jsonl", "holds no answers"),
        (os.mkfifo, "t.jsonl.answers", "c.jsonl", "t.jsonl.answers is no file"),
        (os.mkdir, "t.jsonl.rejected.jsonl", "c.jsonl", "t.jsonl.rejected.jsonl is no file"),
    ],
)
def test_what_is_not_ours_is_not_written(server, make, place, source, words):
    """Sources above all: answers were added to them, or rows written over them."""
    make(place)
    before, asked = Path("c.jsonl").read_bytes(), server.requests
    with pytest.raises(UserError, match=words):
        taught(server, source)
    assert server.requests == asked and Path("c.jsonl").read_bytes() == before
    assert not Path(place).is_file() or "tiny" not in Path(place).read_text()
    assert not Path("t.jsonl").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:4096] + b"\xa5" * (len(content) - 4096),
        lambda content: content[:16] + b"\0" * (len(content) - 16),
    ],
    ids=["cut", "overwritten", "emptied"],
)
def test_a_damaged_answers_file_is_named_and_kept(server, damage):
    """Its answers cost money: they are neither removed nor asked for again without a word."""
    taught(server)
    answers, asked = Path("t.jsonl.answers"), server.requests
    answers.write_bytes(damage(answers.read_bytes()))
    before = answers.read_bytes()
    with pytest.raises(UserError, match=r"t.jsonl.answers .*(restore a copy|remove it)"):
        taught(server)
    assert server.requests == asked and answers.read_bytes() == before


def test_answers_in_use_by_another_program_are_waited_for(server):
    taught(server)
    with closing(sqlite3.connect("t.jsonl.answers")) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="used by another process; wait"):
            taught(server)
    assert taught(server)["answers"] == 0


def test_what_cannot_be_written_whole_leaves_no_part(server, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "t.jsonl")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        taught(server)
    assert {one.name for one in Path().iterdir()} <= {"c.jsonl", "t.jsonl.answers", ".t.jsonl.lock"}


def test_a_prompt_without_end_is_refused(server):
    with pytest.raises(UserError, match="/dev/zero is larger than 64 MiB"):
        taught(server, prompt="/dev/zero")
