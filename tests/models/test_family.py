"""The layer family: positions, norms, embeddings and specifications; and the attention predictor."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from helpers.small_models import EXAMPLES, SIZES, model_of, pack, spec, targets
from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import masked_softmax
from raysum.models.layers import sinusoids
from raysum.models.systems.specs import PredictorSpec
from raysum.systems import build


@pytest.mark.parametrize("positions", ["flat", "paragraph", "2d"])
@pytest.mark.parametrize("sinusoid", ["interleaved", "halves"])
def test_token_order_matters_to_every_kind_of_position(positions, sinusoid):
    model = model_of("S/F", positions=positions, sinusoid=sinusoid).eval()
    swapped = [[[9, 11, 12, 3], *EXAMPLES[0][1:]], *EXAMPLES[1:]]
    outputs = [model(pack(examples), targets(3))[0] for examples in (EXAMPLES, swapped)]
    assert not torch.allclose(*outputs, atol=1e-3)


@pytest.mark.parametrize(
    ("mix", "positions", "is_seen"),
    [("L/F", "paragraph", False), ("L/P", "paragraph", True), ("L/V", "paragraph", True), ("L/F", "2d", True)],
)
def test_paragraph_order_is_seen_only_through_rank_codes(mix, positions, is_seen):
    model = model_of(mix, positions=positions).eval()
    outputs = [model(pack([paragraphs]), targets(1)) for paragraphs in (EXAMPLES[0], EXAMPLES[0][::-1])]
    assert torch.allclose(*outputs, atol=1e-3 if is_seen else 1e-5) != is_seen


def test_paragraph_embeddings_of_models_without_p_layers_are_means_with_rank_codes():
    source = pack(EXAMPLES)
    assert (model := model_of("L/PF")).paragraphs(model.encode(source)).shape == (3, 3, 16)
    model = model_of("L/V")
    memory = model.encode(source)
    second = memory.tokens[4:6].mean(0) + sinusoids(torch.tensor(1), 16, "interleaved")
    torch.testing.assert_close(model.paragraphs(memory)[0, 1], second)


def test_predictor_is_a_distribution_over_real_paragraphs_and_ignores_padding():
    torch.manual_seed(0)
    model = build(PredictorSpec(width=16, ffn=24, heads=2)).eval()
    phi, mask = torch.randn(3, 4, 16), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    found = model(phi, mask)
    torch.testing.assert_close(found.sum(-1), torch.tensor([1.0, 1.0, 0.0]))
    assert not found[~mask].any()
    torch.testing.assert_close(model(phi[1:2, :2], mask[1:2, :2]), found[1:2, :2])
    found.square().sum().backward()
    assert all(value.grad.isfinite().all() for value in model.parameters())


def test_masked_softmax_of_an_empty_row_is_zero_with_zero_gradient():
    scores = torch.randn(2, 3, requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[True, False, True], [False, False, False]]))
    torch.testing.assert_close(weights.sum(-1), torch.tensor([1.0, 0.0]))
    weights.square().sum().backward()
    assert scores.grad.isfinite().all() and not scores.grad[1].any() and not scores.grad[0, 1]


def test_tied_output_shares_the_embedding_and_starts_at_unit_scale():
    torch.manual_seed(0)
    model = build(FamilySpec(encoder="L", decoder="F", vocabulary=2000, width=64, ffn=64, heads=2, pooling_heads=2))
    assert model.embedding(torch.arange(2000)).std().item() == pytest.approx(1.0, abs=0.02)
    hidden = F.layer_norm(torch.randn(50, 64), (64,))
    assert model.logits(hidden).std().item() == pytest.approx(1.0, abs=0.05)
    names = [name for name, value in model.named_parameters() if 2000 in value.shape]
    assert names == ["embedding.weight", "embedding.bias"]


def test_embeddings_start_as_the_published_code_does_where_asked():
    sizes = {"vocabulary": 500, "width": 16, "heads": 2, "pooling_heads": 2, "ffn": 32}
    bound = (6 / (500 + 16)) ** 0.5
    code, ours = (
        build(FamilySpec(embedding_start=start, **sizes)).embedding.weight.detach() for start in ("xavier", "normal")
    )
    assert 0.99 * bound < code.abs().max() <= bound
    assert ours.std() == pytest.approx(16**-0.5, rel=0.05)


@pytest.mark.parametrize(
    "wrong", [{"encoder": ""}, {"decoder": "X"}, {"positions": "flat"}, {"graph_heads": 1}, {"heads": 3}]
)
def test_specs_refuse_what_no_model_can_be(wrong):
    with pytest.raises(ValueError):
        FamilySpec(**{**SIZES, **wrong})


def test_all_short_mixes_are_valid_specs():
    encoders = ["".join(e) for n in (1, 2, 3) for e in itertools.product("SLG", repeat=n)]
    decoders = ["".join(d) for n in (1, 2, 3) for d in itertools.product("FPV", repeat=n)]
    assert len({spec(f"{e}/{d}").model_dump_json() for e, d in itertools.product(encoders, decoders)}) == 39 * 39
