"""`raysum quickstart` with a few steps."""

import json

import pytest

from helpers.project import shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_quickstart_with_few_steps_prints_what_it_promises(tmp_path):
    done = shell("raysum quickstart --out out --steps 4 --clusters 128 --json", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert {"run", "seconds", "beta", "systems"} <= set(result)
    assert result["beta"] == 0 or result["adopted"]["gain"]["low"] > 0
    aligned = ["pht+align"] if result["beta"] else []
    assert list(result["systems"]) == ["pht", *aligned, "swapped", "lead", "lexrank"]
    for figures in result["systems"].values():
        assert {"rouge1", "rouge2", "rougeL", "rougeLsum", "facts_f1", "facts_right", "facts_wrong"} <= set(figures)
    assert result["systems"]["lead"]["rouge2"] > 7
    assert result["summary"]["sentences"] is not None
    assert "training pht: 100%" in done.stderr
    again = shell("raysum quickstart --out out", tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "out exists already" in again.stderr
