"""`raysum summarize --server`: the summaries of a running server are those of the local command."""

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest

from helpers.servers import serving
from helpers.small_runs import TEXTS
from raysum.cli.app import main
from raysum.serve import client

EMPTY: dict = {"summary": "", "sentences": [], "attention": [], "score": 0.0}


@pytest.fixture
def printed(monkeypatch, capsys) -> Callable[..., tuple[int, list[dict], str]]:
    """Runs `raysum summarize`; the exit code, JSON lines and messages."""

    def run(*arguments: str) -> tuple[int, list[dict], str]:
        monkeypatch.setattr(sys, "argv", ["raysum", "summarize", *arguments, "--json"])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return end.value.code, [json.loads(line) for line in shown.out.splitlines()], shown.err

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_summarizes_files_as_the_local_command_does(tmp_path, printed):
    documents = [{"source": "a.txt", "text": TEXTS[0]}, *TEXTS[1:]]
    rows = [{"id": str(number), "title": "Florence", "documents": documents[number:]} for number in range(2)]
    file = tmp_path / "clusters.jsonl"
    file.write_text("\n".join([*map(json.dumps, rows), '{"id": "bad", "title": "x"}']) + "\n")
    text = tmp_path / "text.md"
    text.write_text(f"# Florence\n\n{TEXTS[0]}\n")
    with serving(Path("lexrank"), "words=15") as server:
        server.wait_until_ready()
        address = server.client.address
        for files in ([str(file)], [str(text), "--title", "Florence"]):
            local = printed("lexrank", *files, "--words", "20")
            served = printed(*files, "--server", address, "--words", "20")
            assert served[:2] == local[:2] and local[1][0]["sentences"][0]["citations"]
        assert served[0] == 0 and printed(str(file), "--server", address)[0] == 2
        code, lines, _ = printed(str(file), "--server", address, "--set", "words=0")
        assert code == 2 and all("422" in line["error"] for line in lines[:2])


def test_a_server_that_does_not_answer_is_one_message(tmp_path, printed):
    (tmp_path / "text.txt").write_text(TEXTS[0])
    code, lines, said = printed(str(tmp_path / "text.txt"), "--server", "http://127.0.0.1:9")
    assert (code, lines) == (2, []) and said.startswith("raysum: nothing answers at http://127.0.0.1:9")


@pytest.mark.parametrize(("status", "answer"), [(200, b'{"summary": 5}'), (404, b"{}"), (200, b"[" * 200_000)])
def test_another_web_server_is_asked_once(tmp_path, printed, status, answer):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"documents": [text]}) + "\n" for text in TEXTS[:2]) * 20)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        code, lines, said = printed(str(tmp_path / "rows.jsonl"), "--server", address)
        server.shutdown()
    assert (code, lines) == (2, []) and f"raysum: {address} does not answer as `raysum serve` does" in said
    assert len(asked) < 20


def test_summaries_are_kept_when_the_server_ends(tmp_path, printed, monkeypatch):
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)
    answered = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["id"]
            content = json.dumps(EMPTY | {"id": name}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)
            answered.append(name)
            if len(answered) == 3:
                server.socket.close()
                threading.Thread(target=server.shutdown, daemon=True).start()

    rows = [json.dumps({"id": f"c{number}", "documents": [TEXTS[0]]}) for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        code, lines, _ = printed(str(tmp_path / "rows.jsonl"), "--server", address)
    assert code == 2 and [line["id"] for line in lines] == [f"c{number}" for number in range(60)]
    assert sorted(line["id"] for line in lines if "summary" in line) == sorted(answered) and len(answered) == 3
    assert all(f"nothing answers at {address}" in line["error"] for line in lines if "summary" not in line)


@pytest.mark.parametrize("address", ["http://xn--", "http://127.0.0.1:99999", "127.0.0.1", "ftp://127.0.0.1"])
def test_what_is_no_address_is_one_message(tmp_path, printed, address):
    (tmp_path / "text.txt").write_text(TEXTS[0])
    code, lines, said = printed(str(tmp_path / "text.txt"), "--server", address)
    assert (code, lines) == (2, []) and said.startswith(f"raysum: {address!r} is not a URL")


def test_a_server_has_its_own_checkpoint(tmp_path, printed):
    (tmp_path / "text.txt").write_text(TEXTS[0])
    code, _, said = printed(str(tmp_path / "text.txt"), "--server", "http://x", "--checkpoint", "latest")
    assert code == 2 and "leave out --out, --checkpoint and --dtype" in said
