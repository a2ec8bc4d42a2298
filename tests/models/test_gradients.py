"""Several processes train on the gradients of one, whatever the sizes of their batches."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.gradient_cases import (
    CASES,
    OFFLOADED,
    PACKED,
    brief_for,
    low_thresholds,
    objective_of,
    plain_loop,
    write_datasets,
    write_start,
)
from helpers.packed_kernel import packed_kernel
from helpers.project import ROOT
from raysum.stream.loader import batches

STAGES = (0, 1, 2, 3)
LIMITS = {"gradient": 2e-6, "first norm": 1e-6, "loss": 1e-5, "norm": 1e-4}
# In bf16 the last bit of a sum may differ: ZeRO-0 adds the uses of one parameter in fp32, and ZeRO-3 in another order.
AFTER_ROUNDING = {"loss": 1e-2, "norm": 5e-2}
LOW_LIMITS = {"gradient": 2e-2, "first norm": 1e-3, **AFTER_ROUNDING}
SCRIPT = ROOT / "tests" / "helpers" / "gradient_rank.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gradients")
    write_datasets(folder)
    write_start(folder)
    return folder


@pytest.mark.parametrize("name", [*CASES, *PACKED])
def test_modules_and_hooks_of_gradients_run_in_one_order_for_all_sizes(folder, name):
    """ZeRO-2 and ZeRO-3 add gradients at equal positions of a bucket. At ZeRO-3, modules gather their weights."""
    orders, sequences = set(), set()
    with low_thresholds(), packed_kernel() if name in PACKED else nullcontext():
        brief = brief_for(name, folder, 0, False)
        objective, fired = objective_of(brief), []
        for key, weight in objective.named_parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(lambda _, key=key: fired.append(key))
        modules: list[str] = []
        for key, module in objective.named_modules():
            module.register_forward_pre_hook(lambda *_, key=key: modules.append(key))
        for tokens in (brief.train.settings.batch_tokens, 1):  # ragged batches, and those of one example
            stream = replace(brief.train, settings=replace(brief.train.settings, batch_tokens=tokens))
            for micro in batches(stream, 0, 1, 0, 10):
                fired.clear(), modules.clear()
                objective(brief.train.kind.collate(micro.arrays)).backward()
                orders.add(tuple(fired))
                sequences.add(tuple(modules))
    (order,) = orders
    assert len(sequences) == 1
    assert len(order) == sum(weight.requires_grad for weight in objective.parameters())


def on_ranks(folder: Path, world: int, steps: int, asked: list[tuple[str, int, bool]]) -> dict:
    """What ``world`` processes found of the cases ``asked``: [name, stage, whether in bf16]."""
    (folder / f"asked-{world}.json").write_text(json.dumps([steps, asked]))
    (folder / f"store-{world}").unlink(missing_ok=True)
    command = [sys.executable, str(SCRIPT), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    processes = [subprocess.Popen([*command, str(rank), str(world)], env=environment) for rank in range(world)]
    try:
        assert [process.wait(3000) for process in processes] == [0] * world
    finally:
        for process in processes:
            process.kill()
    return torch.load(folder / f"found-{world}.pt")


def check(folder: Path, world: int, steps: int, asked: list[tuple[str, int, bool]]) -> None:
    """Train on ``world`` processes, compare with plain torch, in bf16 with one process, too, and print a table."""
    plain, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # as each rank: in bf16, kernels round by their number of threads
    try:
        for name, low in dict.fromkeys((name, low) for name, _, low in asked):
            has_other_masks = name in PACKED and "with dropout" in name
            with low_thresholds(), packed_kernel() if has_other_masks else nullcontext():
                plain[name, low] = plain_loop(brief_for(name, folder, 0, low, steps), low)
    finally:
        torch.set_num_threads(threads)
    found, alone = on_ranks(folder, world, steps, asked), {}
    if in_bf16 := [case for case in asked if case[2]]:
        alone = on_ranks(folder, 1, steps, in_bf16)
    wrong = []
    for case in asked:
        name, stage, low = case
        compared = [("torch", plain[name, low], LOW_LIMITS if low else LIMITS)]
        compared += [("one process", alone[case], LIMITS | AFTER_ROUNDING)] if low else []
        for other, expected, limits in compared:
            apart = differences(found[case], expected)
            figures = ", ".join(f"{what} {value:.1e}" for what, value in apart.items())
            line = f"{name}, ZeRO-{stage}, {'bf16' if low else 'fp32'}, {world} processes and {other}: {figures}"
            print(line)
            wrong += [line] if any(value > limits[what] for what, value in apart.items()) else []
    assert not wrong, "\n".join(wrong)


def differences(found, expected) -> dict[str, float]:
    """Relative, at most: of a parameter's gradient in the first step, of the loss and the norm of a step.

    A gradient that is 0 but for rounding is measured against 0.2 % of the whole one.
    """
    (gradients, losses, norms), (known, known_losses, known_norms) = found, expected
    assert gradients.keys() == known.keys()
    whole = float(torch.stack([value.norm() for value in known.values()]).norm())
    return {
        "gradient": max(
            float((gradients[name] - value).norm()) / max(float(value.norm()), 2e-3 * whole)
            for name, value in known.items()
        ),
        "first norm": abs(norms[0] - known_norms[0]) / known_norms[0],
        "loss": max(abs(a - b) / abs(b) for a, b in zip(losses, known_losses, strict=True)),
        "norm": max(abs(a - b) / abs(b) for a, b in zip(norms, known_norms, strict=True)),
    }


@pytest.mark.slow
def test_two_processes_train_as_one(folder):
    other_stages = [("PHT", 0, False), ("PHT", 1, False), ("PHT", 3, False), ("PHT", 1, True), ("PHT", 2, True)]
    check(folder, 2, 2, [*((name, 2, False) for name in CASES), *other_stages])


@pytest.mark.long
def test_two_processes_with_compiled_layers_train_as_one(folder):
    check(folder, 2, 2, [*(("compiled", stage, False) for stage in STAGES), ("compiled, recomputed", 2, False)])


@pytest.mark.slow
def test_two_processes_with_attention_over_packed_rows_train_as_one(folder):
    check(folder, 2, 2, [(name, stage, False) for name in PACKED for stage in STAGES])


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_with_states_in_cpu_memory_train_as_one(folder):
    """ZeRO-3 with the optimizer, and with the weights, offloaded; torch's AdamW needs no compiler."""
    check(folder, 2, 4, [("PHT", stage, low) for stage in OFFLOADED for low in (False, True)])


@pytest.mark.long
@pytest.mark.slow
def test_four_processes_train_as_one(folder):
    check(folder, 4, 2, [("copy gate", 2, False), ("ranker", 3, False)])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_several_processes_train_as_one_at_every_stage(folder, stage, world):
    """Prints a table of all systems."""
    check(folder, world, 20, [(name, stage, low) for name in CASES for low in (False, True)])


@pytest.mark.slow
def test_ranks_whose_gradients_become_ready_in_other_orders_are_refused(folder):
    (message,) = on_ranks(folder, 2, 1, [("one rank has other kernels", 0, False)]).values()
    assert "different orders" in message and "stage=1" in message
