"""Low-rank adapters: their formula, trainings at every stage of ZeRO, and the plain models that they leave."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.small_datasets import write_dataset
from helpers.small_models import EXAMPLES, build_seeded, objective_of, pack, spec, targets
from helpers.small_trainings import RATE, config, losses, same, weights
from helpers.small_trainings import trained as trained_on
from raysum.config.loading import load_config
from raysum.config.sections import SourceConfig
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.models.adapters import AdaptedLinear, adapt, merge_adapters
from raysum.models.family.spec import Adapters
from raysum.models.layers import Projection, xavier_linear
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.stream.collators.summarization import Summarization
from raysum.systems import build

SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "LL", "decoder": "F"}
STAGES = [0, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
LOW = {"rank": 2, "alpha": 4.0, "dropout": 0.1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("adapters") / "data", {"train": 200, "valid": 10})


@pytest.fixture(scope="module")
def donor(data, tmp_path_factory) -> Run:
    return trained_on(data, tmp_path_factory.mktemp("runs") / "donor", 2, SMALL)


def trained(data, out, steps: int, start: Run, model=None, train=None, **sections) -> Run:
    """A training from the weights of ``start``."""
    train = {"init_from": str(start.path)} | (train or {})
    return trained_on(data, out, steps, SMALL | (model or {}), train=train, **sections)


@pytest.fixture(scope="module")
def adapted(data, donor, tmp_path_factory) -> Run:
    """From the donor, with one layer of it replaced by a new kind."""
    out = tmp_path_factory.mktemp("runs") / "adapted"
    return trained(data, out, 4, donor, model={"encoder": "LG", "decoder": "F"}, adapters=LOW)


# The layer


@pytest.mark.parametrize("layer", [Projection(8, 3), Projection(8), xavier_linear(8, 12, bias=False)])
def test_an_adapter_and_its_gradients_are_those_of_the_sum_of_matrices(layer):
    torch.manual_seed(0)
    parts, rank = getattr(layer, "parts", 1), 2
    one = AdaptedLinear(layer, Adapters(rank=rank, alpha=3.0))
    x = torch.randn(5, 7, 8, requires_grad=True)
    assert torch.equal(one(x), layer(x)), "nothing is changed at first"
    nn.init.normal_(one.adapter_up)
    down, up = one.adapter_down.detach().chunk(parts), one.adapter_up.detach().chunk(parts)
    dense = layer.weight.detach() + 1.5 * torch.cat([b @ a for a, b in zip(down, up, strict=True)])
    dense.requires_grad_(True)
    expected = functional.linear(x, dense, layer.bias)
    torch.testing.assert_close(one(x), expected)
    torch.testing.assert_close(one.merged(*(p.detach() for p in (one.weight, one.adapter_down, one.adapter_up))), dense)

    towards = torch.randn_like(expected)
    own = torch.autograd.grad((one(x) * towards).sum(), [x, one.adapter_down, one.adapter_up])
    d_x, d_weight = torch.autograd.grad((expected * towards).sum(), [x, dense])
    d_parts = d_weight.chunk(parts)
    d_down = torch.cat([1.5 * b.T @ d for b, d in zip(up, d_parts, strict=True)])
    d_up = torch.cat([1.5 * d @ a.T for a, d in zip(down, d_parts, strict=True)])
    torch.testing.assert_close(own, (d_x, d_down, d_up), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("matrices", "count"), [("all", 11), ("attention", 7), ("ffn", 4)])
def test_matrices_are_chosen_by_what_they_are_of_and_the_rest_is_frozen(matrices, count):
    model = build(spec("L/F", tied_output=False))
    adapt(model, Adapters(rank=2, matrices=matrices, embeddings=matrices == "ffn"), new={"encoder_norm.weight"})
    found = [name for name, layer in model.named_modules() if isinstance(layer, AdaptedLinear)]
    assert len(found) == count and "output" not in found
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    own = {f"{name}.adapter_{way}" for name in found for way in ("down", "up")} | {"encoder_norm.weight"}
    own |= {"embedding.weight", "output.weight", "output.bias"} if matrices == "ffn" else set()
    assert trained == own


def with_adapters(model: nn.Module, rank: int) -> nn.Module:
    """``model`` with adapters that change it."""
    adapt(model, Adapters(rank=rank), new=[])
    for layer in model.modules():
        if isinstance(layer, AdaptedLinear):
            nn.init.normal_(layer.adapter_up, std=0.1)
    return model


@pytest.mark.parametrize("mix", ["S/F", "LG/FP", "SLG/FPV"])
def test_a_model_with_merged_weights_is_the_one_with_adapters(mix):
    model, plain = with_adapters(build_seeded(spec(mix)).eval(), rank=3), build(spec(mix)).eval()
    plain.load_state_dict(merge_adapters(model, model.state_dict()))
    source = pack(EXAMPLES)
    torch.testing.assert_close(model(source, targets(3)), plain(source, targets(3)), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(("gated", "ranks"), [(False, [2, 2]), (True, [4, 2])])
def test_both_matrices_of_a_gated_network_have_an_adapter_of_their_own(gated, ranks):
    sizes = spec("L/F", backbone={"gated": gated, "activation": "gelu-tanh"})
    model = build_seeded(sizes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = merge_adapters(with_adapters(model, rank=2), model.state_dict())
    assert after.keys() == before.keys()
    for name in ("encoder.0.block.ffn.inner.weight", "decoder.0.ffn.inner.weight"):
        change = after[name] - before[name]
        first, second = change.split(sizes.ffn) if gated else (change, change)
        assert [rank_of(part) for part in (change, first, second)] == [ranks[0], ranks[1], ranks[1]]


def rank_of(matrix: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-3))


# Trainings


def test_only_what_is_new_or_low_in_rank_changes(donor, adapted):
    before, after, fresh = weights(donor), weights(adapted), adapted.latest().state["new"]
    assert after.keys() == dict(build(adapted.config.model).named_parameters()).keys()
    assert any(name.startswith("encoder.1.pooling") for name in fresh)
    ranks = set()
    for name in after.keys() - {*fresh}:
        change = after[name] - before[name]
        if change.dim() < 2 or name.startswith("embedding"):
            assert not change.any(), name
        else:
            parts = change.split(16) if name.split(".")[-2] in ("qkv", "source") else [change]
            ranks |= {*map(rank_of, parts)}
    assert ranks == {2}
    torch.manual_seed(adapted.config.train.seed)
    started = build(adapted.config.model).state_dict()
    moved = [name for name in fresh if not torch.equal(started[name], after[name])]
    assert len(moved) > 0.8 * len(fresh), "new layers are trained whole"


def test_validation_with_adapters_is_that_of_the_merged_weights_which_serve_like_any(data, adapted):
    model, kind = restore(adapted, "latest", torch.device("cpu")), Summarization()
    arrays = kind.pack(list(Dataset.open(data).read("valid", kind.columns)), SourceConfig())
    with torch.no_grad():
        loss = objective_of(model, 0.1).eval()(kind.collate(arrays))
    assert float(loss) / kind.tokens(arrays)[1] == pytest.approx(adapted.validations()[4], rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_a_run_gone_on_with_is_the_same_bit_for_bit(data, donor, tmp_path, stage, low):
    sections = {"adapters": LOW, "optim": {"new_lr": 0.02}, "model": {"decoder": "P"}}
    sections |= {"deepspeed": {"zero_optimization": {"stage": stage}, "bf16": {"enabled": low}}}
    whole = trained(data, tmp_path / "whole", 3, donor, **sections)
    trained(data, tmp_path / "parts", 1, donor, **sections)
    parts = trained(data, tmp_path / "parts", 3, donor, **sections)
    assert losses(parts) == losses(whole) and same(weights(parts), weights(whole))
    assert losses(parts)[2] < losses(parts)[0]
    if not low:
        before, after, fresh = weights(donor), weights(parts), parts.latest().state["new"]
        frozen = [name for name, value in after.items() if value.dim() == 1 and name not in fresh]
        assert len(frozen) > 20 and all(torch.equal(before[name], after[name]) for name in frozen)


@pytest.mark.parametrize("stage", STAGES)
def test_frozen_parameters_have_neither_gradient_nor_state_of_the_optimizer(data, donor, tmp_path, stage):
    from raysum.stream.loader import batches
    from raysum.train.engine import build_engine
    from raysum.train.group import lone_group
    from raysum.train.job_spec import job_spec_of
    from raysum.train.metrics_logger import Meter
    from raysum.train.worker import step

    sections = {"adapters": LOW, "deepspeed": {"zero_optimization": {"stage": stage}}}
    asked = config(data, tmp_path / "run", 1, SMALL, train={"init_from": str(donor.path)}, **sections)
    brief = job_spec_of(Dataset.open(data), asked, Run(tmp_path / "run"), 0)
    with lone_group():
        engine = build_engine(brief, None)
        step(engine, brief, 0, batches(brief.train, 0, 1, 0, 1), Meter(engine.device, {}))
        parameters = dict(engine.module.named_parameters())
        assert all(p.grad is None for p in parameters.values() if not p.requires_grad)
        trained = sum(getattr(p, "ds_numel", p.numel()) for p in parameters.values() if p.requires_grad)
        assert trained < 0.5 * sum(getattr(p, "ds_numel", p.numel()) for p in parameters.values())
        inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
        moments = sum(state["exp_avg"].numel() for state in inner.state.values())
        assert trained <= moments <= trained + 16, "padding at most"


def test_a_start_from_an_adapted_run_takes_the_merged_weights(data, adapted, tmp_path, capsys):
    capsys.readouterr()
    sections = {"model": {"encoder": "LG"}, "adapters": {"rank": 1}, "optim": RATE | {"lr": 1e-12}}
    run = trained(data, tmp_path / "next", 1, adapted, **sections)
    told = capsys.readouterr().err
    assert f"{len(weights(adapted))} tensors are loaded from {adapted.path}, step 4\n" in told
    assert "parameters are trained (" in told and "untrained" not in told and "unused" not in told
    assert run.latest().state["new"] == []
    torch.testing.assert_close(weights(run), weights(adapted), rtol=1e-5, atol=1e-7)


def test_what_an_import_put_beside_published_weights_is_new(data, donor, tmp_path, capsys):
    """Such layers come with a start of their own, and still learn whole and at their own rate."""
    imported = Run(tmp_path / "imported")
    imported.create(donor.config, donor.recipe, donor.vocabulary)
    made = [name for name in weights(donor) if name.startswith("encoder.1.")]
    imported.add_weights(0, weights(donor), {"untrained": made})
    capsys.readouterr()
    optim = {"lr": 1e-12, "new_lr": 0.01}
    run = trained(data, tmp_path / "run", 2, imported, adapters=LOW | {"matrices": "ffn"}, optim=optim)
    assert "step 0; new and untrained: encoder.1.*\n" in capsys.readouterr().err
    assert {*run.latest().state["new"]} == {*made}
    moved = {name for name, value in weights(run).items() if not torch.equal(value, weights(donor)[name])}
    networks = {f"{part}.{side}" for part in ("encoder.0.block.ffn", "decoder.0.ffn") for side in ("inner", "outer")}
    assert {*made} <= moved and {name.rpartition(".")[0] for name in moved - {*made}} == networks


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [2, 3])
def test_another_number_of_workers_gives_the_same_weights_nearly(data, donor, tmp_path, ray_session, stage):
    """DeepSpeed's converter forgets what is frozen."""
    sections = {"adapters": LOW, "deepspeed": {"zero_optimization": {"stage": stage}}}
    one = trained(data, tmp_path / "one", 3, donor, **sections, train={"save_every": 1})
    trained(data, tmp_path / "two", 2, donor, **sections, train={"save_every": 1, "workers": 2})
    two = trained(data, tmp_path / "two", 3, donor, **sections, train={"save_every": 1})  # converted for one
    torch.testing.assert_close(weights(two), weights(one), rtol=1e-3, atol=1e-4)


# Mistakes


def test_adapters_need_a_start_and_a_rank_below_that_of_a_matrix(data, donor, tmp_path):
    with pytest.raises(UserError, match="adapters.rank .* train.init_from=RUN"):
        trained_on(data, tmp_path / "run", 1, SMALL, adapters=LOW)
    with pytest.raises(UserError, match="adapters.rank=64 is too large for all matrices"):
        trained(data, tmp_path / "run", 1, donor, adapters={"rank": 64})
    for override, named in (
        ("adapters.rnak=3", "did you mean 'adapters.rank'"),
        ("adapters.matrices=some", "matrices"),
    ):
        with pytest.raises(UserError, match=named):
            load_config("pht", [override])
    trained(data, tmp_path / "run", 1, donor, adapters=LOW)
    with pytest.raises(UserError, match="trained with other values of adapters.rank"):
        trained(data, tmp_path / "run", 2, donor, adapters=LOW | {"rank": 3})
