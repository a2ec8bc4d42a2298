"""Beam search by scripted scores (no model), its blocking and score terms, and parity with the published search."""

import json
import math
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.small_models import EXAMPLES, model_of, pack
from helpers.special_ids import EOS, PAD, SENTENCE_END
from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import SearchOptions, _best, beam_search
from raysum.decode.beam import search as find
from raysum.decode.blocking import block_ngrams, block_recent
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.multi_beta import search_betas
from raysum.decode.scores import AttentionAlignment, GnmtCoverage, History, StructuralCoverage, length_norm, terms
from raysum.importing.hiersumm import convert
from raysum.models.batch import Source
from raysum.systems import build
from raysum.tokenizers.special_tokens import SpecialTokens

A, B, C = 9, 10, 11  # ordinary tokens; ids below are special
VOCABULARY = 12


@dataclass
class Script:
    """A step model whose probabilities are a table: of the tokens so far, or else of the last one.

    What the table leaves out has probability 0. ``attention`` is given by the last token, [M] each.
    """

    table: dict
    attention: dict = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)  # how many hypotheses each step extended

    def start(self, memory, beams):
        return _State([[] for _ in range(len(memory.paragraph_mask) * beams)], beams)

    def step(self, tokens, state, attention=False):
        self.rows.append(len(tokens))
        for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True):
            prefix.append(token)
        logits = torch.full((len(tokens), VOCABULARY), -torch.inf)
        for row, prefix in enumerate(state.prefixes):
            path = tuple(prefix[1:])
            for token, probability in self.table.get(path, self.table.get(path[-1:], {EOS: 1.0})).items():
                logits[row, token] = math.log(probability)
        weights = [self.attention.get(p[-1], self.attention.get(None)) for p in state.prefixes] if attention else None
        return logits, torch.tensor(weights) if attention else None


@dataclass
class _State:
    prefixes: list[list[int]]
    beams: int

    def reorder(self, parent):
        rows = [example * self.beams + beam for example, beams in enumerate(parent.tolist()) for beam in beams]
        self.prefixes = [list(self.prefixes[row]) for row in rows]

    def keep(self, examples):
        rows = [i * self.beams + r for i in examples.tolist() for r in range(self.beams)]
        self.prefixes = [self.prefixes[row] for row in rows]


def memory(examples: int = 1, paragraphs: int = 2) -> SimpleNamespace:
    return SimpleNamespace(paragraph_mask=torch.ones(examples, paragraphs, dtype=torch.bool))


def settings(**changes) -> DecodeConfig:
    plain = {"num_beams": 2, "length_normalization": "none", "no_repeat_ngram_size": 0, "max_length": 10}
    return DecodeConfig(**(plain | changes))


def search(table: dict, **changes) -> list[Hypothesis]:
    return beam_search(Script(table), memory(), settings(n_best=changes.get("num_beams", 2), **changes))[0]


SHORT_OR_LONG = {(): {A: 0.6, B: 0.4}, (A,): {EOS: 0.5, C: 0.5}, (B,): {EOS: 0.9, C: 0.1}, (A, C): {EOS: 1.0}}


def test_best_first_with_log_probabilities():
    found = search(SHORT_OR_LONG)
    # 0.36 B, then 0.30 A (A C has 0.30 too but needs a step more: two are finished by then)
    assert [h.ids for h in found] == [[B, EOS], [A, EOS]]
    assert [h.score for h in found] == pytest.approx([math.log(0.36), math.log(0.30)])
    assert [h.log_prob for h in found] == [h.score for h in found]


@pytest.mark.parametrize(
    ("normalization", "penalty", "divisor"),
    [("gnmt", 0.4, (7 / 6) ** 0.4), ("length", 1.0, 2.0), ("length", 0.5, 2**0.5), ("none", 1.0, 1.0)],
)
def test_length_normalization_counts_eos(normalization, penalty, divisor):
    found = search(SHORT_OR_LONG, length_normalization=normalization, length_penalty=penalty)
    assert found[0].score == pytest.approx(math.log(0.36) / divisor)
    assert found[0].log_prob == pytest.approx(math.log(0.36))


def test_length_normalization_prefers_the_longer_of_equals():
    table = {(): {A: 0.5, EOS: 0.25, B: 0.25}, (A,): {C: 1.0}, (A, C): {EOS: 0.5, B: 0.5}, (B,): {C: 1.0}}
    assert search(table, length_normalization="length", length_penalty=1)[0].ids == [A, C, EOS]


def test_minimum_length_forbids_eos():
    table = {(): {EOS: 0.9, A: 0.1}, (A,): {EOS: 0.9, B: 0.1}, (A, B): {EOS: 0.9, C: 0.1}, (A, B, C): {EOS: 1.0}}
    assert search(table)[0].ids == [EOS]
    assert search(table, min_length=2)[0].ids == [A, B, EOS]


def test_at_the_maximum_length_every_live_hypothesis_counts():
    table = {(): {A: 0.7, B: 0.3}, (A,): {A: 1.0}, (B,): {B: 1.0}}
    found = search(table, max_length=3)
    assert [h.ids for h in found] == [[A, A, A], [B, B, B]]
    assert [h.log_prob for h in found] == pytest.approx([math.log(0.7), math.log(0.3)])


