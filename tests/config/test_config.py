"""Configuration: overrides, strict keys with the nearest one named, presets."""

import json
import subprocess
import sys

import pytest
import yaml

from raysum.config.loading import dump, load_config, parse_yaml, presets, section_of
from raysum.config.problems import keys, validate
from raysum.config.sections import Config
from raysum.data.recipe import read_recipe
from raysum.errors import UserError
from raysum.prepare.config import PrepareConfig
from raysum.runs.folder import Run
from raysum.teach.config import TeachConfig


def test_overrides_reach_nested_keys_and_keep_types():
    config = load_config(None, ["train.steps=7", "optim.lr=1e-4", "model.encoder=LLG", "deepspeed.bf16.enabled=true"])
    assert (config.train.steps, config.optim.lr, config.model.encoder) == (7, 1e-4, "LLG")
    assert config.deepspeed == {"gradient_clipping": 0.0, "bf16": {"enabled": True}}
    assert load_config("pht", ["train.steps='5'", "decode.title_prompt=true"]).train.steps == 5


def test_loading_leaves_the_given_values_as_they_were():
    values = {"train": {"start": "other", "steps": 5}, "optim": {"lr": 0.5}, "decode": {"num_beams": 2}}
    before = json.dumps(values)
    config = load_config("ht", ["train.steps=7", "optim.lr=1e-4", "decode.num_beams=3"], values)
    assert (config.train.steps, config.optim.lr, config.train.init_from) == (7, 1e-4, "other")
    locations = {"optim.lr": "here", "optim": "there"}
    section_of(Config, values, ["optim={lr: 0.1}"], locations)
    assert json.dumps(values) == before and locations == {"optim.lr": "here", "optim": "there"}


def test_unknown_key_names_the_nearest_key_its_section_and_the_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  encoder: LL\ntrain:\n  stpes: 3\n  num_beams: 4\n")
    with pytest.raises(UserError) as error:
        load_config(str(file))
    first, second = str(error.value).splitlines()
    assert first == f"unknown key 'train.stpes' ({file}, line 4); did you mean 'train.steps'?"
    assert second == f"unknown key 'train.num_beams' ({file}, line 5); did you mean 'decode.num_beams'?"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.encoder=LXG", "letters S, L, G"),
        ("model.decoder=", "letters F, P, V"),
        ("model.heads=7", "not a multiple of heads 7"),
        ("train.workers=3", "use one of 1, 2, 4, 8 workers"),
        ("train.steps=many", "got 'many'"),
        ("train", "not key=value"),
        ("train.steps.x=1", "train.steps"),
        ("optim.lr=inf", "finite number"),
        ("optim.lr=1e308", "less than or equal"),
        ("optim.betas=[0.9, .nan]", "finite number"),
        ("decode.beta=.inf", "finite number"),
        ("decode.num_beams=100000000000", "less than or equal"),
        ("train.micro_batches=100000000000", "less than or equal"),
        ("model.width=4000000000", "less than or equal"),
        ("decode.early_stopping=maybe", "must be true, false or never"),
        ("decode.early_stopping=1", "must be true, false or never"),
        ("decode.forced_bos_token_id=-1", "greater than or equal"),
        ("decode.forced_eos_token_id=true", "must be a number"),
        ("decode.num_beams=[", r"got '\['"),
        ("model=5", "must be a section"),
        ("model.system=[]", "choose one of family"),
        ("train=5", "must be a section"),
        ("train.init_from=", "is empty"),
        ("data=\ud800", "not valid text"),
        ("train.steps=" + "[" * 3000, "valid integer"),
        ("optim.lr=" + "9" * 5000, "finite number"),
        ("a." * 3000 + "b=1", "nested so deep"),
        ("deepspeed={x: .nan}", "JSON"),
        ("deepspeed=&a {b: *a}", "must be a section"),
    ],
)
def test_wrong_values_are_one_clear_message(override, words):
    with pytest.raises(UserError, match="(?s).*" + words.replace(".", r"\.")):
        load_config(None, [override])


