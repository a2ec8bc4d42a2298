"""Beam search by scripted scores (no model), its blocking and score terms, and parity with the published search."""

import json
import math
import random
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.small_models import EXAMPLES, model_of, pack
from helpers.special_ids import EOS, PAD, SENTENCE_END
from raysum.config.decoding import DecodeConfig
from raysum.decode.beam import SearchOptions, beam_search, exhaust, search_steps
from raysum.decode.blocking import block_ngrams, block_recent
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.multi_beta import beta_steps
from raysum.decode.rules import best
from raysum.decode.scores import History, Term, attention_alignment, gnmt_coverage, shares, structural_coverage, terms
from raysum.importing.hiersumm import convert
from raysum.systems import build
from raysum.tokenizers.special_tokens import SpecialTokens

A, B, C = 9, 10, 11  # ordinary tokens; ids below are special
VOCABULARY = 12


@dataclass
class Script:
    """A step model whose probabilities are a table: of the tokens so far, or else of the last one.

    Tokens that the table omits have probability 0. ``attention`` is given by the last token, [M] each.
    """

    table: dict
    attention: dict = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)  # how many hypotheses each step extended
    requests: list = field(default_factory=list)  # the attention that each step was asked for

    def start(self, memory, beams):
        return _State([[] for _ in range(len(memory.paragraph_mask) * beams)], beams)

    def step(self, tokens, state, attention=False):
        self.rows.append(len(tokens))
        self.requests.append(attention)
        for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True):
            prefix.append(token)
        logits = torch.full((len(tokens), VOCABULARY), -torch.inf)
        for row, prefix in enumerate(state.prefixes):
            for token, probability in following(self.table, prefix[1:]).items():
                logits[row, token] = math.log(probability)
        weights = [self.attention.get(p[-1], self.attention.get(None)) for p in state.prefixes] if attention else None
        return logits, torch.tensor(weights) if attention else None


def following(table: dict, ids: list[int]) -> dict[int, float]:
    """The probabilities of the next token."""
    path = tuple(ids)
    return table.get(path, table.get(path[-1:], {EOS: 1.0}))


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


def ids_of(found: list[Hypothesis]) -> list[list[int]]:
    return [one.ids for one in found]


