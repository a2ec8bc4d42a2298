"""All summarizing systems: padding, the future and the cache change nothing, attention adds up, and all of them learn.

The systems outside the layer family also equal plain references.
"""

from collections.abc import Iterable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import references
from helpers.small_models import (
    DRY,
    EXAMPLES,
    MIXES,
    build_seeded,
    log_probs,
    model_of,
    objective_of,
    pack,
    shaken,
    spec,
    targets,
)
from helpers.special_ids import BOS, EOS, PAD
from raysum.config.decoding import DecodeConfig
from raysum.decode.attention import attention_of
from raysum.decode.beam import beam_search
from raysum.decode.scores import shares, terms
from raysum.errors import UserError
from raysum.models import keys
from raysum.models.batch import Batch, Source
from raysum.models.kernels.attention import fuse
from raysum.models.keys import WordAttention, WordKeys
from raysum.models.systems.specs import GraphSumSpec, TdmcaSpec, TxlSpec
from raysum.systems import Spec, count_parameters
from raysum.train.labels import attention_labels

SIZES = {"vocabulary": 40, "width": 16, "ffn": 24, "heads": 2, **DRY}
GRAPHSUM = {"local_layers": 2, "graph_layers": 2, "decoder_layers": 2, "sinusoid": "halves"}
TXL = {"norm": "post", "sinusoid": "halves"}
SYSTEMS: dict[str, Spec] = {
    "tdmca": TdmcaSpec(**SIZES, layers="LMLML", block=4, compression=3),
    "tdmca, all in one block": TdmcaSpec(**SIZES, layers="ML", block=64, compression=2),
    "txl": TxlSpec(**SIZES, **TXL, layers=3, segment=4, memory=4),
    "txl, long memory": TxlSpec(**SIZES, **TXL, layers=2, segment=3, memory=5),
    "txl, one segment": TxlSpec(**SIZES, **TXL, layers=2, segment=64, memory=8),
    "graphsum": GraphSumSpec(**SIZES, **GRAPHSUM),
    "graphsum, paper": GraphSumSpec(**SIZES, **GRAPHSUM, form="paper", sigma=0.7),
}
COPYING = {f"{mix}, copying": spec(mix, copy_heads=2, **DRY) for mix in ("S/F", "L/P", "L/V", "LG/VF", "LG/FP")}
SPECS = {mix: spec(mix, **DRY) for mix in MIXES} | COPYING | SYSTEMS
SPECS_OF_BOTH_NORMS = SPECS | {f"{mix}, post": spec(mix, norm="post", **DRY) for mix in MIXES}
TO_TOKENS = [name for name, one in SPECS.items() if one.attends_to_tokens]
every_system = pytest.mark.parametrize("name", SPECS)
every_system_outside_the_family = pytest.mark.parametrize("name", SYSTEMS)
BEAMS, LENGTH = 2, 9


def model(name: str) -> nn.Module:
    return shaken(build_seeded(SPECS_OF_BOTH_NORMS[name])).eval()


def graph_of(example: int, size: int) -> Tensor:
    """Similarities of the paragraphs of ``EXAMPLES[example]``, 1 between a paragraph and itself."""
    values = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(5))[example, :size, :size]
    return ((values + values.T) / 2).fill_diagonal_(1.0)


def source_of(chosen: Sequence[int], empty: bool = False) -> Source:
    """The examples ``chosen``, also with empty paragraphs. Their graphs are padded by values without meaning."""
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


ALL = source_of([0, 1, 2])


def requests(name: str) -> list:
    return [True, "tokens"] if SPECS_OF_BOTH_NORMS[name].attends_to_tokens else [True]


# References


