"""Benchmarks: costs are counted right, rows hold what they promise, mistakes are found before anything is measured.

``pytest -m long -s`` of this file prints the efficiency table of the PHT and VHT papers.
"""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from torch.nn import functional

from helpers.packed_kernel import packed_kernel
from helpers.small_datasets import write_dataset
from raysum.bench import packed_rows
from raysum.bench.base import Bench, BenchResult
from raysum.bench.efficiency import EfficiencyBench, largest_batch
from raysum.bench.gpu import verdict_of
from raysum.bench.machine import Costs, Machine
from raysum.bench.registry import BENCHES, bench, settings_of
from raysum.cli.options import print_result
from raysum.errors import UserError
from raysum.models.kernels.linear import int8_linear
from raysum.models.kernels.packed import attend_packed, attend_packed_lse

SMALL = "config=[model.width=16, model.ffn=32, model.heads=2, model.pooling_heads=2, model.vocabulary=50]"
VERDICTS = [("a", "right"), ("b", "WRONG")]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_products_are_counted_in_both_modes(mode):
    x, weight, bias = torch.ones(3, 5), torch.ones(7, 5), torch.ones(7)
    query, key = torch.ones(2, 4, 3, 8), torch.ones(2, 4, 6, 8)
    with Costs() as costs, mode():
        functional.linear(x, weight, bias)
        functional.scaled_dot_product_attention(query, key, key)
    linear, attention = 2 * 3 * 5 * 7, 2 * 2 * (2 * 4 * 3 * 6 * 8)
    assert costs.flops == linear + attention
    assert costs.products[0] == (linear, 4 * (3 * 5 + 7 * 5 + 7 + 3 * 7))


def test_attention_over_packed_rows_is_counted_by_its_rows():
    query = torch.ones(6, 3, 8)
    with packed_kernel(), Costs() as costs:
        places, others = ((torch.tensor([0, start, 6], dtype=torch.int32), 5) for start in (2, 1))
        attend_packed(query, query, query, places, others)
    assert costs.flops == 2 * 2 * 3 * 8 * (2 * 1 + 4 * 5)
    with packed_kernel(), Costs() as costs:
        attend_packed_lse(query, query, query, places, others, reach=1)
    assert costs.flops == 2 * 2 * 3 * 8 * (2 * 1 + 4 * 3)


def test_int8_products_are_counted_apart():
    layer, x = int8_linear(torch.ones(7, 5), torch.ones(7)), torch.ones(2, 3, 5)
    with Costs() as costs, torch.inference_mode():
        layer(x)
        x @ torch.ones(5, 2)
    assert costs.int8 == [(2 * 6 * 5 * 7, 7 * 5 + 4 * (6 * 5 + 6 * 7))]
    assert costs.flops == 2 * 6 * 5 * (7 + 2) and len(costs.products) == 1
    costs = Costs(products=[(2e9, 1e6)], int8=[(8e9, 1e6)])
    machine = Machine("", 1, 1, "cpu", "", {"fp32": 1.0, "int8": 4.0}, 1.0)
    assert costs.least_seconds(machine, "int8") == pytest.approx(2 + 2)


def test_an_operator_takes_the_longer_of_arithmetic_and_traffic():
    costs = Costs(products=[(2e9, 1e6), (1e3, 3e9)])
    machine = Machine("", 1, 1, "cpu", "", {"fp32": 1.0}, 1.0)
    assert costs.least_seconds(machine, "fp32") == pytest.approx(2 + 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("decoed", [], "did you mean 'decode'"),
        ("decode", ["batchs=[1]"], "did you mean 'batches'"),
        ("train", ["presets=[pth]"], "did you mean 'pht'"),
        ("train", ["steps=0"], "greater than 0"),
        ("stream", ["data=nowhere"], "no dataset nowhere"),
        ("rouge", ["data=[nowhere.jsonl]"], "nowhere.jsonl"),
        ("decode", ["presets=[pht]", "against=[transformers]"], "transformers"),
        ("decode", ["presets=[ft]", "against=[marian]"], "unknown tool 'marian'"),
        ("decode", ["presets=[hibert_tiny]"], "hibert_tiny generates no summaries"),
        ("gpu", ["presets=[ft,hibert_tiny]", "stages=[losses,beams]"], "hibert_tiny generates no summaries"),
        ("train", ["presets=[extractor]"], "no random rows for the system extractor"),
        ("efficiency", ["presets=[alignment]"], "no random rows for the system predictor"),
        ("train", ["paragraphs=[-1]"], "greater than 0"),
        ("train", ["threads=100000000"], "less than or equal to 4096"),
        ("train", ["plot=time.foo"], "ends with .png or .svg"),
        ("train", ["plot=nowhere/time.png"], "no folder"),
        ("rouge", ["words=[0]"], "greater than 0"),
        ("serve", ["clients=[0]"], "greater than 0"),
    ],
)
def test_mistakes_are_one_message(name, settings, message):
    with pytest.raises(UserError, match=message):
        bench(name, settings)