SHORT_OR_LONG = {(): {A: 0.6, B: 0.4}, (A,): {EOS: 0.5, C: 0.5}, (B,): {EOS: 0.9, C: 0.1}, (A, C): {EOS: 1.0}}
EOS_FIRST = {(): {EOS: 0.9, A: 0.1}, (A,): {EOS: 0.9, B: 0.1}, (A, B): {EOS: 0.9, C: 0.1}, (A, B, C): {EOS: 1.0}}
BETTER_LATER = {(): {EOS: 0.5, A: 0.3, B: 0.2}, (A,): {C: 0.1, A: 0.9}, (B,): {EOS: 1.0}, (A, A): {EOS: 1.0}}
WITH_EOS_THIRD = {(): {A: 0.5, B: 0.4, EOS: 0.1}, (A,): {C: 1.0}, (B,): {C: 1.0}, (C,): {EOS: 1.0}}
LOOP = {(): {A: 1.0}, (A,): {B: 1.0}, (B,): {A: 0.8, C: 0.2}, (C,): {EOS: 1.0}, (A, B, A): {B: 0.9, EOS: 0.1}}
REPEATS = {(): {A: 1.0}, (A,): {A: 0.9, B: 0.1}, (B,): {B: 0.9, EOS: 0.1}}
EQUALS = {(): {A: 0.5, EOS: 0.25, B: 0.25}, (A,): {C: 1.0}, (A, C): {EOS: 0.5, B: 0.5}, (B,): {C: 1.0}}
STUCK = {(): {A: 0.9, B: 0.1}, (A,): {C: 1.0}, (A, C): {A: 1.0}, (A, C, A): {B: 1.0}, (B,): {B: 1 - 1e-6, EOS: 1e-6}}
BY_LENGTH = {"length_normalization": "length", "length_penalty": 1.0}
CASES = {
    # 0.36 B, then 0.30 A (A C has 0.30 too but needs a step more: two are finished by then)
    "best first": (SHORT_OR_LONG, {}, [[B, EOS], [A, EOS]]),
    "GNMT's norm": (SHORT_OR_LONG, {"length_normalization": "gnmt", "length_penalty": 0.4}, [[B, EOS], [A, EOS]]),
    "length": (SHORT_OR_LONG, BY_LENGTH, [[B, EOS], [A, EOS]]),
    "longer of equals": (EQUALS, BY_LENGTH, [[A, C, EOS], [B, C, EOS]]),
    "no minimum": (EOS_FIRST, {"num_beams": 1}, [[EOS]]),
    "minimum": (EOS_FIRST, {"num_beams": 1, "min_length": 2}, [[A, B, EOS]]),
    "maximum": ({(): {A: 0.7, B: 0.3}, (A,): {A: 1.0}, (B,): {B: 1.0}}, {"max_length": 3}, [[A, A, A], [B, B, B]]),
    # With two beams, EOS (0.1) is third at the first step and lost; a beam of three keeps it.
    "EOS is lost": (WITH_EOS_THIRD, {}, [[A, C, EOS], [B, C, EOS]]),
    "EOS is kept": (WITH_EOS_THIRD, {"num_beams": 3}, [[A, C, EOS], [B, C, EOS], [EOS]]),
    # EOS is the best candidate at the first step: A and B both continue beside it.
    "room for another": (BETTER_LATER, {}, [[EOS], [B, EOS]]),
    "n-grams may repeat": (LOOP, {"num_beams": 1, "max_length": 4}, [[A, B, A, B]]),
    "bigrams": (LOOP, {"num_beams": 1, "no_repeat_ngram_size": 2}, [[A, B, A, EOS]]),
    "unigrams": (LOOP, {"num_beams": 1, "no_repeat_ngram_size": 1}, [[A, B, C, EOS]]),
    "recent tokens": (REPEATS, {"num_beams": 1, "no_repeat_last": 2, "max_length": 4}, [[A, B, EOS]]),
    # B B may only be followed by EOS, and ends far from the best and below the minimum length.
    "all is blocked": (
        STUCK, {"no_repeat_ngram_size": 2, "min_length": 3, "max_length": 4}, [[A, C, A, B], [B, B, EOS]]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("table", "changes", "expected"), CASES.values(), ids=CASES)
def test_hypotheses_with_their_scores(table, changes, expected):
    found = search(table, **changes)
    assert ids_of(found) == expected
    chosen = settings(**changes)
    for one in found:
        products = [following(table, one.ids[:n])[token] for n, token in enumerate(one.ids)]
        assert one.log_prob == pytest.approx(math.log(math.prod(products)), rel=1e-4)
        length = (5 + len(one.ids)) / 6 if chosen.length_normalization == "gnmt" else len(one.ids)
        divisor = 1 if chosen.length_normalization == "none" else length**chosen.length_penalty
        assert one.score == pytest.approx(one.log_prob / divisor)


def test_the_first_and_the_last_token_may_be_forced():
    table = {(): {A: 0.9, B: 0.1}, (A,): {A: 0.9, EOS: 0.1}, (C,): {A: 0.6, B: 0.4}, (B,): {B: 0.7, A: 0.3}}
    plain = {"max_length": 3, "forced_bos_token_id": C, "min_length": 3}
    for changes, ids, probabilities in (
        ({}, [[C, A, A], [C, B, B]], [0.6 * 0.9, 0.4 * 0.7]),
        ({"forced_eos_token_id": EOS}, [[C, A, EOS], [C, B, EOS]], [0.6, 0.4]),
        ({"forced_eos_token_id": A}, [[C, A, A], [C, B, A]], [0.6, 0.4]),
        ({"forced_bos_token_id": EOS}, [[EOS]], [1]),
    ):
        found = search(table, **plain | changes)
        assert ids_of(found) == ids
        assert [h.log_prob for h in found] == pytest.approx([*map(math.log, probabilities)])


def test_a_prompt_begins_every_hypothesis_and_is_certain():
    """As PHT's code begins with the title: its tokens count in the length alone. The second title is shorter."""
    table = {(C, A): {A: 0.6, EOS: 0.4}, (C, A, A): {EOS: 1.0}, (B,): {EOS: 0.8, C: 0.2}, (B, C): {EOS: 1.0}}
    chosen = settings(n_best=2, no_repeat_ngram_size=1, **BY_LENGTH)
    one, two = beam_search(Script(table), memory(2), chosen, prompt=torch.tensor([[C, A], [B, PAD]]))
    assert ids_of(one) == [[C, A, EOS]] and ids_of(two) == [[B, EOS], [B, C, EOS]]
    assert (one[0].score, one[0].log_prob) == pytest.approx((math.log(0.4) / 3, math.log(0.4)))
    assert [h.score for h in two] == pytest.approx([math.log(0.8) / 2, math.log(0.2) / 3])


def test_a_prompt_follows_the_prefix_of_targets():
    table = {(A, C): {EOS: 1.0}, (A, B, A): {EOS: 1.0}, (B, C): {EOS: 1.0}, (B, B, A): {EOS: 1.0}}
    prompt, marks = torch.tensor([[C, PAD], [B, A]]), SpecialTokens(target_prefix=(A,))
    for first, changes in ((A, {}), (B, {"forced_bos_token_id": B})):
        found = beam_search(Script(table), memory(2), settings(**changes), prompt=prompt, marks=marks)
        assert [h.ids for (h,) in found] == [[first, C, EOS], [first, B, A, EOS]]
    ((free,),) = beam_search(Script({(): {C: 1.0}, (C,): {EOS: 1.0}}), memory(), settings(), marks=marks)
    assert free.ids == [C, EOS]  # without a prompt the model chooses the beginning


def test_finished_examples_leave_the_batch():
    script = Script(SHORT_OR_LONG)
    ((alone,),) = beam_search(script, memory(), settings())
    together = beam_search(Script(SHORT_OR_LONG), memory(3), settings())
    assert [found[0].ids for found in together] == [alone.ids] * 3
    assert script.rows == [2, 2]  # two steps of one example with two beams; the third never ran


def test_a_cancelled_example_leaves_the_batch():
    endless = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.7, B: 0.3}, (B,): {A: 0.6, B: 0.4}}
    script, asked = Script(endless), []

    def is_cancelled(example: int) -> bool:
        asked.append(example)
        return example != 1 or len(asked) > 6

    steps = search_steps(script, memory(3), settings(), options=SearchOptions(is_cancelled=is_cancelled))
    found = exhaust(steps).best(1)
    assert [best.ids for (best,) in found] == [[A], [A] * 5, [A]]
    assert script.rows == [6, 2, 2, 2, 2]  # of the ten steps; one example continues after the first
    assert asked == [0, 1, 2, 1, 1, 1, 1]


