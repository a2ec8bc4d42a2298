"""How often the host reads from a GPU in a search: on the meta device, which has no values, the first read raises."""

import pytest
import torch

from helpers.devices import OneDevice
from helpers.small_models import EXAMPLES, MIXES, SYSTEMS, build_seeded, pack, stirred
from helpers.special_ids import EOS
from models.test_host_waits import SPECS, packed_batch
from raysum.config.decoding import DecodeConfig
from raysum.decode import beam, graphs
from raysum.decode.beam import SearchOptions, beam_search, exhaust, search_steps
from raysum.decode.scores import terms
from raysum.models.batch import copied

CHOICES = {
    "plain": {},
    "no length": {"length_normalization": "none", "min_length": 2, "num_beams": 2},
    "several": {"n_best": 3, "num_beams": 4, "no_repeat_ngram_size": 2, "no_repeat_last": 2},
    "greedy": {"num_beams": 1, "early_stopping": "never"},
    "stopping": {"early_stopping": True},
    "until none is better": {"early_stopping": False},
    "until none can be better": {"early_stopping": "never", "num_beams": 4},
    "coverage at every step": {"structural_coverage": 0.5, "structural_when": "step"},
    "coverage at the end": {"gnmt_coverage": 0.2, "coverage_when": "final"},
    "forced": {"forced_eos_token_id": EOS, "max_length": 11},
}


def searched(model, source, monkeypatch, interval, changes, is_cancelled=None):
    monkeypatch.setattr(beam, "_interval", lambda *_: interval)
    settings = DecodeConfig(**{"num_beams": 3, "max_length": 20, "min_length": 3, "beta": 0} | changes)
    with torch.inference_mode():
        memory = model.encode(source)
        options = SearchOptions(is_cancelled=is_cancelled)
        steps = search_steps(model, memory, settings, terms(settings, memory), options)
        found = exhaust(steps)
        return found.best(settings.n_best, terms(settings, memory)), found.count.tolist()


@pytest.mark.parametrize("changes", CHOICES.values(), ids=CHOICES)
def test_the_hypotheses_do_not_depend_on_when_the_host_reads_them(monkeypatch, changes):
    lengths = set()
    for seed in range(4):
        model, source = stirred(build_seeded(SPECS["L/P"]()).eval(), seed, EOS, 3.0), pack(EXAMPLES)
        each, every = (searched(model, source, monkeypatch, interval, changes) for interval in (1, 8))
        assert each[1] == every[1]
        for one, other in zip(sum(each[0], []), sum(every[0], []), strict=True):
            assert (one.ids, one.cut) == (other.ids, other.cut)
            assert (one.score, one.log_prob) == pytest.approx((other.score, other.log_prob), abs=1e-4)
        lengths |= {len(one.ids) for example in each[0] for one in example}
    assert len(lengths) > 3


def test_a_cancelled_search_ends_at_the_next_reading(monkeypatch):
    model, source = build_seeded(SPECS["L/F"]()).eval(), pack(EXAMPLES)
    settings = {"min_length": 19}
    whole, _ = searched(model, source, monkeypatch, 8, settings)
    some, _ = searched(model, source, monkeypatch, 8, settings, is_cancelled=lambda index: index == 1)
    assert [len(example[0].ids) for example in some] == [20, 8, 20]
    assert [some[0], some[2]] == [whole[0], whole[2]]


@pytest.mark.parametrize("name", [*MIXES, "t5 L/F", "bart LG/PV", "graphsum"])
@pytest.mark.parametrize("with_graphs", [False, True], ids=["", "graphs"])
@pytest.mark.parametrize("early_stopping", [None, False])
def test_a_gpu_is_read_once_in_eight_steps(name, with_graphs, early_stopping, monkeypatch):
    given = SPECS[name]()
    small = given if not isinstance(given, type) else given(vocabulary=40, **SYSTEMS[name])
    model, made = build_seeded(small).eval().to("meta"), []
    source = copied(packed_batch(small.marks.pad).source, torch.device("meta"))
    extend = model.extend
    model.extend = lambda *arguments, **named: made.append(1) or extend(*arguments, **named)
    if with_graphs:
        monkeypatch.setattr(beam, "permits_graphs", lambda *_: True)
        monkeypatch.setattr(graphs, "capture", lambda work, _: (work, work()))
    rules = {"no_repeat_ngram_size": 3, "no_repeat_last": 2, "forced_bos_token_id": 9}
    settings = DecodeConfig(num_beams=3, max_length=40, beta=0, early_stopping=early_stopping, **rules)
    with torch.inference_mode(), OneDevice(), pytest.raises((RuntimeError, NotImplementedError), match=r"meta"):
        beam_search(model, model.encode(source), settings)
    assert len(made) == 8 + with_graphs  # a capture is no step
