"""The attention of citations: in pretrained models to text only, summed over the chosen layers."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.small_models import DRY, EXAMPLES, SIZES, build_seeded, model_of, objective_of, pack, shaken, targets
from raysum.config.decoding import DecodeConfig
from raysum.decode.attention import attention_of, citing
from raysum.decode.beam import beam_search
from raysum.decode.scores import terms
from raysum.errors import UserError
from raysum.models.batch import Batch, Memory, Source
from raysum.models.family.spec import Backbone
from raysum.models.systems.specs import GraphSumSpec, TdmcaSpec, TxlSpec
from raysum.tokenizers.special_tokens import SpecialTokens
from raysum.train.labels import attention_labels

# As BART's: 7 is a colon and 8 the end of a line, which texts have, too.
MARKS = SpecialTokens(
    pad=0, start=2, end=2, prefix=(1,), suffix=(2,), title_end=(7, 8), paragraph_end=(8,), sentence_end=None,
    joined_end=(2,), target_prefix=(1,), unknown=None, mask=3,
)  # fmt: skip
MIXES = ["SS/FF", "LL/FF", "LG/PP", "LL/VV", "LL/FPV"]
# Each token with whether it is text: a title, which ends in a colon and a line's end, opens the first paragraph.
ALONE = [
    [[(1, 0), (9, 1), (7, 1), (10, 1), (7, 0), (8, 0), (11, 1), (7, 1), (2, 0)], [(1, 0), (12, 1), (8, 1), (2, 0)]],
    [[(1, 0), (13, 1), (14, 1), (7, 1), (8, 1), (15, 1), (2, 0)]],
]
JOINED = [
    [[(1, 0), (9, 1), (7, 1), (10, 1), (7, 0), (8, 0), (11, 1), (8, 0)], [(12, 1), (8, 1), (13, 1), (8, 0), (2, 0)]],
    [[(1, 0), (13, 1), (7, 1), (8, 1), (15, 1), (2, 0)]],
]


def source_of(tokens: list) -> tuple[Source, list[list[bool]]]:
    """A source, and whether each token of an example is text."""
    ids = [[[id for id, _ in paragraph] for paragraph in example] for example in tokens]
    text = [[bool(is_text) for paragraph in example for _, is_text in paragraph] for example in tokens]
    return replace(pack(ids), titles=torch.tensor([6, 0])), text


def case(mix: str, unlearned: bool = False, **options) -> tuple[nn.Module, Source, list]:
    """A pretrained model (its P and V may have learned nothing), a source, and whether each of its tokens is text."""
    flat = mix.startswith("S")
    options = {"backbone": Backbone(), "marks": MARKS, "positions": "flat" if flat else "paragraph", **DRY} | options
    model = model_of(mix, **options).eval()
    for name, value in model.named_parameters():
        if unlearned and name.endswith("cross.gate"):
            nn.init.zeros_(value)
    return model, *source_of(JOINED if flat else ALONE)


def whole_weights(model: nn.Module, memory: Memory, tokens: torch.Tensor) -> list[list[torch.Tensor]]:
    """The weights [H, K, S] of all tokens of each example, marks too, in each layer."""
    crosses, heads, found = [layer.cross for layer in model.decoder], model.spec.heads, []
    with hooked(crosses, lambda inputs, _: inputs[0]) as seen:
        model.decode(tokens, memory)
    for cross, inputs in zip(crosses, seen, strict=True):
        found.append([])
        for row, states in enumerate(memory.tokens.split(memory.source.layout.sizes.tolist())):
            key = cross.words.source(states).chunk(2, -1)[0].unflatten(-1, (heads, -1)).transpose(0, 1)
            query = cross.words.query(inputs[row]).unflatten(-1, (heads, -1)).transpose(0, 1)
            found[-1].append((query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])).softmax(-1))
    return found


@contextmanager
def hooked(modules, value) -> Iterator[list]:
    """Collect ``value(inputs, output)`` of the modules in the order of their calls."""
    seen = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output: seen.append(value(inputs, output))) for module in modules
    ]
    yield seen
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("tokens", [ALONE, JOINED])
def test_marks_have_their_ids_and_those_that_texts_have_their_positions(tokens):
    source, text = source_of(tokens)
    found = source.is_text(MARKS, tokens is JOINED)
    assert found.tolist() == [*chain.from_iterable(text)]
    untitled = replace(source, titles=None).is_text(MARKS, tokens is JOINED)
    assert (untitled != found).nonzero().flatten().tolist() == [4, 5]


def test_a_truncated_title_has_no_mark():
    source = replace(pack([[[1, 9, 7, 10, 2], [1, 11, 2]]]), titles=torch.tensor([4]))
    assert source.is_text(MARKS).tolist() == [False, True, True, True, False, False, True, False]


@pytest.mark.parametrize("mix", MIXES)
def test_reported_attention_is_that_to_text_in_the_whole_weights(mix):
    (model, source, text), tokens = case(mix, unlearned=True), targets(2)
    with torch.no_grad():
        memory = model.encode(source)
        _, by_paragraph = model.decode(tokens, memory, attention=True)
        _, by_token = model.decode(tokens, memory, attention="tokens")
        weights = whole_weights(model, memory, tokens)
    for row, is_text in enumerate(text):
        expected = sum(layer[row].mean(0) for layer in weights) * torch.tensor(is_text)
        sizes = source.lengths[source.layout.paragraph_example == row].tolist()
        parts = [part.sum(-1) for part in expected.split(sizes, -1)]
        torch.testing.assert_close(by_paragraph[row, :, : len(sizes)], torch.stack(parts, -1), atol=2e-6, rtol=0)
        torch.testing.assert_close(by_token[row][:, source.layout.grid_mask[row]], expected, atol=2e-6, rtol=0)
    assert by_paragraph.sum(-1).max() < len(model.decoder) - 0.2  # marks have had the rest
    torch.testing.assert_close(by_token.sum(-1), by_paragraph, atol=1e-6, rtol=0)
    assert by_token[~memory.token_mask[:, None].expand_as(by_token)].count_nonzero() == 0
    assert memory.token_mask.sum() == sum(map(sum, text))


@pytest.mark.parametrize("mix", MIXES)
def test_the_model_itself_attends_to_marks(mix):
    model, source, _ = case(mix)
    with torch.no_grad():
        memory = model.encode(source)
        counted, _ = model.decode(targets(2), memory, attention=True)
        plain, none = model.decode(targets(2), replace(memory, text=None))
        some = model.encode(source.select([1]))
        state = model.start(memory, 2)
        stepped, share = model.step(torch.full((4,), 2), state, attention=True)
    assert none is None and torch.equal(counted, plain)
    assert torch.equal(some.text, memory.select([1]).text)
    first, forced = model.decode(torch.full((2, 1), 2), memory, attention=True)
    torch.testing.assert_close(stepped[::2], model.logits(first[:, 0]))
    torch.testing.assert_close(share[::2], forced[:, 0])


def test_a_summary_cites_by_text_even_if_nearly_all_attention_is_on_a_mark():
    model = case("L/F")[0]
    source, ids = pack([[[1, 9, 10, 2], [1, 11, 12, 2]]]), [30, 31, 32]
    with torch.no_grad():
        words = model.decoder[0].cross.words
        words.query.weight.zero_()
        key, bias = words.source.weight.chunk(2)[0], words.source.bias.chunk(2)[0]
        memory = model.encode(source)
        states = memory.tokens.clone()
        for place, score in {4: 9.0, 1: 2.0, 2: 2.0}.items():  # <s> of the second paragraph, text of the first
            wanted = words.query.bias * score * 8**0.5 / words.query.bias.unflatten(0, (2, 8)).square().sum(-1).min()
            states[place] = torch.linalg.solve(key, wanted - bias)
        memory = replace(memory, tokens=states)
        ((weights,),) = whole_weights(model, memory, torch.tensor([[2, 30, 31]]))
    on_marks = weights[..., 4].mean()
    assert on_marks > 0.9
    ((found,),) = attention_of(model, memory, [[ids]])
    of_text = weights.mean(0)[:, [1, 2, 5, 6]]
    expected = (of_text / of_text.sum(-1, keepdim=True)).unflatten(-1, (2, 2)).sum(-1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found[:, 0] > 0.8).all()
    batch = Batch(source, torch.tensor([[2, *ids]]))
    model.encode = lambda _: memory
    np.testing.assert_allclose(attention_labels(model, batch)[1][0], expected.mean(0), atol=1e-5)


@pytest.mark.parametrize("mix", MIXES)
def test_paragraphs_and_sources_of_marks_alone_give_numbers(mix):
    model, _, _ = case(mix, copy_heads=2)
    source, gold = pack([[[1, 2], [1, 9, 11, 2]], [[1, 2], [2]]]), torch.tensor([[2, 9, 2], [2, 30, 2]])
    settings = DecodeConfig(max_length=5, num_beams=2, gnmt_coverage=0.2, structural_coverage=0.3)
    with torch.no_grad():
        memory = model.encode(source)
        _, attention = model.decode(gold[:, :-1], memory, attention=True)
        assert attention.isfinite().all() and not attention[0, :, 0].any() and not attention[1].any()
        assert model(source, gold[:, :-1]).isfinite().all()
        found = beam_search(model, memory, settings, terms(settings, memory), marks=MARKS)
    assert all(math.isfinite(example[0].score) for example in found)
    ((one,), (two,)) = attention_of(model, memory, [[example[0].ids] for example in found])
    np.testing.assert_allclose(one[:, 1], 1, atol=1e-6)
    assert not two.any()
    loss = objective_of(model.train(), 0.1)(Batch(source, gold))
    loss.backward()
    assert loss.isfinite()
    assert all(value.grad is None or value.grad.isfinite().all() for value in model.parameters())


def test_coverage_of_tokens_counts_those_of_text():
    """GNMT's coverage by hand: marks, which get no attention here, are no words that are missed."""
    model, source, text = case("LL/FF")
    settings = DecodeConfig(max_length=6, num_beams=1, gnmt_coverage=1.0)
    with torch.no_grad():
        memory = model.encode(source)
        found = [best for (best,) in beam_search(model, memory, settings, terms(settings, memory), marks=MARKS)]
        for row, best in enumerate(found):
            tokens, mask = torch.tensor([[2, *best.ids[:-1]]]), memory.token_mask[row]
            _, weights = model.decode(tokens, memory.select([row]), attention="tokens")
            part = weights[0].flatten(1)
            paid = (part / part.sum(-1, keepdim=True)).sum(0)
            paid = paid.view(weights.shape[2:])[mask[: weights.shape[2], : weights.shape[3]]]
            assert len(paid) == sum(text[row])
            norm = ((5 + len(best.ids)) / 6) ** settings.length_penalty
            expected = best.log_prob / norm + paid.clamp(1e-6, 1).log().sum().item()
            assert best.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("heads", [1, 2])
