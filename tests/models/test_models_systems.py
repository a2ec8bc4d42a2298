"""The systems outside the layer family equal plain references, themselves under padding, and their own steps."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import references
from helpers.small_models import EXAMPLES, build_seeded, log_probs, objective_of, pack, shaken, targets
from helpers.special_ids import BOS, EOS, PAD
from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import beam_search
from raysum.decode.scores import length_norm, shares, terms
from raysum.decode.searching import attention_of
from raysum.errors import UserError
from raysum.models.batch import Batch, Source
from raysum.models.kernels import cache
from raysum.models.systems.specs import GraphSumSpec, TdmcaSpec, TxlSpec
from raysum.systems import Spec, count_parameters
from raysum.train.labels import attention_labels

WET = {"vocabulary": 40, "width": 16, "ffn": 24, "heads": 2}
SIZES = {**WET, "dropout": 0.0, "attention_dropout": 0.0}
GRAPHSUM = {"local_layers": 2, "graph_layers": 2, "decoder_layers": 2, "sinusoid": "halves"}
SYSTEMS: dict[str, Spec] = {
    "tdmca": TdmcaSpec(**SIZES, layers="LMLML", block=4, compression=3),
    "tdmca, all in one block": TdmcaSpec(**SIZES, layers="ML", block=64, compression=2),
    "txl": TxlSpec(**SIZES, layers=3, segment=4, memory=4, norm="post", sinusoid="halves"),
    "txl, long memory": TxlSpec(**SIZES, layers=2, segment=3, memory=5, norm="post", sinusoid="halves"),
    "txl, one segment": TxlSpec(**SIZES, layers=2, segment=64, memory=8, norm="post", sinusoid="halves"),
    "graphsum": GraphSumSpec(**SIZES, **GRAPHSUM),
    "graphsum, paper": GraphSumSpec(**SIZES, **GRAPHSUM, form="paper", sigma=0.7),
}
every_system = pytest.mark.parametrize("name", SYSTEMS)
BEAMS, LENGTH = 2, 9


def system(name: str) -> nn.Module:
    return shaken(build_seeded(SYSTEMS[name])).eval()


def graph_of(example: int, size: int) -> Tensor:
    """Similarities of the paragraphs of ``EXAMPLES[example]``, 1 between a paragraph and itself."""
    values = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(5))[example, :size, :size]
    values = (values + values.T) / 2
    return values.fill_diagonal_(1.0)


def source_of(chosen: Sequence[int], empty: bool = False, wider: int = 0) -> Source:
    """The examples ``chosen``; with empty paragraphs, or a graph padded by ``wider`` values that mean nothing."""
    paragraphs = [EXAMPLES[n] for n in chosen]
    if empty:
        paragraphs = [[*example[:1], [], *example[1:], []] for example in paragraphs]
    source = pack(paragraphs)
    most = max(len(EXAMPLES[n]) for n in chosen)
    graph = torch.full((len(chosen), most, most), 0.37)
    for row, n in enumerate(chosen):
        size = len(EXAMPLES[n])
        graph[row, :size, :size] = graph_of(n, size) - torch.eye(size)  # datasets have no self loops
    return Source(source.ids, source.lengths, source.counts, graph)


def reference(name: str, model: nn.Module, example: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    spec, weights = SYSTEMS[name], dict(model.named_parameters())
    paragraphs, target = EXAMPLES[example], tokens.tolist()
    if isinstance(spec, TdmcaSpec):
        return references.tdmca(
            weights,
            paragraphs,
            target,
            layers=spec.layers,
            heads=spec.heads,
            block=spec.block,
            factor=spec.compression,
        )
    if isinstance(spec, TxlSpec):
        sizes = {"layers": spec.layers, "segment": spec.segment, "memory": spec.memory}
        return references.txl(weights, paragraphs, target, heads=spec.heads, **sizes)
    graph = graph_of(example, len(paragraphs))
    sizes = {key: getattr(spec, key) for key in ("local_layers", "graph_layers", "decoder_layers", "sigma", "form")}
    return references.graphsum(weights, paragraphs, target, graph, heads=spec.heads, **sizes)


@every_system
def test_equals_the_plain_reference(name):
    model, tokens = system(name), targets(3, LENGTH)
    with torch.no_grad():
        hidden, attention = model.decode(tokens, model.encode(source_of([0, 1, 2])), attention=True)
        found = log_probs(model, hidden)
        for row, example in enumerate(EXAMPLES):
            expected, share = reference(name, model, row, tokens[row])
            torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(attention[row, :, : len(example)], share, atol=1e-5, rtol=0)
            assert not attention[row, :, len(example) :].any()


@pytest.mark.parametrize("name", [name for name in SYSTEMS if "graphsum" in name])
def test_graphsum_attends_to_tokens_with_the_weights_of_their_paragraphs(name):
    model, tokens = system(name), targets(3, LENGTH)
    with torch.no_grad():
        memory = model.encode(source_of([0, 1, 2]))
        _, by_paragraph = model.decode(tokens, memory, attention=True)
        _, by_token = model.decode(tokens, memory, attention="tokens")
    torch.testing.assert_close(by_token.sum(-1), by_paragraph, atol=1e-6, rtol=0)
    assert not by_token[~memory.token_mask[:, None].expand_as(by_token)].any()


@every_system
def test_examples_selected_from_a_memory_decode_as_before(name):
    model, tokens = system(name), targets(3, LENGTH)
    with torch.no_grad():
        memory = model.encode(source_of([0, 1, 2]))
        hidden, attention = model.decode(tokens, memory, attention=True)
        for chosen in ([1], [0, 2]):
            found, share = model.decode(tokens[chosen], memory.select(chosen), attention=True)
            torch.testing.assert_close(found, hidden[chosen], atol=1e-5, rtol=0)
            width = min(share.shape[-1], attention.shape[-1])
            torch.testing.assert_close(share[..., :width], attention[chosen][..., :width], atol=1e-5, rtol=0)


@every_system
def test_gradients_equal_those_of_the_plain_reference(name):
    """Where Transformer-XL stops them, too."""
    model, tokens = system(name), targets(3, LENGTH)
    F.cross_entropy(model(source_of([0, 1, 2]), tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    found = {key: value.grad.clone() for key, value in model.named_parameters()}
    model.zero_grad()
    rows = [reference(name, model, row, tokens[row])[0][:-1] for row in range(3)]
    F.nll_loss(torch.cat(rows), tokens[:, 1:].flatten()).backward()
    for key, value in model.named_parameters():
        torch.testing.assert_close(found[key], value.grad, atol=1e-5, rtol=1e-4, msg=lambda m, key=key: f"{key}: {m}")


@every_system
def test_padding_changes_nothing(name):
    """An empty paragraph, more target padding, an example alone or in a batch: equal outputs."""
    model, tokens = system(name), targets(3, LENGTH)
    with torch.no_grad():
        together, attention = model.decode(tokens, model.encode(source_of([0, 1, 2])), attention=True)
        padded_tokens = torch.cat([tokens, torch.full((3, 4), PAD)], 1)
        padded, _ = model.decode(padded_tokens, model.encode(source_of([0, 1, 2], empty=True)))
        torch.testing.assert_close(padded[:, :LENGTH], together, atol=1e-6, rtol=1e-6)
        for row, example in enumerate(EXAMPLES):
            alone, share = model.decode(tokens[row : row + 1], model.encode(source_of([row])), attention=True)
            torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(share[0], attention[row, :, : len(example)], atol=1e-6, rtol=1e-6)


@every_system
def test_the_future_is_not_seen(name):
    model, tokens = system(name), targets(3, LENGTH)
    changed = tokens.clone()
    changed[:, 5:] = 39
    with torch.no_grad():
        first, second = (model(source_of([0, 1, 2]), t) for t in (tokens, changed))
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:], atol=1e-3)


def stepped(model: nn.Module, state, tokens: Tensor) -> tuple[Tensor, Tensor]:
    outputs = [model.step(column, state, attention=True) for column in tokens.unbind(1)]
    return torch.stack([o[0].log_softmax(-1) for o in outputs], 1), torch.stack([o[1] for o in outputs], 1)


@every_system
def test_cached_equals_teacher_forced(name, monkeypatch):
    monkeypatch.setattr(cache, "_ROOM", 4)  # so that the cache grows on the way
    model, tokens = system(name), targets(3 * BEAMS, LENGTH)
    with torch.no_grad():
        state = model.start(model.encode(source_of([0, 1, 2])), BEAMS)
        found, share = stepped(model, state, tokens)
        repeated = model.encode(source_of([0, 0, 1, 1, 2, 2]))
        hidden, attention = model.decode(tokens, repeated, attention=True)
    torch.testing.assert_close(found, log_probs(model, hidden), atol=1e-5, rtol=0)
    torch.testing.assert_close(share, attention, atol=1e-5, rtol=0)


@every_system
def test_reordered_beams_continue_their_new_histories_when_examples_leave(name, monkeypatch):
    monkeypatch.setattr(cache, "_ROOM", 2)  # so that tokens in no beam's past are dropped on the way
    model, tokens = system(name), targets(3 * BEAMS, LENGTH)
    parent, staying = torch.tensor([[1, 1], [1, 0], [0, 0]]), torch.tensor([0, 2])
    with torch.no_grad():
        memory = model.encode(source_of([0, 1, 2]))
        state = model.start(memory, BEAMS)
        stepped(model, state, tokens[:, :4])
        state.reorder(parent)
        state.keep(staying)
        rows = (staying[:, None] * BEAMS + torch.arange(BEAMS)).flatten()
        found, share = stepped(model, state, tokens[rows, 4:])
        assert state.positions.shape[1] < LENGTH * BEAMS
        order = (parent + torch.arange(0, 6, BEAMS)[:, None]).flatten()
        histories = torch.cat([tokens[order, :4], tokens[:, 4:]], 1)
        expected, attention = stepped(model, model.start(memory, BEAMS), histories)
    torch.testing.assert_close(found, expected[rows, 4:], atol=1e-5, rtol=0)
    torch.testing.assert_close(share, attention[rows, 4:], atol=1e-5, rtol=0)


@every_system
def test_parameters_are_those_of_the_formula_and_all_learn(name):
    spec = SYSTEMS[name].model_copy(update={"dropout": 0.2, "attention_dropout": 0.2, "tied_output": False})
    for norm in ("pre", "post"):
        normed = spec.model_copy(update={"norm": norm})
        model = build_seeded(normed).train()
        assert sum(value.numel() for value in model.parameters()) == count_parameters(normed)
        tokens = targets(3, LENGTH)
        F.cross_entropy(model(source_of([0, 1, 2]), tokens).flatten(0, 1), tokens.flatten()).backward()
        assert not [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()]
        assert all(value.grad.isfinite().all() for value in model.parameters())


def target_batch() -> Tensor:
    """[3, 8]: BOS, five ids (fewer in the first), EOS, PAD."""
    ids = targets(3, 8)
    ids[:, 0], ids[:, 6], ids[:, 7] = BOS, EOS, PAD
    ids[0, 4], ids[0, 5:] = EOS, PAD
    return ids


@every_system
def test_learns_and_decodes(name):
    model = build_seeded(SYSTEMS[name])
    batch, objective = Batch(source_of([0, 1, 2]), target_batch()), objective_of(model, 0.0)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01)
    for _ in range(200):
        loss = objective(batch)
        if loss < 0.3:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.3  # the sum over 14 tokens
    objective.eval()
    with torch.no_grad():
        memory = model.encode(batch.source)
        greedy = beam_search(model, memory, DecodeConfig(num_beams=1, max_length=12))
        even = memory.paragraph_mask / memory.paragraph_mask.sum(-1, keepdim=True)
        settings = DecodeConfig(num_beams=3, max_length=12, n_best=3, beta=0.5, alignment_when="final")
        found = beam_search(model, memory, settings, terms(settings, memory, even))
        weights = [one for (one,) in attention_of(model, memory, [[example[0].ids] for example in found])]
    for row, (example, attention) in enumerate(zip(found, weights, strict=True)):
        assert greedy[row][0].ids == [i for i in batch.target[row, 1:].tolist() if i != PAD]
        assert len(example[0].ids) == len(attention) and not attention[:, len(EXAMPLES[row]) :].any()
        for hypothesis in example:
            tokens = torch.tensor([[BOS, *hypothesis.ids]])
            with torch.no_grad():
                hidden, share = model.decode(tokens[:, :-1], model.encode(source_of([row])), attention=True)
            log_prob = log_probs(model, hidden)[0].gather(1, tokens[0, 1:, None]).sum()
            assert hypothesis.log_prob == pytest.approx(log_prob.item(), abs=1e-4)
            count = len(EXAMPLES[row])
            eta = shares(shares(share[0]).sum(0))[:count]  # of one pass; the search sums it step by step
            _, label = attention_labels(model, Batch(source_of([row]), tokens))
            torch.testing.assert_close(label[0, :count], eta)  # what a predictor learns is what the search compares
            alignment = 0.5 * eta.clamp(1e-6, 1 / count).log().sum().item() if count > 1 else 0.0
            norm = length_norm(settings, len(hypothesis.ids))
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / norm + alignment, abs=1e-3)


@pytest.mark.parametrize("name", ["tdmca", "txl"])
def test_source_tokens_are_learned_in_training_and_no_part_of_the_loss_that_is_shown(name):
    """The value is that of the target alone, as in validation; the gradient has the source's tokens, so weighted."""
    spec = SYSTEMS[name].model_copy(update={"source_loss": 0.5})
    model, batch = build_seeded(spec), Batch(source_of([0, 1, 2]), target_batch())
    objective = objective_of(model, 0.0)
    both, target_only = objective.train()(batch), objective.eval()(batch)
    assert both.item() == target_only.item()
    likely, source_nll, place = log_probs(model, model.encode(batch.source).tokens), 0.0, 0
    for example in EXAMPLES:
        for token in [token for paragraph in example for token in paragraph][1:] + [BOS]:
            source_nll = source_nll - likely[place, token]
            place += 1
    found, expected = (gradients(model, loss) for loss in (both, target_only + 0.5 * source_nll))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_graphsum_misses_a_graph_with_one_clear_message():
    with pytest.raises(UserError, match="needs a graph"):
        system("graphsum").encode(pack(EXAMPLES))


