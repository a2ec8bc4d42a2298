"""Linear layers of models that are only run, in every system: laid out they give the same, in int8 nearly; what they
need is said."""

import pytest
import torch
from torch import nn

from helpers.small_models import EXAMPLES, MIXES, build_seeded, model_of, pack, shaken, spec, targets
from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import beam_search
from raysum.errors import UserError
from raysum.models.kernels import linear
from raysum.models.kernels.linear import int8_linear, optimize_for_inference
from raysum.models.systems.specs import TdmcaSpec, TxlSpec

SOURCE = pack(EXAMPLES)
SIZES = {"vocabulary": 40, "width": 32, "ffn": 48, "heads": 2}
SPECS = {mix: spec(mix, width=32, ffn=48) for mix in MIXES}
SPECS |= {f"{mix}, copying": spec(mix, width=32, ffn=48, copy_heads=2) for mix in ("S/F", "L/P", "L/V")}
SPECS |= {"tdmca": TdmcaSpec(**SIZES, layers="LM", block=4), "txl": TxlSpec(**SIZES, layers=2, segment=4, memory=4)}
TOLERANCE = 0.1  # of the deviation of the logits; measured: 0.01 to 0.05


def model(name: str) -> nn.Module:
    return shaken(build_seeded(SPECS[name])).eval()


def test_a_layer_rounds_by_row():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 16, generator=generator) * torch.logspace(-3, 3, 6)[:, None]
    weight[2] = 0
    bias, x = torch.randn(6, generator=generator), torch.randn(2, 3, 16, generator=generator)
    found, exact = int8_linear(weight, bias)(x), nn.functional.linear(x, weight, bias)
    for row in range(6):  # however unlike the rows, each is near
        assert (found - exact)[..., row].abs().max() <= 0.03 * (exact - bias)[..., row].abs().max() + 1e-6
    assert torch.equal(found[..., 2], bias[2].expand(2, 3))


def test_an_embedding_rounds_by_row_and_keeps_a_byte_for_each_number():
    weight = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 6)[:, None]
    weight[2] = 0
    embedding, ids = linear.Int8Embedding(weight, 4.0), torch.tensor([[5, 0], [2, 5]])
    found, exact = embedding(ids), 4 * weight[ids]
    assert (found - exact).abs().amax(-1).le(exact.abs().amax(-1) / 254 * 1.001).all()
    assert embedding.rows.dtype == torch.int8 and not [*embedding.parameters()]


@pytest.mark.parametrize("name", SPECS)
def test_laid_out_layers_give_the_same(name, monkeypatch):
    monkeypatch.setattr(linear, "_LEAST_PACKED", 0)
    tokens, laid_out, plain = targets(3), optimize_for_inference(model(name)), model(name)
    assert not any(isinstance(module, nn.Linear) for module in laid_out.modules())
    with torch.inference_mode():
        torch.testing.assert_close(laid_out(SOURCE, tokens), plain(SOURCE, tokens))
        settings = DecodeConfig(num_beams=3, max_length=10, beta=0)
        found, expected = (beam_search(one, one.encode(SOURCE), settings) for one in (laid_out, plain))
    assert [[one.ids for one in example] for example in found] == [[one.ids for one in example] for example in expected]


@pytest.mark.parametrize("name", SPECS)
def test_bf16_layers_give_the_values_of_autocast(name, monkeypatch):
    # DeepSpeed's ZeRO-3 leaves another function in the process, which does not round biases.
    monkeypatch.setattr(nn.functional, "linear", torch._C._nn.linear)
    tokens, rounded, plain = targets(3), optimize_for_inference(model(name), "bf16"), model(name)
    assert not any(isinstance(module, nn.Linear) for module in rounded.modules())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(rounded(SOURCE, tokens), plain(SOURCE, tokens), atol=0, rtol=0)


@pytest.mark.parametrize("name", SPECS)
def test_logits_stay_near(name):
    tokens, quantized = targets(3), model(name)
    with torch.no_grad():
        exact = quantized(SOURCE, tokens)
        optimize_for_inference(quantized, "int8")
        found = quantized(SOURCE, tokens)
    assert not any(isinstance(module, nn.Linear) for module in quantized.modules())
    error = (found - exact).abs().max() / exact.std()
    assert 0 < error < TOLERANCE, error
    with torch.inference_mode():
        found = beam_search(quantized, quantized.encode(SOURCE), DecodeConfig(num_beams=3, max_length=10))
    assert all(example[0].ids for example in found)


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_layer_is_quantized_tied_or_not(tied):
    one = model_of("L/P", tied_output=tied).eval()
    hidden = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = one.logits(hidden)
        optimize_for_inference(one, "int8")
        near = one.logits(hidden)
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, atol=0.05 * float(exact.std()), rtol=0)


@pytest.mark.parametrize("name", ["L/F", "LG/FP", "L/V", "tdmca", "txl"])
def test_cached_decoding_is_near_teacher_forcing(name):
    """Near and not equal: how finely inputs are rounded depends on what is computed together."""
    quantized, tokens = model(name), targets(6, length=7)
    optimize_for_inference(quantized, "int8")
    with torch.no_grad():
        state = quantized.start(quantized.encode(SOURCE), 2)
        steps = [quantized.step(column, state, attention=True) for column in tokens.unbind(1)]
        repeated = pack([example for example in EXAMPLES for _ in range(2)])
        hidden, attention = quantized.decode(tokens, quantized.encode(repeated), attention=True)
        forced = quantized.logits(hidden)
    found = torch.stack([logits for logits, _ in steps], 1)
    assert (found - forced).abs().max() / forced.std() < TOLERANCE
    torch.testing.assert_close(torch.stack([share for _, share in steps], 1), attention, atol=0.05, rtol=0)


def test_what_int8_needs_is_said(monkeypatch):
    with pytest.raises(UserError, match="int8 needs a CPU.*meta"):
        optimize_for_inference(model_of("L/F").to("meta"), "int8")
    monkeypatch.setattr(type(torch.backends.quantized), "engine", property(lambda self: "none"))
    with pytest.raises(UserError, match="no int8 engine"):
        optimize_for_inference(model_of("L/F"), "int8")
