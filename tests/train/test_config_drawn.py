"""Configs drawn at random, right and wrong: each is valid or one message, and what is valid is trained."""

import json
import math
import random
import re

import pytest
import yaml

from helpers.small_datasets import write_dataset
from raysum.cli.commands import SummarizeConfig
from raysum.config.loading import dump, load_config, parse_yaml, presets, section_of
from raysum.config.problems import keys, validate
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.prepare.config import PrepareConfig
from raysum.runs.folder import Run
from raysum.serve.config import ServeConfig
from raysum.train.fit import train
from raysum.tune.spaces import load_space

SECTIONS = (Config, PrepareConfig, EvaluateConfig, ServeConfig, SummarizeConfig)
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 64, -1, 0.1, 0.5, 1.0, 1e-9, 10**6 + 1, 2**32, 10**30, 1e308, -0.0]
WORDS = [
    "", " ", "inf", "nan", "-inf", "1e999", "true", "null", "~", "L", "LG", "PPP", "noam", "gnmt", "sum", "final",
    "fp32", "family", "tdmca", "ranker", "predictor", "x" * 5000, "9" * 5000, "\u00e9\u4e2d", "a\0b", "\ud800", "a/b",
    "0x", "1:99", "2020-13-45", "2020-01-01", "!!int x", "!!timestamp x", "!!python/object:os.system x", "&a [*a]",
    "*a", "a: b: c", "[", "{", "[" * 900, "{a: " * 400, "? [1] : 2", "<<: 3", "- 1", "'", "|", "%", "@", "`",
]  # fmt: skip