def test_a_copy_gate_copies_text_by_its_share_of_the_whole_weights(mix, heads):
    (model, source, text), tokens = case(mix, unlearned=True, copy_heads=heads), targets(2)
    with torch.no_grad():
        nn.init.zeros_(model.gate.onward.weight), nn.init.zeros_(model.gate.onward.bias)
        memory = model.encode(source)
        hidden, _ = model.decode(tokens, memory)
        gate = model.gate.gate(hidden).sigmoid()
        vocabulary = model.logits(hidden).softmax(-1)
        found = model(source, tokens).exp()
        weights = whole_weights(model, memory, tokens)[-1]
        gold = torch.tensor([[2, 9, 1, 8, 2], [2, 7, 30, 2, 0]])
        loss = objective_of(model, 0.1).eval()(Batch(source, gold))
        log_p = model(source, gold[:, :-1]).gather(-1, gold[:, 1:, None])
    torch.testing.assert_close(found[..., 1:3], gate * vocabulary[..., 1:3], atol=1e-6, rtol=0)
    for row, ids in enumerate(source.ids.split(source.layout.sizes.tolist())):
        paid = weights[row][:heads].mean(0) * torch.tensor(text[row])
        copied = paid / paid.sum(-1, keepdim=True) @ F.one_hot(ids, vocabulary.shape[-1]).float()
        expected = gate[row] * vocabulary[row] + (1 - gate[row]) * copied
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 6))
    torch.testing.assert_close(loss, -log_p[gold[:, 1:] != 0].sum())


