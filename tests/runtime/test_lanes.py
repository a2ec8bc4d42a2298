"""Work in two threads of a CPU."""

import threading
import time

import pytest
import torch

from raysum.runtime.lanes import in_lanes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_threads_of_one_core_each_share_the_parts():
    both, seen = threading.Barrier(2, timeout=20), set()

    def work(part):
        both.wait()  # breaks unless two parts are worked on at a time
        seen.add((threading.get_ident(), torch.get_num_threads()))
        yield None
        yield part, 1
        yield part, 2

    found = [*in_lanes(work, range(6), CPU)]
    assert sorted(found) == [(part, number) for part in range(6) for number in (1, 2)]
    assert len(seen) == 2 and {threads for _, threads in seen} == {1}
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


@pytest.mark.parametrize(
    ("parts", "device", "threads"), [([7], CPU, 2), ([7, 8], torch.device("meta"), 2), ([7, 8], CPU, 1)]
)
def test_otherwise_the_caller_works(parts, device, threads):
    torch.set_num_threads(threads)
    here = threading.get_ident()
    assert [*in_lanes(lambda part: [None, (part, threading.get_ident())], parts, device)] == [(p, here) for p in parts]


def test_an_error_or_a_closed_iterator_stops_the_other_thread():
    ended = []

    def work(part):
        if part == 0:
            time.sleep(0.1)
            raise ValueError("part 0")
        try:
            for _ in range(2000):
                time.sleep(0.01)
                yield None
        finally:
            ended.append(part)

    start = time.monotonic()
    with pytest.raises(ValueError, match="part 0"):
        [*in_lanes(work, [0, 1, 2], CPU)]
    assert ended == [1] and time.monotonic() - start < 10

    def endless(part):
        while True:
            time.sleep(0.01)
            yield part

    steps = in_lanes(endless, [0, 1], CPU)
    next(steps)
    before = threading.active_count()
    steps.close()
    assert threading.active_count() == before - 2
