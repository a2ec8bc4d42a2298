"""Every layer mix trains, and no output depends on padding or on what else is in the batch."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.small_models import DRY, EXAMPLES, MIXES, SIZES, model_of, pack, spec, targets
from helpers.special_ids import PAD
from raysum.errors import UserError
from raysum.models.batch import Source
from raysum.models.family.spec import FamilySpec
from raysum.models.kernels.attention import masked_softmax
from raysum.models.layers import sinusoids
from raysum.models.systems.specs import PredictorSpec
from raysum.systems import build


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mix", [f"{e}/{d}" for e in "SLG" for d in "FPV"] + MIXES[-4:])
@pytest.mark.parametrize("form", ["code", "paper"])
def test_every_mix_gives_every_parameter_a_finite_gradient(mix, norm, form):
    model = model_of(mix, norm=norm, form=form, dropout=0.2, attention_dropout=0.2, ffn_dropout=0.2).train()
    tokens = targets(3)
    logits = model(pack(EXAMPLES), tokens)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    for name, value in model.named_parameters():
        assert value.grad is not None and value.grad.isfinite().all(), name
    assert not [name for name, value in model.named_parameters() if not value.grad.any()]


@pytest.mark.parametrize("positions", ["flat", "paragraph", "2d"])
@pytest.mark.parametrize("sinusoid", ["interleaved", "halves"])
def test_token_order_matters_to_every_kind_of_position(positions, sinusoid):
    model = model_of("S/F", positions=positions, sinusoid=sinusoid).eval()
    swapped = [[[9, 11, 12, 3], *EXAMPLES[0][1:]], *EXAMPLES[1:]]
    outputs = [model(pack(examples), targets(3))[0] for examples in (EXAMPLES, swapped)]
    assert not torch.allclose(*outputs, atol=1e-3)


@pytest.mark.parametrize(("mix", "sees_rank"), [("L/F", False), ("L/P", True), ("L/V", True)])
def test_paragraph_order_is_seen_only_through_rank_codes(mix, sees_rank):
    model = model_of(mix, positions="paragraph").eval()
    ordered, turned = [EXAMPLES[0]], [EXAMPLES[0][::-1]]
    outputs = [model(pack(examples), targets(1)) for examples in (ordered, turned)]
    assert torch.allclose(*outputs, atol=1e-5) != sees_rank


def test_rank_positions_are_seen_with_2d_positions():
    model = model_of("L/F", positions="2d").eval()
    outputs = [model(pack([e]), targets(1)) for e in (EXAMPLES[0], EXAMPLES[0][::-1])]
    assert not torch.allclose(*outputs, atol=1e-3)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_changes_nothing(mix, norm):
    """An empty paragraph, more target padding, an example alone or in a batch: equal outputs."""
    model = model_of(mix, norm=norm).eval()
    tokens = targets(3)
    together, attention = model.decode(tokens, model.encode(pack(EXAMPLES)), attention=True)
    with_empty = [[*example[:1], [], *example[1:], []] for example in EXAMPLES]
    padded_tokens = torch.cat([tokens, torch.full((3, 4), PAD)], 1)
    padded, _ = model.decode(padded_tokens, model.encode(pack(with_empty)))
    torch.testing.assert_close(padded[:, : tokens.shape[1]], together, atol=1e-6, rtol=1e-6)
    for row, example in enumerate(EXAMPLES):
        alone, share = model.decode(tokens[row : row + 1], model.encode(pack([example])), attention=True)
        torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(share[0], attention[row, :, : len(example)], atol=1e-6, rtol=1e-6)
        assert not attention[row, :, len(example) :].any()


@pytest.mark.parametrize("mix", MIXES)
def test_attention_of_a_position_sums_to_the_number_of_layers(mix):
    model = model_of(mix).eval()
    hidden, attention = model.decode(targets(3), model.encode(pack(EXAMPLES)), attention=True)
    plain, none = model.decode(targets(3), model.encode(pack(EXAMPLES)))
    assert none is None and attention.shape == (3, 6, 3) and attention.dtype == torch.float32
    torch.testing.assert_close(plain, hidden)
    layers = float(len(mix.split("/")[1]))
    torch.testing.assert_close(attention.sum(-1), torch.full((3, 6), layers), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mix", MIXES)
def test_the_future_is_not_seen(mix):
    model, memory_of = model_of(mix).eval(), pack(EXAMPLES)
    tokens = targets(3)
    changed = tokens.clone()
    changed[:, 4:] = 39
    first, second = (model.decode(t, model.encode(memory_of))[0] for t in (tokens, changed))
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert not torch.allclose(first[:, 4:], second[:, 4:], atol=1e-3)


@pytest.mark.parametrize(("norm", "final"), [("pre", 2), ("post", 0)])
def test_one_final_norm_of_encoder_and_decoder_exactly_when_pre(norm, final):
    model = model_of("LG/FP", norm=norm)
    assert sum(isinstance(m, nn.LayerNorm) for m in (model.encoder_norm, model.decoder_norm)) == final


def test_graph_heads_take_the_graph_and_miss_it_with_one_clear_message():
    model = model_of("LG/F", graph_heads=2).eval()
    source = pack(EXAMPLES)
    with pytest.raises(UserError, match="graph_heads"):
        model.encode(source)
    near, far = torch.zeros(3, 3, 3), torch.zeros(3, 3, 3)
    near[:, 0, 1], far[:, 0, 2] = 2.0, 0.5
    outputs = [model.encode(Source(source.ids, source.lengths, source.counts, g)).tokens for g in (near, 3 * near, far)]
    torch.testing.assert_close(outputs[0], outputs[1])  # rows are normalized
    first_example = source.layout.token_example == 0
    assert not torch.allclose(outputs[0][first_example], outputs[2][first_example], atol=1e-4)
    torch.testing.assert_close(
        outputs[0][~first_example & (source.layout.token_example == 1)], outputs[2][source.layout.token_example == 1]
    )  # it has no paragraph 1 or 2


def test_paragraph_embeddings_of_models_without_p_layers_are_means_with_rank_codes():
    source = pack(EXAMPLES)
    assert (model := model_of("L/PF")).paragraphs(model.encode(source)).shape == (3, 3, 16)
    model = model_of("L/V")
    memory = model.encode(source)
    found = model.paragraphs(memory)
    second = memory.tokens[4:6].mean(0) + sinusoids(torch.tensor(1), 16, "interleaved")
    torch.testing.assert_close(found[0, 1], second)


@pytest.mark.parametrize("mix", ["SLG/FPV"])
@pytest.mark.parametrize("whole", [True, False], ids=["bf16 parameters", "autocast"])
def test_bfloat16_stays_close_to_float32(mix, whole):
    model, source, tokens = model_of(mix, **DRY).train(), pack(EXAMPLES), targets(3)
    with torch.no_grad():
        exact = model(source, tokens)
    if whole:
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
        logits = model(source, tokens)
    F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
    assert all(value.grad.isfinite().all() for value in model.parameters())
    assert (logits.float() - exact).abs().max() < 0.08 * exact.abs().max()


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


def test_specs_refuse_what_no_model_can_be():
    for wrong in ({"encoder": ""}, {"decoder": "X"}, {"positions": "flat"}, {"graph_heads": 1}, {"heads": 3}):
        with pytest.raises(ValueError):
            FamilySpec(**{**SIZES, **wrong})


def test_all_short_mixes_are_valid_specs():
    encoders = ["".join(e) for n in (1, 2, 3) for e in itertools.product("SLG", repeat=n)]
    decoders = ["".join(d) for n in (1, 2, 3) for d in itertools.product("FPV", repeat=n)]
    assert len({spec(f"{e}/{d}").model_dump_json() for e, d in itertools.product(encoders, decoders)}) == 39 * 39


def test_embeddings_start_as_the_published_code_does_where_asked():
    sizes = {"vocabulary": 500, "width": 16, "heads": 2, "pooling_heads": 2, "ffn": 32}
    bound = (6 / (500 + 16)) ** 0.5
    code, ours = (
        build(FamilySpec(embedding_start=start, **sizes)).embedding.weight.detach() for start in ("xavier", "normal")
    )
    assert 0.99 * bound < code.abs().max() <= bound
    assert ours.std() == pytest.approx(16**-0.5, rel=0.05)
