"""The plan of batches: every row once an epoch, under the budget, the same from anywhere."""

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest

from helpers.small_datasets import write_dataset
from raysum.config.decoding import SourceConfig
from raysum.stream import loader
from raysum.stream.collators.summarization import Summarization, cut_source, cut_target
from raysum.stream.loader import Reader, batches, step_ranges
from raysum.stream.plan import Plan, PlanSettings, cut
from raysum.stream.stream import Stream, plan_of


def plan(rows=1000, budget=300, micro_batches=4, window=3, seed=0, drop=0.1, origin=(0, 0), **sizes) -> Plan:
    rng = np.random.default_rng(5)
    costs, weights = rng.integers(10, sizes.get("longest", 120), rows), rng.integers(1, 20, rows)
    groups = np.full(-(-rows // 64), 64)
    groups[-1] -= groups.sum() - rows
    keep = rng.random(rows) >= drop
    return Plan(costs, weights, keep, groups, PlanSettings(budget, micro_batches, window, seed), origin)


@pytest.mark.parametrize("rows, window", [(1000, 3), (64, 64), (1, 1), (5, 64), (700, 1)])
def test_every_kept_row_comes_once_an_epoch(rows, window):
    made = plan(rows, window=window, drop=0)
    for epoch in (0, 1, 7):
        np.testing.assert_array_equal(np.sort(made.epoch(epoch).rows), np.arange(rows))
    if rows > 5:
        assert not np.array_equal(made.epoch(0).rows, made.epoch(1).rows)


def test_rows_left_out_never_come():
    made = plan(drop=0.3)
    np.testing.assert_array_equal(np.sort(made.epoch(0).rows), np.flatnonzero(made.keep))


def test_micro_batches_keep_the_budget_and_a_longer_row_is_alone():
    made = plan(longest=500, budget=300)
    epoch = made.epoch(0)
    for first, last in zip(epoch.offsets, epoch.offsets[1:], strict=False):
        rows = epoch.rows[first:last]
        assert made.costs[rows].sum() <= 300 or len(rows) == 1
    assert made.costs.max() > 300


def test_rows_of_like_length_come_together():
    made = plan(4000, budget=1000, window=16)
    epoch = made.epoch(0)
    spreads = [
        np.ptp(made.costs[epoch.rows[a:b]]) for a, b in zip(epoch.offsets, epoch.offsets[1:], strict=False) if b > a
    ]
    assert np.mean(spreads) < 0.25 * np.ptp(made.costs)


def test_targets_of_like_length_come_together_so_that_few_positions_are_padding():
    rng = np.random.default_rng(2)
    targets = np.clip(rng.lognormal(4.7, 0.6, 6400), 10, 400).astype(int)
    costs = rng.normal(2100, 250, 6400).clip(300, 3000).astype(int) + targets
    made = Plan(costs, targets, np.ones(6400, bool), np.full(100, 64), PlanSettings(64_000, 8))
    epoch = made.epoch(0)
    padding = sum(
        len(rows) * targets[rows].max() - targets[rows].sum()
        for rows in np.split(epoch.rows, epoch.offsets[1:-1])
        if len(rows)
    )
    assert padding / (costs.sum() + padding) < 0.02


def test_an_epoch_is_whole_steps_filled_with_empty_micro_batches():
    made = plan()
    epoch = made.epoch(0)
    sizes = np.diff(epoch.offsets)
    assert len(sizes) == 4 * epoch.num_steps
    assert (sizes[:-3] > 0).all()
    for step in range(epoch.num_steps):
        rows = np.concatenate([made.rows(step, index) for index in range(4)])
        assert made.weight(step) == made.weights[rows].sum() > 0


def test_steps_are_the_same_wherever_one_begins():
    whole = plan(300)
    steps = [[whole.rows(step, index).tolist() for index in range(4)] for step in range(60)]
    assert whole.locate(59)[0] >= 2, "several epochs are compared"
    epoch, place = whole.locate(50)
    late = plan(300, origin=(epoch, 50 - place))
    for other in (plan(300), late):
        assert [[other.rows(step, index).tolist() for index in range(4)] for step in range(50, 60)] == steps[50:]


def test_seed_and_epoch_change_the_order():
    assert plan(seed=1).rows(0, 0).tolist() != plan(seed=2).rows(0, 0).tolist()


def test_a_plan_without_rows_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        plan(drop=1.1)


def test_two_hundred_thousand_rows_take_well_under_a_second():
    made = plan(200_000, budget=600, micro_batches=8, window=64)
    began = time.process_time()
    made.epoch(0)
    assert time.process_time() - began < 1.5


def test_cut():
    assert cut(np.array([3, 3, 5, 9, 1, 1]), 6).tolist() == [2, 1, 1, 2]
    assert cut(np.array([], int), 6).tolist() == []


def test_cut_source_takes_the_best_paragraphs_and_no_empty_ones():
    row = {"ids": np.arange(10, 30), "paragraph_offsets": np.array([0, 8, 8, 13, 20])}
    cut_ids, lengths = cut_source(row, SourceConfig(max_paragraphs=3, paragraph_tokens=6))
    assert (cut_ids.tolist(), lengths.tolist()) == ([*range(10, 16), *range(18, 23)], [6, 5])
    cut_ids, lengths = cut_source(row, SourceConfig(max_paragraphs=4, paragraph_tokens=6, max_tokens=8))
    assert (cut_ids.tolist(), lengths.tolist()) == ([*range(10, 16), 18, 19], [6, 2])


def test_a_cut_target_still_ends():
    assert cut_target(np.array([4, 9, 10, 11, 5]), 4).tolist() == [4, 9, 10, 5]
    assert cut_target(np.array([4, 9, 5]), 4).tolist() == [4, 9, 5]


def test_costs_bound_tokens_and_weights_are_exact():
    source = SourceConfig(max_paragraphs=2, paragraph_tokens=10, max_tokens=15, target_tokens=6)
    lengths = np.array([[100, 5, 20], [7, 1, 3], [12, 2, 0]])
    costs, weights = Summarization().costs(lengths, source)
    assert (costs.tolist(), weights.tolist()) == ([21, 10, 12], [5, 2, 0])


@pytest.fixture(scope="module")
def stream(tmp_path_factory) -> Stream:
    path = write_dataset(tmp_path_factory.mktemp("plan") / "data", {"train": 201})
    return Stream(str(path), "train", SourceConfig(), PlanSettings(200, 4, 2, 0), Summarization())


def test_ranks_share_the_micro_batches_of_each_step(stream):
    def digests(world: int, start: int, stop: int) -> dict:
        made = [batch for rank in range(world) for batch in batches(stream, rank, world, start, stop)]
        return {(batch.step, batch.index): (batch.digest, batch.weight, batch.real) for batch in made}

    epoch = plan_of(stream).epoch(0)
    assert (np.diff(epoch.offsets) == 0).any(), "the epoch's last step has stand-ins"
    stop = epoch.num_steps + 2
    alone = digests(1, 0, stop)
    assert len(alone) == 4 * stop
    assert digests(2, 0, stop) == digests(4, 0, stop) == alone
    assert digests(2, 17, stop) == {place: batch for place, batch in alone.items() if place[0] >= 17}
    assert sum(not real for _, _, real in alone.values()) == (np.diff(epoch.offsets) == 0).sum()


def test_a_dataset_in_the_place_of_another_is_read_anew(tmp_path, stream):
    def read(stream: Stream) -> list[tuple[int, int]]:
        return [(batch.digest, batch.weight) for batch in batches(stream, 0, 1, 0, plan_of(stream).epoch(0).num_steps)]

    place = replace(stream, path=str(tmp_path / "data"))
    for rows in ({"train": 201}, {"train": 120}):
        shutil.rmtree(place.path, ignore_errors=True)
        write_dataset(tmp_path / "data", rows, seed=rows["train"])
        shutil.copytree(place.path, tmp_path / str(rows["train"]))
        assert read(place) == read(replace(stream, path=str(tmp_path / str(rows["train"]))))


def test_the_weight_of_a_step_is_what_its_batches_hold(stream):
    found: dict[int, int] = {}
    planned = {}
    for batch in batches(stream, 0, 1, 0, plan_of(stream).epoch(0).num_steps):
        _, targets = Summarization().tokens(batch.arrays)
        found[batch.step] = found.get(batch.step, 0) + targets * batch.real
        planned[batch.step] = batch.weight
    assert found == planned


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Stream:
    path = write_dataset(tmp_path_factory.mktemp("several") / "data", {"train": 90}, references=3)
    return Stream(str(path), "train", SourceConfig(), PlanSettings(200, 4, 2, 0), Summarization())


def test_each_epoch_draws_one_of_several_references_by_seed_and_epoch_alone(several):
    made = plan_of(several)
    counts = np.arange(90) % 3 + 1
    draws = np.stack([made.epoch(number).drawn for number in range(40)])
    assert (draws < counts).all() and (draws.max(0) == counts - 1).all() and (draws.min(0) == 0).all()
    assert draws[:, counts == 3].mean() == pytest.approx(1, abs=0.1)
    again = plan_of(replace(several, origin=(7, made.locate(0)[1])))
    np.testing.assert_array_equal(again.epoch(7).drawn, draws[7])
    other = plan_of(replace(several, settings=replace(several.settings, seed=1)))
    assert (other.epoch(0).drawn != draws[0]).any()


def test_drawn_references_are_read_alike_from_anywhere_and_weigh_what_they_hold(several):
    steps = [plan_of(several).epoch(number).num_steps for number in range(2)]

    def found(world: int, start: int) -> dict:
        made = [batch for rank in range(world) for batch in batches(several, rank, world, start, sum(steps))]
        return {(batch.step, batch.index): batch for batch in made}

    alone = found(1, 0)
    for world, start in ((2, 0), (4, steps[0] + 1)):
        assert {place: batch.digest for place, batch in found(world, start).items()} == {
            place: batch.digest for place, batch in alone.items() if place[0] >= start
        }
    held: dict[int, int] = {}
    for batch in alone.values():
        held[batch.step] = held.get(batch.step, 0) + Summarization().tokens(batch.arrays)[1] * batch.real
    assert held == {batch.step: batch.weight for batch in alone.values()}
    epochs = [
        sorted(tuple(batch.arrays["target_lengths"]) for batch in alone.values() if (batch.step < steps[0]) == first)
        for first in (True, False)
    ]
    assert epochs[0] != epochs[1]


def test_collate_gives_the_rows_back(stream):
    from helpers.special_ids import PAD

    batch = next(batches(stream, 0, 1, 0, 1))
    made = Summarization().collate(batch.arrays)
    assert made.source.ids.tolist() == batch.arrays["ids"].tolist()
    assert int(made.source.lengths.sum()) == len(made.source.ids)
    assert int((made.target != PAD).sum()) == len(batch.arrays["target"])
    assert made.target.shape == (len(made.source.counts), batch.arrays["target_lengths"].max())


@pytest.mark.parametrize(("rows", "window", "start"), [(1000, 2, 0), (1000, 2, 57), (40, 64, 11), (9000, 1, 5000)])
def test_ranges_hold_every_step_once_in_order_wherever_one_starts(rows, window, start):
    made, stop = plan(rows, window=window), start + 10_000
    ranges = [*step_ranges(made, start, stop)]
    assert [step for steps in ranges for step in steps] == [*range(start, stop)] and len(ranges) > 1
    assert ranges[1:] == [*step_ranges(made, ranges[1].start, stop)]
    assert ranges[1:] == [*step_ranges(plan(rows, window=window, origin=(3, 7)), 0, stop)][-len(ranges) + 1 :]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_range_is_read_once_for_all_ranks(tmp_path, world, monkeypatch):
    monkeypatch.setattr(loader, "_ROW_GROUPS", 10)
    monkeypatch.setattr(loader, "_WINDOWS", 5)
    path = write_dataset(tmp_path / "data", {"train": 1500})
    stream = Stream(str(path), "train", SourceConfig(), PlanSettings(200, 4, 2, 0), Summarization())
    stop, found = plan_of(stream).epoch(0).num_steps, []
    readers = [Reader(stream, steps, range(world), world) for steps in step_ranges(plan_of(stream), 0, stop)]
    for number, reader in enumerate(readers):
        for block in reader.blocks(is_first=not number):
            assert [{one.rank for one in micro_batches} for micro_batches in block] == [{rank} for rank in range(world)]
            found += [one for micro_batches in block for one in micro_batches]
    assert sorted((one.step, one.index) for one in found) == [
        (step, index) for step in range(stop) for index in range(4)
    ]
    expected = {(one.step, one.index): one.digest for one in batches(stream, 0, 1, 0, stop)}
    assert {(one.step, one.index): one.digest for one in found} == expected
    opened = sum(reader.opened for reader in readers)
    assert len(readers) > 1 and opened <= 1500 + 2 * 128 * len(readers)  # the windows at both ends of each range
