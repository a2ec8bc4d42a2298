"""The parts written by hand against plain ones: the eq. 9 fusion, bounded chunks, dropout, linear layers."""

from functools import partial

import pytest
import torch

from helpers.small_models import DRY, EXAMPLES, model_of, pack, targets
from raysum.models.kernels import dropout, recomputation
from raysum.models.kernels import linear as linear_layers
from raysum.models.kernels.attention import _Fusion, attend, fuse, masked_softmax
from raysum.models.kernels.dropout import Dropout, draw_keep, drop, hashed_words, rounded
from raysum.models.kernels.linear import linear

LARGE = 3, 700, 256  # inputs whose products with [48, 256] are by oneDNN
B, H, Q, M, N, SIZE = 3, 2, 4, 3, 5, 4
COUNTS = (3, 1, 2)


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    query, key, value = (torch.randn(B, H, n, SIZE, dtype=dtype) for n in (Q, M * N, M * N))
    real = torch.arange(M) < torch.tensor(COUNTS)[:, None]
    share = torch.rand(B, Q, M, dtype=dtype) * real[:, None]
    token_mask = (real[..., None] & (torch.arange(N) < torch.tensor([5, 2, 4])[:, None])).flatten(1)
    return [t.requires_grad_() for t in (query, key, value, share)], token_mask


def plain(query, key, value, share, token_mask):
    """Eq. 8-9 literally: the context of each paragraph, then their weighted sum."""
    total = torch.zeros_like(query)
    for example, count in enumerate(COUNTS):
        for paragraph in range(count):
            span = slice(paragraph * N, paragraph * N + int(token_mask[example].view(M, N)[paragraph].sum()))
            k, v = key[example, :, span], value[example, :, span]
            context = (query[example] @ k.transpose(1, 2) * SIZE**-0.5).softmax(-1) @ v
            total[example] += share[example, :, paragraph, None] * context
    return total


@pytest.mark.parametrize("budget", [1, 1 << 21], ids=["an example a piece", "one piece"])
def test_fusion_equals_the_equations_in_value_and_gradient(budget, monkeypatch):
    monkeypatch.setitem(recomputation._ELEMENTS, "cpu", budget)
    tensors, mask = inputs()
    real = tensors[3] != 0  # padding paragraphs have no share, and no gradient
    expected = plain(*tensors[:3], tensors[3] * real, mask)
    found = fuse(*tensors[:3], tensors[3] * real, mask, COUNTS)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)  # weights are float32
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(context, tensors, weight) for context in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_fusion_with_dropout_has_the_gradient_of_what_it_computed():
    tensors, mask = inputs()

    def run(*values):
        return _Fusion.apply(*values, mask, torch.tensor(11), COUNTS, 0.4)

    assert not torch.allclose(run(*tensors), fuse(*tensors, mask, COUNTS), atol=1e-2)
    assert torch.autograd.gradcheck(run, tensors, eps=1e-3, atol=2e-3, rtol=1e-2, fast_mode=True)


def test_fusion_dropout_keeps_the_mean_and_repeats_with_the_seed():
    tensors, mask = inputs()
    torch.manual_seed(5)
    first = fuse(*tensors, mask, COUNTS, 0.3)
    mean = torch.stack([fuse(*tensors, mask, COUNTS, 0.3) for _ in range(500)]).mean(0)
    assert (mean - fuse(*tensors, mask, COUNTS)).abs().max() < 0.1
    torch.manual_seed(5)
    assert torch.equal(first, fuse(*tensors, mask, COUNTS, 0.3))


def test_chunks_cover_all_examples_within_the_budget(monkeypatch):
    monkeypatch.setitem(recomputation._ELEMENTS, "cpu", 60)
    counts = (1, 1, 4, 1, 2, 3, 9)
    found = list(recomputation.chunks(counts, 9, 10, torch.device("cpu")))
    assert [example for rows, _ in found for example in range(rows.start, rows.stop)] == list(range(7))
    for rows, most in found:
        assert most == max(counts[rows])
        assert len(counts[rows]) == 1 or len(counts[rows]) * most * 10 <= 60
    assert [rows for rows, _ in found][0] == slice(0, 2)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_small_chunks_give_the_same_gradients(rate, monkeypatch):
    """Recomputed in backward piece by piece: with dropout it must draw the same numbers again."""
    options = {**DRY, "attention_dropout": rate, "dropout": rate}
    model, source, tokens = model_of("L/PV", **options).train(), pack(EXAMPLES), targets(3)

    def gradients():
        model.zero_grad()
        torch.manual_seed(2)
        loss = model(source, tokens).square().mean()
        loss.backward()
        return loss.item(), [value.grad.clone() for value in model.parameters()]

    if rate:  # the numbers drawn depend on the chunks, so compare with finite differences along the gradient
        monkeypatch.setitem(recomputation._ELEMENTS, "cpu", 1)
        loss, grads = gradients()
        step = 1e-3 / sum(g.square().sum() for g in grads).sqrt()
        with torch.no_grad():
            for value, grad in zip(model.parameters(), grads, strict=True):
                value -= step * grad
        expected = sum(g.square().sum() for g in grads) * step
        assert loss - gradients()[0] == pytest.approx(expected.item(), rel=0.05)
        return
    _, whole = gradients()
    monkeypatch.setitem(recomputation._ELEMENTS, "cpu", 1)
    torch.testing.assert_close(gradients()[1], whole, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_dropout_drops_its_share_keeps_the_mean_and_masks_the_gradient(rate):
    torch.manual_seed(0)
    values = torch.ones(200, 501, requires_grad=True)
    found = drop(values, rate)
    kept = found != 0
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.005)
    assert found.mean().item() == pytest.approx(1, abs=0.01)
    found.sum().backward()
    torch.testing.assert_close(values.grad, kept / (1 - rounded(rate)))
    rows = kept.float()  # neighbours share a 64-bit draw and must be independent all the same
    for offset in (1, 2, 3):
        both = (rows[:, offset:] * rows[:, :-offset]).mean().item()
        assert both == pytest.approx((1 - rate) ** 2, abs=0.01)