def reference(name: str, model: nn.Module, example: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    one, weights = SYSTEMS[name], dict(model.named_parameters())
    inputs = weights, EXAMPLES[example], tokens.tolist()
    if isinstance(one, TdmcaSpec):
        sizes = {"layers": one.layers, "block": one.block, "factor": one.compression}
        return references.tdmca(*inputs, heads=one.heads, **sizes)
    if isinstance(one, TxlSpec):
        sizes = {"layers": one.layers, "segment": one.segment, "memory": one.memory}
        return references.txl(*inputs, heads=one.heads, **sizes)
    graph = graph_of(example, len(EXAMPLES[example]))
    sizes = {key: getattr(one, key) for key in ("local_layers", "graph_layers", "decoder_layers", "sigma", "form")}
    return references.graphsum(*inputs, graph, heads=one.heads, **sizes)


@every_system_outside_the_family
def test_equals_the_plain_reference_in_values_and_gradients(name):
    """The gradients of Transformer-XL stop where the reference stops them."""
    one, tokens = model(name), targets(3, LENGTH)
    hidden, attention = one.decode(tokens, one.encode(ALL), attention=True)
    found = log_probs(one, hidden)
    expected, paid = zip(*(reference(name, one, row, tokens[row]) for row in range(3)), strict=True)
    for row, share in enumerate(paid):
        torch.testing.assert_close(found[row], expected[row], atol=1e-5, rtol=0)
        torch.testing.assert_close(attention[row, :, : share.shape[1]], share, atol=1e-5, rtol=0)
        assert not attention[row, :, share.shape[1] :].any()
    likely = found[:, :-1].flatten(0, 1), torch.cat([row[:-1] for row in expected])
    ours, theirs = (gradients(one, F.nll_loss(rows, tokens[:, 1:].flatten())) for rows in likely)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def gradients(one: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    one.zero_grad()
    loss.backward()
    return {key: parameter.grad.clone() for key, parameter in one.named_parameters()}


# Invariance


@pytest.mark.parametrize("name", SPECS_OF_BOTH_NORMS)
@torch.no_grad()
def test_padding_changes_nothing(name):
    """An empty paragraph, more target padding, an example alone or in a batch: equal outputs."""
    one, tokens = model(name), targets(3, LENGTH)
    longer, with_empty = torch.cat([tokens, torch.full((3, 4), PAD)], 1), source_of([0, 1, 2], empty=True)
    (padded, _), scores = one.decode(longer, one.encode(with_empty)), one(ALL, tokens)
    torch.testing.assert_close(one(with_empty, longer)[:, :LENGTH], scores, atol=1e-5, rtol=0)
    for request in requests(name):
        together, attention = one.decode(tokens, one.encode(ALL), attention=request)
        torch.testing.assert_close(padded[:, :LENGTH], together, atol=1e-6, rtol=1e-6)
        for row, example in enumerate(EXAMPLES):
            source, target = source_of([row]), tokens[row : row + 1]
            torch.testing.assert_close(one(source, target)[0], scores[row], atol=1e-5, rtol=0)
            alone, share = one.decode(target, one.encode(source), attention=request)
            torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=1e-6)
            real = [slice(size) for size in share.shape[1:]]
            torch.testing.assert_close(share[0], attention[(row, *real)], atol=1e-6, rtol=1e-6)
            assert not attention[row, :, len(example) :].any()


@every_system
@torch.no_grad()
def test_the_future_is_not_seen(name):
    one, tokens = model(name), targets(3, LENGTH)
    changed = tokens.clone()
    changed[:, 5:] = 39
    first, second = (one(ALL, each) for each in (tokens, changed))
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:], atol=1e-3)


@every_system
@torch.no_grad()
def test_examples_selected_from_a_memory_decode_as_before(name):
    one, tokens = model(name), targets(3, LENGTH)
    memory = one.encode(ALL)
    hidden, attention = one.decode(tokens, memory, attention=True)
    for chosen in ([1], [0, 2], [1, 2]):
        part = memory.select(chosen)
        found, share = one.decode(tokens[chosen], part, attention=True)
        torch.testing.assert_close(found, hidden[chosen], atol=1e-5, rtol=0)
        width = min(share.shape[-1], attention.shape[-1])
        torch.testing.assert_close(share[..., :width], attention[chosen][..., :width], atol=1e-5, rtol=0)
        assert part.paragraph_mask.sum() == memory.paragraph_mask[chosen].sum()


# Steps


def stepped(one: nn.Module, state, columns: Iterable[Tensor], request=True) -> tuple[Tensor, Tensor]:
    """Log-probabilities [B * R, K, V] and attention [B * R, K, ...] of feeding tokens [B * R, K] one by one."""
    outputs = [one.step(column, state, attention=request) for column in columns]
    return torch.stack([o[0].log_softmax(-1) for o in outputs], 1), torch.stack([o[1] for o in outputs], 1)