# Blocking


def blocked(scores: torch.Tensor) -> list[list[int]]:
    return [row.isinf().nonzero().flatten().tolist() for row in scores]


def test_ngrams_across_sentences_may_repeat_unless_asked():
    tokens, length = torch.tensor([[A, SENTENCE_END, B, A, SENTENCE_END]]), torch.tensor([5])
    for separator, expected in ((SENTENCE_END, []), (None, [B])):
        block_ngrams(scores := torch.zeros(1, VOCABULARY), tokens, length, 3, separator)
        assert blocked(scores) == [expected]


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
        for room in (0, 1, 5):  # after the hypotheses, tokens that do not count
            padded = torch.nn.functional.pad(torch.tensor(tokens), (0, room), value=tokens[0][0][0])
            block_ngrams(found := scores.clone(), padded, torch.tensor([length]), size, separator)
            assert torch.equal(found, expected), (size, length, room)


@pytest.mark.parametrize(
    ("tokens", "last", "expected"),
    [
        ([[A, B, C], [C, A, B]], 2, [[A, C], [A, C]]),
        ([[A, C, B, B]], 1, [[C]]),  # as PHT's code: in "the river, the" both words before the comma count
    ],
)
def test_recent_tokens_are_blocked_except_commas(tokens, last, expected):
    scores = torch.zeros(len(tokens), VOCABULARY)
    padded = torch.nn.functional.pad(torch.tensor(tokens), (0, 3), value=A)
    block_recent(scores, padded, torch.tensor([len(tokens[0])]), last, exempt=torch.tensor([B]))
    assert blocked(scores) == expected


