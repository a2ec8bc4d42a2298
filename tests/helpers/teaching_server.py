"""A server of OpenAI's chat completions, as a process: its schema, errors and limits, and faults on demand.

It answers a summary prompt with the first sentence of each document, and a citations prompt with the paragraphs that
hold a sentence. What it is to do otherwise is told at /control; what it has seen stands at /seen.
"""

import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

_NUMBERED = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)


class Teacher(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 256

    def __init__(self, port: int = 0):
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.arrived = threading.Condition(self.lock)
        self.key = ""
        self.delay = 0.0
        self.meet = 0  # so many requests wait for each other, once, before any is answered
        self.script: list[dict[str, Any]] = []  # of the next requests, one each; {} is an ordinary answer
        self.rules: list[dict[str, Any]] = []  # of requests whose prompt holds what is under "when"
        self.seen: dict[str, Any] = {
            "requests": 0,
            "most": 0,
            "answered": Counter(),
            "bodies": [],
            "headers": {},
            "paths": Counter(),
        }
        self.busy = 0

    def handle_error(self, *_: Any) -> None:
        """Who asked is gone: killed, or out of patience."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Teacher

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(200, self.server.seen)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/control":
            for name, value in body.items():
                setattr(self.server, name, value)
            self.reply(200, {})
            return
        with self.server.lock:
            self.server.busy += 1
            seen = self.server.seen
            seen["requests"] += 1
            seen["paths"][self.path] += 1
            seen["most"] = max(seen["most"], self.server.busy)
            seen["bodies"] = [*seen["bodies"][-20:], body]
            seen["headers"] = dict(self.headers)
            prompt = body["messages"][0]["content"]
            act = self.server.script.pop(0) if self.server.script else {}
            act = next((rule for rule in self.server.rules if rule["when"] in prompt), act)
            self.server.arrived.notify_all()
            self.server.arrived.wait_for(lambda: seen["most"] >= self.server.meet, timeout=10)
        try:
            time.sleep(act.get("delay", self.server.delay))
        finally:
            with self.server.lock:  # what comes now is the next request to whoever reads the answer
                self.server.busy -= 1
        self.answer(body, prompt, act)

    def answer(self, body: dict[str, Any], prompt: str, act: dict[str, Any]) -> None:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            self.error(401, f"Incorrect API key provided: {given}.", "invalid_api_key")
        elif "modern" in body["model"] and "max_tokens" in body:
            told = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"
            self.error(400, told, "unsupported_parameter")
        elif act.get("drop"):
            self.close_connection = True
            self.connection.close()
        elif "raw" in act:
            self.close_connection = True
            self.wfile.write(act["raw"].encode("latin1"))
        elif "told" in act:
            self.reply(200, act["told"])
        elif "html" in act:
            self.send(200, act["html"].encode(), "text/html")
        elif "status" in act:
            self.error(act["status"], act.get("message", "not now"), act.get("code"), act.get("headers", {}))
        else:
            self.complete(body, prompt, act)

    def complete(self, body: dict[str, Any], prompt: str, act: dict[str, Any]) -> None:
        text = act.get("content", cited(prompt) if "\nSentences:" in prompt else summary(prompt))
        text = "x" * act["huge"] if "huge" in act else text
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len((text or "").split())}
        usage["total_tokens"] = sum(usage.values())
        message = {"role": "assistant", "content": text, "refusal": act.get("refusal")}
        choice = {"index": 0, "message": message, "finish_reason": act.get("finish", "stop"), "logprobs": None}
        told = {"id": "chatcmpl-1", "object": "chat.completion", "created": int(time.time())}
        told |= {"model": f"{body['model']}-0613", "choices": [choice]}
        self.reply(200, told if act.get("no_usage") else told | {"usage": usage})
        with self.server.lock:
            self.server.seen["answered"][str(hash(prompt))] += 1

    def error(self, status: int, message: str, code: str | None, headers: dict[str, str] | None = None) -> None:
        told = {"error": {"message": message, "type": "error", "param": None, "code": code}}
        self.reply(status, told, headers or {})

    def reply(self, status: int, told: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(told).encode(), "application/json", headers or {})

    def send(self, status: int, content: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # whoever asked is gone
            self.close_connection = True


def summary(prompt: str) -> str:
    """The first sentence of each document of a prompt."""
    documents = re.split(r"^\[\d+\] .*\n", prompt.partition("\n\nWrite one summary")[0], flags=re.MULTILINE)[1:]
    return " ".join(f"{text.strip().partition('. ')[0].strip().rstrip('.')}." for text in documents)


def cited(prompt: str) -> str:
    """The paragraphs that hold each sentence, as JSON in a fence, with a number too many."""
    paragraphs, _, rest = prompt.partition("\nSentences:")
    known = [(int(number), text) for number, text in _NUMBERED.findall(paragraphs)]
    sentences = _NUMBERED.findall(rest.partition("\nFor each")[0])
    found = {number: [n for n, text in known if said.rstrip(".") in text] + [999] for number, said in sentences}
    return f"Here it is:\n```json\n{json.dumps(found)}\n```\nI hope that helps {{you}}."


class Running:
    """The server's process, and what it is told and has seen."""

    def __init__(self, port: int):
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"

    def control(self, **told: Any) -> None:
        httpx.post(f"{self.root}/control", content=json.dumps(told)).raise_for_status()

    @property
    def seen(self) -> dict[str, Any]:
        return httpx.get(f"{self.root}/seen").json()

    @property
    def requests(self) -> int:
        return self.seen["requests"]


def saved(path: Path) -> list[dict[str, Any]]:
    """The rows of the answers beside an output."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT * FROM answers")
        names = [column[0] for column in rows.description]
        return [dict(zip(names[1:], row[1:], strict=True)) for row in rows]  # without the id


@contextmanager
def teaching(**told: Any) -> Iterator[Running]:
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        running = Running(int(process.stdout.readline()))
        running.control(**told)
        yield running
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    server = Teacher()
    print(server.server_address[1], flush=True)
    server.serve_forever()