@pytest.mark.parametrize("name", SPECS_OF_BOTH_NORMS)
@torch.no_grad()
def test_cached_equals_teacher_forced(name, monkeypatch):
    monkeypatch.setattr(keys, "_ROOM", 4)  # so that the cache grows on the way
    one, tokens = model(name), targets(3 * BEAMS, LENGTH)
    for request in requests(name):
        found, share = stepped(one, one.start(one.encode(ALL), BEAMS), tokens.unbind(1), request)
        repeated = source_of([0, 0, 1, 1, 2, 2])
        _, attention = one.decode(tokens, one.encode(repeated), attention=request)
        torch.testing.assert_close(found, one(repeated, tokens).log_softmax(-1), atol=1e-5, rtol=0)
        torch.testing.assert_close(share, attention, atol=1e-5, rtol=0)


@every_system
@torch.no_grad()
def test_reordered_beams_continue_their_new_histories_when_examples_leave(name, monkeypatch):
    monkeypatch.setattr(keys, "_ROOM", 2)  # so that tokens in no beam's past are dropped on the way
    one, tokens = model(name), targets(3 * BEAMS, LENGTH)
    parent, staying = torch.tensor([[1, 1], [1, 0], [0, 0]]), torch.tensor([0, 2])
    memory = one.encode(ALL)
    state = one.start(memory, BEAMS)
    for column in tokens[:, :4].unbind(1):
        assert one.step(column, state)[1] is None
    state.reorder(parent)
    state.keep(staying)
    rows = (staying[:, None] * BEAMS + torch.arange(BEAMS)).flatten()
    found, share = stepped(one, state, tokens[rows, 4:].unbind(1))
    assert state.positions.shape[1] < LENGTH * BEAMS
    order = (parent + torch.arange(0, 6, BEAMS)[:, None]).flatten()
    histories = torch.cat([tokens[order, :4], tokens[:, 4:]], 1)
    expected, attention = stepped(one, one.start(memory, BEAMS), histories.unbind(1))
    torch.testing.assert_close(found, expected[rows, 4:], atol=1e-5, rtol=0)
    torch.testing.assert_close(share, attention[rows, 4:], atol=1e-5, rtol=0)


@torch.no_grad()
def test_source_keys_are_not_repeated_for_beams_nor_touched_by_reordering():
    one = model_of("L/FPV").eval()
    memory = one.encode(ALL)
    few, many = one.start(memory, 1), one.start(memory, 50)
    for one_key, other in zip(few.keys, many.keys, strict=True):
        assert one_key.key.shape == other.key.shape
    before = [keys.key for keys in many.keys]
    one.step(targets(150, 1)[:, 0], many)
    many.reorder(torch.zeros(3, 50, dtype=torch.long))
    assert all(keys.key is key for keys, key in zip(many.keys, before, strict=True))


# Attention


@pytest.mark.parametrize("name", TO_TOKENS)
@torch.no_grad()
def test_attention_to_paragraphs_sums_to_the_number_of_layers_and_that_to_tokens_to_it(name):
    one, tokens = model(name), targets(3)
    memory = one.encode(ALL)
    plain, none = one.decode(tokens, memory)
    (hidden, by_paragraph), (same, by_token) = (one.decode(tokens, memory, attention=r) for r in (True, "tokens"))
    assert none is None and by_paragraph.shape == (3, 6, 3) and by_paragraph.dtype == torch.float32
    assert by_token.shape == (3, 6, *memory.token_mask.shape[1:]) and by_token.dtype == torch.float32
    torch.testing.assert_close(hidden, plain)
    torch.testing.assert_close(same, plain)
    layers = float(SPECS[name].attending_layers)
    torch.testing.assert_close(by_paragraph.sum(-1), torch.full((3, 6), layers), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_token.sum(-1), by_paragraph, atol=1e-6, rtol=0)
    padding = ~memory.token_mask[:, None].expand_as(by_token)
    assert not by_token[padding].any() and (by_token[~padding] > 0).all()