def test_commas_reach_the_search():
    table = {(): {A: 1.0}, (A,): {A: 0.9, B: 0.1}, (B,): {EOS: 1.0}}
    ((best, *_),) = beam_search(Script(table), memory(), settings(no_repeat_last=2, max_length=3), exempt=[A])
    assert best.ids == [A, A, A]


@pytest.mark.parametrize(("beams", "vocabulary"), [(1, 3), (2, 128), (5, 100), (5, 1000), (4, 130), (3, 256)])
def test_best_candidates_equal_a_plain_top_k(beams, vocabulary):
    generator = torch.Generator().manual_seed(beams)
    log_probs = torch.randn(3, beams, vocabulary, generator=generator)
    log_probs[0, 1:] = -torch.inf  # empty beams
    log_probs[1, :, 2:] = -torch.inf
    offset = torch.randn(3, beams, generator=generator)
    expected = (log_probs + offset[..., None]).flatten(1).topk(beams)
    parent, token, found = best(log_probs, offset)
    score = found + offset.gather(1, parent)
    assert torch.equal(score, expected.values)
    finite = expected.values.isfinite()
    assert torch.equal((parent * vocabulary + token)[finite], expected.indices[finite])


# Score terms: FLOOR is the log of the least share.

FLOOR = math.log(1e-6)
PARAGRAPHS = {None: [0.5, 0.5], A: [0.9, 0.1], B: [0.5, 0.5]}
TOKENS = {None: [[0.5, 0.3], [0.2, 0.0]], A: [[0.9, 0.1], [0.0, 0.0]], B: [[0.2, 0.3], [0.5, 0.0]]}
REAL = torch.tensor([[[True, True], [True, False]]])
HALVES, BOTH = torch.full((1, 2), 0.5), torch.ones(1, 2, dtype=torch.bool)


def aligned(beta: float = 1.0, final: bool = False, predicted: torch.Tensor = HALVES) -> Term:
    return Term(partial(attention_alignment, predicted=predicted, mask=BOTH, beta=beta), final)


def covered(weight: float, final: bool = True) -> Term:
    return Term(partial(gnmt_coverage, mask=REAL, weight=weight), final, by_token=True)


def spread(gamma: float, final: bool = False) -> Term:
    return Term(partial(structural_coverage, gamma=gamma), final)


def history(*steps: list, dtype: torch.dtype = torch.float32) -> History:
    """Of one example whose beams attend as each step says: [R, M], or by token [R, M, N]."""
    past = History.start(1, len(steps[0]), len(steps[0][0]))
    for step in steps:
        past.add(torch.tensor([step], dtype=dtype))
    return past


def test_alignment_is_the_sum_of_logs_of_the_smaller_share():
    mask, predicted = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0.5, 0.2, 0.3]])
    expected = 0.5 * (math.log(0.5) + math.log(0.2) + math.log(0.1))
    one = history([[0.8, 0.2, 0.0]], [[0.4, 0.4, 0.2]])  # eta = 0.6, 0.3, 0.1
    two = history([[1.6, 0.4, 0.0]], [[0.8, 0.8, 0.4]])  # two layers' sums: the same shares
    for past in (one, two):
        assert attention_alignment(past, predicted, mask, 0.5).item() == pytest.approx(expected, rel=1e-5)
    assert attention_alignment(one, predicted, mask, 0.5, mean=True).item() == pytest.approx(expected / 3, rel=1e-5)


