"""The memory of `train auto`: figures that were computed by hand, and what is chosen for them."""

import pytest

from helpers.factbook_data import write_factbook
from raysum.auto.choice import choose_config
from raysum.auto.memory import DoesNotFitError, choose_memory, fitting
from raysum.config.loading import load_config
from raysum.tokenizers.loading import load_tokenizer
from raysum.train import memory
from raysum.train.memory import ModelSize, memory_plans, model_size
from raysum.train.optim import check_engine_config

# A model of 1,000 million parameters in fp32, the largest of 20 million, in millions of bytes per worker of four:
# 4 weights + 4 gradients + 8 moments, from ZeRO-1 on 4 for a copy; 200 for the bucket, and 200 for gathered weights.
HAND = {
    "ZeRO-0": 4000 + 4000 + 8000,
    "ZeRO-1": 4000 + 4000 + 3000 + 200,
    "ZeRO-2": 4000 + 1000 + 3000 + 200,
    "ZeRO-3": 1000 + 1000 + 3000 + 200 + 200,
    "ZeRO-3 with the optimizer in CPU memory": 1000 + 200 + 200,
    "ZeRO-3 with the optimizer and weights in CPU memory": 200 + 200,
}
HAND_BF16 = {  # 2 + 4 + 12, and the gathered weights take 100
    "ZeRO-0": 2000 + 4000 + 12000,
    "ZeRO-1": 2000 + 4000 + 3000 + 200,
    "ZeRO-2": 2000 + 1000 + 3000 + 200,
    "ZeRO-3": 500 + 1000 + 3000 + 200 + 100,
    "ZeRO-3 with the optimizer in CPU memory": 500 + 200 + 100,
    "ZeRO-3 with the optimizer and weights in CPU memory": 200 + 100,
}
SIZE, HALF = ModelSize(10**9, 20 * 10**6), ModelSize(10**9, 20 * 10**6, weight=2)


@pytest.mark.parametrize(("size", "expected"), [(SIZE, HAND), (HALF, HAND_BF16)])
def test_the_memory_of_a_worker_is_that_computed_by_hand(size, expected):
    plans = memory_plans(size, 4, has_gpu=True)
    assert {plan.name: plan.device for plan in plans} == {name: n * 10**6 for name, n in expected.items()}
    hosts = [plan.host for plan in plans[-2:]]
    assert hosts == [4 * 10**9, 5 * 10**9 if size.weight == 4 else 4.5 * 10**9]
    assert [plan.name for plan in memory_plans(size, 4, has_gpu=False)] == [*expected][:4], "nothing to offload from"
    assert [plan.name for plan in memory_plans(size, 1, has_gpu=False)] == ["ZeRO-0"]


@pytest.mark.parametrize(
    ("device", "host", "chosen"),
    [
        (20.0, 1, "ZeRO-0"),
        (19.9, 1, "ZeRO-1"),
        (13.9, 1, "ZeRO-2"),
        (10.2, 1, "ZeRO-3"),
        (6.7, 5.0, "ZeRO-3 with the optimizer in CPU memory"),
        (1.7, 6.25, "ZeRO-3 with the optimizer and weights in CPU memory"),
        (1.7, 6.2, None),
        (0.4, 100, None),
    ],
)
def test_the_first_that_fits_into_four_fifths_is_chosen(device, host, chosen):
    plan = fitting(memory_plans(SIZE, 4, has_gpu=True), device * 1e9, host * 1e9)
    assert (plan and plan.name) == chosen


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_factbook(tmp_path_factory.mktemp("memory") / "data", {"train": 40, "valid": 4})


def choose(data, *overrides: str):
    overrides = (f"data={data.path}", "out=x", "train.threads=1", "train.minutes=0.02", "model.width=32", *overrides)
    return choose_config(data, (*overrides, "model.ffn=32"), {})


def test_what_is_chosen_is_in_the_config_and_said_first(data, monkeypatch, capsys):
    config = choose(data)
    assert config.deepspeed["zero_optimization"] == {"stage": 0}
    assert "Memory: ZeRO-0, as " in capsys.readouterr().err.splitlines()[0]
    spec = config.model.with_tokenizer(load_tokenizer(data.vocabulary_path))
    size = model_size(config.model_copy(update={"model": spec}))
    whole = memory_plans(size, 1, has_gpu=False)[0].device
    assert whole == 16 * size.parameters

    monkeypatch.setattr(memory, "available_memory", lambda: 8 * whole / 0.8 - 1)  # a byte less than eight workers need
    eight = load_config("auto", ("train.workers=8", "model.width=32", "model.ffn=32"))
    found = choose_memory(data, eight, 8)
    assert found.plan.zero["stage"] > 0 and "(ZeRO-0 needs " in str(found)
    check_engine_config(eight.model_copy(update={"deepspeed": {"zero_optimization": found.plan.zero}}))

    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    with pytest.raises(DoesNotFitError, match=r"do not fit: a worker \(1\) needs .* set a smaller model.width"):
        choose(data)
    config = choose(data, "deepspeed={zero_optimization: {stage: 2}}")
    assert config.deepspeed["zero_optimization"] == {"stage": 2}, "what the user sets stays"
