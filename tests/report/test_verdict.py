"""The first sentence of a report: which system is better, if the examples show it."""

import json

import pytest

import raysum


@pytest.mark.parametrize(
    ("gaps", "sentence"),
    [
        (
            {"a - b": (1.5, 0.5, 2.5), "a - c": (4.0, 3.0, 5.0)},
            "a is better than b (the best of 2 others) by 1.50 ROUGE-2 (95 % interval 0.50 to 2.50, 40 examples).",
        ),
        (
            {"a - b": (-1.5, -2.5, -0.5)},
            "b is better than a by 1.50 ROUGE-2 (95 % interval 0.50 to 2.50, 40 examples).",
        ),
        (
            {"a - b": (-0.5, -1.25, 0.25)},
            "40 examples show no difference between a and b: its 95 % interval is -1.25 to +0.25 ROUGE-2.",
        ),
        ({}, "a has 20.00 ±2.00 ROUGE-2 on 40 examples; no other system is compared with it."),
    ],
)
def test_a_report_begins_with_its_conclusion(tmp_path, gaps, sentence):
    folder = tmp_path / "evaluation"
    folder.mkdir()
    systems = {"a", *(pair[-1] for pair in gaps)}
    figures = {"rouge2": 20.0, "rouge2_low": 18.0, "rouge2_high": 22.0}
    differences = {
        pair: dict(zip(("rouge2", "rouge2_low", "rouge2_high"), values, strict=True)) for pair, values in gaps.items()
    }
    table = {"systems": {name: figures for name in sorted(systems)}, "differences": differences, "examples": 40}
    (folder / "table.json").write_text(json.dumps(table))
    outputs = {"id": "1", "reference": "x"} | {name: "y" for name in systems}
    (folder / "outputs.jsonl").write_text(json.dumps(outputs) + "\n")
    raysum.report(folder, out=tmp_path / "report.html")
    assert f'<p class="conclusion">{sentence}</p>' in (tmp_path / "report.html").read_text()
