"""Parameter counts, made without allocating: those of the published codes and of the papers."""

import pytest

from raysum.config.loading import load_config, presets
from raysum.config.sizes import PAPERS_MB, megabytes
from raysum.systems import build, count_parameters

PRESETS = [name for name in presets() if name != "alignment"]  # whose model has the vocabulary of its run


def built(some_spec) -> int:
    return sum(value.numel() for value in build(some_spec).parameters())


def test_counts_are_those_of_the_published_codes():
    counts = {name: count_parameters(load_config(name).model) for name in PRESETS}
    assert counts["ht-code"] == 15_343_952  # fixtures/hiersumm_checkpoint_layout.md
    assert round(counts["pht"] / 1e6, 1) == 23.4 and round(counts["vht"] / 1e6, 1) == 22.7  # fixtures/PEERS.md
    assert counts["pht-1"] < counts["pht"] and counts["ft-3"] < counts["ft"]


def test_sizes_of_the_other_systems():
    counts = {name: count_parameters(load_config(name).model) for name in PRESETS}
    assert counts["tdmca"] == 32000 * 513 + 5 * 3_152_384 + 2 * 2 * (3 * 512 * 512 + 512) + 1024
    # PHT/VHT paper, section 5.4: decoders without encoder are smaller; T-DMCA is the larger one, by its convolutions
    assert counts["txl"] < counts["tdmca-3"] < counts["ft-3"] < counts["pht"]
    assert counts["graphsum"] > counts["ft-3"]


@pytest.mark.parametrize(("name", "sizes"), [("hibert_m", (6, 768, 12, 3072)), ("hiertransformer", (4, 300, 4, 1200))])
def test_sizes_of_hibert(name, sizes):
    spec = load_config(name).model
    assert (spec.layers, spec.width, spec.heads, spec.ffn) == sizes
    assert count_parameters(load_config("hibert_s").model) / 1e6 == pytest.approx(54.6, rel=0.01)  # section 4.4


@pytest.mark.parametrize("name", PAPERS_MB)
def test_sizes_that_the_papers_state(name):
    tied = load_config(name, ["model.tied_output=true"]).model
    exact = name in ("ft-3", "pht", "vht", "transformer-decoder")
    assert megabytes(tied, moments=True) == pytest.approx(PAPERS_MB[name], rel=5e-4 if exact else 0.011)


@pytest.mark.parametrize("name", [name for name in PRESETS if not load_config(name).model.TRAINER])
def test_presets_build(name):
    sizes = ["model.vocabulary=50", "model.width=48", "model.hidden=8" if name == "ranker" else "model.ffn=8"]
    small = load_config(name, sizes).model
    assert built(small) == count_parameters(small)


def test_counting_allocates_nothing():
    huge = load_config("pht", ["model.width=65536", "model.ffn=262144", "model.vocabulary=1000000"]).model
    assert count_parameters(huge) > 3e11  # 1.2 TB in fp32
