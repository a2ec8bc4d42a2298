"""Search spaces: the shipped ones load and resolve; mistakes name the key and its line; trials are named."""

import pytest

from raysum.config import DecodeConfig
from raysum.errors import UserError
from raysum.tune.spaces import load_space, spaces

SPACE = """\
about: a test
kind: decode
search:
  decode.beta: {grid: [0, 0.5]}
  decode.num_beams: {grid: [1, 4]}
"""


@pytest.fixture
def space_file(tmp_path):
    def write(text: str = SPACE) -> str:
        (tmp_path / "mine.yaml").write_text(text)
        return str(tmp_path / "mine.yaml")

    return write


@pytest.mark.parametrize("name", spaces())
def test_every_shipped_space_resolves_at_every_point(name):
    space = load_space(name)
    points = list(space.samples())
    labels = [space.label(point) for point in points]
    assert len(set(labels)) == len(points) > 1 < space.num_trials
    assert space.config.searcher != "grid" or space.num_trials == len(points)
    for point in points:
        config = space.resolve(point).model_dump()
        for key, value in point.items():
            section, last = key.split(".")
            assert config[section][last] == value


def test_beta_is_the_papers_grid_with_zero_as_control():
    space = load_space("beta")
    assert [space.label(point) for point in space.samples()] == [
        f"beta={b}" for b in ("0", "0.2", "0.4", "0.6", "0.8", "1")
    ]
    assert (space.config.metric, space.config.mode, space.config.split) == ("rouge2", "max", "valid")


def test_layer_mixes_differ_in_their_letters_only():
    space = load_space("layer_mix")
    models = [space.resolve(point).model.model_dump(exclude={"encoder", "decoder"}) for point in space.samples()]
    assert all(model == models[0] for model in models) and space.config.mode == "min"


def test_overrides_change_the_space_or_all_of_its_trials(space_file):
    space = load_space(space_file(), ["examples=7", "metric=rouge1", "decode.max_length=9", "data=d"])
    assert (space.name, space.config.examples, space.config.metric) == ("mine", 7, "rouge1")
    settings = [space.resolve(point, DecodeConfig(length_penalty=0.9)).decode for point in space.samples()]
    assert [(s.beta, s.num_beams) for s in settings] == [(0, 1), (0, 4), (0.5, 1), (0.5, 4)]
    assert {(s.max_length, s.length_penalty) for s in settings} == {(9, 0.9)}


def test_config_of_the_space_lies_between_preset_and_command_line(space_file):
    text = "about: x\nkind: train\npreset: pht\nmetric: valid_loss\nconfig: {train.steps: 7, train.seed: 5}\n"
    text += "search:\n  model.encoder: {grid: [L, LG]}\n"
    config = load_space(space_file(text), ["train.steps=9"]).resolve({"model.encoder": "LG"})
    assert (config.train.steps, config.train.seed, config.model.encoder, config.model.decoder) == (9, 5, "LG", "PPP")


def test_continuous_spaces_are_checked_at_their_ends(space_file):
    text = "about: x\nkind: decode\nsearcher: optuna\ntrials: 5\nsearch:\n  decode.length_penalty: {uniform: [-1, 2]}\n"
    with pytest.raises(UserError, match=r"decode.length_penalty: .*\(mine.yaml, line 6\)"):
        load_space(space_file(text))
    assert load_space(space_file(text.replace("-1", "0"))).num_trials == 5


@pytest.mark.parametrize(
    ("change", "overrides", "words"),
    [
        (
            ("decode.beta", "decode.betta"),
            [],
            r"unknown key 'decode.betta' \(mine.yaml, line 4\); did you mean 'decode.beta'",
        ),
        (("0.5", "-0.5"), [], r"decode.beta: .*got -0.5.*mine.yaml, line 4"),
        (("grid: [1", "gird: [1"), [], r"unknown key 'search.decode.num_beams.gird' \(mine.yaml, line 5\)"),
        (("{grid: [1, 4]}", "{}"), [], "exactly one of grid, choice, uniform, loguniform"),
        (("decode.beta", "model.width"), [], "decode space changes decode"),
        (("about", "metrik"), [], "(?s)about: Field required.*metrik"),
        (("kind: decode", "kind: train"), [], "none of a train space: valid_loss"),
        (("a test", "a test"), ["searcher=random", "trials=3"], "searcher random takes choice, uniform or loguniform"),
        (("a test", "a test"), ["trials=3"], "searcher grid takes keys with a grid only"),
        (("a test", "a test"), ["metric=rouge9"], "metric: .*'rouge9'.*on the command line"),
        (("a test", "a test"), ["decode.beta=0.3"], "what the space .* searches"),
        (("a test", "a test"), ["exampels=3"], "unknown key 'exampels' .*did you mean 'examples'"),
    ],
)
def test_mistakes_name_the_key_and_its_line(space_file, change, overrides, words):
    with pytest.raises(UserError, match=words):
        load_space(space_file(SPACE.replace(*change)), overrides)


def test_an_unknown_space_names_the_nearest():
    with pytest.raises(UserError, match=r"no search space or file 'layermix'; did you mean 'layer_mix'\?.*beta"):
        load_space("layermix")