def test_alignment_edges_stay_finite():
    mask = torch.tensor([[True, True, False]])
    predicted = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.bfloat16)
    score = attention_alignment(history([[0.0, 1.0, 0.0]]), predicted, mask, 1.0)
    assert score.dtype == torch.float32
    assert score.item() == pytest.approx(2 * FLOOR, rel=1e-5)  # padding is no paragraph
    assert attention_alignment(history([[0.0, 0.0, 0.0]]), predicted, mask, 1.0).isfinite().all()
    alone = torch.tensor([[True, False, False]])
    assert attention_alignment(history([[1.0, 0.0, 0.0]]), predicted, alone, 1.0).item() == 0


def test_attention_that_underflows_is_floored_and_counts_no_padding():
    """Weights in bf16 down to 0, many padding paragraphs: finite, and as without the padding."""
    step, half = [[1.0, 1e-30, 0.0]], torch.bfloat16
    mask, predicted = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0.5, 0.5, 1e-38]])
    found = attention_alignment(history(step, dtype=half), predicted, mask, 1.0)
    assert found.item() == pytest.approx(math.log(0.5) + 2 * FLOOR, rel=1e-6)
    padded = history([[*step[0], *[0.0] * 5]], dtype=half)
    wide = [torch.nn.functional.pad(part, (0, 5)) for part in (predicted, mask)]
    assert attention_alignment(padded, *wide, 1.0).item() == found.item()
    assert attention_alignment(padded, *wide, 1.0, mean=True).item() == pytest.approx(found.item() / 3)


def test_beta_may_differ_between_examples():
    past = History.start(2, 1, 2)
    past.add(torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))
    term = partial(
        attention_alignment, predicted=HALVES.expand(2, 2), mask=BOTH.expand(2, 2), beta=torch.tensor([0.0, 2.0])
    )
    assert term(past).flatten().tolist() == pytest.approx([0.0, 4 * math.log(0.5)])
    past.keep(torch.tensor([1]))
    assert term(past).item() == pytest.approx(4 * math.log(0.5))


def test_structural_coverage_is_the_mean_of_eq_13():
    past = history([[0.8, 0.2]], [[0.5, 0.5]], [[0.0, 1.0]])  # 1; then 1 - (0.5 + 0.2); then 1 - min(1, 0.7)
    assert structural_coverage(past, 2.0).item() == pytest.approx(2 * (1.0 + 0.3 + 0.3) / 3, rel=1e-5)
    step = [[1.0, 1e-30, 0.0]]
    for attended, expected in (((), None), (([[0.0] * 3],), 1), ((step,), 1), ((step, step), 0.5)):
        past = history(*attended, dtype=torch.bfloat16) if attended else History.start(1, 1, 3)
        found = structural_coverage(past, 1.0)
        assert found.isfinite().all() if expected is None else found.item() == pytest.approx(expected, abs=1e-6)


def test_gnmt_coverage_is_eq_11_over_real_tokens():
    past = history([[[0.7, 0.1], [0.2, 0.0]]], [[[0.6, 0.0], [0.4, 0.0]]])  # sums: 1.3, 0.1; 0.6 and padding
    layers = history([[[2.1, 0.3], [0.6, 0.0]]], [[[1.8, 0.0], [1.2, 0.0]]])  # three layers' sums
    expected = math.log(1.0) + math.log(0.1) + math.log(0.6)
    for each in (past, layers):
        assert gnmt_coverage(each, REAL, 0.5).item() == pytest.approx(0.5 * expected, rel=1e-5)
    assert past.total.flatten().tolist() == pytest.approx([1.4, 0.6])
    assert past.overlap.item() == pytest.approx(0.6 + 0.2)  # of paragraphs, as without tokens


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[[[1.0, 0.0]]]], FLOOR),
        ([[[[0.0, 0.0]]]], 2 * FLOOR),
        ([[[[1.0, 1e-30]]]], FLOOR),
        ([[[[0.5, 0.5]]]] * 3, 0),
        ([[[[0.5, 0.5], [0.0, 0.0]]]] * 3, 0),  # the second paragraph is padding
    ],
)
def test_gnmt_coverage_edges_stay_finite(steps, expected):
    mask = torch.tensor([[[True, True], [False, False]]])[:, : len(steps[0][0])]
    for dtype in (torch.float32, torch.bfloat16):
        found = gnmt_coverage(history(*steps, dtype=dtype), mask, 1.0)
        assert found.dtype == torch.float32 and found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    ("term", "attention", "of_best", "of_second"),
    [
        # A is likelier, but then attends unevenly: eta = (0.7, 0.3), while B stays at the predicted (0.5, 0.5).
        (aligned, PARAGRAPHS, 2 * math.log(0.5), math.log(0.5) + math.log(0.3)),
        (partial(covered, 0.5), TOKENS, 0.5 * math.log(0.7 * 0.6 * 0.7), 0.5 * math.log(0.4 * 0.2)),
    ],
)
def test_a_term_turns_the_ranking(term, attention, of_best, of_second, final):
    script = Script({(): {A: 0.55, B: 0.45}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}}, attention)
    best, second = beam_search(script, memory(), settings(n_best=2), [term(final=final)])[0]
    assert (best.ids, second.ids) == ([B, EOS], [A, EOS])
    assert best.score == pytest.approx(math.log(0.45) + of_best, rel=1e-5)
    assert second.score == pytest.approx(math.log(0.55) + of_second, rel=1e-5)
    assert second.log_prob == pytest.approx(math.log(0.55))


