"""Layers made again in backward: the same losses and gradients to the last bit, and less memory."""

import pytest
import torch

from helpers.small_datasets import write_dataset
from helpers.small_models import EXAMPLES, build_seeded, objective_of, pack, spec, targets
from helpers.small_trainings import losses, same, trained, weights
from helpers.special_ids import PAD
from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.models.adapters import adapt
from raysum.models.batch import Batch
from raysum.models.family.spec import Adapters, Backbone
from raysum.models.kernels.recomputation import recompute_layers
from raysum.models.systems.specs import GraphSumSpec, TdmcaSpec

WET = {"dropout": 0.2, "attention_dropout": 0.3, "ffn_dropout": 0.1}
SIZES = {"vocabulary": 40, "width": 16, "ffn": 24, "heads": 2}
SPECS = {
    **{mix: spec(mix, **WET) for mix in ("S/F", "LG/P", "L/V", "SLG/FPV", "LLGLG/PPF")},
    "post": spec("LG/FP", norm="post", **WET),
    "paper": spec("LG/PV", form="paper", **WET),
    "copying F": spec("LL/FF", copy_heads=2, **WET),
    "copying P": spec("LL/FP", copy_heads=1, **WET),
    "graph": spec("LG/P", graph_heads=2, **WET),
    "tdmca": TdmcaSpec(**SIZES, **WET, layers="LM", source_loss=0.5),
    "t5": spec("SL/FP", backbone=Backbone(norm="rms", bias=False, places="relative", gated=True), **WET),
    "graphsum": GraphSumSpec(**SIZES, **WET),
}


def batch() -> Batch:
    source = pack(EXAMPLES)
    graph = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(4))
    target = targets(3, 7)
    target[1, 4:] = PAD
    return Batch(type(source)(source.ids, source.lengths, source.counts, graph), target)


def learned(some_spec, again: bool, low_rank: bool = False) -> tuple[float, dict[str, torch.Tensor | None]]:
    """The loss of a step, and its gradients; of two forward passes, as the second one must not see the first."""
    model = build_seeded(some_spec)
    if low_rank:
        adapt(model, Adapters(rank=2, dropout=0.1), new=[])
    if again:
        recompute_layers(model)
    objective = objective_of(model, 0.1).train()
    torch.manual_seed(5)
    total = sum(objective(batch()) for _ in range(2))
    total.backward()
    return total.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("low_rank", [False, True], ids=["whole", "adapters"])
def test_the_loss_and_gradients_are_the_same_bit_for_bit_with_dropout(name, low_rank):
    (loss, plain), (again, found) = (learned(SPECS[name], way, low_rank) for way in (False, True))
    assert again == loss
    for key, gradient in plain.items():
        assert (gradient is None) == (found[key] is None), key
        assert gradient is None or torch.equal(found[key], gradient), key
    assert any(gradient is not None and gradient.any() for gradient in found.values())


def test_a_system_whose_layers_remember_is_refused():
    with pytest.raises(UserError, match="train.recompute does not work with a txl: set train.recompute=false"):
        load_config("txl", ["train.recompute=true"])


def kept(some_spec, again: bool) -> int:
    """Numbers that are kept for backward, parameters left out."""
    model = build_seeded(some_spec)
    if again:
        recompute_layers(model)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    sizes = {}

    def pack_hook(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda tensor: tensor):
        assert objective_of(model, 0.1).train()(batch()).requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("mix", ["LLLL/F", "L/FFFF", "L/PPPP", "LLLL/V"])
def test_less_is_kept(mix):
    assert kept(spec(mix, **WET), True) < 0.5 * kept(spec(mix, **WET), False)


SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "LG", "decoder": "FP"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("recompute") / "data", {"train": 200, "valid": 10})


@pytest.mark.parametrize(
    "stage", [0, 3, pytest.param(2, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_trainings_are_the_same_bit_for_bit_and_may_be_gone_on_with_either_way(data, tmp_path, stage, low):
    engine = {"deepspeed": {"zero_optimization": {"stage": stage}, "bf16": {"enabled": low}}}
    plain = trained(data, tmp_path / "plain", 3, SMALL, **engine)
    trained(data, tmp_path / "again", 1, SMALL, **engine)
    again = trained(data, tmp_path / "again", 3, SMALL, **engine, train={"recompute": True})
    assert losses(again) == losses(plain) and same(weights(again, "3"), weights(plain, "3"))


def with_adapters(data, tmp_path, stage: int, steps: int, low: bool = False, **train) -> None:
    """Compare trainings with and without recomputation in which some parameters are frozen."""
    donor = trained(data, tmp_path / "donor", 1, SMALL)
    sections = {
        "adapters": {"rank": 2},
        "deepspeed": {"zero_optimization": {"stage": stage}, "bf16": {"enabled": low}},
        "train": {"init_from": str(donor.path)} | train,
    }
    plain = trained(data, tmp_path / "plain", steps, SMALL, **sections)
    sections["train"] |= {"recompute": True}
    again = trained(data, tmp_path / "again", steps, SMALL, **sections)
    assert losses(again) == losses(plain) and same(weights(again, str(steps)), weights(plain, str(steps)))


@pytest.mark.parametrize("stage", [2, 3])
def test_so_are_trainings_with_adapters(data, tmp_path, stage):
    with_adapters(data, tmp_path, stage, 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long
def test_two_workers_of_zero_3_gather_parameters_again(data, tmp_path, ray_session):
    with_adapters(data, tmp_path, 3, 3, low=True, workers=2)
