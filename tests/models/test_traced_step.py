"""Traced steps give the logits of Python for every source, and models that cannot be traced are left alone."""

import copy
import gc
import threading
import weakref

import pytest
import torch

from helpers.small_models import EXAMPLES, build_seeded, pack, shaken
from models.test_host_waits import BART, SPECS, T5
from models.test_host_waits import spec as family
from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import beam_search
from raysum.errors import UserError
from raysum.models import traced_step
from raysum.models.batch import copied
from raysum.models.family.model import Family
from raysum.models.kernels import linear
from raysum.models.kernels.linear import optimize_for_inference

FLAT = {
    "S/F": lambda: family("S/F"),
    "L/F": lambda: family("L/F", tied_output=False),
    "LG/FFF": lambda: family("LG/FFF", form="paper"),
    "t5": lambda: family("L/FF", positions="paragraph", **T5),
    "bart": lambda: family("L/F", positions="paragraph", **BART),
    "led": SPECS["led W/F"],
    "primera": SPECS["primera W/F"],
}
OTHERS = {"a letter of paragraphs": "L/FP", "another": "L/VF", "a copy gate": "L/F"}
LONGER = [[[9 + n % 30 for n in range(5 * size + 3)] for size in range(4)], [[12, 30, 31]], [[13] * 9, [14], [15] * 3]]


def model_of(made, dtype="fp32"):
    return optimize_for_inference(shaken(build_seeded(made)).eval(), dtype)


@torch.inference_mode()
def steps(model, source, number=12, beams=3, attention=False):
    """The logits of steps along beams that change places."""
    drawn = torch.Generator().manual_seed(number)
    state, found = model.start(model.encode(source), beams), []
    for length in range(number):
        logits, weights = model.step(
            torch.randint(9, 40, (len(source.counts) * beams,), generator=drawn), state, attention
        )
        assert (weights is not None) == attention
        found.append(logits.clone())
        state.reorder(torch.randint(beams, (len(state.lineage), beams), generator=drawn))
        if length == 8 and len(state.lineage) > 1:
            state.keep(torch.tensor([1]))
            source = pack([[[1]]])
    return found


@pytest.mark.parametrize("order", [1, -1], ids=["one first", "many first"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", FLAT)
def test_a_trace_serves_sources_of_all_sizes_and_numbers(name, dtype, order, monkeypatch):
    monkeypatch.setattr(linear, "_LEAST_PACKED", 0)
    python, traced = model_of(FLAT[name](), dtype), model_of(FLAT[name](), dtype)
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 10**9)
    sources = [pack(EXAMPLES[:1]), pack(LONGER), pack(EXAMPLES), pack(LONGER[1:2]), pack(LONGER * 3)][::order]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        expected = [steps(python, source, 40) for source in sources]
        monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 3)
        found = [steps(traced, source, 40) for source in sources]
    assert list(map(callable, traced.traced_step._traces.values())) == [True]
    for one, other in zip(sum(found, []), sum(expected, []), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", OTHERS)
def test_steps_with_numbers_of_python_stay_python(name, monkeypatch):
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 0)
    model = model_of(family(OTHERS[name], copy_heads=int("copy" in name)))
    settings = DecodeConfig(num_beams=3, max_length=20, min_length=15, beta=0)
    with torch.inference_mode():
        assert beam_search(model, model.encode(pack(EXAMPLES)), settings)
    assert model.traced_step is None


class Longer(Family):
    """A model of another package whose step uses the length."""

    def _embed(self, tokens, positions, length):
        return super()._embed(tokens, positions, length) * length


def test_other_models_and_steps_stay_python(monkeypatch):
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 0)
    assert build_seeded(family("L/F")).traced_step is None, "its weights can change"
    torch.manual_seed(1)
    assert optimize_for_inference(shaken(Longer(family("L/F"))).eval()).traced_step is None
    model = model_of(family("L/F"))
    steps(model, pack(EXAMPLES), attention=True)
    assert not model.traced_step._traces
    with torch.inference_mode():
        fixed = model.start(model.encode(pack(EXAMPLES)), 3, is_fixed=True)
        for _ in range(4):
            model.step(torch.full((9,), 9), fixed)
        on_meta = model_of(family("L/F")).to("meta")
        state = on_meta.start(on_meta.encode(copied(pack(EXAMPLES), torch.device("meta"))), 3)
        for _ in range(4):
            on_meta.step(torch.full((9,), 9, device="meta"), state)
    assert not model.traced_step._traces and not on_meta.traced_step._traces


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_copies_trace_their_own_weights_and_models_are_freed(dtype, monkeypatch):
    monkeypatch.setattr(linear, "_LEAST_PACKED", 0)
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 2)
    model = model_of(family("L/F"), dtype)
    expected = steps(model, pack(EXAMPLES))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.decoder_norm.parameters():
            weight += 1
    found = steps(other, pack(EXAMPLES))
    assert not torch.allclose(found[-1], expected[-1])
    plain = copy.deepcopy(other)
    plain.traced_step = None
    assert torch.equal(steps(plain, pack(EXAMPLES))[-1], found[-1])
    gc.collect()
    gc.disable()
    try:
        left = weakref.ref(other.decoder_norm.weight)
        del other, plain, weight
        assert left() is None
    finally:
        gc.enable()


def test_texts_longer_than_the_positions_raise_the_error_of_the_model(monkeypatch):
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 0)
    model = model_of(FLAT["bart"]())
    with pytest.raises(UserError, match="positions for 50 tokens, but the text has 51"):
        steps(model, pack(EXAMPLES), 60)
    assert any(model.traced_step._traces.values())


def test_each_number_of_beams_and_precision_has_a_trace(monkeypatch):
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 0)
    model = model_of(family("L/F"))
    expected = {beams: steps(model, pack(EXAMPLES), 2, beams)[1] for beams in (1, 3)}
    for beams in (1, 3, 1):
        assert torch.equal(steps(model, pack(EXAMPLES), 2, beams)[1], expected[beams])
    with torch.autocast("cpu", torch.bfloat16):
        steps(model, pack(EXAMPLES), 2)
    assert set(model.traced_step._traces) == {(1, False), (3, False), (3, True)}


def test_threads_share_a_trace(monkeypatch):
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 10**9)
    model, found = model_of(family("L/F")), {}
    expected = [steps(model, pack(EXAMPLES), 12 + number) for number in range(4)]
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 5)

    def run(number):
        found[number] = steps(model, pack(EXAMPLES), 12 + number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert all(torch.equal(one, other) for one, other in zip(found[number], expected[number], strict=True))


def test_a_step_that_cannot_be_traced_stays_python_and_warns_once(monkeypatch):
    monkeypatch.setattr(traced_step, "_STEPS_BEFORE", 0)
    model = model_of(family("L/F"))
    extend, expected = model.extend, steps(model, pack(EXAMPLES))
    other = model_of(family("L/F"))

    def counting(tokens, state, attention=False):
        return (extend if len(tokens) else None)(tokens, state, attention)  # a number of Python

    monkeypatch.setattr(other, "extend", counting)
    with pytest.warns(UserWarning, match="without TorchScript.*Using len") as warned:
        found = steps(other, pack(EXAMPLES))
    assert len(warned) == 1
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
