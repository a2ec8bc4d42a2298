"""Steps of a search as graphs, without a GPU: operations recorded on a CPU are repeated on the same memory.

As in a CUDA graph, no Python runs in a repetition, so lengths, sizes, indices and masks must come from the device.
"""

import gc
import random
import weakref
from functools import partial

import pytest
import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decode import test_grounding
from helpers.small_models import EXAMPLES, MIXES, SYSTEMS, build_seeded, shaken, stirred
from helpers.special_ids import EOS
from models.test_host_waits import SPECS, packed_batch
from raysum.config.decoding import DecodeConfig
from raysum.decode import beam, graphs, hypotheses
from raysum.decode.beam import beam_search
from raysum.decode.scores import terms
from raysum.errors import UserError
from raysum.models import keys
from raysum.models.systems.specs import GraphSumSpec

FAST = ("L/F", "L/P", "L/V", "t5 LG/PV")
NAMES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in (*MIXES, "t5 L/F", "t5 LG/PV", "bart LG/PV", "bart S/VP", "led W/F", "graphsum")
]

FORBIDDEN = {"item", "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "lift_fresh", "lift"}


class Recording(TorchDispatchMode):
    """The operations between ``with`` and its end, which ``repeat`` computes again into their former results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        assert function.overloadpacket.__name__ not in FORBIDDEN, "the host reads or writes a value"
        result = function(*arguments, **(options or {}))
        self.calls.append((function, arguments, options or {}, result))
        return result

    def repeat(self):
        for function, arguments, options, former in self.calls:
            found = function(*arguments, **options)
            for old, new in zip(tree_leaves(former), tree_leaves(found), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def captured(monkeypatch):
    """The number of captures and repetitions."""
    counts = {"captured": 0, "repeated": 0}

    def capture(work, _):
        with Recording() as recording:
            outputs = work()
        counts["captured"] += 1
        first = [True]

        def repeat():
            counts["repeated"] += 1
            if not first:  # unlike on a GPU, the capture has computed this step
                recording.repeat()
            first.clear()

        return repeat, outputs

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(keys, "_FIXED_ROOM", 8)  # so that the cache drops tokens, in place and by growing
    return counts


def choose(monkeypatch, with_graphs):
    monkeypatch.setattr(beam, "permits_graphs", lambda model, _: with_graphs and model not in graphs._uncaptured)
    monkeypatch.setattr(beam, "_interval", lambda *_: 8 if with_graphs else 1)


def searched(model, batch, settings, monkeypatch, with_graphs, **options):
    choose(monkeypatch, with_graphs)
    with torch.inference_mode():
        memory = model.encode(batch)
        return beam_search(model, memory, settings, terms_of(settings, memory), **options)


def terms_of(settings, memory):
    """All paragraphs are predicted to get equal attention."""
    return terms(settings, memory, memory.paragraph_mask / memory.paragraph_mask.sum(-1, keepdim=True))


def model_and_source(name):
    given = SPECS[name]()
    small = given if not isinstance(given, type) else given(vocabulary=40, **SYSTEMS[name])
    model = shaken(build_seeded(small)).eval()
    return model, packed_batch(small.marks.pad).source


@pytest.mark.parametrize("name", NAMES)
def test_repeated_operations_find_the_hypotheses_of_the_model(name, captured, monkeypatch):
    model, source = model_and_source(name)
    changes = {"gnmt_coverage": 0.3} if model.spec.attends_to_tokens else {"structural_coverage": 0.5}
    with torch.no_grad():
        if model.embedding.bias is not None:
            model.embedding.bias[model.spec.marks.end] -= 1.0
    settings = DecodeConfig(**{"num_beams": 3, "max_length": 40, "min_length": 3, "beta": 0, "n_best": 3} | changes)
    plain = searched(model, source, settings, monkeypatch, False)
    found = searched(model, source, settings, monkeypatch, True)
    assert captured["captured"] and captured["repeated"] > 2 * captured["captured"]
    for one, other in zip(sum(plain, []), sum(found, []), strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-4)


RULES = {
    "blocking": {"no_repeat_ngram_size": 2, "no_repeat_last": 2, "block_across_sentences": True},
    "bad words": {"bad_words_ids": [[9], [10, 11], [12, 13, 14]], "repetition_penalty": 1.2, "min_length": 9},
    "source": {"encoder_no_repeat_ngram_size": 1, "num_beams": 1, "repetition_penalty": 0.8},
    "forced": {"forced_bos_token_id": 9, "forced_eos_token_id": EOS, "max_length": 30, "min_length": 25},
    "terms of steps": {"beta": 2.0, "alignment_when": "step", "structural_coverage": 0.5, "structural_when": "step"},
    "terms of tokens": {"gnmt_coverage": 0.4, "coverage_when": "step", "beta": 1.0, "alignment_when": "final"},
    "no length": {"length_normalization": "none", "early_stopping": True},
    "until none is better": {"early_stopping": False},
    "until none can be better": {"early_stopping": "never", "length_normalization": "length"},
    "a power of the length": {"length_normalization": "length", "length_penalty": 0.7},
}


@pytest.mark.parametrize("changes", RULES.values(), ids=RULES)
def test_repeated_rules_find_the_hypotheses_of_a_search_without_graphs(changes, captured, monkeypatch):
    lengths = set()
    for seed in range(3):
        model, source = model_and_source("L/F")
        stirred(model, seed, EOS, 2.0)
        settings = DecodeConfig(**{"num_beams": 3, "max_length": 40, "min_length": 3, "beta": 0} | changes)
        options = {
            "exempt": [9, 12],
            "prompt": torch.tensor([[9, 10, 11], [12, 13, model.spec.marks.pad], [9, 9, 9]]) if seed else None,
            "source": torch.arange(12, 27).view(3, 5),
        }
        plain = searched(model, source, settings, monkeypatch, False, **options)
        found = searched(model, source, settings, monkeypatch, True, **options)
        for one, other in zip(sum(plain, []), sum(found, []), strict=True):
            assert one.ids == other.ids
            assert (one.score, one.log_prob) == pytest.approx((other.score, other.log_prob), abs=1e-4)
            lengths.add(len(one.ids))
    assert captured["repeated"] > 20 and (len(lengths) > 1 or "forced_eos_token_id" in changes)


@pytest.mark.parametrize("mode", ["numbers", "names", "all"])
def test_repeated_tables_find_the_summaries_of_the_host(mode, captured, monkeypatch):
    vocabulary = test_grounding.VOCABULARIES["1000"]()
    settings = {"grounded": mode, "num_beams": 3, "max_length": 60, "min_length": 20}
    writer = test_grounding.summarizer("pht", vocabulary, 3, **settings)
    rows = [writer.prepare(cluster) for cluster in test_grounding.clusters(random.Random(4), 5)]
    expected = writer.summarize_rows(rows)
    choose(monkeypatch, True)
    test_grounding.use_tables(monkeypatch, vocabulary)
    assert [one.summary for one in writer.summarize_rows(rows)] == [one.summary for one in expected]
    assert captured["repeated"] > 20 and len({one.summary for one in expected}) == len(rows)


def test_a_search_is_freed_when_it_ends(captured, monkeypatch):
    model, source = model_and_source("L/F")
    choose(monkeypatch, True)
    settings, made = DecodeConfig(num_beams=2, max_length=20, min_length=15, beta=0), []
    start = model.start
    monkeypatch.setattr(model, "start", lambda *given, **named: made.append(start(*given, **named)) or made[-1])
    with torch.inference_mode():
        memory = model.encode(source)
        gc.collect()
        gc.disable()
        try:
            beam_search(model, memory, settings)
            steps = beam.search_steps(model, memory, settings)
            next(steps)
            steps.close()
            left = [weakref.ref(state.store) for state in made]
            del made[:], steps
            assert captured["captured"] and [store() for store in left] == [None, None]
        finally:
            gc.enable()


def test_arrays_of_hypotheses_grow(captured, monkeypatch):
    monkeypatch.setattr(hypotheses, "_ROOM", 8)
    model, source = model_and_source("L/P")
    settings = DecodeConfig(num_beams=3, max_length=50, min_length=45, beta=0, no_repeat_ngram_size=3, n_best=3)
    found = [searched(model, source, settings, monkeypatch, with_graphs) for with_graphs in (False, True)]
    monkeypatch.setattr(hypotheses, "_ROOM", 64)
    for other in (*found, searched(model, source, settings, monkeypatch, True)):
        assert [one.ids for one in sum(other, [])] == [one.ids for one in sum(found[0], [])]


@pytest.mark.parametrize("name", NAMES)
def test_repetitions_read_only_memory_that_stays(name, monkeypatch):
    model, source = model_and_source(name)
    recordings = []

    def capture(work, _):
        with Recording() as recording:
            outputs = work()
        recordings.append(recording)
        return recording.repeat, outputs

    def storages(values):
        return {v.untyped_storage().data_ptr() for v in tree_leaves(values) if isinstance(v, torch.Tensor)}

    monkeypatch.setattr(graphs, "capture", capture)
    choose(monkeypatch, True)
    settings = DecodeConfig(num_beams=3, beta=1, structural_coverage=0.5, no_repeat_last=2, repetition_penalty=1.1)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        memory = model.encode(source)
        search = beam._Search(model, memory, settings, terms_of(settings, memory), beam.SearchOptions())
        for length in range(1, 3):
            search.step(length)
    (recording,) = recordings
    known = storages(tensors_of(search))
    for function, arguments, options, result in recording.calls:
        assert storages([arguments, options]) <= known, function
        known |= storages(result)


def tensors_of(value, seen=None):
    """The tensors that an object of a search holds, also through its parts."""
    seen = {} if seen is None else seen
    if id(value) in seen or value is None or isinstance(value, (str, int, float, type)):
        return []
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        parts = [getattr(value, "__self__", None), vars(value) if hasattr(value, "__dict__") else None]
    return [tensor for part in parts for tensor in tensors_of(part, seen)]


@torch.no_grad()
def test_a_cache_that_drops_most_tokens_stays_in_place(monkeypatch):
    monkeypatch.setattr(keys, "_FIXED_ROOM", 8)
    model, source = model_and_source("L/P")
    memory, tokens = model.encode(source), torch.arange(9, 9 + 20 * 9).view(20, 9) % 30 + 9
    fixed, usual = model.start(memory, 3, is_fixed=True), model.start(memory, 3)
    stores = set()
    for column in tokens:
        found, expected = (model.step(column, state)[0] for state in (fixed, usual))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        stores.add(fixed.store.data_ptr())
        for state in (fixed, usual):
            state.reorder(torch.tensor([[1, 1, 1]] * 3))  # one past remains
    assert len(stores) == 2, "of 24 entries, half are free beside 8 tokens, but not beside 13"


def test_examples_leave_graphs_at_different_lengths(captured, monkeypatch):
    lengths = set()
    for seed in range(4):
        model, source = model_and_source("L/P")
        stirred(model, seed, EOS, 3.0)
        settings = DecodeConfig(num_beams=3, max_length=60, min_length=2, beta=0)
        plain = searched(model, source, settings, monkeypatch, False)
        found = searched(model, source, settings, monkeypatch, True)
        assert [one[0].ids for one in plain] == [one[0].ids for one in found]
        lengths |= {len(one[0].ids) for one in found}
    assert len(lengths) > 3 and captured["repeated"]


def test_texts_longer_than_the_positions_raise_the_error_of_the_model(captured, monkeypatch):
    model, source = model_and_source("bart LG/PV")
    settings = DecodeConfig(num_beams=2, max_length=70, min_length=60, beta=0)
    with pytest.raises(UserError, match="positions for 50 tokens"):
        searched(model, source, settings, monkeypatch, True)
    assert captured["repeated"]


def test_a_search_goes_on_if_no_step_can_be_captured(monkeypatch):
    def capture(work, _):
        raise RuntimeError("operation not permitted when stream is capturing")

    model, source = model_and_source("L/P")
    settings = DecodeConfig(num_beams=2, max_length=20, beta=0)
    plain = searched(model, source, settings, monkeypatch, False)
    monkeypatch.setattr(graphs, "capture", capture)
    with pytest.warns(UserWarning, match="operation not permitted") as warned:
        found = searched(model, source, settings, monkeypatch, True)
    assert [one[0].ids for one in found] == [one[0].ids for one in plain]
    assert len(warned) == 1
    assert not graphs.permits_graphs(model, torch.device("cuda")), "it is not tried again"


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_step_is_one_graph_for_the_compiler_and_the_same_at_every_length(name):
    model, source = model_and_source(name)
    state = model.start(model.encode(source), 3, is_fixed=True)
    tokens = torch.full((len(EXAMPLES) * 3,), 9)
    model.step(tokens, state)
    torch._dynamo.reset()
    explanation = torch._dynamo.explain(model.extend)(tokens, state, True)
    assert explanation.graph_break_count == 0, explanation.break_reasons

    def operations():
        state.make_room()
        with Recording() as recording:
            model.extend(tokens, state, True)
        return [(str(call[0]), shapes(call[1]), shapes(call[3])) for call in recording.calls]

    def shapes(values):
        return [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in tree_leaves(values)]

    early = operations()
    for _ in range(20):
        model.step(tokens, state)
    assert operations() == early


def test_only_graphs_on_a_gpu_and_of_layers_that_do_not_count():
    device = torch.device("cuda")
    model, _ = model_and_source("L/P")
    assert graphs.permits_graphs(model, device)
    assert not graphs.permits_graphs(model, torch.device("cpu"))
    txl, _ = model_and_source("txl")
    assert not graphs.permits_graphs(txl, device)
    assert GraphSumSpec.compiles
