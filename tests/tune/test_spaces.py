"""Search spaces: the shipped ones load and resolve; mistakes name the key and its line; trials are named."""

import json
import re

import pytest

from helpers.project import ROOT
from raysum.config.decoding import DecodeConfig
from raysum.config.loading import load_config
from raysum.config.problems import keys
from raysum.errors import UserError
from raysum.systems import count_parameters, names, spec_class
from raysum.tune.spaces import Space, label, load_space, spaces

DECODE, TRAIN = "about: a test\nkind: decode\n", "about: a test\nkind: train\npreset: pht\nmetric: valid_loss\n"
SPACE = DECODE + "search:\n  decode.beta: {grid: [0, 0.5]}\n  decode.num_beams: {grid: [1, 4]}\n"


@pytest.fixture
def space_file(tmp_path):
    def write(text: str = SPACE) -> str:
        (tmp_path / "mine.yaml").write_text(text)
        return write.path

    write.path = str(tmp_path / "mine.yaml")
    return write


def test_the_space_that_the_page_explains_loads(space_file):
    page = (ROOT / "docs" / "search.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    space = load_space(space_file(text))
    assert len(space.points) == space.num_trials == 24 and space.then


@pytest.mark.parametrize("name", spaces())
def test_every_shipped_space_resolves_at_every_point(name):
    space = load_space(name)
    points = list(space.samples())
    labels = [label(point) for point in points]
    assert len(set(labels)) == len(points) > 1 < space.num_trials
    assert space.config.searcher != "grid" or space.points == [point for point in points if space.fits(point)]
    for point in points:
        config = space.resolve(point).model_dump()
        for key, value in point.items():
            section, last = key.split(".")
            assert config[section][last] == value


def test_beta_is_the_papers_grid_with_zero_as_control():
    space = load_space("beta")
    names = [f"beta={b},alignment_when={w}" for b in ("0", "0.2", "0.4", "0.6", "0.8", "1") for w in ("final", "step")]
    assert [label(point) for point in space.samples()] == names
    assert (space.config.metric, space.config.goal, space.config.split) == ("rouge2", "max", "valid")


def test_layer_mixes_differ_in_their_letters_only():
    space = load_space("layer_mix")
    models = [space.resolve(point).model.model_dump(exclude={"encoder", "decoder"}) for point in space.samples()]
    assert all(model == models[0] for model in models) and space.config.goal == "min"


def test_overrides_change_the_space_or_all_of_its_trials(space_file):
    space = load_space(space_file(), ["examples=7", "metric=rouge1", "decode.max_length=9", "data=d"])
    assert (space.name, space.config.examples, space.config.metric) == ("mine", 7, "rouge1")
    settings = [space.resolve(point, DecodeConfig(length_penalty=0.9)).decode for point in space.samples()]
    assert [(s.beta, s.num_beams) for s in settings] == [(0, 1), (0, 4), (0.5, 1), (0.5, 4)]
    assert {(s.max_length, s.length_penalty) for s in settings} == {(9, 0.9)}


def test_config_of_the_space_lies_between_preset_and_command_line(space_file):
    text = TRAIN + "config: {train.steps: 7, train.seed: 5}\nsearch: {model.encoder: {grid: [L, LG]}}\n"
    config = load_space(space_file(text), ["train.steps=9"]).resolve({"model.encoder": "LG"})
    assert (config.train.steps, config.train.seed, config.model.encoder, config.model.decoder) == (9, 5, "LG", "PPP")


def test_continuous_spaces_are_checked_at_their_ends(space_file):
    text = DECODE + "searcher: optuna\ntrials: 5\nsearch:\n  decode.length_penalty: {uniform: [-1, 2]}\n"
    with pytest.raises(UserError, match=r"decode.length_penalty: .*\(.*mine.yaml, line 6\)"):
        load_space(space_file(text))
    assert load_space(space_file(text.replace("-1", "0"))).num_trials == 5
    between = text.replace("length_penalty: {uniform: [-1, 2]}", "num_beams: {uniform: [1, 4]}")
    with pytest.raises(UserError, match=r"decode.num_beams: .*integer.*got 1.9"):
        load_space(space_file(between))


def mixes_file(space_file, more: str = "") -> str:
    sizes = "config: {model.width: 16, model.vocabulary: 100}\n"
    search = "model.encoder: {mixes: {letters: LG, layers: [1, 2]}}, model.decoder: {mixes: {letters: FP, layers: [1]}}"
    return space_file(f"{TRAIN}{sizes}{more}search: {{{search}}}\n")


def test_mixes_are_all_strings_of_their_letters(space_file):
    tried = [tuple(point.values()) for point in load_space(mixes_file(space_file)).points]
    assert tried == [(encoder, d) for encoder in ("L", "G", "LL", "LG", "GL", "GG") for d in "FP"]


def test_layer_mix_tries_phts_own_within_its_budget():
    space = load_space("layer_mix")
    sizes = {label(point): count_parameters(space.resolve(point).model) for point in space.points}
    assert sizes["encoder=LLL,decoder=PPP"] == 23_393_536 <= max(sizes.values()) <= 24e6
    assert "encoder=LL,decoder=PPPP" in sizes and "encoder=LLL,decoder=PPPP" not in sizes
    assert len(sizes) == 28 == space.num_trials


@pytest.mark.parametrize("searcher", ["grid", "random"])
def test_models_over_the_budget_are_not_tried(space_file, searcher):
    drawn = "searcher: random\ntrials: 40\n" if searcher == "random" else ""
    free = load_space(mixes_file(space_file, drawn))
    sizes = sorted(parameters(free, point) for point in free.points)
    middle = sizes[len(sizes) // 2]
    space = load_space(mixes_file(space_file, drawn), [f"budget.parameters={middle}"])
    tried = [parameters(space, point) for point in space.points]
    if searcher == "grid":
        assert tried and sorted(tried) == [size for size in sizes if size <= middle]
    else:
        assert max(tried) <= middle < sizes[-1] and len(set(tried)) > 3
        assert len({label(point) for point in space.points}) == len(tried) == space.num_trials
        assert space.points == load_space(mixes_file(space_file, drawn), [f"budget.parameters={middle}"]).points
    with pytest.raises(
        UserError, match=r"no model .* fits budget.parameters=9: the smallest, encoder=G,decoder=F, has"
    ):
        load_space(mixes_file(space_file, drawn), ["budget.parameters=9"]).points  # noqa: B018


def test_a_random_search_tries_no_point_twice(space_file):
    """Of 12 points; what is drawn from a range never repeats."""
    orders = []
    for seed, trials in ((0, 12), (1, 40), (0, 5)):
        space = load_space(mixes_file(space_file, f"searcher: random\ntrials: {trials}\nseed: {seed}\n"))
        orders.append([label(point) for point in space.points])
        assert len(set(orders[-1])) == len(orders[-1]) == space.num_trials == min(trials, 12)
    assert orders[0] != orders[1] and orders[0][:5] == orders[2]
    text = DECODE + "searcher: random\ntrials: 9\nsearch:\n"
    twice = load_space(space_file(text + "  decode.num_beams: {choice: [1, 1, 2]}\n"))
    assert sorted(label(point) for point in twice.points) == ["num_beams=1", "num_beams=2"]
    mixed = "  decode.num_beams: {choice: [1, 2]}\n  decode.beta: {uniform: [0, 1]}\n"
    assert len({label(point) for point in load_space(space_file(text + mixed)).points}) == 9


def parameters(space: Space, point: dict) -> int:
    return count_parameters(space.resolve(point).model)


def test_optuna_draws_again_what_exceeds_the_budget(space_file):
    from raysum.tune.training import domain
    from raysum.tune.tuner import Drawn

    space = load_space(mixes_file(space_file, "searcher: optuna\ntrials: 9\n"))
    smallest = parameters(space, {"model.encoder": "G", "model.decoder": "F"})
    space = load_space(space_file.path, [f"budget.parameters={smallest}"])
    searcher = Drawn(space, metric="valid_loss", mode="min", seed=0)
    searcher.set_search_properties("valid_loss", "min", {k: domain(v) for k, v in space.config.search.items()})
    for number in range(3):
        assert searcher.suggest(f"t{number}") == {"model.encoder": "G", "model.decoder": "F"}
        searcher.on_trial_complete(f"t{number}", {"valid_loss": 1.0, "training_iteration": 1})


_REFUSED = {
    "data", "out", "run", "train.address", "train.workers", "train.threads", "train.validate_examples",
    "train.cpus_per_worker", "train.gpus_per_worker", "train.wait_minutes", "train.trackers",
    "model.vocabulary", "model.marks",
}  # fmt: skip
_INSTEAD_OF_NONE = {"source.max_tokens": 500, "train.label_examples": 9, "decode.keep_paragraphs": 9}


def test_every_config_key_can_be_searched_or_is_refused(space_file):
    trained = {name: spec_class(name) for name in names() if spec_class(name).summarizes}
    sections = ("source", "train", "optim", "adapters", "decode")
    cases = [("pht", key) for key in keys() if key.count(".") == 1 and key.startswith(sections)]
    presets = {"family": "pht"}
    cases += [
        (presets.get(name, name), f"model.{field}") for name, spec in trained.items() for field in spec.model_fields
    ]
    cases += [("pht", key) for key in ("data", "out", "run", "deepspeed.gradient_clipping")]
    assert {key for _, key in cases} >= {key for key in keys() if "." in key and not key.startswith("model.")}
    for preset, key in cases:
        section, _, name = key.rpartition(".")
        values = load_config(preset).model_dump()
        value = {**values, **values.get(section, {})}.get(name, 1.0)
        value = _INSTEAD_OF_NONE.get(key, value)
        start = DECODE if key.startswith("decode.") else TRAIN.replace("pht", preset)
        path = space_file(f"{start}search: {{{key}: {{grid: [{json.dumps(value)}]}}}}\n")
        if key in _REFUSED:
            with pytest.raises(UserError, match=f"{key} cannot be searched: it "):
                load_space(path)
            continue
        space = load_space(path)
        found = space.resolve(space.points[0]).model_dump()
        assert found[section][name] == value, key
        assert re.fullmatch(r"[\w.=+-]+", label(space.points[0])), key


def test_keys_that_change_nothing_measured_are_refused(space_file):
    with pytest.raises(UserError, match="decode.beta does not affect the valid_loss of a train space"):
        load_space(space_file(TRAIN + "search: {decode.beta: {grid: [0.1]}}\n"))
    population = TRAIN + "scheduler: pbt\nsearcher: random\ntrials: 4\n"
    load_space(space_file(population + "search: {optim.lr: {loguniform: [0.1, 1]}}\n"))
    with pytest.raises(UserError, match="scheduler pbt trains all trials side by side; leave max_concurrent out"):
        load_space(space_file(population + "search: {optim.lr: {loguniform: [0.1, 1]}}\nmax_concurrent: 2\n"))
    with pytest.raises(UserError, match="scheduler pb2 searches ranges only: give model.dropout uniform or loguniform"):
        load_space(space_file(population.replace("pbt", "pb2") + "search: {model.dropout: {choice: [0.1, 0.2]}}\n"))
    with pytest.raises(UserError, match="scheduler pbt cannot search model.encoder"):
        load_space(space_file(population + "search: {model.encoder: {choice: [L, G]}}\n"))


def test_a_space_goes_on_with_a_decode_space(space_file):
    path = mixes_file(space_file, "then: beta\nalignment: {train.steps: 20}\n")
    space = load_space(path, ["examples=7", "decode.max_length=50"])
    assert space.then and (space.then.name, space.then.config.examples) == ("beta", 7)
    assert space.then.resolve({"decode.beta": 0.4}).decode.max_length == 50
    assert space.predictor.train.steps == 20
    assert load_space("joint").then == load_space("beta")
    with pytest.raises(UserError, match="then: optimizer must be a decode space"):
        load_space(path, ["then=optimizer"])
    with pytest.raises(UserError, match="no search space or file 'betta'; did you mean 'beta'"):
        load_space(path, ["then=betta"])
    with pytest.raises(UserError, match="unknown key 'train.stepz'"):
        load_space(mixes_file(space_file, "then: beta\nalignment: {train.stepz: 20}\n"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("decode.beta", "decode.betta"), r"unknown key 'decode.betta' \(.*line 4\); did you mean 'decode.beta'"),
        (("0.5", "-0.5"), r"decode.beta: .*got -0.5.*mine.yaml, line 4"),
        (("grid: [1", "gird: [1"), r"unknown key 'search.decode.num_beams.gird' \(.*mine.yaml, line 5\)"),
        (("{grid: [1, 4]}", "{}"), "exactly one of grid, mixes, choice, uniform, loguniform"),
        (("decode.beta", "model.width"), "decode space changes decode"),
        (("about", "metrik"), r"(?s)^about is missing \(.*mine.yaml\): desc.*metrik"),
        (("0.5", ".inf"), "decode.beta: .*finite"),
        (("grid: [1, 4]", "mixes: {letters: LG, layers: [60]}"), "more than 100,000 mixes"),
        (("0.5]", "0.5" + ", 1" * 60_000 + "]"), "more than 100,000 combinations"),
        (("kind: decode", "kind: train"), "a train space needs a preset"),
    ],
)
def test_mistakes_name_the_key_and_its_line(space_file, change, message):
    with pytest.raises(UserError, match=message):
        load_space(space_file(SPACE.replace(*change)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["searcher=random", "trials=3"], "searcher random needs choice, uniform, loguniform or mixes"),
        (["trials=3"], "searcher grid accepts only keys with a grid or mixes"),
        (["metric=rouge9"], "metric: .*'rouge9'.*on the command line.*did you mean 'rouge.'.* rouge2.* facts_f1"),
        (["metric=valid_loss"], "metric: 'valid_loss' is no metric of a decode space"),
        (["stop.valid_loss=2"], "stop cannot name 'valid_loss' in a decode space; .*examples"),
        (["decode.beta=0.3"], "the space .* searches this key"),
        (["budget.seconds=3"], "budget, then and alignment belong to spaces that train"),
        (["then=beta"], "budget, then and alignment belong to spaces that train"),
        (["stop.step=9"], "stop cannot name 'step' in a decode space; .*use one of examples, rouge1"),
        (["max_concurrent=0"], "max_concurrent: .*greater than 0"),
        (["resources.gpus=1.5"], "gpus=1.5 must be a whole number, or a fraction below 1"),
        (["exampels=3"], "unknown key 'exampels' .*did you mean 'examples'"),
    ],
)
def test_overrides_that_do_not_fit_are_named(space_file, overrides, message):
    with pytest.raises(UserError, match=message):
        load_space(space_file(SPACE), overrides)


def test_a_space_names_files_beside_it(tmp_path, space_file, monkeypatch):
    (tmp_path / "own.yaml").write_text("extends: pht\nmodel: {width: 16, heads: 4, pooling_heads: 4}\n")
    (tmp_path / "next.yaml").write_text(SPACE)
    text = TRAIN.replace("pht", "own.yaml") + "then: next.yaml\n"
    monkeypatch.chdir("/")
    space = load_space(space_file(text + "search: {model.encoder: {grid: [L]}}\n"))
    assert (space.first.model.width, space.then.name) == (16, "next")


def test_an_unknown_space_names_the_nearest():
    with pytest.raises(UserError, match=r"no search space or file 'layermix'; did you mean 'layer_mix'\?.*beta"):
        load_space("layermix")