@pytest.mark.parametrize(
    ("term", "attention", "steered", "ranked"),
    [
        (aligned, PARAGRAPHS, [[B, EOS], [B, B, EOS]], [[B, B, EOS], [A, EOS]]),
        (covered, TOKENS, [[B, B, EOS], [B, EOS]], [[B, B, EOS], [A, A, EOS]]),
        # A continues where it has attended before, B attends to the other paragraph.
        (spread, {None: [1.0, 0.0], B: [0.0, 1.0]}, [[B, EOS], [B, B, EOS]], [[B, B, EOS], [A, EOS]]),
    ],
)
def test_a_term_steers_only_when_it_acts_at_every_step(term, attention, steered, ranked):
    """At the second step both candidates from A are likelier; steered by attention, both from B precede them."""
    table = {(): {A: 0.55, B: 0.45}, (A,): {A: 0.5, EOS: 0.5}, (B,): {B: 0.5, EOS: 0.5}}
    table |= {(A, A): {EOS: 1.0}, (B, B): {EOS: 1.0}}
    for final, expected in ((False, steered), (True, ranked)):
        found = beam_search(Script(table, attention), memory(), settings(n_best=2), [term(5.0, final=final)])[0]
        assert ids_of(found) == expected
        if term is spread:  # strCov is 1 at the first step; then 0 for A, 1 for B, and 0 for the second B
            assert found[0].score == pytest.approx(math.log(0.225) + 5 * (2 / 3 if final else 1), rel=1e-5)


def test_structural_coverage_of_ten_is_the_published_score():
    """PHT's code adds 10 x strCov at each step to the log-probability, and divides both by the length at the end."""
    table = {(): {A: 0.55, B: 0.45}, (A,): {A: 0.5, EOS: 0.5}, (B,): {EOS: 1.0}}
    attention = {None: [1.0, 0.0], A: [0.6, 0.4], B: [0.0, 1.0]}
    chosen = settings(n_best=2, structural_coverage=10.0, **BY_LENGTH)
    best, second = beam_search(Script(table, attention), memory(), chosen, terms(chosen, memory()))[0]
    assert (best.ids, second.ids) == ([B, EOS], [A, EOS])  # strCov is 1 + 1, and 1 + (1 - 0.6)
    assert best.score == pytest.approx((math.log(0.45) + 10 * (1 + 1)) / 2, rel=1e-5)
    assert second.score == pytest.approx((math.log(0.55 * 0.5) + 10 * (1 + 0.4)) / 2, rel=1e-5)