def test_eos_must_be_among_the_best_candidates():
    # With two beams, EOS (0.1) is third at the first step: it is lost, although a beam of three would keep it.
    table = {(): {A: 0.5, B: 0.4, EOS: 0.1}, (A,): {C: 1.0}, (B,): {C: 1.0}, (C,): {EOS: 1.0}}
    assert [EOS] not in [h.ids for h in search(table)]
    assert [EOS] in [h.ids for h in search(table, num_beams=3)]


# From A on a better and better summary: EOS is found at the first step, B EOS at the second, A C EOS at the third.
LATER_IS_BETTER = {
    (): {A: 0.5, EOS: 0.3, B: 0.2},
    (A,): {C: 0.9, EOS: 0.1},
    (B,): {EOS: 0.6, C: 0.4},
    (A, C): {EOS: 0.96, A: 0.04},
    (A, C, A): {B: 1.0},
    (A, C, A, B): {EOS: 1.0},
}


@pytest.mark.parametrize(
    ("stopping", "expected"),
    [
        (None, [[B, EOS], [EOS]]),
        (True, [[B, EOS], [EOS]]),  # two have finished
        (False, [[A, C, EOS], [B, C, EOS]]),  # at the third step A C A, -1.34 by its length, is below both
        ("never", [[A, C, EOS], [A, C, A, B, EOS]]),  # which has -0.40 by ten tokens
    ],
)
def test_when_to_stop(stopping, expected):
    lengths = {"length_normalization": "length", "length_penalty": 1.0, "early_stopping": stopping}
    found = search(LATER_IS_BETTER, **lengths)
    assert [h.ids for h in found] == expected
    products = {(B, EOS): 0.12, (EOS,): 0.3, (A, C, EOS): 0.432, (B, C, EOS): 0.08, (A, C, A, B, EOS): 0.018}
    assert [h.score for h in found] == pytest.approx([math.log(products[tuple(ids)]) / len(ids) for ids in expected])


@pytest.mark.parametrize("stopping", [None, True, False, "never"])
def test_one_beam_stops_at_its_first_eos(stopping):
    table = {(): {EOS: 0.5, A: 0.4, B: 0.1}, (A,): {A: 1.0}}
    chosen = {"num_beams": 1, "length_normalization": "length", "length_penalty": 1.0, "early_stopping": stopping}
    assert [h.ids for h in search(table, **chosen)] == [[EOS]]


def test_transformers_keep_no_more_finished_hypotheses_than_beams():
    table = {(): {EOS: 0.4, A: 0.35, B: 0.25}, (A,): {EOS: 0.57, C: 0.43}, (B,): {EOS: 0.64, C: 0.36}}
    for stopping, ids in (
        (None, [[EOS], [A, EOS], [B, EOS], [A, C], [B, C]]),
        (True, [[EOS], [A, EOS]]),  # of the last step A EOS and B EOS, and the two best of all
    ):
        found = find(Script(table), memory(), settings(max_length=2, early_stopping=stopping)).best(9)
        assert [h.ids for h in found[0]] == ids


def test_final_terms_rank_the_best_that_finished():
    """What spreads as predicted is C, which True never reaches, and which the others keep for its probability."""
    table = {(): {EOS: 0.3, A: 0.7}, (A,): {EOS: 0.2, C: 0.8}, (A, C): {EOS: 1.0}}
    attention = {None: [1.0, 0.0], A: [1.0, 0.0], C: [0.0, 1.0]}
    term = AttentionAlignment(EVEN.predicted, EVEN.mask, 1.0, final=True)
    for stopping, ids in ((True, [[EOS], [A, EOS]]), (False, [[A, C, EOS], [EOS]])):
        chosen = settings(n_best=2, early_stopping=stopping)
        assert [h.ids for h in beam_search(Script(table, attention), memory(), chosen, [term])[0]] == ids


def test_the_first_and_the_last_token_may_be_forced():
    table = {(): {A: 0.9, B: 0.1}, (A,): {A: 0.9, EOS: 0.1}, (C,): {A: 0.6, B: 0.4}, (B,): {B: 0.7, A: 0.3}}
    for stopping in (None, True):
        changes = {"max_length": 3, "forced_bos_token_id": C, "early_stopping": stopping, "min_length": 3}
        found = search(table, **changes)
        assert [h.ids for h in found] == [[C, A, A], [C, B, B]]
        assert found[0].log_prob == pytest.approx(math.log(0.6 * 0.9))
        found = search(table, **changes, forced_eos_token_id=EOS)
        assert [h.ids for h in found] == [[C, A, EOS], [C, B, EOS]]
        assert [h.log_prob for h in found] == pytest.approx([math.log(0.6), math.log(0.4)])
        found = search(table, **changes, forced_eos_token_id=A)
        assert [h.ids for h in found] == [[C, A, A], [C, B, A]]
        assert [h.ids for h in search(table, **changes | {"forced_bos_token_id": EOS})] == [[EOS]]