def a_value(rng: random.Random, depth: int = 0):
    draw = rng.random()
    if draw < 0.4:
        return rng.choice(NUMBERS)
    if draw < 0.8 or depth > 3:
        return rng.choice(WORDS)
    if draw < 0.9:
        return rng.choice([None, True, False, math.inf, math.nan])
    inside = [a_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return inside if draw < 0.95 else {rng.choice(["stage", "enabled", "", 1]): value for value in inside}


def a_key(rng: random.Random, known: list[str]) -> str:
    key = rng.choice(known)
    draw = rng.random()
    if draw < 0.05:
        return key + rng.choice([".x", ".", "s", "=", ".." + key, ".a" * 900])
    return rng.choice(["", "x" * 5000, "." * 50, key[:-1], "deepspeed." + key]) if draw < 0.1 else key


def written(rng: random.Random, value) -> str:
    """As one might write it after ``key=``."""
    return value if isinstance(value, str) and rng.random() < 0.7 else yaml.safe_dump(value).removesuffix("\n...\n")


def one_message(error: UserError) -> None:
    lines = str(error).splitlines()
    assert lines and all(0 < len(line) < 1800 for line in lines), lines


def draw_config(seed: int, folder) -> None:
    """One case: overrides, arguments or a file for one section; no other exception than UserError."""
    rng = random.Random(seed)
    root = rng.choice(SECTIONS)
    known = [*keys(root)]
    given = [(a_key(rng, known), a_value(rng)) for _ in range(rng.randrange(1, 4))]
    try:
        if root is not Config:
            least = {"out": "d", "data": "d", "run": "r"}
            least = {key: value for key, value in least.items() if key in root.model_fields}
            config = section_of(root, least, [f"{key}={written(rng, value)}" for key, value in given])
        elif rng.random() < 0.5:
            name = rng.choice([None, "", "phtt", "x" * 5000, *presets()])
            config = load_config(name, [f"{key}={written(rng, value)}" for key, value in given])
        elif rng.random() < 0.3:
            config = load_config("pht", values={key.partition(".")[0]: value for key, value in given})
        else:
            lines = [f"{key.replace('.', ': {', 1)}: {written(rng, v)}" + "}" * ("." in key) for key, v in given]
            lines += [f"extends: {rng.choice(['pht', 'own.yaml', '[a]', '5', '../x', 'y' * 300, chr(34)])}"]
            file = folder / "own.yaml"
            file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
            config = load_config(str(file))
    except UserError as error:
        return one_message(error)
    if root is Config:  # what a run folder holds
        assert config == validate(*parse_yaml(dump(config), "dump"), root), given
        json.dumps(config.model_dump(mode="json"), allow_nan=False)


def draw_space(seed: int, folder) -> None:
    """One search space, near a right one: keys, values and bounds drawn."""
    rng = random.Random(seed)
    searched = {}
    for _ in range(rng.randrange(1, 3)):
        bounds = sorted((abs(rng.choice(NUMBERS)), abs(rng.choice(NUMBERS))))
        kinds = {"grid": [a_value(rng)], "choice": [a_value(rng)], "uniform": bounds, "loguniform": bounds,
                 "mixes": {"letters": rng.choice(["LG", "L", "", "LL"]), "layers": [rng.choice(NUMBERS)]}}  # fmt: skip
        kind = rng.choice([*kinds])
        searched[a_key(rng, [*keys()])] = {kind: kinds[kind]}
    values = {"about": "x", "kind": rng.choice(["decode", "train"]), "search": searched}
    values |= {"preset": "quickstart", "metric": "valid_loss"} if values["kind"] == "train" else {}
    values |= {rng.choice(["searcher", "trials", "budget", "then", "config", "seed", "about"]): a_value(rng)}
    file = folder / "space.yaml"
    file.write_text(yaml.safe_dump(values))
    try:
        load_space(str(file), [f"{a_key(rng, [*keys()])}={written(rng, a_value(rng))}"] * rng.randrange(2))
    except UserError as error:
        one_message(error)


@pytest.mark.parametrize(
    ("configs", "spaces"),
    [(range(400), range(100)), pytest.param(range(1000, 5000), range(1000, 2000), marks=pytest.mark.long)],
)
def test_whatever_is_written_is_a_config_or_one_message(configs, spaces, tmp_path):
    for seed in configs:
        draw_config(seed, tmp_path)
    for seed in spaces:
        draw_space(seed, tmp_path)


def trained_values(rng: random.Random) -> list[str]:
    """Overrides that a small training takes, each drawn as wide as three steps on few cores allow."""
    heads = rng.choice([1, 2, 4])
    drawn = {
        "model.encoder": "".join(rng.choices("LG", k=rng.randint(1, 2))),
        "model.decoder": "".join(rng.choices("FPV", k=rng.randint(1, 2))),
        "model.width": 8 * heads, "model.heads": heads, "model.pooling_heads": heads, "model.ffn": rng.randint(1, 40),
        "model.norm": rng.choice(["pre", "post"]), "model.tied_output": rng.choice(["true", "false"]),
        "model.form": rng.choice(["code", "paper"]), "model.positions": rng.choice(["2d", "paragraph"]),
        "model.dropout": rng.choice([0, 0.5, 0.99]), "source.max_paragraphs": rng.choice([1, 3, 10**6]),
        "source.paragraph_tokens": rng.choice([1, 5, 10**6]), "source.max_tokens": rng.choice(["null", 1, 9, 10**9]),
        "source.target_tokens": rng.choice([2, 4, 10**6]), "train.batch_tokens": rng.choice([1, 60, 10**9]),
        "train.micro_batches": rng.choice([1, 2, 3]), "train.label_smoothing": rng.choice([0, 0.9]),
        "train.seed": rng.choice([0, 2**32 - 1]), "train.validate_every": rng.choice([1, 2, 10**9]),
        "train.validate_examples": rng.choice(["null", 1, 10**9]), "train.save_every": rng.choice([1, 2, 10**9]),
        "train.keep": rng.choice([1, 10**9]), "train.window": rng.choice([1, 10**9]),
        "optim.lr": rng.choice([1e-30, 0.1, 1e4]), "optim.schedule": rng.choice(["noam", "constant", "linear"]),
        "optim.warmup_steps": rng.choice([0, 2, 10**9]), "optim.betas": rng.choice(["[0, 0]", "[0.9, 0.999]"]),
        "optim.eps": rng.choice([1e-30, 1]), "optim.weight_decay": rng.choice([0, 0.1]),
        "deepspeed.gradient_clipping": rng.choice([0, 0.5, 10**9]),
        "deepspeed.zero_optimization.stage": rng.randrange(3),
    }  # fmt: skip
    return [f"{key}={value}" for key, value in drawn.items()]


@pytest.mark.slow
def test_valid_configs_train(tmp_path):
    data = write_dataset(tmp_path / "data", {"train": 40, "valid": 6})
    for seed in range(10):
        given = trained_values(random.Random(seed))
        fixed = {"data": str(data), "out": str(tmp_path / f"run{seed}"), "train": {"workers": 0, "steps": 3}}
        try:
            train("pht", *given, **fixed)
        except UserError as error:
            assert "lower optim.lr" in str(error), given
            continue
        run = Run(fixed["out"])
        assert run.latest() and run.latest().step == 3, given
        assert re.search('"step": 3', run.metrics.read_text()), given
