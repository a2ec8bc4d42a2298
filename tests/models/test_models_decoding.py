"""Step by step with a cache gives the numbers of one teacher-forced pass."""

import pytest
import torch

from helpers.small_models import EXAMPLES, MIXES, log_probs, model_of, pack, targets
from raysum.models.kernels import cache

BEAMS = 2


def stepped(model, memory, tokens, attention=True):
    """Log-probabilities [B * R, K, V] and attention [B * R, K, M] of feeding ``tokens`` [B * R, K] one by one."""
    state = model.start(memory, BEAMS)
    outputs = [model.step(column, state, attention=attention) for column in tokens.unbind(1)]
    return torch.stack([o[0].log_softmax(-1) for o in outputs], 1), torch.stack([o[1] for o in outputs], 1)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("watch", [True, "tokens"])
def test_cached_equals_uncached(mix, norm, watch, monkeypatch):
    monkeypatch.setattr(cache, "_ROOM", 4)  # so that the cache grows on the way
    model, source = model_of(mix, norm=norm).eval(), pack(EXAMPLES)
    tokens = targets(len(EXAMPLES) * BEAMS, length=9)
    with torch.no_grad():
        found, share = stepped(model, model.encode(source), tokens, watch)
        repeated = pack([example for example in EXAMPLES for _ in range(BEAMS)])
        hidden, attention = model.decode(tokens, model.encode(repeated), attention=watch)
        expected = log_probs(model, hidden)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(share, attention, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mix", MIXES)
def test_examples_selected_from_a_memory_decode_as_before(mix):
    model, source, tokens = model_of(mix).eval(), pack(EXAMPLES), targets(3)
    with torch.no_grad():
        memory = model.encode(source)
        hidden, attention = model.decode(tokens, memory, attention=True)
        for chosen in ([1], [0, 2], [1, 2]):
            part = memory.select(chosen)
            found, share = model.decode(tokens[chosen], part, attention=True)
            torch.testing.assert_close(found, hidden[chosen], atol=1e-5, rtol=0)
            torch.testing.assert_close(share, attention[chosen][..., : share.shape[-1]], atol=1e-5, rtol=0)
            assert part.paragraph_mask.sum() == memory.paragraph_mask[chosen].sum()


@pytest.mark.parametrize("mix", MIXES)
def test_reordered_beams_continue_their_new_histories(mix):
    model, source = model_of(mix).eval(), pack(EXAMPLES)
    tokens, parent = targets(6, length=5), torch.tensor([[1, 1], [1, 0], [0, 0]])
    with torch.no_grad():
        memory = model.encode(source)
        state = model.start(memory, BEAMS)
        for column in tokens[:, :4].unbind(1):
            model.step(column, state)
        state.reorder(parent)
        found, none = model.step(tokens[:, 4], state)
        order = (parent + torch.arange(0, 6, BEAMS)[:, None]).flatten()
        histories = torch.cat([tokens[order, :4], tokens[:, 4:]], 1)
        expected, _ = stepped(model, memory, histories)
    assert none is None
    torch.testing.assert_close(found.log_softmax(-1), expected[:, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("mix", MIXES)
def test_examples_that_leave_change_nothing_for_those_that_stay(mix):
    model, source = model_of(mix).eval(), pack(EXAMPLES)
    tokens, rows = targets(6, length=5), torch.tensor([0, 1, 4, 5])
    with torch.no_grad():
        memory = model.encode(source)
        expected, _ = stepped(model, memory, tokens)
        state = model.start(memory, BEAMS)
        for column in tokens[:, :3].unbind(1):
            model.step(column, state)
        state.keep(torch.tensor([0, 2]))
        for column in (3, 4):
            logits, share = model.step(tokens[rows, column], state, attention=True)
            torch.testing.assert_close(logits.log_softmax(-1), expected[rows, column], atol=1e-5, rtol=0)
            assert share.shape == (4, 3)


def test_source_keys_are_not_repeated_for_beams_nor_touched_by_reordering():
    model = model_of("L/FPV").eval()
    with torch.no_grad():
        memory = model.encode(pack(EXAMPLES))
        few, many = model.start(memory, 1), model.start(memory, 50)
        for one, other in zip(few.keys, many.keys, strict=True):
            assert one.key.shape == other.key.shape
        before = [keys.key for keys in many.keys]
        model.step(targets(150, 1)[:, 0], many)
        many.reorder(torch.zeros(3, 50, dtype=torch.long))
    assert all(keys.key is key for keys, key in zip(many.keys, before, strict=True))