def test_a_prompt_stands_behind_what_targets_begin_with():
    table = {(A, C): {EOS: 1.0}, (A, B, A): {EOS: 1.0}, (B, C): {EOS: 1.0}, (B, B, A): {EOS: 1.0}}
    prompt, marks = torch.tensor([[C, PAD], [B, A]]), SpecialTokens(target_prefix=(A,))
    for first, changes in ((A, {}), (B, {"forced_bos_token_id": B})):
        found = beam_search(Script(table), memory(2), settings(**changes), prompt=prompt, marks=marks)
        assert [h.ids for (h,) in found] == [[first, C, EOS], [first, B, A, EOS]]
    free = beam_search(Script({(): {C: 1.0}, (C,): {EOS: 1.0}}), memory(), settings(), marks=marks)
    assert free[0][0].ids == [C, EOS]  # a model begins as it has learnt to


def test_a_finished_hypothesis_leaves_room_for_another():
    # EOS is the best candidate at the first step: A and B both go on beside it.
    table = {(): {EOS: 0.5, A: 0.3, B: 0.2}, (A,): {C: 0.1, A: 0.9}, (B,): {EOS: 1.0}, (A, A): {EOS: 1.0}}
    assert [h.ids for h in search(table)] == [[EOS], [B, EOS]]


def test_finished_examples_leave_the_batch():
    """Example 0 is told from example 1 by the script's state: both see the same table, so lengths differ by terms."""
    script = Script(SHORT_OR_LONG)
    alone = beam_search(script, memory(), settings())
    together = beam_search(Script(SHORT_OR_LONG), memory(3), settings())
    assert [found[0].ids for found in together] == [alone[0][0].ids] * 3
    assert script.rows == [2, 2]  # two steps of one example with two beams; the third never ran


def test_a_cancelled_example_leaves_the_batch():
    endless = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.7, B: 0.3}, (B,): {A: 0.6, B: 0.4}}
    script, asked = Script(endless), []

    def is_cancelled(example: int) -> bool:
        asked.append(example)
        return example != 1 or len(asked) > 6

    found = find(script, memory(3), settings(), options=SearchOptions(is_cancelled=is_cancelled)).best(1)
    assert [best.ids for (best,) in found] == [[A], [A] * 5, [A]]  # what there was
    assert script.rows == [6, 2, 2, 2, 2]  # of the ten steps; one example goes on after the first
    assert asked == [0, 1, 2, 1, 1, 1, 1]


def test_ngram_blocking_takes_the_next_best():
    table = {(): {A: 1.0}, (A,): {B: 1.0}, (B,): {A: 0.8, C: 0.2}, (C,): {EOS: 1.0}, (A, B, A): {B: 0.9, EOS: 0.1}}
    assert search(table, num_beams=1, max_length=4)[0].ids == [A, B, A, B]
    assert search(table, num_beams=1, no_repeat_ngram_size=2)[0].ids == [A, B, A, EOS]  # A B is spent
    assert search(table, num_beams=1, no_repeat_ngram_size=1)[0].ids == [A, B, C, EOS]


def test_a_hypothesis_whose_candidates_are_all_blocked_ends():
    """Nothing but EOS is left to it: it is stored with its EOS, even far from the best and below the minimum length."""
    near_one = 1 - 1e-6
    table = {
        (): {A: 0.9, B: 0.1},
        (A,): {C: 1.0},
        (A, C): {A: 1.0},
        (A, C, A): {B: 1.0},
        (B,): {B: near_one, EOS: 1e-6},
        (B, B): {B: near_one, EOS: 1e-6},
    }
    found = search(table, no_repeat_ngram_size=2, min_length=3, max_length=4)
    assert [h.ids for h in found] == [[A, C, A, B], [B, B, EOS]]
    assert found[1].log_prob == pytest.approx(math.log(0.1) + math.log(1e-6), rel=1e-4)


def test_ngrams_across_sentences_may_repeat_unless_asked():
    scores = torch.zeros(1, VOCABULARY)
    tokens = torch.tensor([[A, SENTENCE_END, B, A, SENTENCE_END]])
    block_ngrams(scores, tokens, 3, separator=SENTENCE_END)
    assert scores.max() == 0 == scores.min()
    block_ngrams(scores, tokens, 3)
    assert scores[0].isinf().nonzero().flatten().tolist() == [B]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("separator", [None, 3])
def test_ngram_blocking_equals_a_plain_loop(size, separator):
    rng = random.Random(size)
    for length in (1, 2, 3, 10, 40):
        tokens = [[[rng.randrange(5) for _ in range(length)] for _ in range(3)] for _ in range(4)]
        scores = torch.randn(4, 3, 7)
        expected = scores.clone()
        for b, r in np.ndindex(4, 3):
            row = tokens[b][r]
            seen = {tuple(row[i : i + size]) for i in range(length - size + 1)}
            for token in range(7):
                ngram = tuple(row[length - size + 1 :]) + (token,)
                if ngram in seen and separator not in ngram:
                    expected[b, r, token] = -torch.inf
        block_ngrams(scores, torch.tensor(tokens), size, separator)
        assert torch.equal(scores, expected), (size, length)


def test_recent_tokens_are_blocked_but_for_commas():
    scores = torch.zeros(2, VOCABULARY)
    block_recent(scores, torch.tensor([[A, B, C], [C, A, B]]), 2, exempt=torch.tensor([B]))
    assert [row.isinf().nonzero().flatten().tolist() for row in scores] == [[A, C], [A, C]]
    table = {(): {A: 1.0}, (A,): {A: 0.9, B: 0.1}, (B,): {B: 0.9, EOS: 0.1}}
    assert search(table, num_beams=1, no_repeat_last=2, max_length=4)[0].ids == [A, B, EOS]


