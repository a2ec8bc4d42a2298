"""The run folder: complete checkpoints, the best one, decoding settings."""

import json

import pytest
import torch

from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.runs.folder import Run, RunResult


@pytest.fixture
def run(tmp_path) -> Run:
    (tmp_path / "v.model").write_bytes(b"pieces")
    run = Run(tmp_path / "run")
    run.create(load_config(None, ["train.steps=30"]), {"lower": True}, tmp_path / "v.model")
    for step in (10, 20, 30):
        run.add_weights(step, {"w": torch.full((2,), float(step))}, {})
        (run.checkpoint_path(step) / "engine").mkdir()
    return run


def measure(run: Run, *losses: tuple[int, float]) -> None:
    run.metrics.write_text("".join(json.dumps({"step": step, "valid_loss": loss}) + "\n" for step, loss in losses))


def test_weights_are_for_whoever_may_read_the_rest(run):
    modes = {file.name: file.stat().st_mode for file in run.checkpoint_path(30).iterdir()}
    assert modes["weights.safetensors"] == modes["state.json"]


def test_create_then_open_gives_the_same_config(run):
    opened = Run.open(run.path)
    assert opened.config.train.steps == 30 and opened.recipe == {"lower": True}
    opened.create(load_config(None, ["train.steps=40"]), {"lower": True}, None)  # as a training that goes on
    assert opened.config.train.steps == Run.open(run.path).config.train.steps == 40
    assert opened.vocabulary.read_bytes() == b"pieces"


def test_what_former_versions_left_to_deepspeed_stays_as_it_was(run):
    assert Run.open(run.path).config.deepspeed == {"gradient_clipping": 0.0}
    written = run.path / "config.yaml"
    text = written.read_text().replace("deepspeed:\n  gradient_clipping: 0.0\n", "deepspeed: {}\n")
    written.write_text(text)
    (run.path / "checksums.json").unlink()
    assert "gradient_clipping" not in text
    assert Run.open(run.path).config.deepspeed == {"gradient_clipping": 1.0}  # DeepSpeed clipped, untold


def test_checkpoints_are_complete_and_resumed_only_with_their_engine_state(run):
    (run.checkpoint_folder / ".partial-40-0" / "engine").mkdir(parents=True)
    assert [c.step for c in run.checkpoints()] == [10, 20, 30] and run.latest().step == 30
    (run.checkpoint_path(30) / "engine").rmdir()
    assert run.latest().step == 20


def test_best_is_the_lowest_validation_loss_and_the_last_word_on_a_step_counts(run):
    measure(run, (10, 3.0), (20, 1.0), (30, 2.0), (20, 2.5))
    with run.metrics.open("a") as metrics:
        metrics.write('{"step": 10, "valid')
    assert [run.checkpoint(which).step for which in ("best", "latest", "10")] == [30, 30, 10]
    assert [checkpoint.step for checkpoint in run.select_checkpoints("average:2")] == [30, 20]
    for which, message in (("15", "steps 10, 20, 30"), ("average:4", "has 3 of 4 checkpoints; train.keep")):
        with pytest.raises(UserError, match=message):
            run.select_checkpoints(which)


def test_a_result_tells_the_best_step_and_how_many_are_done(run):
    measure(run, (20, 1.5), (30, 2.0))
    assert "step: 20 (the best of 30)" in RunResult(run).render() and RunResult(run).to_dict()["step"] == 20


def test_found_decode_settings_change_the_config_ones(run):
    assert run.decode.beta == 0
    run.set_decode({"beta": 0.4})
    assert Run.open(run.path).decode.beta == 0.4
    (run.path / "decode.yaml").write_text("betta: 1")
    with pytest.raises(UserError, match="line 1.*did you mean 'beta'"):
        _ = run.decode


def test_wrong_folders_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match="raysum train"):
        Run.open(tmp_path / "none")
    with pytest.raises(UserError, match="no config.yaml"):
        Run.open(tmp_path)
    with pytest.raises(UserError, match="no complete checkpoint"):
        Run(tmp_path).best()
