"""The copy gate: its equation in loss, gradients and decoding; and that it copies words that were never seen."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.small_datasets import write_dataset
from helpers.small_models import DRY, EXAMPLES, build_seeded, model_of, objective_of, pack, spec, targets
from helpers.small_trainings import same, trained, weights
from helpers.special_ids import BOS, EOS, PAD
from raysum.config.decoding import DecodeConfig
from raysum.config.loading import load_config
from raysum.decode.beam import beam_search
from raysum.models.batch import Batch
from raysum.models.kernels import recomputation
from raysum.runs.restore import restore
from raysum.systems import count_parameters, parameters

MIXES = ["S/F", "L/P", "L/V", "LG/VF", "LG/FP"]
SOURCE, BEAMS = pack(EXAMPLES), 2
# Words of the source, one that stands there twice, words of the vocabulary alone; of different lengths.
TARGET = torch.tensor(
    [[BOS, 3, 30, 16, 11, EOS], [BOS, 20, 21, EOS, PAD, PAD], [BOS, 31, 22, 3, EOS, PAD]],
)
EXAMPLES_TWICE = [[[9, 11, 9, 12], [13, 9], [15, 16, 17]], *EXAMPLES[1:]]


def copying(mix: str, heads: int = 2, **options) -> nn.Module:
    return model_of(mix, copy_heads=heads, **DRY, **options)


def reference(model: nn.Module, examples: list, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The equation, one example, position, head and word at a time: log p(y) and log p_vocabulary(y), [B, K, V]."""
    cross, letter, heads = model.decoder[-1].cross, model.spec.decoder[-1], model.spec.heads
    seen = {}
    hook = cross.register_forward_hook(lambda _, inputs, output: seen.update(x=inputs[0], words=output[1]))
    memory = model.encode(pack(examples))
    hidden, _ = model.decode(tokens, memory)
    hook.remove()
    shares = None if letter == "F" else seen["words"].report(True)
    parts = {
        "F": ("words.query", "words.source"),
        "P": ("words.query", "words.source"),
        "V": ("word_query", "word_source"),
    }
    query, source = (cross.get_submodule(name) for name in parts[letter])
    keys, queries = source(memory.tokens).split(model.spec.width, -1)[0], query(seen["x"])
    vocabulary = model.logits(hidden).softmax(-1)
    size, start, found = model.spec.width // heads, 0, []
    for number, example in enumerate(examples):
        groups = [sum(example, [])] if letter == "F" else example
        for position in range(tokens.shape[1]):
            generate = (model.gate.gate.weight[0] @ hidden[number, position] + model.gate.gate.bias[0]).sigmoid()
            p, place = generate * vocabulary[number, position], start
            for rank, words in enumerate(groups):
                share = 1.0 if shares is None else shares[number, position, rank]
                for head in range(model.spec.copy_heads):
                    part = slice(head * size, (head + 1) * size)
                    scores = keys[place : place + len(words), part] @ queries[number, position, part] / size**0.5
                    onward = model.gate.onward.weight[head] @ hidden[number, position] + model.gate.onward.bias[head]
                    before = torch.tensor([-1, *words[:-1]])
                    scores = scores + onward * (before == tokens[number, position])
                    for word, weight in zip(words, scores.softmax(0), strict=True):
                        one = F.one_hot(torch.tensor(word), len(p))
                        p = p + one * (1 - generate) * share * weight / model.spec.copy_heads
                place += len(words)
            found.append(p.log())
        start = place
    return torch.stack(found).view_as(vocabulary), vocabulary.log()


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("heads", [1, 2])
def test_teacher_forced_probabilities_are_those_of_the_equation(mix, heads):
    model = copying(mix, heads).eval()
    with torch.no_grad():
        found = model(pack(EXAMPLES_TWICE), targets(3))
        expected, vocabulary = reference(model, EXAMPLES_TWICE, targets(3))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (found - vocabulary).abs().max() > 0.1
    torch.testing.assert_close(found.log_softmax(-1), found, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_the_equation(mix, smoothing, monkeypatch):
    monkeypatch.setitem(recomputation._ELEMENTS, "cpu", 1)  # an example at a time
    model = copying(mix)
    loss = objective_of(model, smoothing)(Batch(pack(EXAMPLES_TWICE), TARGET))
    loss.backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    log_p, vocabulary = reference(model, EXAMPLES_TWICE, TARGET[:, :-1])
    gold = TARGET[:, 1:]
    q = torch.full_like(log_p, smoothing / (log_p.shape[-1] - 2))
    q[..., PAD] = 0
    q.scatter_(2, gold[..., None], 0.0)
    whole = (1 - smoothing) * log_p.gather(2, gold[..., None]).squeeze(2) + (q * vocabulary).sum(-1)
    expected = -whole[gold != PAD].sum()
    torch.testing.assert_close(loss, expected)
    expected.backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad, atol=2e-5, rtol=1e-4, msg=name)
    assert found["gate.gate.weight"].abs().max() > 1e-3


