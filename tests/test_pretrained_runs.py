"""From published folders to runs that write, and back."""

import json

import pytest
import torch
from pretrained import published
from published_tokenizers import published as published_tokenizer

from raysum import restore
from raysum.data.tokenizer import Tokenizer
from raysum.decode.summarizer import Summarizer
from raysum.importing.checkpoint import export_checkpoint, import_checkpoint
from raysum.run import Run

pytest.importorskip("transformers")

FAMILIES = ("bart", "mbart", "pegasus", "led", "t5")
CLUSTER = {
    "title": "The bridge of Sarsu",
    "documents": ["The bridge crosses the river Vun. It was built in 1820.", "Tan Vu built it of stone.\n\nIt fell."],
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """A published model with its tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    published_tokenizer(folder, request.param)
    told = json.loads((folder / "config.json").read_text())
    told.pop("model_type")
    published(request.param, folder, **told)
    return folder


def test_an_imported_run_summarizes_and_cites(folder, tmp_path):
    import_checkpoint("huggingface", str(folder), str(tmp_path / "run"), overrides=["decode.max_length=12"])
    summary = Summarizer.load(tmp_path / "run").summarize(**CLUSTER)
    assert summary.summary
    assert sum(summary.attention) == pytest.approx(1, abs=1e-5)


def test_import_export_import_is_bit_equal(folder, tmp_path):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    first, out, second = (str(tmp_path / name) for name in ("first", "out", "second"))
    import_checkpoint("huggingface", str(folder), first)
    export_checkpoint("huggingface", first, out)
    import_checkpoint("huggingface", out, second)
    runs = [Run.open(path) for path in (first, second)]
    weights = [restore.restore(run, "best", torch.device("cpu")).state_dict() for run in runs]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert runs[0].config == runs[1].config
    ids = [AutoTokenizer.from_pretrained(one)("A bridge of 1820.").input_ids for one in (folder, out)]
    assert ids[0] == ids[1]
    assert Tokenizer.load(runs[0].vocabulary).marks == Tokenizer.load(runs[1].vocabulary).marks
    AutoModelForSeq2SeqLM.from_pretrained(out)