NUMBERS = ["train.steps", "decode.num_beams", "model.width", "optim.lr", "source.max_tokens", "optim.betas"]


@pytest.mark.parametrize("key", NUMBERS)
def test_yes_is_no_number(key):
    value = "[false, 0.9]" if key == "optim.betas" else "true"
    with pytest.raises(UserError, match=rf"^{key}: must be a number, not true or false \(got .*\) \(on the command"):
        load_config("pht", [f"{key}={value}"])


def test_all_problems_come_in_one_message():
    with pytest.raises(UserError) as error:
        load_config(None, ["train.steps=0", "model.width=6", "optim.lr=-1"])
    assert len(str(error.value).splitlines()) == 3


BOMB = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"model: {encoder: LL} # \xe9", "UTF-8"),
        ("model: [", "is not valid YAML"),
        ("- a", "must be a mapping"),
        ("deepspeed:\n  a0: &a0 [x]\n" + BOMB, "is not valid YAML: .*more than 100,000 values"),
        ("deepspeed: &a\n  x: *a\n", "is not valid YAML: .*nested"),
        ("train: &a {<<: *a}", "is not valid YAML: .*nested"),
        ("data: " + "[" * 2000, "is not valid YAML: .*nested"),
        ("data: " + "[" * 40 + "]" * 40, "is not valid YAML: .*nested more than 30 deep"),
        ("data: 2020-13-45", "is not valid YAML: .*month"),
        ("train: {steps: 1}\nmodel: {width: 8}\ntrain: {seed: 2}", "is not valid YAML: .*'train' is repeated"),
        ('train: {steps: {"a(": 1}}', "train.steps: .*valid integer"),
    ],
)
def test_broken_files(tmp_path, text, words):
    file = tmp_path / "broken.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=f"(?s){words}"):
        load_config(str(file))


def test_a_few_aliases_are_as_good_as_ever(tmp_path):
    (tmp_path / "shared.yaml").write_text("train: {validate_every: &every 7, save_every: *every}")
    assert load_config(str(tmp_path / "shared.yaml")).train.save_every == 7


@pytest.mark.parametrize("name", ["phtt", "", "x" * 5000, "a\0b"])
def test_what_is_no_preset_or_file_is_named(name):
    with pytest.raises(UserError, match="did you mean 'pht'" if name == "phtt" else "no preset or file") as error:
        load_config(name)
    assert len(str(error.value)) < 800


def test_decode_aliases_are_the_names_other_toolkits_use(capsys):
    config = load_config("pht", ["decode.beam_size=3", "decode.block_ngram_repeat=2"])
    assert (config.decode.num_beams, config.decode.no_repeat_ngram_size) == (3, 2)
    assert not capsys.readouterr().err


def test_a_preset_of_another_system_inherits_all_but_the_model():
    tdmca, ht = load_config("tdmca"), load_config("ht")
    assert tdmca.model.system == "tdmca" and (tdmca.optim, tdmca.decode) == (ht.optim, ht.decode)
    with pytest.raises(UserError) as error:
        load_config("tdmca", ["model.encoder=LL", "model.blok=3"])
    first, second = str(error.value).splitlines()
    assert first.startswith("unknown key 'model.encoder'") and "model.decoder" not in first
    assert second.endswith("did you mean 'model.block'?")
    with pytest.raises(UserError, match="choose one of family.*graphsum"):
        load_config(None, ["model.system=graphsun"])


@pytest.mark.parametrize("name", presets())
def test_every_preset_resolves_and_survives_its_own_dump(name):
    config = load_config(name)
    values, places = parse_yaml(dump(config), "dump")
    assert validate(values, places, Config) == config


def test_keys_lists_every_section():
    assert {"model.encoder", "model.layers", "train.steps", "decode.beta", "data"} <= set(keys())
    assert set(yaml.safe_load(dump(Config()))) == {k for k in keys() if "." not in k}