def test_blocking_looks_past_commas():
    """As PHT's code: in "the river, the", with the comma B, both words before the comma count."""
    scores = torch.zeros(1, VOCABULARY)
    block_recent(scores, torch.tensor([[A, C, B, B]]), 1, exempt=torch.tensor([B]))
    assert scores[0].isinf().nonzero().flatten().tolist() == [C]


def test_structural_coverage_of_ten_is_the_published_score():
    """PHT's code adds 10 x strCov at each step to the log-probability, and divides both by the length at the end."""
    table = {(): {A: 0.55, B: 0.45}, (A,): {A: 0.5, EOS: 0.5}, (B,): {EOS: 1.0}}
    attention = {None: [1.0, 0.0], A: [0.6, 0.4], B: [0.0, 1.0]}
    chosen = settings(n_best=2, length_normalization="length", length_penalty=1.0, structural_coverage=10.0)
    best, second = beam_search(Script(table, attention), memory(), chosen, terms(chosen, memory()))[0]
    assert (best.ids, second.ids) == ([B, EOS], [A, EOS])  # strCov is 1 + 1, and 1 + (1 - 0.6)
    assert best.score == pytest.approx((math.log(0.45) + 10 * (1 + 1)) / 2, rel=1e-5)
    assert second.score == pytest.approx((math.log(0.55 * 0.5) + 10 * (1 + 0.4)) / 2, rel=1e-5)


def test_a_prompt_begins_every_hypothesis_and_is_certain():
    """As PHT's code begins with the title: its tokens count in the length alone. The second title is shorter."""
    table = {(C, A): {A: 0.6, EOS: 0.4}, (C, A, A): {EOS: 1.0}, (B,): {EOS: 0.8, C: 0.2}, (B, C): {EOS: 1.0}}
    chosen = settings(n_best=2, length_normalization="length", length_penalty=1.0, no_repeat_ngram_size=1)
    prompt = torch.tensor([[C, A], [B, PAD]])
    found = beam_search(Script(table), memory(2), chosen, prompt=prompt)
    assert [[h.ids for h in example] for example in found] == [[[C, A, EOS]], [[B, EOS], [B, C, EOS]]]
    assert found[0][0].score == pytest.approx(math.log(0.4) / 3) and found[0][0].log_prob == pytest.approx(
        math.log(0.4)
    )
    assert [h.score for h in found[1]] == pytest.approx([math.log(0.8) / 2, math.log(0.2) / 3])


def test_commas_reach_the_search():
    table = {(): {A: 1.0}, (A,): {A: 0.9, B: 0.1}, (B,): {EOS: 1.0}}
    found = beam_search(Script(table), memory(), settings(no_repeat_last=2, max_length=3), exempt=[A])
    assert found[0][0].ids == [A, A, A]


@pytest.mark.parametrize(("beams", "vocabulary"), [(1, 3), (2, 128), (5, 100), (5, 1000), (4, 130), (3, 256)])
def test_best_candidates_equal_a_plain_top_k(beams, vocabulary):
    generator = torch.Generator().manual_seed(beams)
    log_probs = torch.randn(3, beams, vocabulary, generator=generator)
    log_probs[0, 1:] = -torch.inf  # empty beams
    log_probs[1, :, 2:] = -torch.inf
    offset = torch.randn(3, beams, generator=generator)
    expected = (log_probs + offset[..., None]).flatten(1).topk(beams)
    parent, token, found = _best(log_probs, offset)
    score = found + offset.gather(1, parent)
    assert torch.equal(score, expected.values)
    finite = expected.values.isfinite()
    assert torch.equal((parent * vocabulary + token)[finite], expected.indices[finite])


# Score terms


def nothing_attended(examples: int, beams: int, paragraphs: int) -> History:
    return History.start(examples, beams, paragraphs)


def history(*steps: list[list[float]]) -> History:
    """Of one example whose beams attend as each step [R, M] says."""
    past = nothing_attended(1, len(steps[0]), len(steps[0][0]))
    for step in steps:
        past.add(torch.tensor([step]))
    return past


def test_alignment_is_the_sum_of_logs_of_the_smaller_share():
    past = history([[0.8, 0.2, 0.0]], [[0.4, 0.4, 0.2]])  # eta = 0.6, 0.3, 0.1
    mask = torch.ones(1, 3, dtype=torch.bool)
    predicted = torch.tensor([[0.5, 0.2, 0.3]])
    expected = math.log(0.5) + math.log(0.2) + math.log(0.1)
    assert AttentionAlignment(predicted, mask, 0.5)(past).item() == pytest.approx(0.5 * expected, rel=1e-5)
    assert AttentionAlignment(predicted, mask, 0.5, mean=True)(past).item() == pytest.approx(
        0.5 * expected / 3, rel=1e-5
    )
    scaled = history([[1.6, 0.4, 0.0]], [[0.8, 0.8, 0.4]])  # two layers' sums: the same shares
    assert AttentionAlignment(predicted, mask, 0.5)(scaled).item() == pytest.approx(0.5 * expected, rel=1e-5)


