"""Damaged run and dataset folders: the file is named, or an older complete state is used and that is said."""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.factbook_data import write_factbook, write_run
from helpers.small_datasets import as_formerly, write_dataset
from helpers.small_trainings import RATE, STEPS, same, weights
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.checksums import SEAL, seal
from raysum.train.fit import train
from raysum.tune.search import tune

MODEL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}
TRAIN = STEPS | {"micro_batches": 4, "save_every": 4, "validate_every": 4}
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """``data``, and ``run``: 12 steps on it, with checkpoints at 4, 8 and 12, of which the last is the best."""
    folder = tmp_path_factory.mktemp("damage")
    write_dataset(folder / "data", {"train": 150, "valid": 20})
    go_on(folder, 12)
    assert [c.step for c in Run(folder / "run").checkpoints()] == [4, 8, 12]
    assert Run(folder / "run").best().step == 12
    return folder


def go_on(folder: Path, steps: int, out: str = "run", **more: object) -> Run:
    given = {"model": MODEL, "optim": RATE, "data": str(folder / "data"), "out": str(folder / out)}
    return train(None, **given, train=TRAIN | {"steps": steps} | more).run


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def begun(monkeypatch) -> list[int]:
    """The steps from which trainings resume, none of which trains."""
    steps: list[int] = []
    monkeypatch.setattr("raysum.train.fit._train_here", lambda brief: steps.append(brief.run.latest().step))
    return steps