@torch.no_grad()
def test_flat_attention_does_not_know_paragraphs():
    """The same tokens in one paragraph: the same weights, in the same order."""
    one = model_of("SS/FF", positions="flat").eval()
    cut, whole = pack(EXAMPLES[:1]), pack([[sum(EXAMPLES[0], [])]])
    weights = [one.decode(targets(1), one.encode(source), attention="tokens")[1] for source in (cut, whole)]
    real = cut.layout.grid_mask[0]
    torch.testing.assert_close(weights[0][0][:, real], weights[1][0, :, 0])


@pytest.mark.parametrize("heads", [1, 2])
def test_reported_tokens_have_the_weights_of_the_fused_contexts(heads):
    """With the unit matrix for values, the context is the list of weights."""
    generator = torch.Generator().manual_seed(0)
    paragraphs, length = 3, 4
    size = paragraphs * length
    query = torch.randn(2, heads, 5, size, generator=generator)
    key = torch.randn(2, heads, size, size, generator=generator)
    mask = torch.ones(2, paragraphs, length, dtype=torch.bool)
    mask[0, 1, 2:], mask[1, 2] = False, False
    share = torch.rand(2, 5, paragraphs, generator=generator) * mask.any(-1)[:, None]
    context = fuse(query, key, torch.eye(size).expand_as(key), share, mask.flatten(1), (3, 2))
    expected = context.mean(1).unflatten(-1, (paragraphs, length))
    keys = WordKeys((3, 2), key, key, mask, mask.flatten(1).long(), text=None)
    torch.testing.assert_close(WordAttention(query, share[:, None], keys).report("tokens"), expected)


# Learning

WET = {"dropout": 0.2, "attention_dropout": 0.2}
TRAINED = {
    f"{mix}, {norm}, {form}": spec(mix, norm=norm, form=form, ffn_dropout=0.2, **WET)
    for mix in [f"{e}/{d}" for e in "SLG" for d in "FPV"] + MIXES[-4:]
    for norm in ("pre", "post")
    for form in ("code", "paper")
} | {
    f"{name}, {norm}": one.model_copy(update=WET | {"norm": norm, "tied_output": False})
    for name, one in SYSTEMS.items()
    for norm in ("pre", "post")
}


@pytest.mark.parametrize("name", TRAINED)
def test_parameters_are_counted_and_all_learn(name):
    one, tokens = build_seeded(TRAINED[name]).train(), targets(3, LENGTH)
    assert sum(value.numel() for value in one.parameters()) == count_parameters(TRAINED[name])
    F.cross_entropy(one(ALL, tokens).flatten(0, 1), tokens.flatten()).backward()
    assert not [key for key, value in one.named_parameters() if value.grad is None or not value.grad.any()]
    assert all(value.grad.isfinite().all() for value in one.parameters())


@pytest.mark.parametrize("whole", [True, False], ids=["bf16 parameters", "autocast"])
@pytest.mark.parametrize("name", ["SLG/FPV", *SYSTEMS])
def test_bfloat16_stays_close_to_float32(name, whole):
    one, tokens = build_seeded(SPECS[name]), targets(3, LENGTH)
    with torch.no_grad():
        exact = one(ALL, tokens)
    if whole:
        one = one.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
        logits = one(ALL, tokens)
    F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
    assert all(value.grad.isfinite().all() for value in one.parameters())
    assert (logits.float() - exact).abs().max() < (0.1 if name in SYSTEMS else 0.08) * exact.abs().max()


def target_batch() -> Tensor:
    """[3, 8]: BOS, five ids (fewer in the first), EOS, PAD."""
    ids = targets(3, 8)
    ids[:, 0], ids[:, 6], ids[:, 7] = BOS, EOS, PAD
    ids[0, 4], ids[0, 5:] = EOS, PAD
    return ids


