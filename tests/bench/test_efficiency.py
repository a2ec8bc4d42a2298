"""The efficiency table of the PHT and VHT papers; ``pytest -m long -s`` of this file prints it."""

import pytest

from raysum.bench.efficiency import EfficiencyBench, largest_batch
from raysum.cli.options import print_result


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_hierarchical_models_train_larger_batches_and_validate_faster():
    result = EfficiencyBench().run()
    print_result(result, as_json=False)
    found = {row["preset"]: row for row in result.rows}
    assert all(found[name]["validation_s"] < found["ft-3"]["validation_s"] for name in ("vht", "pht"))


@pytest.mark.long
@pytest.mark.slow
def test_rows_are_of_the_largest_batch_that_fits():
    small = ["model.width=128", "model.ffn=256", "model.heads=4", "model.vocabulary=2000"]
    small += ["source.max_paragraphs=10", "source.paragraph_tokens=40"]
    settings = EfficiencyBench(
        presets=["pht", "transformer-decoder"], memory_mb=500, most=64, target_tokens=30, examples=3, config=small
    )
    pht, decoder = settings.run().rows
    for row in (pht, decoder):
        assert 2 < row["largest_batch"] < 64 and 400 < row["memory_mb"] <= 500 and row["validation_s"] > 0
    output = 2000 * 128  # tied in the papers' count, as it is in the decoder
    assert pht["parameters_mb"] == pytest.approx(12e-6 * (pht["parameters"] - output))
    assert decoder["parameters_mb"] == pytest.approx(12e-6 * decoder["parameters"])
    assert decoder["parameters"] < pht["parameters"] - output


@pytest.mark.parametrize("most", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("limit", [50, 100, 131, 400, 401, 900, 10**6])
def test_the_largest_size_is_found_in_few_tries(most, limit):
    tried = []

    def peak(size: int) -> float:  # about a line
        tried.append(size)
        return 100 + 10 * size + 30 * (size > 5) + size**2 / 500

    largest, used = largest_batch(peak, limit, most)
    assert len(tried) == len({*tried}) <= 9
    assert largest == 0 == used or used == peak(largest) <= limit
    assert largest == most or peak(largest + 1) > limit