def test_hashed_words_are_those_of_splitmix64():
    words = [word % 2**64 for word in hashed_words(3, torch.tensor(1234567)).tolist()]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_by_hash_are_independent_of_their_neighbours_and_of_other_seeds(rate, monkeypatch):
    monkeypatch.setattr(dropout, "has_cpu_kernels", lambda device: False)
    shape, seed = torch.Size([1000, 1001]), torch.tensor((1 << 62) - 1)
    mask = draw_keep(shape, rate, seed)
    assert torch.equal(mask, draw_keep(shape, rate, seed))
    others = [mask.flatten().roll(step) for step in (1, 2, 3, 4, 1001)]
    others += [draw_keep(shape, rate, torch.tensor(number)).flatten() for number in (0, 1, (1 << 62) - 2)]
    for both, share in [(mask, 1 - rate), *((mask.flatten() & other, (1 - rate) ** 2) for other in others)]:
        deviation = (share * (1 - share) / mask.numel()) ** 0.5
        assert abs(both.float().mean().item() - share) < 4 * deviation
    assert draw_keep(shape, rate, torch.empty((), dtype=torch.int64, device="meta")).shape == shape


def test_fusion_draws_the_same_hashed_mask_in_backward(monkeypatch):
    monkeypatch.setattr(dropout, "has_cpu_kernels", lambda device: False)
    test_fusion_with_dropout_has_the_gradient_of_what_it_computed()
    test_fusion_dropout_keeps_the_mean_and_repeats_with_the_seed()


def test_dropout_is_the_identity_outside_training_and_repeats_with_the_seed():
    layer, values = Dropout(0.5), torch.randn(4, 4)
    assert torch.equal(layer.eval()(values), values) and layer.active == 0
    draws = []
    for _ in range(2):
        torch.manual_seed(9)
        draws.append(layer.train()(values))
    assert torch.equal(*draws)
    assert draw_keep(torch.Size([3, 5]), 0.0, torch.tensor(1)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("budget", [1, 1 << 21], ids=["a head a piece", "one piece"])
def test_attention_with_dropout_equals_its_products_in_value_and_gradient(budget, causal, monkeypatch):
    monkeypatch.setitem(recomputation._ELEMENTS, "cpu", budget)
    torch.manual_seed(2)
    tensors = [torch.randn(B, H, 6, SIZE, requires_grad=True) for _ in range(3)]
    mask = None if causal else torch.tensor([[True] * 6, [True] * 2 + [False] * 4, [False] * 6])[:, None, None]
    query, key, value = tensors
    torch.manual_seed(5)
    found = attend(query, key, value, mask, causal, dropout=0.3)
    torch.manual_seed(5)
    seed = torch.randint(1 << 62, ())
    step = B * H if budget > 1 else 1
    starts = [seed + number for number in range(0, B * H, step)]
    drawn = [draw_keep(torch.Size([step, 6, 6]), 0.3, start) for start in starts]
    factor = torch.cat(drawn).view(B, H, 6, 6) / (1 - rounded(0.3))
    allowed = torch.ones(6, 6, dtype=torch.bool).tril() if causal else mask
    weights = masked_softmax(query @ key.transpose(-1, -2) * SIZE**-0.5, allowed)
    expected = (weights * factor) @ value
    torch.testing.assert_close(found, expected)
    if not causal:
        assert not found[2].any(), "a row without keys gives zeros"
    gradient = torch.randn_like(found)
    ours = torch.autograd.grad(found, tensors, gradient)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, tensors, gradient))


def test_relu_with_dropout_is_both_in_value_and_gradient():
    x = torch.randn(40, 30, requires_grad=True)
    gradient = torch.randn(40, 30)
    found = []
    for function in (partial(drop, relu=True), lambda values, rate: drop(torch.relu(values), rate)):
        torch.manual_seed(4)
        y = function(x, 0.2)
        found.append((y, *torch.autograd.grad(y, x, gradient)))
    torch.testing.assert_close(*found)


@pytest.fixture
def by_onednn(monkeypatch):
    """Matrices of [48, 256] are large enough for oneDNN."""
    monkeypatch.setattr(linear_layers, "_LEAST_MATRIX", 0)


@pytest.mark.parametrize("shape", [LARGE, LARGE[1:], (2, 5, 256)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_layers_are_torchs_in_value_and_gradient(shape, with_bias, by_onednn):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*sizes, requires_grad=True) for sizes in (shape, (48, 256), (48,)))
    inputs = [x, weight, *([bias] if with_bias else [])]
    found, expected = (one(*inputs) for one in (linear, torch.nn.functional.linear))
    assert type(found.grad_fn).__name__ == "_LinearBackward", "it is computed by oneDNN"
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    gradient = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(y, inputs, gradient) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-5)


def test_a_frozen_matrix_gets_no_gradient_and_its_input_does(by_onednn):
    x, weight = torch.randn(LARGE, requires_grad=True), torch.randn(48, 256)
    linear(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(LARGE), atol=1e-4, rtol=1e-5)
    assert weight.grad is None


def test_linear_layers_follow_autocast_and_other_dtypes(by_onednn):
    x, weight = torch.randn(LARGE), torch.randn(48, 256)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
    x, weight = x.double(), weight.double()
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
