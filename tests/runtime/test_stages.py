"""The stages of a long work: what is said of them, and how long they are expected to take."""

import re
import time

import pytest

from raysum.quickstart import _expected
from raysum.runtime.progress import Stages, span


def test_what_is_left_follows_from_what_was_expected_and_what_it_took():
    stages = Stages({"one": 10, "two": 20, "three": 70})
    assert stages.remaining("one", 0) == 100 and stages.remaining("one", 4) == 96
    assert stages.remaining("one", 30) == pytest.approx(3 * 90)  # three times as slow, so far
    stages.seconds["one"] = 20
    assert stages.remaining("two", 0) == pytest.approx(90 * 40 / 30)
    assert stages.remaining("two", 10) == pytest.approx(90 * 40 / 30 - 10)
    stages.seconds["two"] = 10
    assert stages.remaining("three", 0) == pytest.approx(70) and stages.remaining("three", 100) == 0


def test_what_has_a_fixed_time_takes_it_on_a_slow_machine_too():
    stages = Stages({"prepare": 40, "train": 36, "score": 6}, fixed={"train": 30})
    assert stages.remaining("prepare", 0) == 82
    assert stages.remaining("prepare", 80) == pytest.approx(2 * 6 + 30 + 2 * 6)  # twice as slow
    stages.seconds["prepare"] = 80
    assert stages.remaining("train", 30) == pytest.approx(80 / 46 * 12)
    stages.seconds["train"] = 36
    assert stages.remaining("score", 0) == pytest.approx(6 * 86 / 52)


def test_a_stage_is_announced_and_is_not_silent(capsys):
    stages = Stages({"one": 100, "two": 50}, beat=0.05)
    with stages.stage("one", "the first"):
        time.sleep(0.12)
    said = capsys.readouterr().err
    assert "[1/2] the first (about 2.5 min left)" in said
    assert len(re.findall(r"\[1/2\] running for 0 s, about 2.5 min left in total", said)) == 2
    with pytest.raises(ValueError), stages.stage("two", "the second"):
        raise ValueError
    assert "[2/2] the second (about 8 s left)" in capsys.readouterr().err
    assert 0.12 <= stages.seconds["one"] < 5 and "two" not in stages.seconds


def test_spans_for_people():
    assert [span(seconds) for seconds in (0.4, 89, 90, 200, 700, 3590, 4900)] == [
        "0 s",
        "89 s",
        "1.5 min",
        "3.3 min",
        "12 min",
        "1 h 0 min",
        "1 h 22 min",
    ]


def test_a_short_quickstart_is_expected_to_be_short():
    whole, short = _expected(None, 16000, 300), _expected(4, 128, 32)
    assert sum(whole.values()) == pytest.approx(207) and 30 < sum(short.values()) < 80
    assert 10 < short["train"] < 20 and short["corpus"] == 1 and short["search"] == whole["search"]
