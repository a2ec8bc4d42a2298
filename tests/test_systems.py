"""The registry of systems: every one of them trains, and so does one from outside the package."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.factbook_data import write_factbook
from helpers.small_datasets import write_dataset
from helpers.small_models import SYSTEMS
from helpers.small_runs import write_labeller
from helpers.small_trainings import RATE, STEPS, losses, same, trained, weights
from raysum import systems
from raysum.errors import UserError
from raysum.models.generator import Generator
from raysum.runs.folder import Run
from raysum.runs.restore import Start

TOY = Path(__file__).parent / "toy"
SMALL = {"width": 16, "ffn": 32, "heads": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("systems") / "data", {"train": 120, "valid": 16}, graph=True)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_summarizing_system_trains_and_resumes_bit_for_bit(name, data, tmp_path):
    model = {"system": name, **SYSTEMS[name]}
    whole = trained(data, tmp_path / "whole", 8, model)
    trained(data, tmp_path / "parts", 3, model)
    parts = trained(data, tmp_path / "parts", 8, model)
    found = losses(whole)
    assert len(found) == 8 and sum(found[-3:]) < sum(found[:3])
    assert losses(parts) == found and same(weights(parts, "8"), weights(whole, "8"))


def test_the_registry_tells_what_each_system_is():
    for name in systems.names():
        spec = systems.spec_class(name)()
        if spec.TRAINER:  # of no torch module
            assert callable(systems.part("raysum.trainers", spec.TRAINER))
            assert callable(systems.part("raysum.sentence_scorers", spec.SCORER))
            continue
        model = systems.build(spec.model_copy(update={"width": 16, "heads": 2}))
        assert spec.system == name and isinstance(model, Generator) == spec.summarizes
        assert systems.objective(spec, model, 0.1).model is model
        assert systems.kind(spec).columns
    assert systems.spec_class("seq2seq") is systems.spec_class("family")
    with pytest.raises(ValueError, match="no system 'hibret': choose one of family, bert"):
        systems.spec_class("hibret")
    with pytest.raises(UserError, match="no module raysum.models.specs: install"):  # named by an older installation
        systems.part("raysum.systems", "raysum.models.specs.family:FamilySpec")


def test_no_room_asks_for_the_class_of_a_spec_or_model():
    """Verbs ask for abilities: a system of another package has no class that they know."""
    package = Path(systems.__file__).parent
    classes = {systems.spec_class(name).__name__ for name in systems.names()}
    classes |= {"TransformerSpec", "Generator", "PrefixModel", "Family", "Ranker"}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                parts = list(ast.walk(node.args[1]))
                asked = {part.id for part in parts if isinstance(part, ast.Name)}
                asked |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
                assert not asked & classes, f"{file}:{node.lineno}"


# A new training that begins with the weights of another


FAMILY = SYSTEMS["family"]


def started(data: Path, out: Path, steps: int, model: dict, start: Path) -> Run:
    return trained(data, out, steps, model, train={"start": str(start)})  # the former name of init_from


def test_a_training_starts_from_the_weights_of_another_run(data, tmp_path, capsys):
    donor = trained(data, tmp_path / "donor", 4, FAMILY | {"encoder": "LL"})
    given = weights(donor)
    new = started(data, tmp_path / "new", 1, FAMILY | {"encoder": "LG", "decoder": "P"}, donor.path)
    said = capsys.readouterr().err
    assert "tensors are loaded from" in said and "new and untrained: encoder.1.*; unused" in said
    assert "unused: decoder.1.*, encoder.1.*" in said
    spec = new.config.model
    start = Start.of(str(donor.path), spec, donor.recipe["vocabulary_sha256"])
    assert {"embedding.weight", "encoder.0.block.attention.qkv.weight", "pooling.merge.weight"} <= {*start.loaded}
    assert not {*start.loaded} & {*start.missing} and {*start.loaded, *start.unused} == {*given}
    fresh = systems.build(spec)
    before = {name: value.clone() for name, value in fresh.named_parameters()}
    start.apply(fresh)
    for name, value in fresh.named_parameters():
        assert torch.equal(value, given[name] if name in start.loaded else before[name]), name


def test_the_same_model_goes_on_where_the_other_was(data, tmp_path):
    """Constant rate, no dropout: the first loss of the second training is near the last of the first."""
    dry = FAMILY | {"dropout": 0.0, "attention_dropout": 0.0}
    donor = trained(data, tmp_path / "donor", 12, dry, train={"validate_every": 12})
    new = started(data, tmp_path / "new", 1, dry, donor.path)
    assert losses(new)[0] < 0.9 * losses(donor)[0]
    assert started(data, tmp_path / "new", 2, dry, donor.path).latest().step == 2  # resumes


def test_what_cannot_be_a_start_is_said(data, tmp_path):
    donor = trained(data, tmp_path / "donor", 1, FAMILY).path
    other = write_dataset(tmp_path / "other", {"train": 30}, seed=4)
    wider = FAMILY | {"width": 32}
    for its_data, model, start, named in (
        (other, FAMILY, donor, "another vocabulary.*--vocab"),
        (data, wider, donor, "no matrix of .* has the name and shape"),
        (data, FAMILY, tmp_path / "none", "no run folder"),
    ):
        with pytest.raises(UserError, match=named):
            started(its_data, tmp_path / "new", 1, model, start)


# A system of another package


def raysum(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TOY)}
    command = [sys.executable, "-m", "raysum", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> dict[str, Path]:
    """A dataset, a config that names the toy, and its run after 6 steps."""
    folder = tmp_path_factory.mktemp("toy")
    write_factbook(folder / "data", {"train": 60, "valid": 8})
    values = {"model": {"system": "toy"}, "train": STEPS | {"batch_tokens": 2000, "steps": 6}}
    values |= {"optim": RATE, "decode": {"max_length": 12}}
    (folder / "toy.yaml").write_text(json.dumps(values))
    done = raysum("train", str(folder / "toy.yaml"), f"data={folder / 'data'}", f"out={folder / 'run'}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 6
    return {"config": folder / "toy.yaml", "data": folder / "data", "run": folder / "run"}


def test_a_system_of_another_package_trains_resumes_and_is_aligned(toy):
    command = ["train", str(toy["config"]), f"data={toy['data']}", f"out={toy['run']}", "train.steps=9"]
    done = raysum(*command)
    assert done.returncode == 0 and "resumes from step 6" in done.stderr, done.stderr
    found = losses(Run(toy["run"]))
    assert len(found) == 9 and found[-1] < found[0]
    short = ["train.workers=0", "train.steps=2", "model.heads=2", "model.ffn=16"]
    aligned = raysum("train", "alignment", f"run={toy['run']}", f"data={toy['data']}", *short)
    assert aligned.returncode == 0, aligned.stderr


def test_it_is_shown_summarized_with_and_evaluated(toy, tmp_path):
    shown = raysum("config", "show", str(toy["config"]), "--json")
    assert json.loads(shown.stdout)["model"]["system"] == "toy"
    wrong = raysum("train", str(toy["config"]), "model.witdh=8")
    assert wrong.returncode == 2 and "did you mean 'model.width'?" in wrong.stderr
    result = raysum("evaluate", str(toy["run"]), f"data={toy['data']}", "split=valid", "limit=4", "--json")
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["systems"]) == {"run", "lead", "lexrank", "lead-paper", "lexrank-paper"}
    (tmp_path / "text.txt").write_text("The mill stands by the river. It turns all day and all night long.")
    told = raysum("summarize", str(toy["run"]), str(tmp_path / "text.txt"), "title=Mill", "num_beams=2", "--json")
    assert told.returncode == 0 and json.loads(told.stdout)["attention"] == [pytest.approx(1)], told.stderr
    assert raysum("summarize", str(toy["run"]), str(tmp_path / "text.txt"), "gnmt_coverage=1").returncode == 2
    refused = raysum("summarize", str(toy["run"]), str(tmp_path / "text.txt"), "citing_layers=[1]")
    assert refused.returncode == 2 and "a toy has none to choose" in refused.stderr


def test_without_its_package_a_run_is_refused_by_name(toy):
    bare = subprocess.run(
        [sys.executable, "-m", "raysum", "summarize", str(toy["run"]), "-"], capture_output=True, text=True, input="a"
    )
    assert bare.returncode == 2 and "no system 'toy'" in bare.stderr and "Traceback" not in bare.stderr


@pytest.mark.long
@pytest.mark.slow
def test_it_is_served(toy):
    from raysum.serve.client import Client

    command = [sys.executable, "-m", "raysum", "serve", str(toy["run"]), "--port=0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(TOY)})
    try:
        line = next(line for line in server.stderr if line.startswith("serving"))
        (address,) = re.findall(r"http://[\d.]+:\d+", line)
        text = "The mill stands by the river, and turns all day and night."
        answer = Client(address).summarize("Mill", [text], min_length=4)
        assert answer["summary"] and answer["attention"] == [pytest.approx(1)]
    finally:
        server.terminate()
        server.wait(60)


def test_the_layers_over_words_of_a_hibert_begin_the_local_layers_of_a_family(tmp_path):
    dataset = write_factbook(tmp_path / "data", {"train": 4})
    write_labeller(tmp_path / "hibert", dataset, "pretraining", layers=2)
    donor = Run(tmp_path / "hibert")
    given = weights(donor)
    pieces = donor.config.model.vocabulary
    model = {"encoder": "LGLL", "decoder": "P", "pooling_heads": 2, "vocabulary": pieces, "norm": "post", **SMALL}
    spec = systems.spec_class("family").model_validate(model)
    start = Start.of(str(donor.path), spec, dataset.vocabulary_hash)
    fresh = systems.build(spec)
    start.apply(fresh)
    found = dict(fresh.named_parameters())
    assert torch.equal(found["embedding.weight"], given["embedding.weight"])
    for own, other in (("sentence.0", "encoder.0.block"), ("sentence.1", "encoder.2.block")):
        names = [name.removeprefix(own) for name in given if name.startswith(f"{own}.")]
        assert len(names) == 12 and all(torch.equal(found[other + rest], given[own + rest]) for rest in names)
    assert not any(name.startswith(("encoder.1", "encoder.3", "decoder")) for name in start.loaded)
    assert "unused: decoder.*, document.*" in str(start)
    unlike = spec.model_copy(update={"norm": "pre"})  # another computation: the embedding alone
    assert [*Start.of(str(donor.path), unlike, dataset.vocabulary_hash).loaded] == ["embedding.weight"]