def test_final_terms_rank_all_that_finished():
    """C attends as predicted; True never reaches it, and False keeps it for its probability."""
    table = {(): {EOS: 0.3, A: 0.7}, (A,): {EOS: 0.2, C: 0.8}, (A, C): {EOS: 1.0}}
    attention = {None: [1.0, 0.0], C: [0.0, 1.0]}
    for stopping, ids in ((True, [[EOS], [A, EOS]]), (False, [[A, C, EOS], [EOS]])):
        chosen = settings(n_best=2, early_stopping=stopping)
        assert ids_of(beam_search(Script(table, attention), memory(), chosen, [aligned(final=True)])[0]) == ids
    # With 2 beams 5 can finish: one early, two at the last step, two that live then. The unlikeliest is second.
    table = {(): {EOS: 0.4, A: 0.35, B: 0.25}, (A,): {EOS: 0.57, C: 0.43}, (B,): {EOS: 0.64, C: 0.36}}
    attention = {None: [1.0, 0.0], B: [0.0, 1.0]}  # only hypotheses that begin with B attend as predicted
    chosen = settings(n_best=2, max_length=2)
    found = beam_search(Script(table, attention), memory(), chosen, [aligned(final=True)])[0]
    assert ids_of(found) == [[B, EOS], [B, C]]


@pytest.mark.parametrize("final", [False, True])
def test_a_term_that_is_no_number_finds_nothing(final):
    term = aligned(final=final, predicted=torch.full((1, 2), torch.nan))
    assert beam_search(Script(SHORT_OR_LONG, PARAGRAPHS), memory(), settings(), [term]) == [[]]


def test_attention_is_requested_only_if_a_term_reads_it():
    for some, attention, request in (
        ([], {}, False),
        ([aligned()], PARAGRAPHS, True),
        ([aligned(), covered(1.0)], TOKENS, "tokens"),
    ):
        beam_search(script := Script(SHORT_OR_LONG, attention), memory(), settings(), some)
        assert {*script.requests} == {request}


@pytest.mark.parametrize(("changes", "final"), [({}, True), ({"alignment_when": "step"}, False)])
def test_alignment_acts_when_a_hypothesis_ends_by_default(changes, final):
    """As in the authors' code: at every step the paper's beta does harm."""
    (term,) = terms(DecodeConfig(beta=0.8, **changes), memory(), HALVES)
    assert term.final == final