class Counting(Bench):
    """Its third row fails."""

    NAME = "counting"

    def cases(self, scratch):
        return [(1,), (2,), (3,)]

    def measured(self, _, number):
        if number == 3:
            raise UserError("the third is wrong")
        return {"number": number}


def test_rows_before_a_mistake_are_shown_and_it_is_the_exit_code(capsys):
    result = Counting().run()
    assert [row["number"] for row in result.rows] == [1, 2]
    with pytest.raises(UserError, match="the third is wrong"):
        print_result(result, as_json=True)
    assert [row["number"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_benchmark_and_its_processes(number, tmp_path):
    sizes = ["presets=[pht-1]", "batches=[1]", "length=20", "repeats=100000", "threads=[1]", SMALL]
    command = [sys.executable, "-m", "raysum", "bench", "decode", *sizes]
    started = psutil.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    while not (children := [each for each in started.children() if "spawn_main" in " ".join(each.cmdline())]):
        time.sleep(0.1)
    time.sleep(3)  # it measures
    started.send_signal(number)
    assert "raysum: stopped" in started.communicate(timeout=20)[1]
    assert started.returncode == 128 + number
    psutil.wait_procs(children, timeout=5)
    assert not any(child.is_running() for child in children) and not [*tmp_path.iterdir()]


def test_every_benchmark_describes_its_settings():
    for name, kind in BENCHES.items():
        shown = settings_of(name)
        assert shown.to_dict().keys() == kind.model_fields.keys() and shown.render()
        assert all(setting["meaning"] for setting in shown.to_dict().values()), name
    with pytest.raises(UserError, match="did you mean 'gpu'"):
        settings_of("gpuu")


@pytest.mark.long
@pytest.mark.slow
def test_rows_hold_what_they_promise():
    sizes = ["threads=[1]", "batches=[2]", "length=6", "repeats=1", "presets=[pht-1]"]
    for row in bench("decode", [*sizes, SMALL, "dtypes=[fp32,int8]"]).rows:
        assert row["tokens_per_s"] == pytest.approx(2 * 6 / row["seconds"])
        assert 0 < row["limit_share"] < 1 and row["peak_rss_mb"] > 100
    result = bench("train", ["threads=1", "steps=2", "presets=[pht-1]", "paragraphs=[2,4]", "examples=2", SMALL])
    few, many = result.rows
    assert (few["paragraphs"], many["paragraphs"]) == (2, 4)
    assert 0 <= few["wait_share"] < 1
    assert 0 < few["matmul_fraction"] < 1 and 0 < few["matmul_time_share"] < 1
    assert few["ms_per_step"] == pytest.approx(1000 * 2 / few["examples_per_s"])
    assert {"processor", "gflops", "read_gb_per_s"} <= set(result.to_dict()["machine"])


@pytest.mark.slow
def test_scoring_is_measured_beside_the_library_and_gives_the_same():
    long, short = bench("rouge", ["pairs=60", "words=[140,10]"]).rows
    assert (long["words"], short["words"], long["pairs"]) == (140, 10, 60)
    assert long["different"] == short["different"] == 0
    for row in (long, short):
        assert row["times_rouge_score"] == pytest.approx(row["pairs_per_s"] / row["rouge_score_pairs_per_s"])
        assert row["times_rouge_score"] > 5


@pytest.mark.long
@pytest.mark.slow
def test_the_service_is_measured_with_and_without_long_requests():
    settings = ["clients=[2]", "long=[0,1]", "requests=8", "length=5"]
    rows = bench("serve", settings).rows
    assert [(row["clients"], row["long"]) for row in rows] == [(2, 0), (2, 1)]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["overhead"] == pytest.approx(1 - row["requests_per_s"] / row["bare_per_s"])


@pytest.mark.long
@pytest.mark.slow
def test_a_stream_is_measured_as_it_is_trained_on(tmp_path):
    data = write_dataset(tmp_path / "data", {"train": 300})
    sizes = [f"data={data}", "seconds=0.2", "steps=2", "threads=1", "presets=[pht]"]
    (pht,) = bench("stream", [*sizes, SMALL.replace("]", ", train.batch_tokens=200]")]).rows
    assert pht["rows"] == 300 and pht["steps"] > 0 and 0 < pht["padding_share"] < 0.3
    assert pht["rows_per_s"] > pht["micro_batches_per_s"] > 0 and pht["tokens_per_s"] > pht["rows_per_s"]
    assert 0 <= pht["wait_share"] < 1 and pht["first_batch_s"] > 0
    (invented,) = bench("stream", ["rows=300", "seconds=0.2", "steps=0", "threads=1"]).rows
    assert invented["rows"] == 300 and "wait_share" not in invented
    assert 1000 < invented["tokens_per_s"] / invented["rows_per_s"] < 3400, "about 30 paragraphs of 70 tokens a row"


@pytest.mark.long
@pytest.mark.slow
def test_prepare_has_a_row_for_each_number_of_paragraphs_and_tells_what_wikisum_would_take():
    few, every = bench("prepare", ["clusters=3", "pieces=500", "max_paragraphs=[5,1000]"]).rows
    assert (few["max_paragraphs"], every["max_paragraphs"]) == (5, 1000)
    for row in (few, every):
        assert row["tokenize_times_sentencepiece"] > 0.8 and row["rouge2_recalls_times_rouge_score"] > 50
        assert row["wikisum_core_hours"] == pytest.approx(1.65e6 / row["clusters_per_s"] / 3600)
        assert row["tokens_of_a_cluster"] > 20_000


@pytest.mark.long
@pytest.mark.slow
def test_checkpoints_are_measured_while_two_workers_train():
    (row,) = bench("checkpoint", ["parameters=[25]", "stages=[3]", "saves=2"]).rows
    assert row["parameters"] == pytest.approx(25e6, rel=0.05) and row["zero_stage"] == 3
    assert row["size_mb"] == pytest.approx(16 * row["parameters"] / (1 << 20), rel=0.05)
    assert 0 < row["stop_s"] < row["write_s"] and row["stop_share"] == pytest.approx(row["stop_s"] / row["write_s"])
    assert row["peak_rss_mb"] > row["training_rss_mb"] > 100


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_hierarchical_models_train_larger_batches_and_validate_faster():
    result = EfficiencyBench().run()
    print_result(result, as_json=False)
    found = {row["preset"]: row for row in result.rows}
    assert all(found[name]["validation_s"] < found["ft-3"]["validation_s"] for name in ("vht", "pht"))


@pytest.mark.long
@pytest.mark.slow
def test_rows_are_of_the_largest_batch_that_fits():
    small = ["model.width=128", "model.ffn=256", "model.heads=4", "model.vocabulary=2000"]
    small += ["source.max_paragraphs=10", "source.paragraph_tokens=40"]
    settings = EfficiencyBench(
        presets=["pht", "transformer-decoder"], memory_mb=500, most=64, target_tokens=30, examples=3, config=small
    )
    pht, decoder = settings.run().rows
    for row in (pht, decoder):
        assert 2 < row["largest_batch"] < 64 and 400 < row["memory_mb"] <= 500 and row["validation_s"] > 0
    output = 2000 * 128  # tied in the papers' count, as it is in the decoder
    assert pht["parameters_mb"] == pytest.approx(12e-6 * (pht["parameters"] - output))
    assert decoder["parameters_mb"] == pytest.approx(12e-6 * decoder["parameters"])
    assert decoder["parameters"] < pht["parameters"] - output


@pytest.mark.parametrize("most", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("limit", [50, 100, 131, 400, 401, 900, 10**6])
def test_the_largest_size_is_found_in_few_tries(most, limit):
    tried = []

    def peak(size: int) -> float:  # about a line
        tried.append(size)
        return 100 + 10 * size + 30 * (size > 5) + size**2 / 500

    largest, used = largest_batch(peak, limit, most)
    assert len(tried) == len({*tried}) <= 9
    assert largest == 0 == used or used == peak(largest) <= limit
    assert largest == most or peak(largest + 1) > limit


@pytest.mark.slow
def test_the_gpu_benchmark_runs_at_tiny_size_on_a_cpu(tmp_path):
    sizes = ["steps=3", "length=6", "target_tokens=6", "batches=[2]", "threads=1", "rows=64", "parameters=25"]
    small = SMALL.replace("]", ", source.max_paragraphs=2, source.paragraph_tokens=8]")
    result = bench("gpu", ["presets=[pht-1]", small, *sizes, f"out={tmp_path / 'gpu'}"])
    stages = ["attention", "losses", "beams", "training", "decoding", "streaming", "checkpoints"]
    assert [row["stage"] for row in result.rows] == ["attention"] * 2 + stages
    assert {row["verdict"] for row in result.rows[:3]} == {"there is no kernel here"}
    losses, beams, *_ = result.rows[3:]
    assert losses["largest_difference"] == beams["largest_difference"] == 0  # the CPU against itself
    assert losses["first_loss"] != losses["last_loss"] and losses["waits_at"] == "never" and beams["same_share"] == 1
    written = json.loads((tmp_path / "gpu" / "gpu.json").read_text())
    assert [row.get("verdict") for row in written["rows"][3:]] == ["right", "right", *[None] * 4]
    page = (tmp_path / "gpu" / "gpu.html").read_text()
    assert "There is no GPU here" in page and all(f"<h2>{stage.capitalize()}" in page for stage in stages)


def test_attention_over_packed_rows_is_compared_with_the_formula(monkeypatch):
    monkeypatch.setattr(packed_rows, "has_packed_kernel", lambda *_, own: own)
    for kind in packed_rows.KINDS:
        assert packed_rows.packed_rows_row(kind, torch.device("cpu"))["verdict"] == "right"

    def keeps_too_much(*arguments):
        return attend_packed_lse(*arguments[:5], arguments[5] / 2, *arguments[6:])

    monkeypatch.setattr(packed_rows, "attend_packed_lse", keeps_too_much)
    verdicts = {kind: packed_rows.packed_rows_row(kind, torch.device("cpu"))["verdict"] for kind in packed_rows.KINDS}
    assert verdicts == {"dropout": "WRONG", "windows": "right", "windows with dropout": "WRONG"}
    monkeypatch.setattr(packed_rows, "attend_packed_lse", lambda *given: attend_packed_lse(*given[:6], 39, given[7]))
    assert packed_rows.packed_rows_row("windows", torch.device("cpu"))["verdict"] == "WRONG"


def test_a_wrong_loss_is_the_first_sentence_of_the_page():
    machine = Machine("Accelerator", 1, 1, "cuda", "", {"fp32": 1.0}, 1.0)
    rows = [{"stage": "losses", "preset": preset, "verdict": verdict} for preset, verdict in VERDICTS]
    whole, first = (verdict_of(BenchResult("gpu", machine, some)) for some in (rows, rows[:1]))
    assert whole == "The Accelerator differs from the CPU or waits: losses of b."
    assert first == "The Accelerator agrees with the CPU in all 1 comparisons."
    missing = {"stage": "attention", "preset": "windows", "verdict": "there is no kernel here"}
    assert (
        verdict_of(BenchResult("gpu", machine, [missing, *rows[:1]])) == f"{first} It has no kernels for packed rows."
    )
