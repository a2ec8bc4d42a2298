"""Batches: the summary of each cluster once, also after kills, and on a store."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import raysum
from helpers.processes import Command
from helpers.remote_store import BUCKET, server, store  # noqa: F401 - fixtures
from raysum.errors import UserError
from raysum.runtime.remote import listed, read
from raysum.serve.batches import _PART

COUNT = 3 * _PART + 7


def write_clusters(file: Path, count: int = COUNT, bad: int = 5) -> Path:
    texts = ["Hurricane {0} hit the coast on Friday. Many of the {0} houses were flooded.", "Teams saved {0} people."]
    rows: list[dict[str, Any]] = [
        {"id": f"c{n}", "title": "Florence", "documents": [text.format(n) for text in texts]} for n in range(count)
    ]
    if bad < count:
        rows[bad] = {"id": f"c{bad}"}
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("part-*")}


def ids(parts: dict[str, str]) -> list[str]:
    return [json.loads(line)["id"] for name in sorted(parts) for line in parts[name].splitlines()]


def test_lines_are_the_summaries_in_order_and_a_second_call_continues(tmp_path: Path):
    clusters = write_clusters(tmp_path / "a.jsonl")
    result = raysum.summarize_files("lead", clusters, tmp_path / "out", workers=0)
    assert (result.clusters, result.failed, result.parts) == (COUNT, 1, 4)
    assert result.problem.startswith(f"1 of {COUNT} clusters have no summary; the first of them: ")
    parts = content(tmp_path / "out")
    assert ids(parts) == [f"c{n}" for n in range(COUNT)]
    lines = [json.loads(line) for name in sorted(parts) for line in parts[name].splitlines()]
    assert [*lines[5]] == ["id", "error"]
    for number in (0, 200, COUNT - 1):
        raw = json.loads(clusters.read_text().splitlines()[number])
        assert lines[number] == raysum.load("lead").summarize_many([raw])[0].to_dict()

    times = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("part-*")}
    (tmp_path / "out/part-00000-0000001.jsonl").unlink()
    again = raysum.summarize_files("lead", clusters, tmp_path / "out", workers=0)
    assert (again.clusters, again.failed) == (COUNT, 1) and content(tmp_path / "out") == parts
    changed = [f.name for f in (tmp_path / "out").glob("part-*") if f.stat().st_mtime_ns != times[f.name]]
    assert changed == ["part-00000-0000001.jsonl"], "the other parts were kept"


def test_other_inputs_and_other_files_are_refused(tmp_path: Path):
    clusters, out = write_clusters(tmp_path / "a.jsonl", 3), tmp_path / "out"
    raysum.summarize_files("lead", clusters, out, workers=0)
    before = content(out)
    with pytest.raises(UserError, match=r"summaries of other inputs \(settings\): remove it, or choose another --out"):
        raysum.summarize_files("lead", clusters, out, workers=0, decode={"words": 5})
    with pytest.raises(UserError, match=r"other inputs \(run\)"):
        raysum.summarize_files("lexrank", clusters, out, workers=0)
    write_clusters(clusters, 4)
    with pytest.raises(UserError, match=r"other inputs \(sources\)"):
        raysum.summarize_files("lead", clusters, out, workers=0)
    assert content(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("Dear")
    with pytest.raises(UserError, match="has other files: choose another --out"):
        raysum.summarize_files("lead", clusters, tmp_path / "mine", workers=0)
    (out / "batch.json").write_text("{")
    with pytest.raises(UserError, match="has a damaged batch.json: remove it"):
        raysum.summarize_files("lead", clusters, out, workers=0)


@pytest.mark.parametrize("damage", ["", "garbage\n", '{"id": "c0"}\n'])
def test_a_damaged_part_is_named_and_not_taken_for_finished(tmp_path: Path, damage: str):
    clusters, out = write_clusters(tmp_path / "a.jsonl"), tmp_path / "out"
    raysum.summarize_files("lead", clusters, out, workers=0)
    before = content(out)
    (part := out / "part-00000-0000001.jsonl").write_text(damage)
    with pytest.raises(UserError, match=r"part-00000-0000001.jsonl is damaged: remove it, .* its 128 lines again"):
        raysum.summarize_files("lead", clusters, out, workers=0)
    part.unlink()
    raysum.summarize_files("lead", clusters, out, workers=0)
    assert content(out) == before
    (out / "batch.json").write_text('{"inputs": [1]}')
    with pytest.raises(UserError, match="has a damaged batch.json: remove it"):
        raysum.summarize_files("lead", clusters, out, workers=0)


def test_a_refused_call_does_not_stand_in_the_way_of_the_next(tmp_path: Path):
    clusters, out = write_clusters(tmp_path / "a.jsonl", 3), tmp_path / "out"
    with pytest.raises(UserError, match="unknown key 'nope'"):
        raysum.summarize_files("lead", clusters, out, workers=0, decode={"nope": 1})
    assert raysum.summarize_files("lead", clusters, out, workers=0).clusters == 3


def test_a_text_may_contain_any_end_of_a_line(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"id": "a", "documents": ["The river rose\u2028 and the\u0085 town was flooded on Friday."]}) + "\n"
    )
    first = raysum.summarize_files("lead", tmp_path / "a.jsonl", tmp_path / "out", workers=0)
    again = raysum.summarize_files("lead", tmp_path / "a.jsonl", tmp_path / "out", workers=0)
    assert first.clusters == again.clusters == 1


def test_a_batch_on_a_store_continues_there(tmp_path: Path, store: Any):  # noqa: F811
    clusters, out = write_clusters(tmp_path / "a.jsonl"), f"s3://{BUCKET}/summaries"
    raysum.summarize_files("lead", clusters, tmp_path / "out", workers=0)
    for _ in range(2):
        assert raysum.summarize_files("lead", clusters, out, workers=0).clusters == COUNT
        names = {*listed(out)} - {"batch.json"}
        assert {name: (read(f"{out}/{name}") or b"").decode() for name in names} == content(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_cluster_is_summarized_once_by_two_workers_with_kills(tmp_path: Path):
    clusters = write_clusters(tmp_path / "a.jsonl", 16 * _PART)
    raysum.summarize_files("lexrank", clusters, tmp_path / "expected", workers=0)
    out = tmp_path / "out"
    arguments = ("summarize", "lexrank", str(clusters), f"--out={out}", "--workers=2")
    command = Command(*arguments)
    command.wait_until(lambda: len([*out.glob("part-*.jsonl")]) > 2)
    command.kill()
    written = len([*out.glob("part-*.jsonl")])
    assert 2 < written < 16
    command = Command(*arguments)
    command.wait_until(lambda: len([*out.glob("part-*.jsonl")]) > written + 2)
    (worker, *_) = command.living("ray::_Summarizer")
    worker.send_signal(signal.SIGKILL)
    assert command.process.wait(400) == 2, "one cluster has no summary"
    assert content(out) == content(tmp_path / "expected")
    deadline = time.monotonic() + 10
    while command.living() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not command.living()


def test_citations_of_files_keep_their_headings_and_rows_may_have_a_field_error(tmp_path: Path):
    text = (
        "# Arden\n\nThe ferry sank near the harbour in 1921.\n\n## Storms\n\nThe line was closed in 1921 by a storm.\n"
    )
    (tmp_path / "topics/arden").mkdir(parents=True)
    (tmp_path / "topics/arden/a.md").write_text(text)
    raysum.summarize_files("lead", tmp_path / "topics", tmp_path / "out", workers=0)
    (line,) = content(tmp_path / "out").values()
    places = {cited["place"] for sentence in json.loads(line)["sentences"] for cited in sentence["citations"]}
    assert "Storms" in places
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "r", "documents": [text], "error": "none"}) + "\n")
    raysum.summarize_files("lead", tmp_path / "rows.jsonl", tmp_path / "rows", workers=0)
    (line,) = content(tmp_path / "rows").values()
    assert json.loads(line)["summary"]