def rewritten(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def written(text: str) -> Damage:
    return lambda path: path.write_text(text)


def appended(content: bytes) -> Damage:
    return rewritten(lambda old: old + content)


def edited(**changes: object) -> Damage:
    return rewritten(lambda old: json.dumps(json.loads(old) | changes).encode())


def without(key: str) -> Damage:
    return rewritten(lambda old: json.dumps({k: v for k, v in json.loads(old).items() if k != key}).encode())


def swapped(other: str) -> Damage:
    return lambda path: shutil.copyfile(path.parent / other, path)


def flip(content: bytes) -> bytes:
    place = len(content) * 3 // 4
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


truncated, emptied, flipped = rewritten(lambda old: old[: len(old) // 2]), written(""), rewritten(flip)
bad_head, lengthened = rewritten(lambda old: b"\xff" * 64 + old[64:]), appended(b"\0")
BROKEN = {"truncated": truncated, "emptied": emptied, "flipped": flipped, "bad head": bad_head, "gone": gone}
TORN = [pytest.param(BROKEN[name], id=name) for name in ("truncated", "emptied", "bad head")]


def names(damages: list[tuple[str, str, Damage]]) -> dict:
    ids = [f"{name}-{file.rpartition('/')[2]}" for name, file, _ in damages]
    return {"argnames": "file, damage", "argvalues": [(file, damage) for _, file, damage in damages], "ids": ids}


def all_of(file: str, *but: str, **more: Damage) -> list[tuple[str, str, Damage]]:
    return [(name, file, damage) for name, damage in (BROKEN | more).items() if name not in but]


MANIFEST_KEYS = ("kind", "recipe", "fingerprint", "splits", "format")
STEP = "checkpoints/step-00000012"
WEIGHTS, STATE, SEALED = f"{STEP}/weights.safetensors", f"{STEP}/state.json", f"{STEP}/{SEAL}"
MODEL_STATE = f"{STEP}/engine/mp_rank_00_model_states.pt"
BEFORE = swapped("../step-00000008/weights.safetensors")


@pytest.mark.parametrize(**names(all_of(WEIGHTS, lengthened=lengthened, swapped=BEFORE)))
def test_damaged_weights_are_replaced_by_the_next_best_and_that_is_said(copy, file, damage, capsys):
    damage(copy / "run" / file)
    summarizer = Summarizer.load(str(copy / "run"))
    told = capsys.readouterr().err
    assert "step-00000012/weights.safetensors" in told and "Step 8 is used instead" in told
    expected, found = weights(Run(copy / "run"), "8"), summarizer.model.state_dict()
    assert same(expected, {name: found[name] for name in expected})
    with pytest.raises(UserError, match="step-00000012/weights.safetensors"):
        Summarizer.load(str(copy / "run"), checkpoint="12")


def test_weights_whose_checksums_are_gone_are_replaced_and_that_is_said(copy, capsys):
    gone(copy / "run" / SEALED)
    run = Run(copy / "run")
    assert run.checkpoint().step == 8
    told = capsys.readouterr().err
    assert f"step-00000012/{SEAL} is missing" in told and "Step 8 is used instead" in told
    with pytest.raises(UserError, match=re.escape(f'remove "sealed" from {run.path / STATE}')):
        run.checkpoint("12")
    edited(sealed=None)(run.path / STATE)
    assert run.checkpoint("12").step == 12


def test_without_any_sound_weights_the_first_is_named(copy):
    for file in (copy / "run").glob("checkpoints/*/weights.safetensors"):
        flipped(file)
    with pytest.raises(UserError, match="step-00000012/weights.safetensors is damaged: its content"):
        Summarizer.load(str(copy / "run"))


def formerly(damage: Damage) -> Damage:
    """Of a run that was trained before validations had a checksum."""
    return lambda path: (path.with_name("validations.json").unlink(), damage(path))


MEASURED = {
    "5": b"5\n",
    "binary": b"\xff\xfe\1\n",
    "text": b'{"step": 12, "valid_loss": "low"}\n',
    "infinite": b'{"step": 12, "valid_loss": 1e400}\n',
    "huge": b'{"step": 12, "valid_loss": %s}\n' % (b"9" * 400),
    "huge step": b'{"step": %s, "valid_loss": 1}\n' % (b"9" * 400),
}
RUN_FILES = [
    *all_of("config.yaml", edited=rewritten(lambda old: old.replace(b"heads: 2", b"heads: 4"))),
    *all_of("recipe.json", list=written("[]"), edited=edited(max_paragraphs=3)),
    *all_of("vocabulary.model"),
    *((name, "metrics.jsonl", formerly(appended(content))) for name, content in MEASURED.items()),
    *all_of("validations.json", "gone", list=written("[]"), edited=edited(steps={"8": {"valid_loss": 0.0}})),
    ("unsealed", "validations.json", written('{"steps": {"8": {"valid_loss": 0.0}}}')),
    ("infinite", "validations.json", written('{"steps": {"8": {"valid_loss": 1e400}}}')),
    ("broken", "decode.yaml", written("beta: [")),
    ("binary", "decode.yaml", lambda path: path.write_bytes(b"\xff\xfe")),
    ("list", SEAL, written("[]")),
    ("edited", SEAL, edited(files={})),
]


@pytest.mark.parametrize(**names(RUN_FILES))
def test_damaged_files_of_a_run_are_named(copy, file, damage):
    damage(copy / "run" / file)
    with pytest.raises(UserError, match=f"run.* {file}|{file}|no config.yaml"):
        Summarizer.load(str(copy / "run"))


def test_where_to_take_a_copy_of_the_vocabulary_from_is_said(copy):
    flipped(copy / "run" / "vocabulary.model")
    with pytest.raises(UserError, match=r"put back a copy of it, such as (.*/data/vocabulary.model)$") as refused:
        Run.open(copy / "run")
    shutil.copyfile(str(refused.value).rpartition(" such as ")[2], copy / "run" / "vocabulary.model")
    Run.open(copy / "run")


GOING_ON = [
    *all_of(MODEL_STATE),
    *all_of(STATE, list=written("[]"), number=written("5"), edited=edited(tokens=3)),
    *all_of(WEIGHTS),
    *all_of(SEALED, "truncated", "flipped", "bad head", list=written("[]")),
]


@pytest.mark.parametrize(**names(GOING_ON))
def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(copy, begun, file, damage, capsys):
    damage(copy / "run" / file)
    run = go_on(copy, 16)
    told = capsys.readouterr().err
    assert begun == [8] and "resumes from step 8" in told and "Training resumes from an older checkpoint" in told
    assert Path(file).name in told and (run.checkpoint_folder / "damaged-step-00000012").is_dir()


def test_after_damage_the_weights_come_out_the_same(copy, folder):
    truncated(copy / "run" / MODEL_STATE)
    assert same(weights(go_on(copy, 12), "12"), weights(Run(folder / "run"), "12"))


def test_a_missing_engine_is_said_and_no_sound_one_refused(copy, begun, capsys):
    gone(copy / "run" / STEP / "engine")
    go_on(copy, 16)
    assert "step-00000012 has no engine folder" in capsys.readouterr().err
    for file in (copy / "run").glob("checkpoints/*/engine/*.pt"):
        emptied(file)
    with pytest.raises(UserError, match="step-00000008/engine/mp_rank_00_model_states.pt .* and another out="):
        go_on(copy, 16)


def test_the_way_out_of_a_run_of_which_weights_alone_are_left_is_named_and_works(copy):
    emptied(copy / "run" / MODEL_STATE)
    gone(Run(copy / "run").checkpoint_path(8) / "engine")
    with pytest.raises(UserError, match="step-00000012/engine.* train.init_from=(.*) and another out=") as refused:
        go_on(copy, 16)
    start = str(refused.value).partition("train.init_from=")[2].partition(" ")[0]
    assert go_on(copy, 1, "another", init_from=start).latest().step == 1
    for file in (copy / "run").glob("checkpoints/*/weights.safetensors"):
        flipped(file)
    with pytest.raises(UserError, match="or choose another out="):
        go_on(copy, 16)


SHARD, LENGTHS = "train-00000.parquet", "train.lengths.npy"
DATA_FILES = [
    *all_of(SHARD, lengthened=lengthened, swapped=swapped("train-00001.parquet"), valid=swapped("valid-00000.parquet")),
    *all_of(LENGTHS, swapped=swapped("valid.lengths.npy"), text=written("lengths")),
    *all_of("vocabulary.model", other=written("pieces")),
    *all_of("manifest.json", list=written("[]"), number=written("5")),
    *((f"without {key}", "manifest.json", without(key)) for key in MANIFEST_KEYS),
    ("edited fingerprint", "manifest.json", edited(fingerprint="0")),
    ("edited recipe", "manifest.json", edited(recipe={})),
    ("edited kind", "manifest.json", edited(kind="alignment")),
]
FORMER = [
    *all_of(SHARD, "flipped", valid=swapped("valid-00000.parquet")),
    *all_of(LENGTHS, "flipped"),
    *((f"without {key}", "manifest.json", without(key)) for key in MANIFEST_KEYS),
    ("number", "manifest.json", edited(splits=5)),
    ("of numbers", "manifest.json", edited(splits={"train": 5})),
]


def check_reading(data: Path, file: str) -> None:
    with pytest.raises(UserError, match=file):
        dataset = Dataset.open(data)
        dataset.lengths("train")
        list(dataset.read("train"))


@pytest.mark.parametrize(**names(DATA_FILES))
def test_damaged_files_of_a_dataset_are_named_by_training_and_by_reading(copy, file, damage):
    damage(copy / "data" / file)
    with pytest.raises(UserError, match=file):
        go_on(copy, 12, "new")
    check_reading(copy / "data", file)


@pytest.mark.parametrize(**names(FORMER))
def test_what_can_be_told_of_a_damaged_dataset_without_checksums(copy, file, damage):
    as_formerly(copy / "data")
    damage(copy / "data" / file)
    check_reading(copy / "data", file)


def test_all_damaged_shards_are_named_before_a_training_begins(copy):
    first, second = "train-00000.parquet", "train-00001.parquet"
    truncated(copy / "data" / first)
    flipped(copy / "data" / second)
    with pytest.raises(UserError, match=f"{first} is damaged: it has .*{second} .*its content.*prepare the data"):
        go_on(copy, 12, "new")
    assert not any((copy / "new").glob("*.yaml"))


def test_what_is_older_than_the_manifest_is_checked_by_size_alone_before_a_training(copy, monkeypatch):
    data, read = copy / "data", []
    monkeypatch.setattr("raysum.runtime.checksums.checksum", lambda path: read.append(path.name) or {"crc32": 0})
    written = (data / "manifest.json").stat().st_mtime_ns
    for file in data.glob("*.parquet"):
        os.utime(file, ns=(written, written - 1))
    Dataset.open(data).check_shards()
    assert not [name for name in read if name.endswith(".parquet")]
    os.utime(data / SHARD, ns=(written, written + 1))
    with pytest.raises(UserError, match=f"{SHARD} is damaged: its content"):
        Dataset.open(data).check_shards()


def test_a_shard_that_is_not_of_its_lengths_is_the_datasets_damage(copy):
    as_formerly(copy / "data")
    lengths = np.load(copy / "data" / LENGTHS)
    np.save(copy / "data" / LENGTHS, lengths + np.array([0, 0, 1], np.int32))
    with pytest.raises(UserError, match="target tokens .*its shards contain .*prepare the dataset again"):
        go_on(copy, 2, "new")


def unsealed(run: Path) -> None:
    """As a run of the former format."""
    for file in run.rglob(SEAL):
        file.unlink()
    for file in run.rglob("state.json"):
        without("sealed")(file)


@pytest.mark.parametrize("damage", TORN)
def test_a_run_of_the_former_format_is_read_and_falls_back_too(copy, damage, capsys):
    unsealed(copy / "run")
    Summarizer.load(str(copy / "run"))
    assert capsys.readouterr().err == ""
    damage(copy / "run" / WEIGHTS)
    Summarizer.load(str(copy / "run"))
    assert "Step 8 is used instead" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [*TORN, flipped])
def test_an_engine_state_of_the_former_format_is_checked_by_its_own_sums(copy, begun, damage):
    unsealed(copy / "run")
    damage(copy / "run" / MODEL_STATE)
    go_on(copy, 16)
    assert begun == [8]


def test_a_torn_line_of_a_killed_writer_is_no_damage(copy):
    run = Run(copy / "run")
    before = run.metrics.read_bytes()
    appended(b'{"step": 12, "lo\n{"step": 13, "valid_lo')(run.metrics)
    appended(b"\0" * 40)(run.metrics)
    assert run.best().step == 12
    after = go_on(copy, 14).metrics.read_bytes()
    assert after.startswith(before)
    assert [json.loads(line)["step"] for line in after[len(before) :].splitlines()] == [13, 14, 14]


def test_no_line_of_the_metrics_selects_another_checkpoint(copy):
    run = Run(copy / "run")
    before = run.metrics.read_bytes()
    appended(b'{"step": 4, "valid_loss": 0.0}\n')(run.metrics)
    assert run.best().step == 12 and run.validations()[4] > 1
    run.metrics.write_bytes(before.replace(b"12", b"8"))
    assert run.best().step == 12
    appended(b'{"step": [1], "valid_loss": {}}\n')(run.metrics)
    run.rewind(12)
    assert sorted(run.validations()) == [4, 8, 12]
    run.validations_file.unlink()  # as of a run that was trained formerly
    run.metrics.write_bytes(before)
    appended(b'{"step": 4, "valid_loss": 0.0}\n')(run.metrics)
    assert run.best().step == 4


@pytest.mark.parametrize(
    "name", ["step-6.bak", "step-6", "step-00000006.bak", "step-00000006 (copy)", "step-", "step-x"]
)
def test_only_folders_named_as_checkpoints_are_checkpoints(copy, name):
    folder = copy / "run" / "checkpoints"
    shutil.copytree(folder / "step-00000012", folder / name)
    assert [checkpoint.step for checkpoint in Run(copy / "run").checkpoints()] == [4, 8, 12]
    assert go_on(copy, 13).latest().step == 13 and (folder / name).is_dir()


@pytest.mark.parametrize("size", [2**60, 2**63 + 1, 100, 2])
def test_a_header_of_weights_that_is_no_header_is_named(copy, size):
    (copy / "run" / WEIGHTS).write_bytes(struct.pack("<Q", size) + b"[]")
    seal(copy / "run" / STEP)
    message = r"step-00000012/weights.safetensors cannot be read \(.*header.*put back a copy"
    with pytest.raises(UserError, match=message):
        Summarizer.load(str(copy / "run"))


# Searches


@pytest.mark.parametrize("content", ["[]", "{}", '{"run": 5}', ""])
def test_a_damaged_best_of_a_search_is_named(tmp_path, content):
    (tmp_path / "search.yaml").write_text("format: 2\n")
    (tmp_path / "best.json").write_text(content)
    with pytest.raises(UserError, match="/best.json .*; repeat the `raysum tune` command"):
        Run.resolve(tmp_path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, ray_session) -> Callable[..., list[str]]:
    """Makes a search anew with ``damage`` in ``search/tune`` and goes on with it: the names of its trials."""
    folder = tmp_path_factory.mktemp("searched")
    data = write_factbook(folder / "data", {"train": 4, "valid": 4})
    run = write_run(folder / "pht", data)
    beams = "search: {decode.num_beams: {grid: [1, 2]}}\n"
    (folder / "beams.yaml").write_text(f"about: x\nkind: decode\nconfig: {{decode.max_length: 5}}\n{beams}")

    def go_on(damage: Callable[[Path], object] = lambda state: None) -> list[str]:
        if (folder / "sound").exists():
            shutil.rmtree(folder / "search")
            shutil.copytree(folder / "sound", folder / "search")
        damage(folder / "search" / "tune")
        found = tune(str(folder / "beams.yaml"), data=data.path, run=run.path, out=folder / "search")
        return sorted(trial.name for trial in found.trials)

    assert go_on() == ["num_beams=1", "num_beams=2"]
    shutil.copytree(folder / "search", folder / "sound")
    return go_on


def in_all(pattern: str, damage: Damage) -> Callable[[Path], None]:
    return lambda state: [damage(file) for file in list(state.glob(pattern))] and None


@pytest.mark.slow
@pytest.mark.parametrize("damage", TORN)
@pytest.mark.parametrize("file", ["tuner.pkl", "experiment_state", "search_gen_state", "searcher-state"])
def test_damaged_states_of_a_search_are_named(searched, file, damage):
    with pytest.raises(UserError, match=rf"search/tune/{file}.* is damaged .*remove .*/search/tune and repeat"):
        searched(in_all(f"{file}*", damage))


@pytest.mark.slow
def test_a_state_without_that_of_the_searcher_is_no_whole_one(searched):
    with pytest.raises(UserError, match="experiment_state.* is incomplete"):
        searched(in_all("searcher-state*", gone))


@pytest.mark.slow
@pytest.mark.parametrize("left", ["tuner.pkl", "none"])
def test_a_search_begins_again_where_no_state_is_left(searched, left):
    def all_but(state: Path) -> None:
        for item in state.iterdir():
            gone(item) if item.name != left else None

    assert searched(all_but) == ["num_beams=1", "num_beams=2"]


@pytest.mark.slow
def test_a_search_goes_on_from_the_state_before_a_damaged_one(searched, capsys):
    def add_damaged(state: Path) -> None:
        for file in list(state.glob("*state-*")):
            shutil.copyfile(file, file.with_name(f"{file.stem[:-19]}2999-01-01_00-00-00{file.suffix}"))
        truncated(state / "experiment_state-2999-01-01_00-00-00.json")
        folders.append(state)

    folders: list[Path] = []
    assert searched(add_damaged) == ["num_beams=1", "num_beams=2"]
    assert "experiment_state-2999-01-01_00-00-00.json is damaged" in capsys.readouterr().err
    assert (folders[0] / "damaged-experiment_state-2999-01-01_00-00-00.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("damage", TORN)
@pytest.mark.parametrize("file", ["*/result.json", "*/params.pkl", "../trials/*/scores.parquet"])
def test_what_tune_keeps_of_single_trials_is_not_needed(searched, file, damage):
    assert searched(in_all(file, damage)) == ["num_beams=1", "num_beams=2"]
