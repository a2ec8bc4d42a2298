"""The README's commands, run as a user runs them: its blocks in order, on factbook clusters, and the quickstart."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysum.prepare.factbook.corpus import generate

README = Path(__file__).parents[1] / "README.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)


def test_the_blocks_run_in_order(tmp_path):
    clusters = tmp_path / "clusters"
    clusters.mkdir()
    for split, count in (("train", 200), ("valid", 16), ("test", 16)):
        lines = (json.dumps(cluster) + "\n" for cluster in generate(split, count))
        (clusters / f"{split}.jsonl").write_text("".join(lines))
    blocks = re.findall(r"<!-- run: (\w+) -->\n```bash\n(.*?)```", README.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["prepare", "train", "alignment", "evaluate", "summarize"]
    for name, script in blocks:
        done = shell(script, tmp_path)
        assert done.returncode == 0, f"{name}:\n{done.stderr[-3000:]}"
    run = tmp_path / "runs" / "pht"
    table = json.loads(next(run.glob("evaluation/data-*/test/table.json")).read_text())
    assert table["examples"] == 8
    assert {"lead", "lexrank"} < set(table["systems"])
    assert len(json.loads((tmp_path / "runs" / "beta" / "best.json").read_text())["config"]) == 2
    assert len(done.stdout.strip().splitlines()) >= 16


def test_quickstart_with_few_steps_prints_what_it_promises(tmp_path):
    done = shell("raysum quickstart --out out --steps 4 --clusters 128 --json", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert {"run", "seconds", "beta", "systems"} <= set(result)
    assert list(result["systems"]) == ["pht", "pht+align", "swapped", "lead", "lexrank"]
    for figures in result["systems"].values():
        assert {"rouge1", "rouge2", "rougeL", "rougeLsum", "facts_f1", "facts_right", "facts_wrong"} <= set(figures)
    assert result["systems"]["lead"]["rouge2"] > 8
    assert result["summary"]["sentences"] is not None
    assert "training pht: 100%" in done.stderr
    again = shell("raysum quickstart --out out", tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "out exists already" in again.stderr
