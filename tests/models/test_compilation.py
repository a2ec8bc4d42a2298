"""Compiled layers: the same losses, gradients and names, and few graphs for batches of all sizes."""

import random
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from helpers.small_models import DRY, SYSTEMS, build_seeded, objective_of, pack, spec
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.models.batch import Batch, Source
from raysum.models.family.spec import Backbone
from raysum.models.kernels import compilation
from raysum.models.kernels.compilation import compile_layers
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.recomputation import recompute_layers
from raysum.models.systems.specs import GraphSumSpec, TxlSpec
from raysum.systems import Spec
from raysum.train.optim import compiles_layers

T5 = Backbone(norm="rms", bias=False, places="relative", gated=True)
SIZES = {"vocabulary": 40, **DRY}
SLOW = {
    "SLG/FPV": (spec("SLG/FPV", **DRY), 6),
    "t5 LG/PV": (spec("LG/PV", backbone=T5, **DRY), 4),
    "led W/F": (spec("W/F", positions="flat", backbone=Backbone(window=4), **DRY), 3),
    "primera W/F": (spec("W/F", positions="flat", backbone=Backbone(window=4, global_ids=(9, 11)), **DRY), 3),
    "graphsum": (GraphSumSpec(**SIZES, **SYSTEMS["graphsum"]), 3),
}
SPECS = {"L/P": (spec("L/P", **DRY), 2), **SLOW}  # with the number of kinds of layers
CASES = [name if name not in SLOW else pytest.param(name, marks=pytest.mark.long) for name in SPECS]


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch):
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()


def batches(count: int) -> Iterator[Batch]:
    """Batches of 1 to 6 examples of 1 to 5 paragraphs with 1 to 9 tokens."""
    draw, generator = random.Random(0), torch.Generator().manual_seed(0)

    def some(most: int) -> range:
        return range(draw.randint(1, most))

    for _ in range(count):
        plain = pack([[[draw.randint(9, 39) for _ in some(9)] for _ in some(5)] for _ in some(6)])
        examples, most = len(plain.counts), int(plain.counts.max())
        graph = torch.rand(examples, most, most, generator=generator)
        target = torch.randint(9, 40, (examples, draw.randint(4, 10)), generator=generator)
        yield Batch(Source(plain.ids, plain.lengths, plain.counts, graph), target)


def test_broken_files_of_the_compiler_are_named_with_the_fix(monkeypatch):
    def broken(*_):
        raise ImportError("x.so: file too short")

    monkeypatch.setattr(compilation, "BACKEND", broken)
    with pytest.raises(UserError, match=r"a layer cannot be compiled \(.*x.so: file too short.*\): delete /.*or leave"):
        learned(SPECS["L/P"][0], compiled=True)


def learned(given: Spec, compiled: bool, again: bool = False, rate: float = 0.0, count: int = 3) -> tuple:
    """The losses, the gradients, and the names of the weights."""
    model = build_seeded(given)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rate = rate
    if compiled:
        compile_layers(model)
    if again:
        recompute_layers(model)
    objective = objective_of(model, 0.1).train()
    torch.manual_seed(3)
    given_batches = [*batches(count)]
    for batch in given_batches:
        batch.source.count_globals(given.global_ids)  # as the collator does
    losses = [objective(batch) for batch in given_batches]
    sum(losses).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return torch.stack(losses).detach(), gradients, list(model.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_and_names_are_those_of_plain_layers(name):
    given, _ = SPECS[name]
    plain, found = learned(given, False), learned(given, True)
    assert counters["stats"]["unique_graphs"] and not counters["graph_break"]
    torch.testing.assert_close(found[:2], plain[:2], atol=1e-5, rtol=1e-5)
    assert found[2] == plain[2]


@pytest.mark.long
def test_recomputed_layers_draw_the_same_dropout(monkeypatch):
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    kept, again = (learned(spec("L/P", **DRY), True, again, rate=0.2, count=2) for again in (False, True))
    torch.testing.assert_close(kept[:2], again[:2])


@pytest.mark.parametrize("name", CASES)
def test_batches_of_all_sizes_share_two_graphs_of_each_kind_of_layer(name):
    """One more for batches with a single example."""
    given, kinds = SPECS[name]
    learned(given, True, count=20)
    assert counters["stats"]["unique_graphs"] <= 2 * kinds


def test_layers_run_plainly_without_gradients():
    model: nn.Module = build_seeded(spec("L/P", **DRY))
    compile_layers(model)
    with torch.no_grad():
        objective_of(model, 0.1).eval()(next(batches(1)))
    assert not counters["stats"]


def test_layers_are_compiled_where_asked_for_except_at_zero_3():
    def config(stage: int, **train) -> Config:
        model = {"vocabulary": 40}
        return Config(model=model, train=train, deepspeed={"zero_optimization": {"stage": stage}})

    assert compiles_layers(config(0, compile=True)) and compiles_layers(config(2, compile=True))
    assert not compiles_layers(config(2)) and not compiles_layers(config(3, compile=True))
    txl = config(2, compile=True).model_copy(update={"model": TxlSpec(vocabulary=40)})
    assert not compiles_layers(txl)