def test_alignment_edges_stay_finite():
    mask = torch.tensor([[True, True, False]])
    predicted = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.bfloat16)
    score = AttentionAlignment(predicted, mask, 1.0)(history([[0.0, 1.0, 0.0]]))
    assert score.dtype == torch.float32
    assert score.item() == pytest.approx(2 * math.log(1e-6), rel=1e-5)  # padding is no paragraph
    assert AttentionAlignment(predicted, mask, 1.0)(history([[0.0, 0.0, 0.0]])).isfinite().all()
    alone = torch.tensor([[True, False, False]])
    assert AttentionAlignment(predicted, alone, 1.0)(history([[1.0, 0.0, 0.0]])).item() == 0


@pytest.mark.parametrize("when", ["step", "final"])
def test_structural_coverage_steers_or_only_ranks(when):
    """A goes on where it has attended before, B attends to the other paragraph."""
    attention = {None: [1.0, 0.0], A: [1.0, 0.0], B: [0.0, 1.0]}
    table = {(): {A: 0.55, B: 0.45}, (A,): {A: 0.5, EOS: 0.5}, (B,): {B: 0.5, EOS: 0.5}}
    table |= {(A, A): {EOS: 1.0}, (B, B): {EOS: 1.0}}
    chosen = settings(n_best=2, structural_coverage=5.0, structural_when=when)
    best, second = beam_search(Script(table, attention), memory(), chosen, terms(chosen, memory()))[0]
    # strCov is 1 at the first step; then 0 for A, 1 for B, and 0 for the second B
    assert best.score == pytest.approx(math.log(0.225) + 5 * (1 if when == "step" else 2 / 3), rel=1e-5)
    assert (best.ids, second.ids) == (([B, EOS], [B, B, EOS]) if when == "step" else ([B, B, EOS], [A, EOS]))


def test_attention_that_underflows_is_floored_and_counts_no_padding():
    """Weights in bf16 down to 0, many padding paragraphs: finite, and as without the padding."""
    step = torch.tensor([[[1.0, 1e-30, 0.0]]], dtype=torch.bfloat16)
    mask, predicted = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0.5, 0.5, 1e-38]])
    past = nothing_attended(1, 1, 3)
    past.add(step)
    found = AttentionAlignment(predicted, mask, 1.0)(past)
    assert found.item() == pytest.approx(math.log(0.5) + 2 * math.log(1e-6), rel=1e-6)
    padded = nothing_attended(1, 1, 8)
    padded.add(torch.nn.functional.pad(step, (0, 5)))
    wide = AttentionAlignment(torch.nn.functional.pad(predicted, (0, 5)), torch.nn.functional.pad(mask, (0, 5)), 1.0)
    assert wide(padded).item() == found.item()
    mean = AttentionAlignment(wide.predicted, wide.mask, 1.0, mean=True)
    assert mean(padded).item() == pytest.approx(found.item() / 3)
    nothing = nothing_attended(1, 1, 3)
    assert StructuralCoverage(1.0)(nothing).isfinite().all()
    nothing.add(torch.zeros(1, 1, 3))
    assert StructuralCoverage(1.0)(nothing).item() == 1 and StructuralCoverage(1.0)(past).item() == 1
    past.add(step)
    assert StructuralCoverage(1.0)(past).item() == pytest.approx(0.5, abs=1e-6)  # one paragraph has it all, twice


def token_history(*steps: list[list[float]], dtype: torch.dtype = torch.float32) -> History:
    """Of one hypothesis whose attention to tokens is each step [M, N]."""
    past = nothing_attended(1, 1, len(steps[0]))
    for step in steps:
        past.add(torch.tensor([[step]], dtype=dtype))
    return past


def test_gnmt_coverage_is_eq_11_over_real_tokens():
    past = token_history([[0.7, 0.1], [0.2, 0.0]], [[0.6, 0.0], [0.4, 0.0]])  # sums: 1.3, 0.1; 0.6 and padding
    mask = torch.tensor([[[True, True], [True, False]]])
    expected = math.log(1.0) + math.log(0.1) + math.log(0.6)
    assert GnmtCoverage(0.5, mask)(past).item() == pytest.approx(0.5 * expected, rel=1e-5)
    assert past.total.flatten().tolist() == pytest.approx([1.4, 0.6])
    assert past.overlap.item() == pytest.approx(0.6 + 0.2)  # of paragraphs, as without tokens
    layers = token_history([[2.1, 0.3], [0.6, 0.0]], [[1.8, 0.0], [1.2, 0.0]])  # three layers' sums
    assert GnmtCoverage(0.5, mask)(layers).item() == pytest.approx(0.5 * expected, rel=1e-5)


def test_gnmt_coverage_edges_stay_finite():
    one = torch.ones(1, 1, 2, dtype=torch.bool)
    assert GnmtCoverage(1.0, one)(token_history([[1.0, 0.0]])).item() == pytest.approx(math.log(1e-6), rel=1e-5)
    assert GnmtCoverage(1.0, one)(token_history([[0.0, 0.0]])).item() == pytest.approx(2 * math.log(1e-6), rel=1e-5)
    tiny = token_history([[1.0, 1e-30]], dtype=torch.bfloat16)
    found = GnmtCoverage(1.0, one)(tiny)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(math.log(1e-6), rel=1e-5)
    covered = token_history(*[[[0.5, 0.5]]] * 3)
    assert GnmtCoverage(1.0, one)(covered).item() == 0
    padding = torch.tensor([[[True, True], [False, False]]])
    assert GnmtCoverage(1.0, padding)(token_history(*[[[0.5, 0.5], [0.0, 0.0]]] * 3)).item() == 0