@every_system_outside_the_family
def test_learns_and_decodes(name):
    one = build_seeded(SYSTEMS[name])
    batch, objective = Batch(ALL, target_batch()), objective_of(one, 0.0)
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
        memory = one.encode(batch.source)
        greedy = beam_search(one, memory, DecodeConfig(num_beams=1, max_length=12))
        even = memory.paragraph_mask / memory.paragraph_mask.sum(-1, keepdim=True)
        settings = DecodeConfig(num_beams=3, max_length=12, n_best=3, beta=0.5, alignment_when="final")
        found = beam_search(one, memory, settings, terms(settings, memory, even))
        weights = [first for (first,) in attention_of(one, memory, [[example[0].ids] for example in found])]
    for row, (example, attention) in enumerate(zip(found, weights, strict=True)):
        assert greedy[row][0].ids == [i for i in batch.target[row, 1:].tolist() if i != PAD]
        assert len(example[0].ids) == len(attention) and not attention[:, len(EXAMPLES[row]) :].any()
        for hypothesis in example:
            tokens = torch.tensor([[BOS, *hypothesis.ids]])
            with torch.no_grad():
                hidden, share = one.decode(tokens[:, :-1], one.encode(source_of([row])), attention=True)
            log_prob = log_probs(one, hidden)[0].gather(1, tokens[0, 1:, None]).sum()
            assert hypothesis.log_prob == pytest.approx(log_prob.item(), abs=1e-4)
            count = len(EXAMPLES[row])
            eta = shares(shares(share[0]).sum(0))[:count]  # of one pass; the search sums it step by step
            _, label = attention_labels(one, Batch(source_of([row]), tokens))
            torch.testing.assert_close(label[0, :count], eta)  # what a predictor learns is what the search compares
            alignment = 0.5 * eta.clamp(1e-6, 1 / count).log().sum().item() if count > 1 else 0.0
            norm = ((5 + len(hypothesis.ids)) / 6) ** settings.length_penalty  # Wu et al. 2016, eq. 14
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / norm + alignment, abs=1e-3)


@pytest.mark.parametrize("name", ["tdmca", "txl"])
def test_source_tokens_are_learned_in_training_and_no_part_of_the_loss_that_is_shown(name):
    """The value is that of the target alone, as in validation; the gradient has the source's tokens, so weighted."""
    one, batch = build_seeded(SYSTEMS[name].model_copy(update={"source_loss": 0.5})), Batch(ALL, target_batch())
    objective = objective_of(one, 0.0)
    both, target_only = objective.train()(batch), objective.eval()(batch)
    assert both.item() == target_only.item()
    likely, gold = log_probs(one, one.encode(batch.source).tokens), []
    for example in EXAMPLES:
        gold += sum(example, [])[1:] + [BOS]
    source_nll = F.nll_loss(likely, torch.tensor(gold), reduction="sum")
    found, expected = (gradients(one, loss) for loss in (both, target_only + 0.5 * source_nll))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# Graphs


def test_graph_heads_take_the_graph_and_miss_it_with_one_clear_message():
    one = model_of("LG/F", graph_heads=2).eval()
    source = pack(EXAMPLES)
    with pytest.raises(UserError, match="graph_heads"):
        one.encode(source)
    near, far = torch.zeros(3, 3, 3), torch.zeros(3, 3, 3)
    near[:, 0, 1], far[:, 0, 2] = 2.0, 0.5
    outputs = [one.encode(Source(source.ids, source.lengths, source.counts, g)).tokens for g in (near, 3 * near, far)]
    torch.testing.assert_close(outputs[0], outputs[1])  # rows are normalized
    first, second = (source.layout.token_example == example for example in (0, 1))
    assert not torch.allclose(outputs[0][first], outputs[2][first], atol=1e-4)
    torch.testing.assert_close(outputs[0][second], outputs[2][second])  # it has no paragraph 1 or 2


def test_graphsum_attends_along_the_graph_and_misses_it_with_one_clear_message():
    """With a narrow bias, a paragraph that has no edges is seen by none but itself."""
    one = model("graphsum")
    with pytest.raises(UserError, match="needs a graph"):
        one.encode(pack(EXAMPLES))
    near = torch.zeros(1, 3, 3)
    near[:, 0, 1] = near[:, 1, 0] = 1.0
    parts = [pack([[*EXAMPLES[0][:2], last]]) for last in ([15, 16, 17], [30, 31])]
    for sigma, alike in ((0.05, True), (50.0, False)):
        narrow = build_seeded(SYSTEMS["graphsum"].model_copy(update={"sigma": sigma})).eval()
        narrow.load_state_dict(one.state_dict())
        vectors = [narrow.encode(Source(s.ids, s.lengths, s.counts, near)).phi[0, :2] for s in parts]
        assert torch.allclose(*vectors, atol=1e-5) == alike
