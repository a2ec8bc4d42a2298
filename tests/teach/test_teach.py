"""`raysum teach` against a server that speaks the protocol, in a process of its own."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import raysum
from helpers.processes import Command, free_port
from helpers.small_runs import write_run
from helpers.teaching_server import Running, saved, teaching
from raysum.data.dataset import Dataset
from raysum.data.inspection import Card
from raysum.errors import UserError
from raysum.teach.output import TeachResult

KEY = "sk-A1b2C3d4E5f6"


@pytest.fixture
def server() -> Iterator[Running]:
    with teaching() as running:
        yield running


def clusters(number: int, summaries: int = 0) -> list[dict]:
    """So many clusters of two documents, the first of them with summaries."""
    rows = []
    for n in range(number):
        built = f"Bridge {n} was built in {1800 + n}. It has {n + 2} arches."
        rows.append({"id": f"c{n}", "title": f"Bridge {n}"})
        rows[-1] |= {"documents": [built, f"Floods closed bridge {n} for weeks. Cars came."]}
        rows[-1] |= {"summary": f"Bridge {n} stands."} if n < summaries else {}
    return rows


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def taught(tmp_path: Path, server: Running, rows: list[dict], **settings) -> TeachResult:
    source = write(tmp_path / "c.jsonl", rows)
    return raysum.teach(source, tmp_path / "t.jsonl", server.url, "tiny", **settings)


def command(tmp_path: Path, server: Running | str, *more: str, **options) -> subprocess.CompletedProcess[str]:
    url = server if isinstance(server, str) else server.url
    asked = ["teach", "c.jsonl", "--teacher", url, "--model", "tiny", "--out", "t.jsonl", *more]
    return subprocess.run(
        [sys.executable, "-m", "raysum", *asked], cwd=tmp_path, capture_output=True, text=True, timeout=120, **options
    )


def test_clusters_without_summary_get_one_and_the_others_pass(tmp_path, server):
    rows = clusters(5, summaries=2)
    result = taught(tmp_path, server, rows, temperature=0.2, seed=7)
    figures = result.to_dict()
    assert (figures["clusters"], figures["taught"], figures["kept"]) == (5, 3, 2)
    made = read(tmp_path / "t.jsonl")
    assert made[:2] == rows[:2] and [row["id"] for row in made] == [row["id"] for row in rows]
    assert made[3]["summary"] == "Bridge 3 was built in 1803. Floods closed bridge 3 for weeks."
    teacher = made[3]["teacher"]
    assert teacher | {"prompt": ""} == {
        "model": "tiny", "served": "tiny-0613", "prompt": "", "max_tokens": 1000, "temperature": 0.2, "seed": 7
    }  # fmt: skip
    seen = server.seen
    assert seen["paths"] == {"/v1/chat/completions": 3} and server.requests == 3
    assert {key: seen["bodies"][0][key] for key in ("model", "max_tokens", "temperature", "seed")} == {
        "model": "tiny", "max_tokens": 1000, "temperature": 0.2, "seed": 7
    }  # fmt: skip
    assert figures["tokens"]["prompt"] == sum(len(b["messages"][0]["content"].split()) for b in seen["bodies"])
    again = raysum.teach(tmp_path / "c.jsonl", tmp_path / "t.jsonl", server.url, "tiny", temperature=0.2, seed=7)
    assert again.figures["answers"] == 0 and server.requests == 3  # nothing is asked for twice


def test_a_dataset_of_taught_clusters_tells_who_taught(tmp_path, server):
    taught(tmp_path, server, clusters(30, summaries=4), cite=True)
    raysum.prepare(tmp_path / "t.jsonl", tmp_path / "data", vocab_size=200, keep=["teacher", "citations"])
    prompt = read(tmp_path / "t.jsonl")[9]["teacher"]["prompt"]
    counts = Dataset.open(tmp_path / "data").manifest["splits"]["train"]["counts"]
    assert counts[f"summaries by tiny, prompt {prompt}"] == 26
    assert Card.of(str(tmp_path / "data")).figures["splits"]["train"]["counts"].items() <= counts.items()
    shown = subprocess.run(
        [sys.executable, "-m", "raysum", "data", "show", str(tmp_path / "data")], capture_output=True, text=True
    ).stdout
    assert f"summaries by tiny, prompt {prompt}" in shown
    row = list(Dataset.open(tmp_path / "data").read("train"))[9]
    assert json.loads(row["extra"])["teacher"]["model"] == "tiny"
    assert [one["paragraphs"] for one in json.loads(row["extra"])["citations"]] == [[[0, 0]], [[1, 0]]]
    with closing(sqlite3.connect(tmp_path / "t.jsonl.answers")) as db:
        ((sha256, text),) = db.execute("SELECT * FROM prompts")
    assert sha256[:16] == prompt and "{documents}" in text


def test_a_student_is_compared_by_the_teachers_summaries_and_citations(tmp_path, server):
    student = write_run(tmp_path)
    taught(tmp_path, server, clusters(6), cite=True)
    raysum.prepare(tmp_path / "t.jsonl", tmp_path / "data", vocab=student / "vocabulary.model", keep=["citations"])
    figures = raysum.evaluate(student, tmp_path / "data").systems
    assert {"tiny", "lead", "lexrank", "lead-paper", "lexrank-paper"} == figures.keys() and figures["lead"][
        "rouge1"
    ] > figures["tiny"]["rouge1"]
    assert all(0 < one["cited_precision"] <= 100 and 0 < one["cited_recall"] <= 100 for one in figures.values())
    told = raysum.compare(str(student)).to_pandas()
    assert {"rouge2"} <= {*told["metric"]} and told["systems"].str.contains("lead").any()


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_and_asks_for_no_kept_answer_again(tmp_path, server):
    write(tmp_path / "c.jsonl", clusters(40))
    server.control(delay=0.03)
    kept, asked = set(), 0
    for kill in range(3):
        arguments = ["teach", "c.jsonl", "--teacher", server.url, "--model", "tiny", "--out", "t.jsonl"]
        one = Command(*arguments, "--concurrency=4", "--cite", cwd=tmp_path, stderr=subprocess.DEVNULL)
        while server.requests < asked + 10 + 7 * kill:
            assert one.process.poll() is None
            time.sleep(0.003)
        one.process.kill()
        one.process.wait()
        time.sleep(0.2)
        answers = tmp_path / "t.jsonl.answers"
        found = {row["key"] for row in saved(answers)}
        assert kept < found
        kept, asked = found, server.requests
        assert asked - len(kept) <= 4 * (kill + 1)  # each kill loses only what was on its way
        assert not (tmp_path / "t.jsonl").exists()
        if kill == 1:
            Path(f"{answers}-wal").write_bytes(b"torn in the mid")
    assert command(tmp_path, server, "--concurrency=4", "--cite").returncode == 0
    assert server.requests - asked == 80 - len(kept)
    rows = read(tmp_path / "t.jsonl")
    assert [row["id"] for row in rows] == [f"c{n}" for n in range(40)] and all(row["citations"] for row in rows)


def test_no_more_requests_at_once_than_asked_for(tmp_path, server):
    server.control(delay=0.03, meet=5)
    taught(tmp_path, server, clusters(40), concurrency=5)
    assert server.seen["most"] == 5


def test_the_same_cluster_is_asked_about_once(tmp_path, server):
    server.control(delay=0.1)
    rows = [row | {"id": f"{row['id']}-{copy}"} for copy in range(5) for row in clusters(3)]
    figures = taught(tmp_path, server, rows, concurrency=15).figures
    assert figures["taught"] == 15 and server.requests == 3
    assert len({row["summary"] for row in read(tmp_path / "t.jsonl")}) == 3


def test_another_model_prompt_or_parameter_is_another_question(tmp_path, server):
    source, out = write(tmp_path / "c.jsonl", clusters(2)), tmp_path / "t.jsonl"
    (tmp_path / "prompt.txt").write_text('{"title": {title}, "n": {"a": 1}} {3} {{place}} {documents}')
    for number, told in enumerate(
        ({}, {"temperature": 0.5}, {"words": 80}, {"prompt": str(tmp_path / "prompt.txt")}), 1
    ):
        raysum.teach(source, out, server.url, "tiny", **told)
        assert server.requests == 2 * number
    sent = server.seen["bodies"][-1]["messages"][0]["content"]
    assert sent.startswith('{"title": Bridge') and ', "n": {"a": 1}} {3} {place} [1] ' in sent
    raysum.teach(source, out, server.url, "other")
    assert server.requests == 10 and read(out)[0]["teacher"]["model"] == "other"


def test_the_budget_is_kept_and_a_higher_one_goes_on(tmp_path, server):
    write(tmp_path / "c.jsonl", clusters(30))
    server.control(delay=0.02)
    more = ["--max-tokens", "20", "--json"]
    ended = command(tmp_path, server, *more, "--budget=1500")
    told = json.loads(ended.stdout.splitlines()[-1])
    assert ended.returncode == 3 and told["spent"]
    assert 1200 < sum(told["tokens"].values()) <= 1500
    assert told["taught"] == len(read(tmp_path / "t.jsonl")) == 30 - told["left"] > 5
    asked = server.requests
    assert asked == told["taught"]
    ended = command(tmp_path, server, *more, "--budget=1500")  # of all starts together
    assert ended.returncode == 3 and server.requests == asked
    ended = command(tmp_path, server, *more, "--budget=100000")
    assert ended.returncode == 0 and json.loads(ended.stdout.splitlines()[-1])["left"] == 0
    assert server.requests == 30 and len(read(tmp_path / "t.jsonl")) == 30


def test_a_budget_spent_before_all_are_cited_says_so(tmp_path, server):
    figures = taught(tmp_path, server, clusters(20), cite=True, budget=4000, max_tokens=20, concurrency=1).figures
    assert figures["spent"] and figures["left"] and sum(figures["tokens"].values()) <= 4000
    assert figures["cited"] + figures["citations_left"] == figures["taught"]
    result = raysum.teach(tmp_path / "c.jsonl", tmp_path / "t.jsonl", server.url, "tiny", cite=True, max_tokens=20)
    assert result.figures["cited"] == 20 and server.requests == 40 and result.exit_code == 0


def test_a_budget_needs_a_server_that_counts(tmp_path, server):
    server.control(rules=[{"when": "Bridge", "no_usage": True}])
    with pytest.raises(UserError, match="does not report the cost of answers"):
        taught(tmp_path, server, clusters(3), budget=10_000)
    assert taught(tmp_path, server, clusters(3)).taught == 3


def test_limits_errors_and_broken_connections_are_waited_for(tmp_path, server):
    limit = {"status": 429, "headers": {"Retry-After": "1"}}
    server.control(script=[{}, limit, {"status": 503}, {"drop": True}, {"html": '{"choices": '}, {"status": 408}])
    began = time.monotonic()
    assert taught(tmp_path, server, clusters(6), concurrency=2).taught == 6
    assert server.requests == 11 and time.monotonic() - began > 1


def test_a_limit_stops_all_until_the_time_that_the_server_tells(tmp_path, server):
    server.control(script=[{"status": 429, "headers": {"Retry-After": "1.5"}}], delay=0.05)
    began = time.monotonic()
    taught(tmp_path, server, clusters(8), concurrency=1)
    assert time.monotonic() - began > 1.5 and server.requests == 9


@pytest.mark.parametrize("more", [[], pytest.param(["--address=local"], marks=pytest.mark.long)])
def test_a_wait_is_told_as_it_begins(tmp_path, server, more):
    write(tmp_path / "c.jsonl", clusters(3))
    limit = {"status": 429, "message": "Rate limit reached", "headers": {"Retry-After": "1"}}
    torn = {"html": '{"choices": '}
    server.control(script=[torn, limit, limit, {"status": 503, "message": "not up"}])
    ended = command(tmp_path, server, "--concurrency=1", *more)
    assert ended.returncode == 0 and "answers 503: not up; next try in " in ended.stderr
    assert ended.stderr.count("answers 429: Rate limit reached; next try in 2 s; it ends after 600 s without") == 1
    assert "something else than a chat completion: '{\"choices\":'; next try in" in ended.stderr


@pytest.mark.parametrize("wait", ["3600", "inf"])
def test_too_long_a_wait_is_not_begun(tmp_path, server, wait):
    write(tmp_path / "c.jsonl", clusters(3))
    limit = {"status": 429, "headers": {"Retry-After": wait}}
    server.control(rules=[{"when": f"Bridge {n}", **limit} for n in (1, 2)])
    ended = command(tmp_path, server, "--concurrency=1")
    assert ended.returncode == 2 and server.requests == 2 and "Traceback" not in ended.stderr
    assert f"answers 429: not now, and asks to wait for {wait} s; there would be no answer for more" in ended.stderr
    assert "more than --give-up-after 600 s" in ended.stderr


def test_a_server_that_never_answers_is_given_up_and_told_of_before(tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr("raysum.teach.server._QUIET", 0.2)
    server.control(delay=30)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"breaks off \(timed out\); .* more than --give-up-after 2 s"):
        taught(tmp_path, server, clusters(2), timeout=0.8, give_up_after=2)
    assert time.monotonic() - began < 4
    told = capsys.readouterr().err
    assert "has not answered yet, after 0.2 s; a request may take 0.8 s (--timeout)" in told
    assert (
        told.count("breaks off (timed out); next try in 1 s; it ends after 2 s without any answer (--give-up-after)")
        == 1
    )


def test_a_slow_answer_is_given_up_after_the_timeout(tmp_path, server):
    server.control(script=[{"delay": 5}])
    began = time.monotonic()
    assert taught(tmp_path, server, clusters(2), timeout=0.5).taught == 2
    assert time.monotonic() - began < 4


def test_answers_of_no_use_are_set_aside_by_reason_and_not_asked_for_again(tmp_path, server):
    rules = [
        {"when": "Title: Bridge 0\n", "content": ""},
        {"when": "Title: Bridge 1\n", "content": None, "refusal": "I can't help with that."},
        {"when": "Title: Bridge 2\n", "finish": "length"},
        {"when": "Title: Bridge 3\n", "huge": 9 << 20},
        {"when": "Title: Bridge 4\n", "status": 400, "code": "content_filter", "message": "filtered"},
        {"when": "Title: Bridge 5\n", "content": "I'm sorry, but I can't assist with that."},
        {"when": "Title: Bridge 6\n", "content": "<think>Bridges...</think>\n\nBridge 6 stands."},
    ]
    server.control(rules=rules)
    rows = [*clusters(8), {"title": "empty", "documents": [" "]}]
    wanted = {
        "the teacher refuses": 3, "the answer is empty": 1, "the answer is cut at max_tokens": 1,
        "the answer is longer than 4 MiB": 1, "no text in the documents": 1,
    }  # fmt: skip
    for _ in range(2):
        figures = taught(tmp_path, server, rows).figures
        assert figures["rejected"] == wanted and figures["taught"] == 2
    assert server.requests == 8
    assert read(tmp_path / "t.jsonl")[0]["summary"] == "Bridge 6 stands."
    aside = {line["row"]["title"]: line for line in read(tmp_path / "t.jsonl.rejected.jsonl")}
    assert len(aside) == 7 and aside["Bridge 1"]["answer"] == "I can't help with that."
    assert aside["empty"]["where"].endswith("c.jsonl:9")


def test_too_many_answers_of_no_use_end_it_and_what_helps_asks_for_them_alone(tmp_path, server):
    write(tmp_path / "c.jsonl", clusters(40))
    server.control(rules=[{"when": "Bridge", "finish": "length"}], delay=0.02)
    more = ["--concurrency=2", "--json"]
    for _ in range(2):  # the second asks nothing
        ended = command(tmp_path, server, *more)
        told = json.loads(ended.stdout)
        assert ended.returncode == 2 and 10 <= server.requests <= 11
        assert told["rejected"] == {"the answer is cut at max_tokens": server.requests} and told["left"] >= 29
        assert "answers are rejected, more than --max-rejected 0.5: the answer is cut at max_tokens" in ended.stderr
        assert "A --max-tokens above 1000 asks again for cut answers" in ended.stderr
    asked = server.requests
    server.control(rules=[{"when": "Title: Bridge 3\n", "content": ""}])
    told = json.loads(command(tmp_path, server, *more, "--max-tokens=2000").stdout)
    assert told["taught"] == 39 and told["answers"] == 40 and server.requests == asked + 40
    server.control(rules=[])
    ended = command(tmp_path, server, "--max-tokens=3000")
    assert "--retry-rejected asks again" in ended.stdout and ended.returncode == 0 and server.requests == asked + 40
    assert json.loads(command(tmp_path, server, "--retry-rejected", "--json").stdout)["answers"] == 1
    rows = read(tmp_path / "t.jsonl")
    assert len(rows) == 40 and {row["teacher"]["max_tokens"] for row in rows} == {1000, 2000}
    assert not (tmp_path / "t.jsonl.rejected.jsonl").exists() and server.requests == asked + 41


def test_a_cluster_that_the_server_fails_at_is_set_aside_and_asked_about_again(tmp_path, server):
    server.control(rules=[{"when": "Title: Bridge 3\n", "status": 500, "message": f"boom {KEY}"}], delay=0.1)
    figures = taught(tmp_path, server, clusters(20), retries=1, concurrency=2).figures
    assert figures["rejected"] == {"no answer": 1} and figures["taught"] == 19
    (line,) = read(tmp_path / "t.jsonl.rejected.jsonl")
    assert "answers 500: boom" in line["detail"]
    server.control(rules=[])
    figures = raysum.teach(tmp_path / "c.jsonl", tmp_path / "t.jsonl", server.url, "tiny").figures
    assert (figures["taught"], figures["answers"]) == (20, 1)
    assert not (tmp_path / "t.jsonl.rejected.jsonl").exists()


@pytest.mark.parametrize("key", [KEY, ""])
def test_a_wrong_key_is_one_message_without_it(tmp_path, server, key):
    """The server repeats what it was given: the key, or the password of the address as it is sent."""
    write(tmp_path / "c.jsonl", clusters(3))
    server.control(key="another")
    port = server.root.rpartition(":")[2]
    url = f"http://user:pass-Word-9@127.0.0.1:{port}/v1?key=query-Secret-7"
    ended = command(tmp_path, url, env={**os.environ, "RAYSUM_TEACHER_KEY": key})
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert f"raysum: http://127.0.0.1:{port}/v1/chat/completions answers 401: Incorrect API key" in ended.stderr
    assert "***" in ended.stderr and "set the key in the environment variable RAYSUM_TEACHER_KEY" in ended.stderr
    everything = (
        ended.stdout + ended.stderr + "".join(f.read_text(errors="replace") for f in tmp_path.iterdir() if f.is_file())
    )
    for secret in (KEY, "pass-Word-9", "query-Secret-7", b64encode(b"user:pass-Word-9").decode()):
        assert secret not in everything


def test_a_key_is_sent(tmp_path, server, monkeypatch):
    server.control(key=KEY)
    monkeypatch.setenv("RAYSUM_TEACHER_KEY", f"{KEY}\n")
    assert taught(tmp_path, server, clusters(3)).taught == 3
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.iterdir())
    monkeypatch.setenv("RAYSUM_TEACHER_KEY", "käse")
    with pytest.raises(UserError, match="RAYSUM_TEACHER_KEY is no key"):
        taught(tmp_path, server, clusters(3))


def test_variables_of_the_openai_client_are_ignored(tmp_path, server, monkeypatch):
    """They are for another server, which must not get the clusters, and their keys are not for this one."""
    secrets = {"OPENAI_API_KEY": "sk-other", "OPENAI_ADMIN_KEY": "sk-admin", "OPENAI_ORG_ID": "org-other"}
    secrets |= {"OPENAI_PROJECT_ID": "proj-other", "OPENAI_WEBHOOK_SECRET": "whsec-other"}
    with teaching() as other:
        for name, value in (secrets | {"OPENAI_BASE_URL": other.url}).items():
            monkeypatch.setenv(name, value)
        assert taught(tmp_path, server, clusters(3)).taught == 3
        assert server.requests == 3 and other.requests == 0
    sent = json.dumps(server.seen["headers"])
    assert "User-Agent" in sent and not [value for value in secrets.values() if value in sent]


def test_without_the_openai_package_the_command_that_installs_it_is_named(tmp_path, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)  # its import fails
    with pytest.raises(UserError, match=r"needs openai, .*\.\[teach\]"):
        taught(tmp_path, server, clusters(3))
    assert server.requests == 0 and not (tmp_path / "t.jsonl").exists()


def test_a_mistake_is_one_message_and_exit_code_2(tmp_path, server):
    write(tmp_path / "c.jsonl", clusters(3))
    began = time.monotonic()
    ended = command(tmp_path, f"http://user:pass-Word-9@127.0.0.1:{free_port()}/v1")
    assert ended.returncode == 2 and "/v1/chat/completions does not answer (" in ended.stderr
    assert "start the server, or correct --teacher" in ended.stderr and time.monotonic() - began < 20
    assert "Traceback" not in ended.stderr and "pass-Word-9" not in ended.stderr
    assert command(tmp_path, server, "--modle", "x").returncode == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"teacher": "ftp://host/v1"}, "teacher is not the URL of a server"),
        ({"teacher": "http://user:pass-Word-9@[/v1"}, "teacher is not the URL of a server"),
        ({"out": "t.csv"}, "out must end in .jsonl"),
        ({"out": "other.jsonl"}, "other.jsonl exists already"),
        ({"out": "c.jsonl"}, "c.jsonl exists already"),
        ({"out": "s3://bucket/t.jsonl"}, "is on a store"),
        ({"out": "notes.jsonl"}, "notes.jsonl.answers holds no answers"),
        ({"prompt": "prompt.txt"}, "has no {documents} in it"),
        ({"prompt": "none.txt"}, "cannot read none.txt"),
        ({"prompt": "misspelled.txt"}, "has {titel} in it, which nothing fills; did you mean {title}?"),
        ({"concurrency": 0}, "concurrency"),
        ({"budget": -3}, "budget"),
        ({"sources": ["none.jsonl"]}, "no such file or folder: none.jsonl"),
        (
            {"sources": ["other.jsonl"], "out": "t.jsonl"},
            "no cluster can be read; the first that",
        ),
    ],
)
def test_mistakes_of_settings_are_told(tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c.jsonl", clusters(3))
    (tmp_path / "other.jsonl").write_text("{}")
    (tmp_path / "notes.jsonl.answers").write_text("My notes.\n")
    (tmp_path / "prompt.txt").write_text("Summarize {document}")
    (tmp_path / "misspelled.txt").write_text('{"title": {titel}} {documents}')
    whole = {"sources": ["c.jsonl"], "teacher": "http://127.0.0.1:9", "model": "tiny", "out": "t.jsonl", **given}
    with pytest.raises(UserError) as told:
        raysum.teach(**whole)
    assert words in str(told.value) and "pass-Word-9" not in str(told.value)


def test_what_is_no_chat_completion_ends_it_at_first_and_is_tried_again_later(tmp_path, server):
    page = {"html": "<html>Welcome to nginx!</html>"}
    server.control(script=[page])
    with pytest.raises(UserError, match=r"no chat completion|something else than a chat completion: '<html>Welcome"):
        taught(tmp_path, server, clusters(3), concurrency=1)
    assert not [*tmp_path.glob("t.jsonl.answers*")]
    server.control(script=[{}, page])
    assert taught(tmp_path, server, clusters(3), concurrency=1).taught == 3


def test_a_refused_request_ends_it_and_what_was_answered_is_kept(tmp_path, server):
    server.control(
        rules=[{"when": "Title: Bridge 9\n", "status": 400, "message": "context length exceeded"}], delay=0.05
    )
    with pytest.raises(UserError, match=r"answers 400: context length exceeded; a lower --max-characters"):
        taught(tmp_path, server, clusters(20), concurrency=4)
    answered = server.seen["answered"]
    kept = saved(tmp_path / "t.jsonl.answers")
    assert len(kept) == len(answered) >= 9  # also those that were on their way
    assert not (tmp_path / "t.jsonl").exists()


def test_newer_models_call_the_limit_otherwise(tmp_path, server):
    source = write(tmp_path / "c.jsonl", clusters(3))
    assert raysum.teach(source, tmp_path / "t.jsonl", server.url, "modern", retries=0).taught == 3
    body = server.seen["bodies"][-1]
    assert body["max_completion_tokens"] == 1000 and "max_tokens" not in body


def test_text_of_any_script_comes_through_as_it_is(tmp_path, server):
    text = "Мост 7 — «старый» 🌉. 大桥很长. \u202eabc {title} {words}"
    rows = [{"id": "ü", "title": "{documents}", "documents": [text, "second. one"]}]
    server.control(rules=[{"when": "{documents}", "content": "Мост\0 🌉 \ud800 {title}"}])
    taught(tmp_path, server, rows)
    (row,) = read(tmp_path / "t.jsonl")
    assert row["documents"][0] == text and row["summary"] == "Мост 🌉 ? {title}"
    assert text in server.seen["bodies"][0]["messages"][0]["content"]
    half = write(tmp_path / "half.jsonl", [{"documents": ["\ud800 text"]}, *clusters(1)])
    figures = raysum.teach(half, tmp_path / "h.jsonl", server.url, "tiny").figures
    assert figures["rejected"] == {"cannot be written as JSON": 1} and figures["taught"] == 1


def test_of_a_long_cluster_the_best_paragraphs_are_read(tmp_path, server):
    noise = [f"Nothing of note, part {n}, is said here or there at all." for n in range(50)]
    documents = ["\n\n".join([*noise[:25], "The red bridge fell."]), "\n\n".join([*noise[25:], "A red bridge stood."])]
    rows = [{"id": "long", "title": "red bridge", "documents": documents}, {"documents": ["a" * 500]}]
    figures = taught(tmp_path, server, rows, max_characters=200).figures
    assert figures["truncated"] == 2
    prompts = [body["messages"][0]["content"] for body in server.seen["bodies"]]
    (read_of_it,) = [prompt for prompt in prompts if "red bridge" in prompt]
    assert "[1] document 1\n" in read_of_it and "[2] document 2\n" in read_of_it
    assert "The red bridge fell." in read_of_it and "A red bridge stood." in read_of_it
    assert 1 <= read_of_it.count("Nothing of note") <= 3
    assert any("a" * 200 in prompt and "a" * 201 not in prompt for prompt in prompts)


def test_all_that_prepare_reads_is_taught_and_splits_stay(tmp_path, server):
    for cluster in ("one", "two"):
        (tmp_path / "docs" / cluster).mkdir(parents=True)
        (tmp_path / "docs" / cluster / "a.txt").write_text(f"Text {cluster}. More of it.")
    (tmp_path / "docs" / "one" / "summary.txt").write_text("It has one.")
    docs, own = (tmp_path / "docs", tmp_path / "t.jsonl", server.url, "tiny"), tmp_path / "docs" / "two" / "title.txt"
    figures = raysum.teach(*docs).figures
    assert (figures["taught"], figures["kept"]) == (1, 1)
    own.write_text("A bridge")
    raysum.teach(*docs)
    sent = [body["messages"][0]["content"] for body in server.seen["bodies"]]
    assert "Title: \n" in sent[0] and "Title: A bridge\n" in sent[1]  # a folder's name is no title
    (tmp_path / "data").mkdir()
    for split in ("train", "valid"):
        write(tmp_path / "data" / f"{split}.jsonl", [row | {"id": f"{split}-{row['id']}"} for row in clusters(2)])
    raysum.teach(tmp_path / "data", tmp_path / "s.jsonl", server.url, "tiny")
    assert [row["split"] for row in read(tmp_path / "s.jsonl")] == ["train"] * 2 + ["valid"] * 2
    table = "title,documents\nA bridge,It stands. It is long.\n"
    (tmp_path / "c.csv").write_text(table)
    raysum.teach(tmp_path / "c.csv", tmp_path / "v.jsonl", server.url, "tiny")
    assert read(tmp_path / "v.jsonl")[0]["summary"] == "It stands."
    with pytest.raises(UserError, match="would be read as one of the clusters"):
        raysum.teach(tmp_path / "data", tmp_path / "data" / "t.jsonl", server.url, "tiny")


def test_an_output_of_other_clusters_is_not_written_over(tmp_path, server):
    taught(tmp_path, server, clusters(6, summaries=1))
    before, asked = (tmp_path / "t.jsonl").read_bytes(), server.requests
    write(tmp_path / "c.jsonl", [row | {"documents": ["Another. It is."]} for row in clusters(6)])
    ended = command(tmp_path, server)
    assert ended.returncode == 2 and server.requests == asked and (tmp_path / "t.jsonl").read_bytes() == before
    assert "t.jsonl holds other clusters; choose another --out, or remove it (the answers stay in" in ended.stderr
    write(tmp_path / "c.jsonl", clusters(9)[2:])
    ended = command(tmp_path, server, "--json")
    assert (
        json.loads(ended.stdout)["answers"] == 3
        and "t.jsonl holds 2 other clusters, which will be removed" in ended.stderr
    )
    (tmp_path / "t.jsonl").write_text("My notes.\n")
    assert "t.jsonl holds no clusters; remove it" in command(tmp_path, server).stderr


def test_summaries_are_replaced_where_that_is_asked_for(tmp_path, server):
    rows = clusters(2, summaries=2)
    rows[0]["summaries"] = ["Another."]
    figures = taught(tmp_path, server, rows, replace=True).figures
    assert (figures["taught"], figures["kept"]) == (2, 0)
    made = read(tmp_path / "t.jsonl")
    assert "summaries" not in made[0] and made[0]["summary"].startswith("Bridge 0 was built")


def test_citations_are_asked_for_after_the_summaries(tmp_path, server):
    taught(tmp_path, server, clusters(4))
    server.control(rules=[{"when": "Floods closed bridge 1 for weeks.\n\nFor each", "content": "I do not know."}])
    figures = raysum.teach(tmp_path / "c.jsonl", tmp_path / "t.jsonl", server.url, "tiny", cite=True).figures
    assert (figures["cited"], [*figures["citations_unread"].values()], figures["answers"]) == (3, [1], 4)
    made = read(tmp_path / "t.jsonl")
    assert "citations" not in made[1] and made[1]["summary"]
    assert made[2]["citations"] == [
        {"sentence": "Bridge 2 was built in 1802.", "paragraphs": [[0, 0]]},
        {"sentence": "Floods closed bridge 2 for weeks.", "paragraphs": [[1, 0]]},
    ]
    assert server.requests == 8


def test_progress_and_the_last_line(tmp_path, server):
    write(tmp_path / "c.jsonl", [*clusters(6, summaries=1), {"title": "nothing"}])
    ended = command(tmp_path, server, "--json")
    told = json.loads(ended.stdout.splitlines()[-1])
    assert ended.returncode == 0 and len(ended.stdout.splitlines()) == 1
    assert told["taught"] == 5 and told["kept"] == 1 and told["rejected"] == {"no documents": 1} and told["seconds"] > 0
    assert "5 clusters to teach, 1 have a summary; 1 cannot be read, such as c.jsonl:7: no documents" in ended.stderr
    assert "5/5" in ended.stderr and f"{sum(told['tokens'].values()):,} tokens" in ended.stderr
    nothing = raysum.teach(tmp_path / "c.jsonl", tmp_path / "t.jsonl", "http://127.0.0.1:9/v1", "tiny")
    assert nothing.taught == 5  # all is answered: no server is needed


def test_a_rejected_cluster_is_not_gone_through_again_for_its_citations(tmp_path, server):
    server.control(rules=[{"when": "Title: Bridge 1\n", "content": ""}])
    taught(tmp_path, server, clusters(3), cite=True)
    write(tmp_path / "c.jsonl", clusters(4))
    ended = command(tmp_path, server, "--cite", "--json")
    told = json.loads(ended.stdout)
    assert (told["taught"], told["cited"], told["rejected"]) == (3, 3, {"the answer is empty": 1})
    assert told["answers"] == 2 and server.requests == 5 + 2
    assert "3 are answered already" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("teach: 100%") and " 1/1 " in ended.stderr.splitlines()[-1]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_ray_the_same_is_written_after_a_kill_as_in_one_process(tmp_path, server):
    """Requests at once are as many as asked for, and no kept answer is asked for again."""
    write(tmp_path / "c.jsonl", clusters(120))
    write(tmp_path / "d.jsonl", [row | {"title": f"D {row['id']}"} for row in clusters(40)])
    server.control(delay=0.05, key=KEY)
    asked = ["teach", "c.jsonl", "d.jsonl", "--teacher", server.url, "--model", "tiny", "--concurrency=4"]
    environment = {**os.environ, "RAYSUM_TEACHER_KEY": KEY}
    options: dict = {"cwd": tmp_path, "stderr": subprocess.PIPE, "text": True, "env": environment}
    assert Command(*asked, "--out=one.jsonl", **options).process.wait() == 0
    before = server.requests
    one = Command(*asked, "--out=ray.jsonl", "--address=local", **options)
    while server.requests < before + 40:
        assert one.process.poll() is None, one.process.stderr.read()
        time.sleep(0.01)
    one.process.kill()
    again = Command(*asked, "--out=ray.jsonl", "--address=local", **options)
    _, told = again.process.communicate()
    assert again.process.returncode == 0, told
    one.wait_until_none_lives()
    kept = saved(tmp_path / "ray.jsonl.answers")
    assert len(kept) == len({line["key"] for line in kept}) == 160
    assert 160 <= server.requests - before <= 160 + 4
    assert server.seen["most"] == 4
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    said = [line for line in told.splitlines() if line and not line.startswith("teach:")]
    assert len(said) == 1 and said[0].startswith("160 clusters to teach, 0 have a summary"), told  # and Ray nothing