TOKENS = {None: [[0.5, 0.3], [0.2, 0.0]], A: [[0.9, 0.1], [0.0, 0.0]], B: [[0.2, 0.3], [0.5, 0.0]]}
REAL = torch.tensor([[[True, True], [True, False]]])


@pytest.mark.parametrize("final", [False, True])
def test_gnmt_coverage_turns_the_ranking(final):
    script = Script({(): {A: 0.55, B: 0.45}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}, TOKENS)
    term = GnmtCoverage(0.5, REAL, final=final)
    best, second = beam_search(script, memory(), settings(n_best=2), [term])[0]
    assert (best.ids, second.ids) == ([B, EOS], [A, EOS])
    assert best.score == pytest.approx(math.log(0.45) + 0.5 * (math.log(0.7) + math.log(0.6) + math.log(0.7)), rel=1e-5)
    assert second.score == pytest.approx(math.log(0.55) + 0.5 * (math.log(0.4) + math.log(0.2)), rel=1e-5)


def test_gnmt_coverage_steers_only_when_it_acts_at_every_step():
    """As for alignment: from A both candidates are likelier, but A attends to two of three tokens only."""
    table = {(): {A: 0.55, B: 0.45}, (A,): {A: 0.5, EOS: 0.5}, (B,): {B: 0.5, EOS: 0.5}}
    table |= {(A, A): {EOS: 1.0}, (B, B): {EOS: 1.0}}
    found = [
        beam_search(Script(table, TOKENS), memory(), settings(n_best=2), [GnmtCoverage(5.0, REAL, final)])[0]
        for final in (False, True)
    ]
    assert [h.ids for h in found[0]] == [[B, B, EOS], [B, EOS]]
    assert [h.ids for h in found[1]] == [[B, B, EOS], [A, A, EOS]]


def test_tokens_are_watched_only_where_a_term_reads_them():
    asked = []

    class AttentionRequest(Script):
        def step(self, tokens, state, attention=False):
            asked.append(attention)
            return super().step(tokens, state, attention)

    for some in ([], [EVEN], [EVEN, GnmtCoverage(1.0, REAL)]):
        beam_search(
            AttentionRequest(SHORT_OR_LONG, TOKENS if len(some) > 1 else PARAGRAPHS), memory(), settings(), some
        )
    assert list(dict.fromkeys(asked)) == [False, True, "tokens"]


def test_beta_may_differ_between_examples():
    past = nothing_attended(2, 1, 2)
    past.add(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))
    term = AttentionAlignment(torch.full((2, 2), 0.5), torch.ones(2, 2, dtype=torch.bool), torch.tensor([0.0, 2.0]))
    assert term(past).flatten().tolist() == pytest.approx([0.0, 4 * math.log(0.5)])
    past.keep(torch.tensor([1]))
    assert term(past).item() == pytest.approx(4 * math.log(0.5))


def test_structural_coverage_is_the_mean_of_eq_13():
    steps = [[[0.8, 0.2]], [[0.5, 0.5]], [[0.0, 1.0]]]
    # 1; then 1 - (0.5 + 0.2); then 1 - min(1, 0.7)
    expected = (1.0 + 0.3 + 0.3) / 3
    assert StructuralCoverage(2.0)(history(*steps)).item() == pytest.approx(2 * expected, rel=1e-5)


PARAGRAPHS = {None: [0.5, 0.5], A: [0.9, 0.1], B: [0.5, 0.5]}
EVEN = AttentionAlignment(torch.full((1, 2), 0.5), torch.ones(1, 2, dtype=torch.bool), 1.0)


@pytest.mark.parametrize("final", [False, True])
def test_alignment_turns_the_ranking(final):
    """A is likelier, but then attends unevenly: eta = (0.7, 0.3), while B stays at the predicted (0.5, 0.5)."""
    term = AttentionAlignment(EVEN.predicted, EVEN.mask, 1.0, final=final)
    script = Script({(): {A: 0.55, B: 0.45}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}, PARAGRAPHS)
    best, second = beam_search(script, memory(), settings(n_best=2), [term])[0]
    assert (best.ids, second.ids) == ([B, EOS], [A, EOS])
    assert best.score == pytest.approx(math.log(0.45) + 2 * math.log(0.5), rel=1e-5)
    assert second.score == pytest.approx(math.log(0.55) + math.log(0.5) + math.log(0.3), rel=1e-5)
    assert second.log_prob == pytest.approx(math.log(0.55))


@pytest.mark.parametrize("final", [False, True])
def test_a_term_that_is_no_number_finds_nothing(final):
    term = AttentionAlignment(torch.full((1, 2), torch.nan), EVEN.mask, 1.0, final=final)
    assert beam_search(Script(SHORT_OR_LONG, PARAGRAPHS), memory(), settings(), [term]) == [[]]


