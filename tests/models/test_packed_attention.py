"""Attention over packed rows, for GPUs: the same results and gradients as over padded ones."""

import pytest
import torch

from helpers.packed_kernel import packed_kernel
from helpers.small_models import DRY, EXAMPLES, SYSTEMS, build_seeded, model_of, objective_of, pack, shaken
from raysum.models.batch import Batch, Source
from raysum.models.family.spec import Backbone
from raysum.models.kernels.attention import has_packed_kernel
from raysum.models.systems.specs import HibertSpec, PredictorSpec
from raysum.systems import part

BACKBONE = Backbone(places="learned", source_places=50, target_places=50, scaled_scores=False)


def learned(model) -> tuple[float, dict]:
    plain = pack(EXAMPLES)
    graph = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(0))
    source = Source(plain.ids, plain.lengths, plain.counts, graph)
    pad = model.spec.marks.pad
    target = torch.tensor([[2, 9, 8, 7, 3], [2, 9, 3, pad, pad], [2, 4, 5, 3, pad]])
    model.zero_grad()
    loss = objective_of(model, 0.1).train()(Batch(source, target))
    loss.backward()
    return loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def model_named(name: str):
    if name == "graphsum":
        return shaken(build_seeded(part("raysum.systems", name)(vocabulary=40, **DRY, **SYSTEMS[name])))
    return model_of(name, **DRY)


@pytest.mark.parametrize(("name", "layers"), [("S/F", 2), ("L/FF", 3), ("LG/FP", 2), ("SLG/FPV", 3), ("graphsum", 1)])
def test_losses_and_gradients_are_those_of_padded_rows(name, layers):
    model = model_named(name)
    loss, gradients = learned(model)
    with packed_kernel() as sizes:
        found, ours = learned(model)
    assert sizes == [8] * layers
    torch.testing.assert_close((found, ours), (loss, gradients), atol=1e-5, rtol=1e-5)


def test_scores_that_are_not_scaled_stay_so():
    model = model_of("SS/F", backbone=BACKBONE, positions="flat", **DRY)
    loss, gradients = learned(model)
    with packed_kernel() as sizes:
        found, ours = learned(model)
    assert len(sizes) == 3
    torch.testing.assert_close((found, ours), (loss, gradients), atol=1e-5, rtol=1e-5)


def test_dropout_and_positions_as_bias_need_padded_rows():
    dropped = model_of("L/F", dropout=0.0, attention_dropout=0.5)
    biased = model_of("L/F", backbone=Backbone(norm="rms", bias=False, places="relative"), **DRY)
    with packed_kernel() as sizes:
        learned(dropped)
        assert not sizes
        learned(biased)
        assert sizes == [8]  # F, which has no bias
        dropped.eval().encode(pack(EXAMPLES))
        assert sizes == [8, 8]


def test_a_predictor_of_padded_paragraphs_has_no_packed_rows():
    predictor = build_seeded(PredictorSpec(width=16, ffn=24, heads=2)).eval()
    phi, mask = torch.randn(2, 3, 16), torch.tensor([[True, True, True], [True, False, False]])
    with packed_kernel() as sizes:
        found = predictor(phi, mask)
    assert not sizes
    torch.testing.assert_close(found[1], torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(found[:1], predictor(phi[:1], mask[:1]))


def test_sentences_and_the_selected_ends_are_those_of_padded_rows():
    model = build_seeded(HibertSpec(vocabulary=40, width=16, ffn=24, heads=2, layers=2, **DRY))
    plain = model(pack(EXAMPLES))
    with packed_kernel() as sizes:
        torch.testing.assert_close(model(pack(EXAMPLES)), plain)
    assert len(sizes) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_has_no_such_kernel(dtype):
    assert not has_packed_kernel(torch.zeros(3, 48, dtype=dtype), 8, 0.0)