def test_the_papers_models_count_all_tokens():
    model = model_of("L/P").eval()
    assert model.encode(pack(EXAMPLES)).text is None


_SMALL = {key: value for key, value in SIZES.items() if key != "pooling_heads"}
GRAPH = {"local_layers": 1, "graph_layers": 1, "decoder_layers": 3}
SYSTEMS = {
    "papers": lambda: model_of("LL/FPV"),
    "pretrained": lambda: case("LL/FPV")[0],
    "graphsum": lambda: shaken(build_seeded(GraphSumSpec(**{**_SMALL, **GRAPH}))),
    "tdmca": lambda: shaken(build_seeded(TdmcaSpec(**_SMALL, layers="LML", block=16))),
    "txl": lambda: shaken(build_seeded(TxlSpec(**_SMALL, layers=3, segment=4, memory=4))),
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("chosen", [[1], [3], [2, 3], [-1], [-3, 1], [1, 2, 3]])
def test_the_chosen_layers_are_summed(name, chosen):
    model, source = SYSTEMS[name]().eval(), pack(EXAMPLES)
    if name == "graphsum":
        source = replace(source, graph=torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(0)))
    layers, ids = (model.decoder if hasattr(model, "decoder") else model.layers), [30, 31, 32]
    with torch.no_grad():
        memory = model.encode(source)
        with hooked(layers, lambda _, output: output[1]) as seen:
            model.decode(torch.tensor([[model.spec.marks.start, *ids[:-1]]] * 3), memory, attention=True)
        requested = citing(DecodeConfig(citing_layers=chosen), model.spec)
        found = attention_of(model, memory, [[ids]] * 3, requested)
    numbers = {n if n > 0 else 4 + n for n in chosen}
    expected = sum(seen[n - 1] for n in numbers)
    expected = expected / expected.sum(-1, keepdim=True)
    for row, (one,) in enumerate(found):
        np.testing.assert_allclose(one, expected[row], atol=1e-6)
    if len(numbers) < 3:
        plain = attention_of(model, memory, [[ids]] * 3)
        assert max(np.abs(one - two).max() for (one,), (two,) in zip(found, plain, strict=True)) > 1e-3


@pytest.mark.parametrize(("layers", "message"), [([4], "layer 4"), ([1, -4], "layer -4"), ([1000], "layer 1000")])
def test_a_layer_that_the_model_lacks_is_refused(layers, message):
    for name in SYSTEMS:
        spec = SYSTEMS[name]().spec
        with pytest.raises(UserError, match=f"{message}, and the {spec.system} has 3, 1 to 3"):
            citing(DecodeConfig(citing_layers=layers), spec)
