"""HIBERT equals its equations, ignores padding and company, masks as the paper says, and learns both of its tasks."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import references as plain
from helpers.references import Weights
from helpers.small_models import EXAMPLES, build_seeded, objective_of, pack, shaken
from helpers.special_ids import BOS, EOS, MASK
from raysum.config.decoding import SourceConfig
from raysum.models.batch import Source
from raysum.models.systems.labellers import SentenceBatch, mask_sentences
from raysum.models.systems.specs import HibertSpec
from raysum.stream.collators.sentences import Documents, Sentences
from raysum.systems import build, kind

SIZES = {"vocabulary": 40, "width": 16, "ffn": 24, "heads": 2, "layers": 2}
DRY = {"dropout": 0.0, "attention_dropout": 0.0}
SENTENCES = [[[*sentence, EOS] for sentence in example] for example in EXAMPLES]


def model_of(**options) -> nn.Module:
    return shaken(build_seeded(HibertSpec(**{**SIZES, **DRY, **options}))).eval()


# The equations, one token and one head at a time


def layer(x: Sequence[Tensor], w: Weights, name: str, heads: int, pre: bool, vector: Tensor | None = None):
    """A layer of the encoders, or, with the ``vector`` of eq. 4, of the decoder."""

    def attend(inner):
        return plain.self_attention(inner, w, f"{name}.attention", heads, lambda i: range(i + 1 if causal else len(x)))

    causal = vector is not None
    x = plain.residual(x, w, f"{name}.around_attention", attend, pre)
    x = x if vector is None else [v + vector for v in x]
    return plain.residual(x, w, f"{name}.around_ffn", lambda x: [plain.ffn(v, w, f"{name}.ffn") for v in x], pre)


def through(x, w, name, layers, heads, pre, vector=None):
    for number in range(layers):
        x = layer(x, w, f"{name}.{number}", heads, pre, vector)
    return x


def encoded(w: Weights, sentences: Sequence[Sequence[int]], spec: HibertSpec) -> list[Tensor]:
    """Eq. 1-2 and the document Transformer: the vector of each sentence of one document."""
    shape, pre, ends = (spec.layers, spec.heads), spec.norm == "pre", []
    for rank, sentence in enumerate(sentences):
        x = [plain.embed(token, w) + plain.wave(place, spec.width) for place, token in enumerate(sentence)]
        last = through(x, w, "sentence", *shape, pre)[-1]
        last = plain.norm(last, w, "sentence_norm") if pre else last
        ends.append(last + plain.wave(rank, spec.width))
    d = through(ends, w, "document", *shape, pre)
    return [plain.norm(v, w, "document_norm") for v in d] if pre else d


def log_likelihood(w: Weights, sentence: Sequence[int], vector: Tensor, spec: HibertSpec) -> Tensor:
    """The log of eq. 7 for one sentence."""
    tokens, pre = [BOS, *sentence[:-1]], spec.norm == "pre"
    x = [plain.embed(token, w) + plain.wave(place, spec.width) for place, token in enumerate(tokens)]
    x = through(x, w, "decoder.layers", spec.layers, spec.heads, pre, vector)
    x = [plain.norm(v, w, "decoder.norm") for v in x] if pre else x
    tied = {"o.weight": w["embedding.weight"], "o.bias": w.get("decoder.bias")}
    given = tied if spec.tied_output else {f"o.{part}": w[f"decoder.output.{part}"] for part in ("weight", "bias")}
    logits = [plain.linear(v, given, "o") for v in x]
    return sum((z - z.exp().sum().log())[gold] for z, gold in zip(logits, sentence, strict=True))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_encoder_and_the_labels_equal_the_equations(norm):
    model = model_of(norm=norm)
    w = dict(model.named_parameters())
    with torch.no_grad():
        found = model(pack(SENTENCES)).softmax(-1)
        vectors = [vector for document in SENTENCES for vector in encoded(w, document, model.spec)]
        expected = torch.stack([torch.stack(plain.softmax([*plain.linear(v, w, "label")])) for v in vectors])
        scores = model.sentence_scores(SentenceBatch(pack(SENTENCES), None))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores, expected[:, 1], atol=1e-5, rtol=1e-5)
    labels = torch.tensor([1, 0, 0, 1, 0, 1])
    loss = objective_of(model, 0.0)(SentenceBatch(pack(SENTENCES), labels))
    torch.testing.assert_close(loss, -expected[range(6), labels].log().sum(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("norm", "tied"), [("post", True), ("post", False), ("pre", True)])
def test_sentence_prediction_equals_equations_3_to_7(norm, tied):
    model = model_of(norm=norm, tied_output=tied, task="pretraining")
    objective, source = objective_of(model, 0.1).eval(), pack(SENTENCES)
    given, selected = mask_sentences(source, torch.Generator().manual_seed(0), MASK)
    w = dict(model.named_parameters())
    with torch.no_grad():
        loss = objective(SentenceBatch(source, None))
        assert torch.equal(loss, objective(SentenceBatch(source, None)))  # the draw of validation is always the same
        lengths = iter(given.ids.split(given.lengths.tolist()))
        documents = [[next(lengths).tolist() for _ in document] for document in SENTENCES]
        vectors = [vector for document in documents for vector in encoded(w, document, model.spec)]
        flat = [sentence for document in SENTENCES for sentence in document]
        chosen = selected.tolist()
        total = -sum(log_likelihood(w, flat[k], vectors[k], model.spec) for k in chosen)
    mean = total / sum(len(flat[k]) for k in chosen)
    torch.testing.assert_close(loss, mean * len(flat), atol=1e-4, rtol=1e-5)


def test_documents_alone_and_together_have_the_same_vectors():
    model = model_of()
    with torch.no_grad():
        together = model.encode(pack(SENTENCES))
        alone = torch.cat([model.encode(pack([document])) for document in SENTENCES])
        torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)
        longer = [[*SENTENCES[0], [9] * 20 + [EOS]], SENTENCES[1]]  # another's length is no matter
        torch.testing.assert_close(
            model.encode(pack(longer))[4:], model.encode(pack([SENTENCES[1]])), atol=1e-6, rtol=1e-5
        )
        moved = model.encode(pack([SENTENCES[0][::-1]]))
    assert (moved.flip(0) - together[:3]).abs().max() > 0.1  # but that of a sentence's place is


# Masking


def many(documents: int, sentences: int) -> Source:
    rng = np.random.default_rng(1)
    return pack([[[*rng.integers(9, 40, rng.integers(2, 9)), EOS] for _ in range(sentences)] for _ in range(documents)])


def test_masking_is_as_often_as_the_paper_says():
    source = many(600, 30)
    given, selected = mask_sentences(source, torch.Generator().manual_seed(3), MASK)
    assert len(selected) / len(source.lengths) == pytest.approx(0.15, abs=0.003)
    own, new = (each.ids.split(each.lengths.tolist()) for each in (source, given))
    fates = {"masked": 0, "kept": 0, "replaced": 0}
    texts = {tuple(sentence.tolist()) for sentence in own}
    chosen = set(selected.tolist())
    for number, (before, after) in enumerate(zip(own, new, strict=True)):
        if number not in chosen:
            assert torch.equal(before, after)
        elif (after == MASK).any():
            assert after.tolist() == [MASK] * (len(before) - 1) + [EOS]  # word by word
            fates["masked"] += 1
        elif torch.equal(before, after):
            fates["kept"] += 1
        else:
            assert tuple(after.tolist()) in texts
            fates["replaced"] += 1
    shares = {name: count / len(chosen) for name, count in fates.items()}
    assert shares == pytest.approx({"masked": 0.8, "kept": 0.1, "replaced": 0.1}, abs=0.02)


def test_masking_leaves_no_document_out_and_is_drawn_anew_by_the_seed():
    for size in (1, 2, 5):
        source = many(40, size)
        _, selected = mask_sentences(source, torch.Generator().manual_seed(1), MASK)
        assert set(source.layout.paragraph_example[selected].tolist()) == set(range(40))
    source = many(20, 30)
    torch.manual_seed(5)
    first, again = mask_sentences(source, None, MASK), mask_sentences(source, None, MASK)
    torch.manual_seed(5)
    repeated = mask_sentences(source, None, MASK)
    assert torch.equal(first[0].ids, repeated[0].ids) and torch.equal(first[1], repeated[1])
    assert not torch.equal(first[1], again[1])
    assert first[0].counts.tolist() == source.counts.tolist()


# Rows to batches


def row(*sentences: list[int], labels: list[int] | None = None) -> dict:
    ids = np.array([token for sentence in sentences for token in sentence], np.int32)
    offsets = np.cumsum([0, *map(len, sentences)])
    return {"ids": ids, "paragraph_offsets": offsets, "labels": np.array(labels or [0] * len(sentences), np.int8)}


def test_a_batch_has_windows_of_sentences_with_their_eos_and_labels():
    reader = Sentences(window=2)
    rows = [row([9, 10, 11], [12], [13, 14], labels=[0, 1, 1]), row([20], [21, 22], labels=[1, 0])]
    arrays = reader.pack(rows, SourceConfig(max_paragraphs=3, paragraph_tokens=2))
    assert arrays["ids"].tolist() == [9, 10, EOS, 12, EOS, 13, 14, EOS, 20, EOS, 21, 22, EOS]
    assert arrays["lengths"].tolist() == [3, 2, 3, 2, 3] and arrays["counts"].tolist() == [2, 1, 2]
    assert arrays["labels"].tolist() == [0, 1, 1, 1, 0] and reader.tokens(arrays) == (13, 5)
    batch = reader.collate(arrays)
    assert batch.labels.tolist() == [0, 1, 1, 1, 0] and batch.source.layout.rank.tolist() == [0, 1, 0, 0, 1]
    short = reader.pack(rows, SourceConfig(max_paragraphs=2, paragraph_tokens=50, max_tokens=1))  # which does not hold
    assert short["lengths"].tolist() == [4, 2, 2, 3] and short["labels"].tolist() == [0, 1, 1, 0]
    lengths, source = np.array([[90, 3, 5], [10, 2, 0]]), SourceConfig(max_paragraphs=3, paragraph_tokens=20)
    assert [each.tolist() for each in reader.costs(lengths, source)] == [[63, 12], [3, 0]]
    unlabelled = Documents(window=30)
    assert unlabelled.costs(lengths, source)[1].tolist() == [3, 2]
    assert "labels" not in unlabelled.pack(rows, source) and unlabelled.columns == ("ids", "paragraph_offsets")
    assert kind(HibertSpec(task="pretraining", window=7)) == Documents(7) and kind(HibertSpec()) == Sentences(30)


# Learning


@pytest.mark.parametrize("task", ["extraction", "pretraining"])
def test_it_learns(task):
    torch.manual_seed(0)
    model = build(HibertSpec(**{**SIZES, **DRY, "layers": 1, "task": task}))
    source = many(8, 6)
    wanted = SentenceBatch(source, (source.ids[source.lengths.cumsum(0) - 2] % 2).long())  # told by a word of it
    objective = objective_of(model, 0.0)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01)
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = objective(wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / len(source.lengths))
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    assert last < (0.1 if task == "extraction" else 0.75 * first)
    assert all(value.grad is not None for value in model.parameters())