def test_graphsum_attends_along_the_graph():
    """With a narrow bias, a paragraph that has no edges is seen by none but itself."""
    model = system("graphsum").eval()
    near = torch.zeros(1, 3, 3)
    near[:, 0, 1] = near[:, 1, 0] = 1.0
    parts = [pack([[*EXAMPLES[0][:2], last]]) for last in ([15, 16, 17], [30, 31])]
    for sigma, alike in ((0.05, True), (50.0, False)):
        narrow = build_seeded(SYSTEMS["graphsum"].model_copy(update={"sigma": sigma})).eval()
        narrow.load_state_dict(model.state_dict())
        vectors = [narrow.encode(Source(s.ids, s.lengths, s.counts, near)).phi[0, :2] for s in parts]
        assert torch.allclose(*vectors, atol=1e-5) == alike


@pytest.mark.parametrize("whole", [True, False], ids=["bf16 parameters", "autocast"])
@every_system
def test_bfloat16_stays_close_to_float32(name, whole):
    model, tokens = build_seeded(SYSTEMS[name]), targets(3, LENGTH)
    with torch.no_grad():
        exact = model(source_of([0, 1, 2]), tokens)
    if whole:
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
        logits = model(source_of([0, 1, 2]), tokens)
    F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
    assert all(value.grad.isfinite().all() for value in model.parameters())
    assert (logits.float() - exact).abs().max() < 0.1 * exact.abs().max()
