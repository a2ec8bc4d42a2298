"""Parameter counts in closed form: equal to the built models, and to the published codes at their sizes."""

import subprocess
import sys

import pytest
from small_models import MIXES, spec

from raysum.config.loading import load_config
from raysum.models.build import build
from raysum.models.parameters import PAPERS_MB, count_parameters, megabytes
from raysum.models.specs import PredictorSpec

PRESETS = ["ft", "ht", "ht-code", "pht", "vht", "ft-3", "ht-3-3", "pht-1", "vht-1"]
OTHERS = ["tdmca", "tdmca-3", "txl", "graphsum", "ranker"]


def built(some_spec) -> int:
    return sum(value.numel() for value in build(some_spec).parameters())


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize(("norm", "tied"), [("pre", True), ("post", False)])
def test_formula_equals_the_built_model(mix, form, norm, tied):
    some_spec = spec(mix, form=form, norm=norm, tied_output=tied)
    assert count_parameters(some_spec) == built(some_spec)


def test_formula_equals_the_built_predictor():
    some_spec = PredictorSpec(width=16, ffn=24, heads=2, layers=3)
    assert count_parameters(some_spec) == built(some_spec)


def test_counts_are_those_of_the_published_codes():
    counts = {name: count_parameters(load_config(name).model) for name in PRESETS}
    assert counts["ht-code"] == 15_343_952  # fixtures/hiersumm_checkpoint_layout.md
    assert round(counts["pht"] / 1e6, 1) == 23.4 and round(counts["vht"] / 1e6, 1) == 22.7  # fixtures/PEERS.md
    assert counts["pht-1"] < counts["pht"] and counts["ft-3"] < counts["ft"]


def test_sizes_of_the_other_systems():
    counts = {name: count_parameters(load_config(name).model) for name in [*OTHERS, "ft-3", "pht"]}
    assert counts["tdmca"] == 32000 * 513 + 5 * 3_152_384 + 2 * 2 * (3 * 512 * 512 + 512) + 1024
    # PHT/VHT paper, section 5.4: decoders without encoder are smaller; T-DMCA is the larger one, by its convolutions
    assert counts["txl"] < counts["tdmca-3"] < counts["ft-3"] < counts["pht"]
    assert counts["graphsum"] > counts["ft-3"]


@pytest.mark.parametrize("name", PAPERS_MB)
def test_sizes_that_the_papers_state(name):
    tied = load_config(name, ["model.tied_output=true"]).model
    exact = name in ("ft-3", "pht", "vht")
    assert megabytes(tied, moments=True) == pytest.approx(PAPERS_MB[name], rel=5e-4 if exact else 0.011)


@pytest.mark.parametrize("name", PRESETS + OTHERS)
def test_presets_build(name):
    sizes = ["model.vocabulary=50", "model.width=32", "model.hidden=8" if name == "ranker" else "model.ffn=8"]
    small = load_config(name, sizes).model
    assert built(small) == count_parameters(small)


def test_specs_and_counts_load_no_torch():
    code = "import sys, raysum.models.parameters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
