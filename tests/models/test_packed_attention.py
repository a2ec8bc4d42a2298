"""Attention over packed rows, for GPUs: the same results and gradients as over padded ones."""

from unittest import mock

import pytest
import torch

from helpers.packed_kernel import packed_kernel
from helpers.small_models import DRY, EXAMPLES, SYSTEMS, build_seeded, model_of, objective_of, pack, shaken
from raysum.errors import UserError
from raysum.models.batch import Batch, Memory, Source
from raysum.models.family.spec import Backbone
from raysum.models.family.window import WindowLayer
from raysum.models.kernels import packed
from raysum.models.kernels.packed import attend_packed_lse, has_packed_kernel
from raysum.models.systems.specs import HibertSpec, PredictorSpec
from raysum.systems import part

BACKBONE = Backbone(places="learned", source_places=50, target_places=50, scaled_scores=False)
WINDOWS = {
    "led": Backbone(places="learned", source_places=50, target_places=50, window=4),
    "primera": Backbone(places="learned", source_places=50, target_places=50, window=2, global_ids=(7, 11)),
    "short window": Backbone(places="learned", source_places=50, target_places=50, window=60, global_ids=(5,)),
}


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


@pytest.mark.parametrize(("name", "layers"), [("S/F", 2), ("L/FF", 3), ("LG/FP", 3), ("SLG/FPV", 5), ("graphsum", 2)])
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


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_and_global_tokens_are_those_of_padded_rows(name):
    model = model_of("WW/F", backbone=WINDOWS[name], positions="flat", **DRY)
    loss, gradients = learned(model)
    with packed_kernel() as sizes:
        found, ours = learned(model)
    assert len(sizes) == 3
    torch.testing.assert_close((found, ours), (loss, gradients), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("mix", "backbone"),
    [(f"S/{letter}", backbone) for letter in "FPV" for backbone in (None, BACKBONE)] + [("W/F", WINDOWS["primera"])],
)
def test_gradients_with_dropout_are_slopes(mix, backbone):
    options = {"backbone": backbone, "positions": "flat"} if backbone else {}
    model = model_of(mix, dropout=0.0, attention_dropout=0.4, **options).double().train()
    source, generator = pack(EXAMPLES), torch.Generator().manual_seed(1)
    shapes = [len(source.ids), 16], [3, 4, 16], [3, 3, 16]
    arrays = [torch.randn(shape, generator=generator).double().requires_grad_() for shape in shapes]

    def attended(x, y, phi):
        torch.manual_seed(5)
        memory, cross = Memory(source, _attended(model.encoder[0], x, source), phi), model.decoder[0].cross
        return cross(y, cross.project_source(memory))[0] + phi.sum()

    with packed_kernel():
        result = attended(*arrays)
        direction = torch.randn(result.shape, generator=generator).double()
        result.backward(direction)
        for number, array in enumerate(arrays):
            move = torch.zeros_like(array)
            move[:] = 1e-3 * torch.randn(array.shape, generator=generator)
            ends = [attended(*arrays[:number], array + sign * move, *arrays[number + 1 :]) for sign in (1, -1)]
            slope = ((ends[0] - ends[1]) * direction).sum() / 2
            torch.testing.assert_close((array.grad * move).sum(), slope, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("mix", ["S/F", "W/F"])
def test_dropout_of_an_encoder_keeps_the_mean(mix):
    backbone = WINDOWS["primera"] if "W" in mix else BACKBONE
    model = model_of(mix, dropout=0.0, attention_dropout=0.4, backbone=backbone, positions="flat")
    source = pack(EXAMPLES)
    x = torch.randn(len(source.ids), 16, generator=torch.Generator().manual_seed(1))
    _check_mean(model, lambda: _attended(model.encoder[0], x, source))


@pytest.mark.parametrize("letter", "FP")  # V's contexts go through its scores, which are not linear
@pytest.mark.parametrize("backbone", [None, BACKBONE])
def test_dropout_of_attention_to_words_keeps_the_mean(letter, backbone):
    options = {"backbone": backbone, "positions": "flat"} if backbone else {}
    model = model_of(f"S/{letter}", dropout=0.0, attention_dropout=0.4, **options)
    source, generator = pack(EXAMPLES), torch.Generator().manual_seed(1)
    x, y, phi = (torch.randn(shape, generator=generator) for shape in ([len(source.ids), 16], [3, 4, 16], [3, 3, 16]))
    cross = model.decoder[0].cross
    _check_mean(model, lambda: cross(y, cross.project_source(Memory(source, x, phi)))[0])


def _check_mean(model, attended):
    with packed_kernel() as sizes:
        model.eval()
        expected = attended()
        model.train()
        torch.manual_seed(2)
        found = torch.stack([attended().detach() for _ in range(500)])
    error = found.std(0) / 500**0.5
    assert len(sizes) == 501 and error.min() > 0
    assert ((found.mean(0) - expected).abs() < 5 * error).all()


def _attended(layer, x, source):
    if isinstance(layer, WindowLayer):
        return layer.attention(x, source)
    return layer.block.attention(x, source.layout.by_source, None)


@pytest.mark.parametrize("mix", ["L/PV", "L/VP"])
def test_gated_letters_learn_through_the_sums_of_packed_paragraphs(mix):
    model = model_of(mix, backbone=Backbone(places="learned", source_places=50, target_places=50), **DRY)
    for name, weight in model.named_parameters():
        assert "gate" not in name or weight.any()
    loss, gradients = learned(model)
    with packed_kernel() as sizes:
        found, ours = learned(model)
    assert len(sizes) == 3 and all(gradients[name].any() for name in gradients if "gate" in name)
    torch.testing.assert_close((found, ours), (loss, gradients), atol=1e-5, rtol=1e-5)


def test_positions_as_bias_need_padded_rows():
    biased = model_of("L/F", backbone=Backbone(norm="rms", bias=False, places="relative"), **DRY)
    with packed_kernel() as sizes:
        learned(biased)
        assert sizes == [8]  # F, which has no bias


def test_the_mass_of_a_query_without_keys_is_nothing():
    starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    query = torch.randn(3, 1, 8, requires_grad=True)
    skipped = torch.tensor([False, False, True])
    context, lse = attend_packed_lse(query, query, query, (starts, 2), (starts, 2), reach=1, skipped=skipped)
    assert context[2].tolist() == [[0.0] * 8] and lse.tolist()[0][2] == -float("inf")
    (context.sum() + lse[:, :2].sum()).backward()
    assert query.grad.isfinite().all() and not query.grad[2].any()


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
    assert not has_packed_kernel(torch.zeros(3, 48, dtype=dtype), 8)


@pytest.fixture
def failing_kernels():
    packed._builds_own_kernels.cache_clear()
    with mock.patch.object(packed, "_attention", side_effect=RuntimeError("no C compiler")):
        yield torch.device("cpu"), torch.bfloat16, 16
    packed._builds_own_kernels.cache_clear()


def test_without_a_compiler_rows_are_padded(failing_kernels):
    with pytest.warns(UserWarning, match="pads its rows, because Triton fails: no C compiler"):
        assert not packed._builds_own_kernels(*failing_kernels)
    assert not packed._builds_own_kernels(*failing_kernels)  # and it is not tried again


def test_without_a_compiler_on_one_of_several_ranks_training_ends(failing_kernels):
    for world, message in ((1, None), (2, "no C compiler.*install a C compiler and Python's header files on every")):
        packed._builds_own_kernels.cache_clear()
        with (
            mock.patch.object(packed.distributed, "is_initialized", lambda: True),
            mock.patch.object(packed.distributed, "get_world_size", lambda world=world: world),
            pytest.raises(UserError, match=message) if message else pytest.warns(UserWarning),
        ):
            packed._builds_own_kernels(*failing_kernels)


def test_the_probe_builds_forward_and_backward():
    packed._builds_own_kernels.cache_clear()
    with packed_kernel():
        assert packed._builds_own_kernels(torch.device("cpu"), torch.float32, 16)
    packed._builds_own_kernels.cache_clear()


def test_plans_on_the_meta_device_are_those_of_the_gpu(monkeypatch):
    heads = torch.zeros(3, 48, dtype=torch.bfloat16, device="meta")
    assert not has_packed_kernel(heads, 16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(packed, "_has_flash_attention", lambda device: device.type == "cuda")
    monkeypatch.setattr(packed, "_builds_own_kernels", lambda device, *_: device.type == "cuda")
    assert has_packed_kernel(heads, 16) and has_packed_kernel(heads, 16, own=True)
    assert not has_packed_kernel(heads.float(), 16)