# Settings


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"beam_size": 3, "block_ngram_repeat": 4, "num_return_sequences": 2},
         {"num_beams": 3, "no_repeat_ngram_size": 4, "n_best": 2}),
        ({"min_new_tokens": 3, "max_new_tokens": 40}, {"min_length": 3, "max_length": 40}),
        ({"num_beams": 5, "beam_size": 3}, {"num_beams": 3}),  # the later name counts
    ],
)  # fmt: skip
def test_names_of_other_toolkits(values, expected):
    assert DecodeConfig(**values) == DecodeConfig(**expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beams": 2, "n_best": 3}, "num_beams"),
        ({"min_length": 9, "max_length": 8}, "max_length"),
        ({"num_beams": 5, "num_beam_groups": 2}, "no multiple of"),
        ({"diversity_penalty": 1.0}, "num_beam_groups"),
        *(({"citing_layers": layers}, "citing_layers") for layers in ([], [0], [True], 3, [1.5], [1001])),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DecodeConfig(**changes)


# Parity with the published search


def published(path) -> tuple[torch.nn.Module, list, dict]:
    """The model, the examples and the arrays of one hiersumm fixture."""
    arrays = dict(np.load(path))
    parameters = {name[6:]: array for name, array in arrays.items() if name.startswith("param/")}
    spec, weights = convert(parameters, json.loads(str(arrays["meta/config_json"])))
    model = build(spec)
    model.load_state_dict(weights)
    ids = arrays["in/src"]
    rows = ids if ids.ndim == 3 else ids[:, None]
    return model.eval(), [[row[row != PAD].tolist() for row in example] for example in rows], arrays


def found_by(model: torch.nn.Module, examples: list, **changes) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return beam_search(model, model.encode(pack(examples)), DecodeConfig(num_beams=5, n_best=5, **changes))


@pytest.mark.parametrize("name", ["ht", "ft"])
def test_parity_of_the_five_best(shared, name):
    """EOS never allowed: there the published search has no peculiarities (fixtures/README.md)."""
    model, examples, arrays = published(shared / "fixtures" / f"hiersumm_{name}.npz")
    lengths = {"min_length": 20, "max_length": 20, "length_penalty": 0.4, "no_repeat_ngram_size": 0}
    found = found_by(model, examples, **lengths)
    assert [ids_of(best) for best in found] == arrays["beam/min20_ids"].tolist()
    scores = np.array([[h.score for h in best] for best in found])
    assert scores == pytest.approx(arrays["beam/min20_scores"], abs=1e-4)
    alone = [found_by(model, [example], **lengths)[0][0].ids for example in examples]
    assert alone == arrays["beam/min20_ids"][:, 0].tolist()


# Several betas and groups at once


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
        together, apart = Counting(model), Counting(model)
        extracted = predicted.flip(0) * mask
        found = exhaust(beta_steps(together, memory, chosen, betas, predicted, extracted))
        for number, beta in enumerate(betas):
            alone = beam_search(apart, memory, chosen, terms(chosen, memory, predicted, extracted, beta))
            for some, expected in zip(found, alone, strict=True):
                assert ids_of(some[number]) == ids_of(expected)
                assert [h.score for h in some[number]] == pytest.approx([h.score for h in expected], abs=1e-5)
    best = [[ids_of(hypotheses) for hypotheses in example] for example in found]
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
        ((found,),) = exhaust(beta_steps(Script(table), memory(), chosen, [0.0]))
        assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert {tuple(h.ids) for h in found} == {tuple(ids) for ids, _ in expected}


def _drawn(draw: random.Random) -> dict[int, float]:
    shares = [draw.random() + 0.05 for _ in range(4)]
    return dict(zip((A, B, C, EOS), (share / sum(shares) for share in shares), strict=True))


def test_groups_without_a_penalty_are_equal_and_several_betas_share_them():
    table = {(): {A: 0.5, B: 0.3, C: 0.2}, (A,): {EOS: 0.6, B: 0.4}, (B,): {EOS: 1.0}, (C,): {EOS: 1.0}}
    grouped = settings(num_beams=4, num_beam_groups=2, n_best=4)
    ((found,),) = exhaust(beta_steps(Script(table), memory(), grouped, [0.0]))
    assert sorted(ids_of(found)) == sorted(2 * ids_of(search(table)))
    betas = exhaust(beta_steps(Script(table, {None: [0.5, 0.5]}), memory(2), grouped, [0.0, 0.0]))
    assert betas == 2 * [[found, found]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beta": 0.5},
        {"early_stopping": False},
        {"early_stopping": "never", "length_penalty": 2.0, "length_normalization": "length"},
        {"beta": 2.0, "alignment_when": "step"},
        {"num_beam_groups": 2, "diversity_penalty": 0.5},
        {"num_beams": 1},
    ],
)
def test_the_shared_beginning_of_hypotheses_is_one_of_the_best(changes):
    chosen = DecodeConfig(**{"num_beams": 4, "max_length": 12, "no_repeat_ngram_size": 2} | changes)
    lengths, shared_tokens = [], 0
    for seed in range(8):
        torch.manual_seed(seed)
        model, source = model_of("L/P").eval(), pack(EXAMPLES)
        with torch.inference_mode():
            memory = model.encode(source)
            predicted = shares(torch.rand(memory.paragraph_mask.shape) * memory.paragraph_mask)
            steps, shared = beta_steps(model, memory, chosen, [chosen.beta], predicted), []
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    best = [hypotheses[0].ids for (hypotheses,) in end.value]
                    break
                lengths.append(step.length)
                shared.append([step.shared_ids(example) for example in range(len(EXAMPLES))])
        for beginnings in zip(*shared, strict=True):
            expected = best.pop(0)
            assert all(ids == expected[: len(ids)] for ids in beginnings)
            assert [*map(len, beginnings)] == sorted(map(len, beginnings)), "what was shared stays shared"
            shared_tokens += len(beginnings[-1])
    assert max(lengths) > 5 and (shared_tokens > 20 or "num_beam_groups" in changes)