def test_light_commands_load_neither_torch_nor_ray():
    code = (
        "import sys, raysum, raysum.cli.app, raysum.config.loading as c; c.load_config('pht');"
        "sys.exit(','.join(m for m in ('torch','ray','deepspeed','pandas','sklearn') if m in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_configs_of_before_load_under_the_systems_new_name():
    former, current = (load_config(None, [*more, "model.encoder=LLG"]).model for more in (["model.system=seq2seq"], []))
    assert former == current and current.system == "family"


def test_a_message_names_the_value_that_is_wrong_and_not_the_preset():
    with pytest.raises(UserError) as error:
        load_config("pht", ["model.width=10"])
    assert str(error.value).startswith("model: width 10 is not a multiple of heads")
    assert str(error.value).endswith("(width: on the command line; heads: preset pht, line 9)")
    with pytest.raises(UserError, match=r"got -5\) \(on the command line\)"):
        load_config("pht", ["train={steps: -5}"])
    with pytest.raises(UserError, match=r"got -5\) \(an argument\)"):
        load_config("pht", values={"optim": {"lr": -5}})


def test_extends_is_told_from_the_folder_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text("extends: pht\ntrain: {steps: 7}\n")
    (tmp_path / "sub" / "own.yaml").write_text("extends: ../base.yaml\nmodel: {system: tdmca}\n")
    monkeypatch.chdir("/")
    config = load_config(str(tmp_path / "sub" / "own.yaml"))
    assert (config.train.steps, config.model.system) == (7, "tdmca")
    (tmp_path / "base.yaml").write_text("extends: sub/own.yaml\n")
    with pytest.raises(UserError, match="does not extend this one"):
        load_config(str(tmp_path / "base.yaml"))
    (tmp_path / "base.yaml").write_text("train: {steps: 7}\n")  # without a model to be taken out
    assert load_config(str(tmp_path / "sub" / "own.yaml")).model.system == "tdmca"


@pytest.mark.parametrize("base", ["[pht, ht]", "5", "{file}", "''"])
def test_extends_names_a_preset_or_another_file(tmp_path, base):
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: {base.format(file=file)}\n")
    with pytest.raises(UserError, match="must name a preset or a file that does not extend this one"):
        load_config(str(file))


def test_old_names_of_keys_and_flags_work_with_one_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("raysum.config.base._reported", set())
    (tmp_path / "old.yaml").write_text("train: {start: runs/a}\n")
    config = load_config(str(tmp_path / "old.yaml"))
    assert config.train.init_from == "runs/a" and "start" not in config.train.model_dump()
    for key in ("start", "init_from"):
        assert load_config(str(tmp_path / "old.yaml"), [f"train.{key}=runs/b"]).train.init_from == "runs/b"
    prepared = section_of(PrepareConfig, {"out": "data", "pieces": 500, "parted_by": "lines"})
    assert (prepared.vocab_size, prepared.paragraph_separator) == (500, "lines")
    taught = {"out": "t.jsonl", "teacher": "http://127.0.0.1:1/v1", "model": "m"}
    asked = section_of(TeachConfig, taught | {"again": True, "context": 900, "patience": 7})
    assert (asked.retry_rejected, asked.max_characters, asked.give_up_after) == (True, 900, 7)
    names = {"start": "init_from", "pieces": "vocab_size", "parted_by": "paragraph_separator"}
    names |= {"again": "retry_rejected", "context": "max_characters", "patience": "give_up_after"}
    message = "{} is the old name of {}; use the new name".format
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(message(*pair) for pair in names.items())


def test_old_names_in_a_run_and_in_a_recipe_need_no_message(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("train: {start: runs/a}\n")
    assert Run(tmp_path).config.train.init_from == "runs/a"
    own = load_config(str(tmp_path), ["train.steps=3"])
    assert own.train.init_from == str(tmp_path) and own.train.steps == 3
    recipe = read_recipe({"vocabulary_sha256": "0", "parted_by": "blank-lines"}, "data")
    assert recipe.paragraph_separator == "blank-lines"
    assert not capsys.readouterr().err
