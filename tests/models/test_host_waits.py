"""A micro-batch of training never waits for its GPU: on the meta device, which has no values, any such wait raises."""

from functools import partial

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn

from helpers.devices import OneDevice
from helpers.packed_kernel import packed_kernel
from helpers.small_models import EXAMPLES, MIXES, SYSTEMS, build_seeded, objective_of, pack, spec
from raysum.models.batch import Batch, Layout, Source, copied
from raysum.models.family.spec import Backbone
from raysum.stream.collators.summarization import Summarization
from raysum.systems import part
from raysum.tokenizers.special_tokens import SpecialTokens

MARKS = SpecialTokens(pad=0, start=2, end=3, prefix=(2,), suffix=(3,), title_end=(11,), paragraph_end=(3, 2))
WET = {"dropout": 0.1, "attention_dropout": 0.1}
T5 = {"marks": MARKS, "backbone": Backbone(norm="rms", bias=False, places="relative", gated=True)}
BART = {"marks": MARKS, "backbone": Backbone(places="learned", source_places=50, target_places=50)}
SPECS = {
    **{mix: partial(spec, mix, copy_heads=1, **WET) for mix in MIXES},
    **{f"{mix} paper": partial(spec, mix, form="paper", **WET) for mix in MIXES},
    **{f"{name} {mix}": partial(spec, mix, positions=positions, **given, **WET)
       for name, given in (("t5", T5), ("bart", BART))
       for mix, positions in (("L/F", "paragraph"), ("LG/PV", "paragraph"), ("S/VP", "flat"))},
    "led W/F": partial(
        spec,
        "W/F",
        positions="flat",
        marks=MARKS,
        backbone=Backbone(places="learned", source_places=50, target_places=50, window=4),
        **WET,
    ),
    "primera W/F": partial(
        spec,
        "W/F",
        positions="flat",
        marks=MARKS,
        backbone=Backbone(places="learned", source_places=50, target_places=50, window=4, global_ids=(7, 11)),
        **WET,
    ),
    **{name: partial(part, "raysum.systems", name) for name in SYSTEMS if name != "family"},
}  # fmt: skip

FAST = ("L/V", "t5 L/F", "primera W/F", "graphsum")


def packed_batch(pad: int) -> Batch:
    """Three examples with a graph; two have a title."""
    plain = pack(EXAMPLES)
    graph = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(0))
    source = Source(plain.ids, plain.lengths, plain.counts, graph, torch.tensor([3, 0, 2]))
    target = torch.tensor([[2, 9, 8, 7, 3], [2, 9, 3, pad, pad], [2, 4, 5, 3, pad]])
    return Batch(source, target, torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 10]))


def on_meta(name: str) -> tuple[nn.Module, Batch]:
    """The objective of a system in training mode, and a batch, without values."""
    given = SPECS[name]()
    small = given if not isinstance(given, type) else given(vocabulary=40, **SYSTEMS[name])
    model, batch = build_seeded(small).to("meta"), packed_batch(small.marks.pad)
    assert batch.source.count_globals(small.global_ids)  # as the collator does
    return objective_of(model, 0.1).train(), copied(batch, torch.device("meta"))


@pytest.mark.parametrize("name", SPECS)
def test_no_value_is_read_on_the_host(name):
    objective, batch = on_meta(name)
    with OneDevice():
        objective(batch).backward()
    assert all(weight.grad is not None for weight in objective.parameters() if weight.requires_grad)


@pytest.mark.parametrize("name", ["S/F", "LLGLG/PPF", "L/V", "bart LG/PV", "led W/F", "primera W/F", "graphsum"])
def test_packed_rows_are_read_without_waiting(name):
    objective, batch = on_meta(name)
    with packed_kernel() as sizes, OneDevice():
        objective(batch).backward()
    assert sizes
    assert all(weight.grad is not None for weight in objective.parameters() if weight.requires_grad)


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in SPECS],
)
def test_forward_and_loss_are_one_graph_for_the_compiler(name):
    objective, batch = on_meta(name)
    torch._dynamo.reset()
    explanation = torch._dynamo.explain(objective)(batch)
    assert explanation.graph_break_count == 0, explanation.break_reasons


@pytest.mark.parametrize("name", ["L/V", "primera W/F"])
def test_packed_rows_are_one_graph_for_the_compiler(name):
    objective, batch = on_meta(name)
    torch._dynamo.reset()
    with packed_kernel() as sizes:
        explanation = torch._dynamo.explain(objective)(batch)
    assert sizes and explanation.graph_break_count == 0, explanation.break_reasons


def test_a_tensor_on_another_device_is_noticed():
    on_gpu, on_cpu = torch.zeros(3, device="meta"), torch.zeros(3, dtype=torch.long)
    with OneDevice():
        on_gpu + torch.tensor(1.0)
        with pytest.raises(AssertionError, match="index_select"):
            on_gpu.index_select(0, on_cpu)
        with pytest.raises(AssertionError, match="arange"):
            torch.arange(3)


def test_a_copied_batch_has_the_same_values_and_layout():
    batch = packed_batch(6)
    there = copied(batch, torch.device("cpu"))
    assert there.source.ids.data_ptr() != batch.source.ids.data_ptr()
    fields = ("ids", "lengths", "counts", "graph", "titles")
    for name in fields:
        assert torch.equal(getattr(there.source, name), getattr(batch.source, name))
    assert torch.equal(there.target, batch.target)
    assert torch.equal(there.predicted, batch.predicted)
    for name, value in vars(Layout(batch.source.lengths, batch.source.counts)).items():
        given = there.source.__dict__["layout"].__dict__[name]
        assert torch.equal(given, value) if isinstance(value, torch.Tensor) else given == value


def test_the_tokens_to_predict_are_all_but_padding():
    kind = Summarization(marks=MARKS)
    arrays = {
        "ids": [5, 6, 7, 8],
        "lengths": [2, 1, 1],
        "counts": [2, 1],
        "titles": [0, 0],
        "target": [2, 0, 3, 2, 9, 8, 7, 3],  # padding may also be a token of a text: PEGASUS begins targets with it
        "target_lengths": [3, 5],
    }
    batch = kind.collate({name: np.array(values, np.int32) for name, values in arrays.items()})
    assert batch.predicted.tolist() == [1, 4, 5, 6, 7]


def test_global_tokens_are_counted_before_the_layers():
    kind = Summarization.of(SPECS["primera W/F"]())
    arrays = {
        "ids": [7, 7, 9, 11, 6, 5, 11, 9, 2],
        "lengths": [4, 1, 4],
        "counts": [2, 1],
        "titles": [0, 0],
        "target": [2, 3, 2, 9, 3],
        "target_lengths": [2, 3],
    }
    batch = kind.collate({name: np.array(values, np.int32) for name, values in arrays.items()})
    assert copied(batch, torch.device("meta")).source.known_globals == {(7, 11): (5, 3)}
