"""Configuration: overrides, strict keys with the nearest one named, presets."""

import subprocess
import sys

import pytest
import yaml

from raysum.config.loading import dump, load_config, parse_yaml, presets
from raysum.config.problems import keys, validate
from raysum.config.sections import Config
from raysum.errors import UserError


def test_overrides_reach_nested_keys_and_keep_types():
    config = load_config(None, ["train.steps=7", "optim.lr=1e-4", "model.encoder=LLG", "deepspeed.bf16.enabled=true"])
    assert (config.train.steps, config.optim.lr, config.model.encoder) == (7, 1e-4, "LLG")
    assert config.deepspeed == {"bf16": {"enabled": True}}


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
    ],
)
def test_wrong_values_are_one_clear_message(override, words):
    with pytest.raises(UserError, match="(?s).*" + words.replace(".", r"\.")):
        load_config(None, [override])


def test_all_problems_come_in_one_message():
    with pytest.raises(UserError) as error:
        load_config(None, ["train.steps=0", "model.width=6", "optim.lr=-1"])
    assert len(str(error.value).splitlines()) == 3


def test_broken_files(tmp_path):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("model: {encoder: LL} # \xe9".encode("latin-1"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [")
    listed = tmp_path / "list.yaml"
    listed.write_text("- a")
    for file, words in ((latin, "UTF-8"), (broken, "not valid YAML"), (listed, "must be a mapping")):
        with pytest.raises(UserError, match=words):
            load_config(str(file))
    with pytest.raises(UserError, match="did you mean 'pht'"):
        load_config("phtt")


def test_decode_aliases_are_the_names_other_toolkits_use():
    config = load_config(None, ["decode.beam_size=3", "decode.block_ngram_repeat=2"])
    assert (config.decode.num_beams, config.decode.no_repeat_ngram_size) == (3, 2)


def test_a_preset_of_another_system_inherits_all_but_the_model():
    tdmca, ht = load_config("tdmca"), load_config("ht")
    assert tdmca.model.system == "tdmca" and (tdmca.optim, tdmca.decode) == (ht.optim, ht.decode)
    with pytest.raises(UserError) as error:
        load_config("tdmca", ["model.encoder=LL", "model.blok=3"])
    first, second = str(error.value).splitlines()
    assert first.startswith("unknown key 'model.encoder'") and "model.decoder" not in first
    assert second.endswith("did you mean 'model.block'?")
    with pytest.raises(UserError, match="there are family.*graphsum"):
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
    former = load_config(None, ["model.system=seq2seq", "model.encoder=LLG"]).model
    assert (former.system, former.encoder) == ("family", "LLG")
    assert former == load_config(None, ["model.encoder=LLG"]).model


@pytest.mark.parametrize("base", ["[pht, ht]", "5", "{file}"])
def test_extends_names_a_preset_or_another_file(tmp_path, base):
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: {base.format(file=file)}\n")
    with pytest.raises(UserError, match="must name a preset or a file that does not extend this one"):
        load_config(str(file))
