"""The paper's form against its equations, written token by token (the code's form has the published fixtures)."""

import pytest
import torch
from torch import Tensor

from helpers.references import ffn, linear, norm, wave
from helpers.small_models import DRY, EXAMPLES, model_of, pack
from raysum.models.batch import Source

HEADS, POOLING, WIDTH = 2, 4, 16
EXAMPLE = EXAMPLES[0]


@pytest.fixture
def source() -> Source:
    return pack([EXAMPLE])


def weights_of(layer) -> dict[str, Tensor]:
    return dict(layer.named_parameters())


def paragraphs_of(tokens: Tensor) -> list[Tensor]:
    return list(tokens.split([len(paragraph) for paragraph in EXAMPLE]))


def test_positions_are_rank_then_token(source):
    """HT eq. 9-10."""
    model = model_of("L/F", form="paper").eval()
    expected = [
        torch.cat([wave(rank, WIDTH // 2), wave(place, WIDTH // 2)])
        for rank, paragraph in enumerate(EXAMPLE)
        for place in range(len(paragraph))
    ]
    found = model.entry.source(torch.zeros(len(expected), WIDTH), source.layout)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=0)


def test_global_layer_is_equations_13_to_23(source):
    layer = model_of("G/F", form="paper", norm="post", **DRY).eval().encoder[0]
    x = torch.randn(len(source.ids), WIDTH)
    size = WIDTH // POOLING
    pool, attention = layer.pooling, layer.attention
    values = pool.value.weight.view(POOLING, size, WIDTH)
    heads = []  # [z][paragraph]
    for z in range(POOLING):
        row = []
        for tokens in paragraphs_of(x):
            scores = tokens @ pool.score.weight[z]  # eq. 13
            inputs = tokens @ values[z].T  # eq. 14
            weights = scores.exp() / scores.exp().sum()  # eq. 15
            combined = pool.combine.weight[z] @ (weights[:, None] * inputs).sum(0)
            row.append(norm(combined, weights_of(pool), "norm"))  # eq. 16
        heads.append(row)
    contexts = []
    for i in range(len(EXAMPLE)):
        parts = []
        for z in range(POOLING):
            w_q, w_k, w_v = attention.qkv.weight[z].split(size)
            scores = torch.stack([(w_q @ heads[z][i]) @ (w_k @ head) for head in heads[z]])  # eq. 17-20
            weights = scores.exp() / scores.exp().sum()
            parts.append(sum(w * (w_v @ head) for w, head in zip(weights, heads[z], strict=True)))
        contexts.append(attention.out.weight @ torch.cat(parts))  # eq. 21
    expected, w = [], weights_of(layer)
    for tokens, context in zip(paragraphs_of(x), contexts, strict=True):
        g = ffn(tokens + context, w, "ffn")  # eq. 22
        expected.append(norm(g + tokens, w, "around_ffn.norm"))  # eq. 23
    torch.testing.assert_close(layer(x, source), torch.cat(expected), atol=1e-5, rtol=0)


def test_graph_head_is_equation_24(source):
    layer = model_of("G/F", form="paper", norm="post", graph_heads=1, **DRY).eval().encoder[0].attention
    heads, graph = torch.randn(3, POOLING, WIDTH // POOLING), torch.tensor([[0, 1, 3], [2, 0, 0], [0, 0, 0]]).float()
    given = Source(source.ids, source.lengths, source.counts, graph[None])
    value = heads[:, 0] @ layer.qkv.weight[0].split(WIDTH // POOLING)[2].T
    share = torch.tensor([[0, 1 / 4, 3 / 4], [1, 0, 0], [0, 0, 0]])
    others = layer.out.weight.clone()
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(WIDTH))
        found = layer(heads, given)[:, : WIDTH // POOLING]
        layer.out.weight.copy_(others)
    torch.testing.assert_close(found, share @ value, atol=1e-6, rtol=0)


def test_paragraph_embeddings_are_equations_2_to_6(source):
    model = model_of("L/P", form="paper", **DRY).eval()
    layer, x = model.pooling, torch.randn(len(source.ids), WIDTH)
    expected = []
    for rank, tokens in enumerate(paragraphs_of(x)):
        projected = tokens @ layer.pool.weight.T  # eq. 2
        parts = []
        for head in projected.split(WIDTH // POOLING, -1):
            weights = (head @ layer.pool.scorer[0]).softmax(0)  # eq. 3
            parts.append(weights @ head)
        phi = layer.merge.weight @ torch.cat(parts)  # eq. 4
        phi = norm(phi + ffn(phi, weights_of(layer), "ffn"), weights_of(layer), "around_ffn.norm")  # eq. 5
        expected.append(phi + wave(rank, WIDTH))  # eq. 6
    torch.testing.assert_close(layer(x, source)[0], torch.stack(expected), atol=1e-5, rtol=0)


def multi_head(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """One query [D] over projected keys and values [n, D]: the heads' contexts [D], and the weights' mean [n]."""
    size = WIDTH // HEADS
    contexts, weights = [], []
    for h in range(HEADS):
        part = slice(h * size, (h + 1) * size)
        weights.append((keys[:, part] @ query[part] / size**0.5).softmax(0))
        contexts.append(weights[-1] @ values[:, part])
    return torch.cat(contexts), torch.stack(weights).mean(0)


def crossed(source: Source, mix: str) -> tuple:
    """Queries of a cross-attention, what it returns for them, its weights by name, and the memory that it reads."""
    model, x = model_of(mix, form="paper", **DRY).eval(), torch.randn(1, 5, WIDTH)
    cross, memory = model.decoder[0].cross, model.encode(source)
    found, attention = cross(x, cross.project_source(memory))
    return x[0], found[0], attention.report(True)[0], weights_of(cross), memory


def test_parallel_attention_is_equations_7_to_9(source):
    x, found, share, w, memory = crossed(source, "L/P")
    for position in range(5):
        keys, values = linear(memory.phi[0], w, "paragraphs.source").split(WIDTH, -1)
        context, weights = multi_head(linear(x[position], w, "paragraphs.query"), keys, values)
        expected = linear(context, w, "paragraphs.out")  # eq. 7
        for paragraph, tokens in enumerate(paragraphs_of(memory.tokens)):
            keys, values = linear(tokens, w, "words.source").split(WIDTH, -1)
            words, _ = multi_head(linear(x[position], w, "words.query"), keys, values)  # eq. 8
            expected = expected + weights[paragraph] * linear(words, w, "words.out")  # eq. 9
        torch.testing.assert_close(found[position], expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(share[position], weights, atol=1e-6, rtol=0)


def test_vertical_attention_is_equations_11_and_12(source):
    x, found, share, w, memory = crossed(source, "L/V")
    for position in range(5):
        contexts = []
        for rank, tokens in enumerate(paragraphs_of(memory.tokens)):
            keys, values = linear(tokens, w, "word_source").split(WIDTH, -1)
            words, _ = multi_head(linear(x[position], w, "word_query"), keys, values)
            contexts.append(linear(words, w, "contexts") + wave(rank, WIDTH))  # eq. 11
        z = torch.stack(contexts)
        context, weights = multi_head(linear(x[position], w, "query"), linear(z, w, "key"), linear(z, w, "value"))
        torch.testing.assert_close(found[position], linear(context, w, "out"), atol=1e-5, rtol=0)  # eq. 12
        torch.testing.assert_close(share[position], weights, atol=1e-6, rtol=0)