def test_alignment_steers_the_beam_unless_final():
    """At the second step both candidates from A are likelier; steered by attention, both from B go before them."""
    table = {(): {A: 0.55, B: 0.45}, (A,): {A: 0.5, EOS: 0.5}, (B,): {B: 0.5, EOS: 0.5}}
    table |= {(A, A): {EOS: 1.0}, (B, B): {EOS: 1.0}}
    found = {
        final: beam_search(Script(table, PARAGRAPHS), memory(), settings(n_best=2), [term])[0]
        for final in (False, True)
        for term in [AttentionAlignment(EVEN.predicted, EVEN.mask, 5.0, final=final)]
    }
    assert [h.ids for h in found[False]] == [[B, EOS], [B, B, EOS]]
    assert [h.ids for h in found[True]] == [[B, B, EOS], [A, EOS]]


def test_all_that_finish_are_ranked_by_the_final_terms():
    """With 2 beams 5 can finish: one early, two at the last step, two that live then. The unlikeliest is second."""
    table = {(): {EOS: 0.4, A: 0.35, B: 0.25}, (A,): {EOS: 0.57, C: 0.43}, (B,): {EOS: 0.64, C: 0.36}}
    attention = {None: [1.0, 0.0], A: [1.0, 0.0], B: [0.0, 1.0]}  # only what begins with B spreads as predicted
    term = AttentionAlignment(EVEN.predicted, EVEN.mask, 1.0, final=True)
    found = beam_search(Script(table, attention), memory(), settings(n_best=2, max_length=2), [term])[0]
    assert [h.ids for h in found] == [[B, EOS], [B, C]]


def test_alignment_acts_when_a_hypothesis_ends_unless_told_otherwise():
    """As in the authors' code: at every step the paper's beta does harm."""
    (term,) = terms(DecodeConfig(beta=0.8), SimpleNamespace(paragraph_mask=EVEN.mask), EVEN.predicted)
    assert term.final
    (term,) = terms(
        DecodeConfig(beta=0.8, alignment_when="step"), SimpleNamespace(paragraph_mask=EVEN.mask), EVEN.predicted
    )
    assert not term.final


def test_length_norm_values():
    assert length_norm(DecodeConfig(), 1) == 1.0
    assert length_norm(DecodeConfig(), 19) == pytest.approx(4**0.4)


def test_names_of_other_toolkits():
    assert DecodeConfig(beam_size=3, block_ngram_repeat=4, num_return_sequences=2) == DecodeConfig(
        num_beams=3, no_repeat_ngram_size=4, n_best=2
    )
    assert DecodeConfig(min_new_tokens=3, max_new_tokens=40) == DecodeConfig(min_length=3, max_length=40)
    assert DecodeConfig(**{"num_beams": 5, "beam_size": 3}).num_beams == 3  # the later word counts
    with pytest.raises(ValueError, match="num_beams"):
        DecodeConfig(num_beams=2, n_best=3)
    with pytest.raises(ValueError, match="max_length"):
        DecodeConfig(min_length=9, max_length=8)


# Parity with the published search


def published(path) -> tuple[torch.nn.Module, Source, dict]:
    """The model, the source and the arrays of one hiersumm fixture."""
    arrays = dict(np.load(path))
    options = json.loads(str(arrays["meta/config_json"]))
    parameters = {name[6:]: array for name, array in arrays.items() if name.startswith("param/")}
    spec, weights = convert(parameters, options)
    model = build(spec)
    model.load_state_dict(weights)
    ids = arrays["in/src"]
    rows = ids if ids.ndim == 3 else ids[:, None]
    source = pack([[row[row != PAD].tolist() for row in example] for example in rows])
    return model.eval(), source, arrays


@pytest.mark.parametrize("name", ["ht", "ft"])
def test_parity_of_the_five_best(shared, name):
    """EOS never allowed: there the published search has no peculiarities (fixtures/README.md)."""
    model, source, arrays = published(shared / "fixtures" / f"hiersumm_{name}.npz")
    chosen = DecodeConfig(
        num_beams=5, n_best=5, min_length=20, max_length=20, length_penalty=0.4, no_repeat_ngram_size=0
    )
    with torch.inference_mode():
        found = beam_search(model, model.encode(source), chosen)
    assert [[h.ids for h in best] for best in found] == arrays["beam/min20_ids"].tolist()
    scores = np.array([[h.score for h in best] for best in found])
    assert scores == pytest.approx(arrays["beam/min20_scores"], abs=1e-4)


def test_parity_holds_for_each_example_alone(shared):
    model, source, arrays = published(shared / "fixtures" / "hiersumm_ht.npz")
    chosen = DecodeConfig(num_beams=5, min_length=20, max_length=20, no_repeat_ngram_size=0)
    for example, row in enumerate(arrays["in/src"]):
        alone = pack([[paragraph[paragraph != PAD].tolist() for paragraph in row]])
        with torch.inference_mode():
            best = beam_search(model, model.encode(alone), chosen)[0][0]
        assert best.ids == arrays["beam/min20_ids"][example, 0].tolist()


