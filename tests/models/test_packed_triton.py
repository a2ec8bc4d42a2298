"""The Triton kernels for packed rows: interpreted on the CPU, and compiled for GPUs that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.packed_kernel import attention
from helpers.run_packed_kernels import __file__ as SCRIPT

SELF = [70, 1, 129]
# Queries and keys of each row, heads, their size, and options; 64 places are a block.
CASES = {
    "rows of several blocks": (SELF, SELF, 2, 8, {}),
    "dropout": (SELF, SELF, 2, 8, {"dropout": 0.1}),
    "from targets to sources": ([5, 5, 5], [130, 1, 64], 3, 24, {"dropout": 0.5}),
    "from sources to a few": ([130, 1, 64], [2, 1, 3], 1, 16, {"dropout": 0.1}),
    "windows": (SELF, SELF, 2, 16, {"reach": 30}),
    "windows with dropout and skipped keys": (SELF, SELF, 1, 16, {"reach": 3, "dropout": 0.25, "skipped": 0.3}),
    "the largest head": ([40], [40], 1, 256, {"dropout": 0.1}),
    "half precision": (SELF, SELF, 1, 16, {"dropout": 0.25, "reach": 30}),
}


def make_case(rows: list[int], columns: list[int], heads: int, size: int, options: dict, is_half: bool = False) -> dict:
    generator = torch.Generator().manual_seed(len(rows) + size)
    starts = [torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32) for sizes in (rows, columns)]
    query = torch.randn(sum(rows), 3, heads, size, generator=generator)[:, 1]  # with gaps, as from one projection
    key, value = torch.randn(sum(columns), 2, heads, size, generator=generator).unbind(1)
    given = dict(options)
    if "skipped" in given:
        given["skipped"] = torch.rand(sum(columns), generator=generator) < given["skipped"]
        given["skipped"][rows[0]] = True  # all of a row
    gradients = torch.randn(query.shape, generator=generator), torch.randn(heads, len(query), generator=generator)
    places = (starts[0], max(rows)), (starts[1], max(columns))
    if is_half:
        query, key, value = query.half(), key.half(), value.half()
    return {"arrays": [query, key, value], "places": places, "options": given, "gradients": gradients, "seed": 3}


def run(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(SCRIPT).parents[1])}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", SCRIPT, *arguments], env=environment, check=True)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory) -> dict[str, tuple[dict, list[Tensor]]]:
    file = tmp_path_factory.mktemp("kernels") / "cases.pt"
    cases = {name: make_case(*case, is_half=name == "half precision") for name, case in CASES.items()}
    torch.save([*cases.values()], file)
    run(str(file))
    return dict(zip(cases, zip(cases.values(), torch.load(file), strict=True), strict=True))


def factors(case: dict) -> Tensor | None:
    """[H, Q, T]: the factors of dropout, by the kernel's hash in 64-bit arithmetic."""
    rate = case["options"].get("dropout", 0.0)
    if not rate:
        return None
    torch.manual_seed(case["seed"])
    seed, word = int(torch.randint(1 << 62, ())), 2**32

    def mix(values):
        values = (values ^ (values >> 16)) * 0x7FEB352D % word
        values = (values ^ (values >> 15)) * 0x846CA68B % word
        return values ^ (values >> 16)

    queries, heads = case["arrays"][0].shape[:2]
    numbers = np.arange(queries, dtype=np.uint64) * heads + np.arange(heads, dtype=np.uint64)[:, None]
    first = mix(mix(numbers ^ (seed >> 32)) ^ (seed % word))
    keys = np.arange(case["places"][1][1], dtype=np.uint64) * 0x9E3779B9
    kept = mix((first[..., None] + keys) % word) >> 16 >= round(rate * 2**16)
    return torch.from_numpy(kept) / (1 - round(rate * 2**16) / 2**16)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_the_formula_in_double_precision(name, interpreted):
    case, found = interpreted[name]
    arrays = [part.detach().double().requires_grad_() for part in case["arrays"]]
    options, (queries, keys) = case["options"], case["places"]
    context, lse = attention(
        *arrays, queries[0], keys[0], options.get("reach", -1), options.get("skipped"), factors(case)
    )
    total = (context * case["gradients"][0]).sum() + (lse * case["gradients"][1])[lse.isfinite()].sum()
    expected = [context, lse, *torch.autograd.grad(total, arrays)]
    if "skipped" in options:
        assert lse.isinf().any()
    for one, other in zip(found, expected, strict=True):
        limit = 5e-3 if one.dtype == torch.half else 2e-5
        torch.testing.assert_close(one.float(), other.detach().float(), atol=limit, rtol=1e-5)


def test_dropout_has_its_rate_and_differs_between_heads_queries_and_keys():
    kept = factors(make_case([300], [200], 4, 8, {"dropout": 0.1})) > 0
    error = (0.1 * 0.9 / kept.numel()) ** 0.5
    assert abs(kept.double().mean() - 0.9) < 4 * error
    for axis in range(3):
        aligned = kept.movedim(axis, 0)
        assert abs((aligned[1:] & aligned[:-1]).double().mean() - 0.81) < 0.005


# Shared memory of a GPU for consumers: 99 KiB for a program.
@pytest.mark.parametrize(
    ("capabilities", "sizes"),
    [([86], [64]), pytest.param([80, 86, 90, 100, 120], [8, 32, 64, 80, 128, 256], marks=pytest.mark.long)],
)
def test_kernels_compile_for_gpus(capabilities, sizes, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    run(str(tmp_path / "found"), json.dumps(capabilities), json.dumps(sizes))
    found = json.loads((tmp_path / "found").read_text())
    assert len(found) == 6 * len(capabilities) * len(sizes)  # three kernels with and without options, for all batches
    for capability, size, code, shared in found:
        assert code > 1000, (capability, size)
        assert shared <= 99 * 1024, (capability, size)