def test_the_loss_stays_finite_where_neither_way_gives_the_word():
    """The word is not in the source, and the vocabulary and the gate all but exclude it."""
    model = copying("L/P")
    with torch.no_grad():
        model.embedding.bias[30] = -200.0
        model.gate.gate.bias.fill_(-200.0)
    loss = objective_of(model, 0.1)(Batch(SOURCE, TARGET))
    loss.backward()
    assert loss.isfinite() and all(value.grad.isfinite().all() for value in model.parameters())


def test_in_bf16_the_loss_is_near():
    model, losses = copying("L/P"), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses.append(objective_of(model, 0.1)(Batch(SOURCE, TARGET)))
    losses[1].backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0)
    assert all(value.grad.isfinite().all() for value in model.parameters())


def test_without_a_gate_the_model_is_as_it_was():
    plain, gated = spec("L/P"), spec("L/P", copy_heads=1)
    assert count_parameters(gated) - count_parameters(plain) == 2 * (plain.width + 1)
    new = {f"gate.{name}.{kind}" for name in ("gate", "onward") for kind in ("weight", "bias")}
    assert parameters(gated).keys() - parameters(plain).keys() == new
    weights = build_seeded(gated).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in build_seeded(plain).state_dict().items())
    with pytest.raises(ValueError, match="copy_heads 3 must not exceed heads 2"):
        spec("L/P", copy_heads=3)
    assert all(load_config(name).model.copy_heads == 0 for name in ("pht", "ht", "vht", "ft"))


def question(words: range, seed: int) -> Batch:
    """Paragraphs of a mark, 10 to 12, and a word, in any order; asked for are the words of 10 and 11."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([torch.randperm(len(words), generator=generator)[:3] for _ in range(32)]) + words.start
    orders = [torch.randperm(3, generator=generator).tolist() for _ in range(32)]
    examples = [[[10 + m, row[m]] for m in order] for row, order in zip(drawn.tolist(), orders, strict=True)]
    first, last = torch.full((32, 1), BOS), torch.full((32, 1), EOS)
    return Batch(pack(examples), torch.cat([first, drawn[:, :2], last], 1))


def test_words_that_were_never_seen_are_copied_with_the_gate_and_not_without():
    right, test = {}, question(range(350, 400), 1000)
    for heads in (0, 1):
        model = build_seeded(spec("L/P", copy_heads=heads, vocabulary=400, **DRY | {"width": 32, "ffn": 32}))
        objective, optimizer = objective_of(model, 0.0), torch.optim.Adam(model.parameters(), 0.005)
        for step in range(200):
            optimizer.zero_grad()
            objective(question(range(13, 350), step)).div(32).backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            found = beam_search(model, model.encode(test.source), DecodeConfig(num_beams=2, max_length=8))
        pairs = zip(found, test.target[:, 1:].tolist(), strict=True)
        right[heads] = sum(example[0].ids == wanted for example, wanted in pairs)
    assert right[1] > 12 and right[0] <= 2, right  # of 32; a word of the source by chance: 5


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("copying") / "data", {"train": 120, "valid": 10})


SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}


def test_six_steps_and_six_are_twelve(data, tmp_path):
    gated = SMALL | {"copy_heads": 1}
    whole = trained(data, tmp_path / "whole", 12, gated)
    trained(data, tmp_path / "parts", 6, gated)
    parts = trained(data, tmp_path / "parts", 12, gated)
    assert same(weights(parts, "12"), weights(whole, "12"))
    assert weights(whole, "12")["gate.gate.bias"].item() != 0


def test_a_model_without_a_gate_is_a_start_that_names_what_is_new(data, tmp_path, capfd):
    plain = trained(data, tmp_path / "plain", 2, SMALL)
    run = trained(data, tmp_path / "gated", 1, SMALL | {"copy_heads": 1}, train={"init_from": str(plain.path)})
    assert "new and untrained: gate.*" in capfd.readouterr().err
    assert restore(run, "best", torch.device("cpu")).gate is not None