def test_finished_examples_leave_and_change_nothing(shared):
    """With EOS allowed the examples finish at unlike lengths; together or alone they find the same."""
    model, source, arrays = published(shared / "fixtures" / "hiersumm_ht.npz")
    chosen = DecodeConfig(num_beams=5, n_best=5, max_length=20, no_repeat_ngram_size=2, no_repeat_last=2)
    with torch.inference_mode():
        together = beam_search(model, model.encode(source), chosen)
        alone = []
        for row in arrays["in/src"]:
            packed = pack([[paragraph[paragraph != PAD].tolist() for paragraph in row]])
            alone += beam_search(model, model.encode(packed), chosen)
    assert [[h.ids for h in best] for best in together] == [[h.ids for h in best] for best in alone]
    assert len({max(len(h.ids) for h in best) for best in together}) > 1


# Several betas at once


@dataclass
class Counting:
    """A step model that counts the hypotheses it extends."""

    model: torch.nn.Module
    rows: int = 0

    def start(self, memory, beams):
        return self.model.start(memory, beams)

    def step(self, tokens, state, attention=False):
        self.rows += len(tokens)
        return self.model.step(tokens, state, attention)


OTHER_TERMS = {"gnmt_coverage": 0.1, "extractive": 0.2, "structural_coverage": 0.5}


@pytest.mark.parametrize("when", ["step", "final"])
@pytest.mark.parametrize("mix", ["LG/F", "L/PV"])
@pytest.mark.parametrize(
    "others", [{}, OTHER_TERMS, OTHER_TERMS | {"coverage_when": "step"}, OTHER_TERMS | {"early_stopping": False}]
)
def test_betas_together_give_what_each_gives_alone(mix, when, others):
    betas = [0.0, 0.3, 1.0, 1e3]
    model, source = model_of(mix).eval(), pack(EXAMPLES)
    chosen = DecodeConfig(num_beams=4, n_best=4, max_length=12, alignment_when=when, **others)
    with torch.inference_mode():
        memory = model.encode(source)
        mask = memory.paragraph_mask
        predicted = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) * mask
        predicted = predicted / predicted.sum(-1, keepdim=True)
        together = Counting(model)
        extracted = predicted.flip(0) * mask
        found = search_betas(together, memory, chosen, betas, predicted, extracted)
        apart = Counting(model)
        for number, beta in enumerate(betas):
            alone = beam_search(apart, memory, chosen, terms(chosen, memory, predicted, extracted, beta))
            for some, others in zip(found, alone, strict=True):
                assert [h.ids for h in some[number]] == [h.ids for h in others]
                assert [h.score for h in some[number]] == pytest.approx([h.score for h in others], abs=1e-5)
    best = [[tuple(h.ids for h in hypotheses) for hypotheses in example] for example in found]
    assert any(example[0] != example[-1] for example in best), "betas that never matter test nothing"
    assert together.rows * (4 if when == "final" else 1.2) <= apart.rows


@pytest.mark.parametrize("penalty", [0.0, 0.4, 3.0])
def test_groups_of_one_beam_equal_greedy_searches_that_avoid_each_others_tokens(penalty):
    draw = random.Random(5)
    for _ in range(40):
        table = {(): _drawn(draw)} | {(token,): _drawn(draw) for token in (A, B, C)}
        live: list[tuple[list[int], float]] = [([], 0.0) for _ in range(3)]
        for length in range(1, 7):
            counts: dict[int, int] = {}
            for group, (ids, score) in enumerate(live):
                if ids and (ids[-1] == EOS or len(ids) < length - 1):
                    continue
                options = table[tuple(ids[-1:])]
                scores = {t: math.log(p) - penalty * counts.get(t, 0) * (t != EOS) for t, p in options.items()}
                token = max(scores, key=scores.__getitem__)
                live[group] = [*ids, token], score + scores[token]
                del scores[EOS]  # a group that ends keeps its best other token for this step
                other = max(scores, key=scores.__getitem__)
                counts[other] = counts.get(other, 0) + 1
        expected = sorted(live, key=lambda one: -one[1])
        chosen = settings(num_beams=3, num_beam_groups=3, diversity_penalty=penalty, n_best=3, max_length=6)
        ((found,),) = search_betas(Script(table), memory(), chosen, [0.0])
        assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert {tuple(h.ids) for h in found} == {tuple(ids) for ids, _ in expected}


def _drawn(draw: random.Random) -> dict[int, float]:
    shares = [draw.random() + 0.05 for _ in range(4)]
    return dict(zip((A, B, C, EOS), (share / sum(shares) for share in shares), strict=True))


def test_groups_without_a_penalty_search_alike_and_several_betas_share_them():
    table = {(): {A: 0.5, B: 0.3, C: 0.2}, (A,): {EOS: 0.6, B: 0.4}, (B,): {EOS: 1.0}, (C,): {EOS: 1.0}}
    one = search(table)
    grouped = settings(num_beams=4, num_beam_groups=2, n_best=4)
    ((found,),) = search_betas(Script(table), memory(), grouped, [0.0])
    assert sorted(h.ids for h in found) == sorted(2 * [h.ids for h in one])
    betas = search_betas(Script(table, {None: [0.5, 0.5]}), memory(2), grouped, [0.0, 0.0])
    assert betas == 2 * [[found, found]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"num_beams": 5, "num_beam_groups": 2}, "no multiple of"), ({"diversity_penalty": 1.0}, "num_beam_groups")],
)
def test_wrong_groups_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DecodeConfig(**changes)
