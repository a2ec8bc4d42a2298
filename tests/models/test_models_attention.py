"""Attention by token: it refines attention by paragraph, and is what the contexts were weighted with."""

import pytest
import torch

from helpers.small_models import EXAMPLES, MIXES, model_of, pack, targets
from raysum.models.kernels.fusion import fuse
from raysum.models.source_attention import WordAttention, WordKeys

SOURCE = pack(EXAMPLES)


@pytest.mark.parametrize("mix", MIXES)
def test_tokens_of_a_paragraph_sum_to_its_attention(mix):
    model, tokens = model_of(mix).eval(), targets(3)
    with torch.no_grad():
        memory = model.encode(SOURCE)
        _, by_paragraph = model.decode(tokens, memory, attention=True)
        hidden, by_token = model.decode(tokens, memory, attention="tokens")
        plain, _ = model.decode(tokens, memory)
    assert by_token.shape == (3, 6, *memory.token_mask.shape[1:]) and by_token.dtype == torch.float32
    torch.testing.assert_close(by_token.sum(-1), by_paragraph, atol=1e-6, rtol=0)
    torch.testing.assert_close(hidden, plain)
    padding = ~memory.token_mask[:, None].expand_as(by_token)
    assert not by_token[padding].any() and (by_token[~padding] > 0).all()


@pytest.mark.parametrize("mix", ["L/F", "L/P", "L/V"])
def test_padding_and_neighbours_change_no_token(mix):
    model, tokens = model_of(mix).eval(), targets(3)
    with torch.no_grad():
        _, together = model.decode(tokens, model.encode(SOURCE), attention="tokens")
        for row, example in enumerate(EXAMPLES):
            one = pack([example])
            _, alone = model.decode(tokens[row : row + 1], model.encode(one), attention="tokens")
            paragraphs, length = alone.shape[2:]
            torch.testing.assert_close(alone[0], together[row, :, :paragraphs, :length], atol=1e-6, rtol=0)


def test_flat_attention_does_not_know_paragraphs():
    """The same tokens in one paragraph: the same weights, in the same order."""
    model = model_of("SS/FF", positions="flat").eval()
    tokens = targets(1)
    cut, whole = pack(EXAMPLES[:1]), pack([[sum(EXAMPLES[0], [])]])
    with torch.no_grad():
        weights = [model.decode(tokens, model.encode(source), attention="tokens")[1] for source in (cut, whole)]
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
