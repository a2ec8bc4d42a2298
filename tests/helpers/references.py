"""The systems outside the layer family, plainly from their papers: one example, one position and one head at a time.

Each function takes the weights by name (a state dict), the paragraphs of one example (lists of ids, best first) and
the target so far (BOS first), and returns the log-probabilities of the token after each target position, [K, V], and
the attention of each position to each paragraph, the mean over heads summed over layers, [K, M].
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Paragraphs = Sequence[Sequence[int]]


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(x: Tensor, w: Weights, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def ffn(x: Tensor, w: Weights, name: str) -> Tensor:
    return linear(linear(x, w, f"{name}.inner").relu(), w, f"{name}.outer")


def wave(position: int, width: int, halves: bool = False) -> Tensor:
    """Vaswani et al. 2017, section 3.5."""
    angles = [position / 10000 ** (2 * i / width) for i in range(width // 2)]
    if halves:
        return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
    return torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)])


def embed(token: int, w: Weights) -> Tensor:
    weight = w["embedding.weight"]
    return weight[token] * math.sqrt(weight.shape[1])


def predict(hidden: Tensor, w: Weights) -> Tensor:
    scores = w["embedding.weight"] @ hidden + w["embedding.bias"]
    return scores - scores.exp().sum().log()


def softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    powers = [score.exp() for score in scores]
    return [power / sum(powers) for power in powers]


def head(x: Tensor, number: int, heads: int) -> Tensor:
    size = len(x) // heads
    return x[number * size : (number + 1) * size]


def self_attention(
    x: Sequence[Tensor],
    w: Weights,
    name: str,
    heads: int,
    visible: Callable[[int], Iterable[int]],
    extra: Callable[[int, int], Tensor | float] = lambda i, j: 0.0,
) -> list[Tensor]:
    """Position i attends to those ``visible(i)``; ``extra(i, j)`` is added to the scores."""
    width = len(x[0])
    qkv, outputs = [linear(v, w, f"{name}.qkv").split(width) for v in x], []
    for i, (query, _, _) in enumerate(qkv):
        parts = []
        for h in range(heads):
            q, seen = head(query, h, heads), [*visible(i)]
            weights = softmax([q @ head(qkv[j][1], h, heads) / (width / heads) ** 0.5 + extra(i, j) for j in seen])
            parts.append(sum(a * head(qkv[j][2], h, heads) for a, j in zip(weights, seen, strict=True)))
        outputs.append(linear(torch.cat(parts), w, f"{name}.out"))
    return outputs


def residual(x: Sequence[Tensor], w: Weights, name: str, layer: Callable[..., Sequence[Tensor]], pre: bool = True):
    """``layer`` inside a residual connection with its norm before it or after the sum."""
    if pre:
        return [v + y for v, y in zip(x, layer([norm(v, w, f"{name}.norm") for v in x]), strict=True)]
    return [norm(v + y, w, f"{name}.norm") for v, y in zip(x, layer(x), strict=True)]


def owners(paragraphs: Paragraphs) -> list[int]:
    """The paragraph of each source token."""
    return [rank for rank, paragraph in enumerate(paragraphs) for _ in paragraph]


def tdmca(
    w: Weights, paragraphs: Paragraphs, target: Sequence[int], *, layers: str, heads: int, block: int, factor: int
) -> tuple[Tensor, Tensor]:
    """T-DMCA (Liu et al. 2018, section 4.2.3-4.2.4), pre-norm as tensor2tensor has it.

    L: a token attends to those of its own block of ``block`` tokens, up to itself. M: keys and values of ``factor``
    neighbours become one by a convolution without overlap; a token attends to the groups that end before it, and to
    the first token as it is (tensor2tensor's rule, without which the first group would have nothing to attend to).
    """
    owner = owners(paragraphs)
    tokens = [token for paragraph in paragraphs for token in paragraph] + list(target)
    width = w["embedding.weight"].shape[1]
    size, start = width // heads, len(owner)
    x = [embed(token, w) + wave(place, width) for place, token in enumerate(tokens)]
    share = torch.zeros(len(target), len(paragraphs))
    for number, letter in enumerate(layers):
        name = f"layers.{number}"
        inner = [norm(v, w, f"{name}.around_attention.norm") for v in x]
        qkv = [linear(v, w, f"{name}.attention.qkv").split(width) for v in inner]
        if letter == "M":
            memory = [(qkv[0][1], qkv[0][2], -1, owner[:1])]  # key, value, last place, paragraphs of its tokens
            for first in range(0, len(tokens) - factor + 1, factor):
                group = qkv[first : first + factor]
                key = linear(torch.cat([k for _, k, _ in group]), w, f"{name}.attention.compress_key")
                value = linear(torch.cat([v for _, _, v in group]), w, f"{name}.attention.compress_value")
                inside = owner[first : first + factor] if first + factor <= start else []
                memory.append((key, value, first + factor - 1, inside))
        attended = []
        for place, (query, _, _) in enumerate(qkv):
            if letter == "L":
                first = place // block * block
                seen = [(*qkv[i][1:], owner[i : i + 1]) for i in range(first, place + 1)]
            else:
                seen = [(key, value, inside) for key, value, last, inside in memory if last < place]
            parts = []
            for h in range(heads):
                weights = softmax([head(query, h, heads) @ head(key, h, heads) / size**0.5 for key, _, _ in seen])
                parts.append(sum(a * head(value, h, heads) for a, (_, value, _) in zip(weights, seen, strict=True)))
                if place >= start:
                    for a, (_, _, inside) in zip(weights, seen, strict=True):
                        for paragraph in inside:
                            share[place - start, paragraph] += a.item() / len(inside) / heads
            attended.append(x[place] + linear(torch.cat(parts), w, f"{name}.attention.out"))
        x = [v + ffn(norm(v, w, f"{name}.around_ffn.norm"), w, f"{name}.ffn") for v in attended]
    return torch.stack([predict(norm(v, w, "norm"), w) for v in x[start:]]), share


def txl(
    w: Weights,
    paragraphs: Paragraphs,
    target: Sequence[int],
    *,
    layers: int,
    heads: int,
    segment: int,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """Transformer-XL (Dai et al. 2019, sections 3.2 and 3.3), post-norm: segment after segment.

    The source comes in segments of ``segment`` tokens, then the target in segments of its own. At each layer a segment
    attends to itself and to the last ``memory`` states of the layer below, through which no gradient flows.
    """
    owner = owners(paragraphs)
    source = [token for paragraph in paragraphs for token in paragraph]
    cuts = [part[i : i + segment] for part in (source, list(target)) for i in range(0, len(part), segment)]
    width = w["embedding.weight"].shape[1]
    size = width // heads
    states: list[list[Tensor]] = [[] for _ in range(layers)]  # inputs of each layer, of all segments so far
    share = torch.zeros(len(target), len(paragraphs))
    outputs, place = [], 0
    for tokens in cuts:
        h = [embed(token, w) for token in tokens]
        for number in range(layers):
            name = f"layers.{number}"
            old = [v.detach() for v in states[number][-memory:]]  # SG(m)
            known = old + h  # the extended context
            states[number] += h
            keys_values = [linear(v, w, f"{name}.attention.source").split(width) for v in known]
            new = []
            for i, x in enumerate(h):
                query = linear(x, w, f"{name}.attention.query")
                seen = range(len(old) + i + 1)
                parts = []
                for z in range(heads):
                    q, u, v = head(query, z, heads), w["bias.content"][z], w["bias.position"][z]
                    scores = []
                    for j in seen:
                        distance = wave(len(old) + i - j, width, halves=True)
                        r = head(linear(distance, w, f"{name}.attention.position"), z, heads)
                        k = head(keys_values[j][0], z, heads)
                        scores.append((q @ k + q @ r + u @ k + v @ r) / size**0.5)  # terms a, b, c, d
                    weights = softmax(scores)
                    parts.append(sum(a * head(keys_values[j][1], z, heads) for a, j in zip(weights, seen, strict=True)))
                    for a, j in zip(weights, seen, strict=True):
                        where = place - len(old) + j  # in the whole sequence
                        if place >= len(source) and where < len(source):
                            share[place + i - len(source), owner[where]] += a.item() / heads
                y = linear(torch.cat(parts), w, f"{name}.attention.out")
                o = norm(x + y, w, f"{name}.around_attention.norm")
                new.append(norm(o + ffn(o, w, f"{name}.ffn"), w, f"{name}.around_ffn.norm"))
            h = new
        outputs += h
        place += len(tokens)
    return torch.stack([predict(v, w) for v in outputs[len(source) :]]), share


def graphsum(
    w: Weights,
    paragraphs: Paragraphs,
    target: Sequence[int],
    graph: Tensor,
    *,
    local_layers: int,
    graph_layers: int,
    decoder_layers: int,
    heads: int,
    sigma: float,
    form: str,
) -> tuple[Tensor, Tensor]:
    """GraphSum (Li et al. 2020, section 3), pre-norm as its code has it; ``graph`` [M, M] similarities, 1 to itself."""
    width, count = w["embedding.weight"].shape[1], len(paragraphs)
    size = width // heads

    def bias(similarity: Tensor) -> Tensor:
        """The Gaussian bias of the graph-informed attention; the code squares the distance and halves sigma."""
        return -(1 - similarity**2) / (2 * sigma**2) if form == "paper" else -((1 - similarity) ** 2) / (sigma**2 / 2)

    def attend(x: list[Tensor], name: str, visible, extra=lambda *_: 0.0) -> list[Tensor]:
        def layer(inner):
            return self_attention(inner, w, f"{name}.attention", heads, visible, extra)

        return residual(x, w, f"{name}.around_attention", layer)

    def feed(x: list[Tensor], name: str) -> list[Tensor]:
        return residual(x, w, f"{name}.around_ffn", lambda inner: [ffn(v, w, f"{name}.ffn") for v in inner])

    words, vectors = [], []
    for rank, paragraph in enumerate(paragraphs):
        x = [
            embed(token, w) + torch.cat([wave(place, width // 2, True), wave(rank, width // 2, True)])
            for place, token in enumerate(paragraph)
        ]
        for number in range(local_layers):
            name = f"encoder.{number}"
            x = feed(attend(x, name, lambda _, x=x: range(len(x))), name)
        words.append([norm(v, w, "encoder_norm") for v in x])
        inner = [norm(v, w, "pooling.norm") for v in x]
        parts = []
        for h in range(heads):
            weights = softmax([linear(v, w, "pooling.score")[h] for v in inner])
            values = [head(linear(v, w, "pooling.value"), h, heads) for v in inner]
            parts.append(sum(a * v for a, v in zip(weights, values, strict=True)))
        vectors.append(linear(torch.cat(parts), w, "pooling.out"))
    for number in range(graph_layers):
        name = f"graph.{number}"
        vectors = feed(attend(vectors, name, lambda _: range(count), lambda i, j: bias(graph[i, j])), name)
    vectors = [norm(v, w, "graph_norm") for v in vectors]

    y = [embed(token, w) + wave(place, width, True) for place, token in enumerate(target)]
    share = torch.zeros(len(target), count)
    for number in range(decoder_layers):
        name = f"decoder.{number}"
        y = attend(y, name, lambda i: range(i + 1))
        read = []
        for t, state in enumerate(y):
            query = norm(state, w, f"{name}.around_cross.norm")
            cross = f"{name}.cross"
            wide = linear(query, w, f"{cross}.paragraphs.query")
            narrow = linear(query, w, f"{cross}.words.query")
            global_parts, local_parts = [], []
            for h in range(heads):
                q = head(wide, h, heads) / size**0.5
                moved = linear(linear(q, w, f"{cross}.centre.hidden").tanh(), w, f"{cross}.centre.score")
                centre = (count - 1) * torch.sigmoid(moved[0])  # the central paragraph, between two ranks
                below = int(centre)
                above = min(below + 1, count - 1)
                near = graph[below] * (1 - (centre - below)) + graph[above] * (centre - below)
                keys_values = [linear(v, w, f"{cross}.paragraphs.source").split(width) for v in vectors]
                beta = softmax([q @ head(k, h, heads) + bias(near[j]) for j, (k, _) in enumerate(keys_values)])
                global_parts.append(sum(b * head(v, h, heads) for b, (_, v) in zip(beta, keys_values, strict=True)))
                total = torch.zeros(size)
                for j, paragraph in enumerate(words):
                    pairs = [linear(v, w, f"{cross}.words.source").split(width) for v in paragraph]
                    gamma = softmax([head(narrow, h, heads) @ head(k, h, heads) / size**0.5 for k, _ in pairs])
                    total = total + beta[j] * sum(g * head(v, h, heads) for g, (_, v) in zip(gamma, pairs, strict=True))
                    share[t, j] += beta[j].item() / heads
                local_parts.append(total)
            over_paragraphs = linear(torch.cat(global_parts), w, f"{cross}.paragraphs.out")
            over_words = linear(torch.cat(local_parts), w, f"{cross}.words.out")
            read.append(state + linear(torch.cat([over_paragraphs, over_words]), w, f"{cross}.merge"))
        y = feed(read, name)
    return torch.stack([predict(norm(v, w, "decoder_norm"), w) for v in y]), share


def lstm(x: Sequence[Tensor], w: Weights, name: str) -> list[Tensor]:
    """Hochreiter and Schmidhuber 1997, with forget gate."""
    size = w[f"{name}.weight_hh_l0"].shape[1]
    hidden = cell = torch.zeros(size)
    states = []
    for v in x:
        gates = w[f"{name}.weight_ih_l0"] @ v + w[f"{name}.bias_ih_l0"]
        gates = gates + w[f"{name}.weight_hh_l0"] @ hidden + w[f"{name}.bias_hh_l0"]
        enter, forget, new, leave = gates.split(size)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        states.append(hidden)
    return states


def ranker(w: Weights, title: Sequence[int], paragraphs: Paragraphs) -> Tensor:
    """The scores of the paragraphs, [M] (HT eq. 1-6)."""
    scores = []
    for paragraph in paragraphs:
        u_t = lstm([w["embedding.weight"][token] for token in title], w, "title")  # eq. 1
        u_p = lstm([w["embedding.weight"][token] for token in paragraph], w, "paragraph")  # eq. 2
        t = torch.stack(u_t).amax(0)  # eq. 3
        p = [linear(torch.cat([u, t]), w, "match").tanh() for u in u_p]  # eq. 4
        scores.append(linear(torch.stack(p).amax(0), w, "score").sigmoid()[0])  # eq. 5-6
    return torch.stack(scores)
