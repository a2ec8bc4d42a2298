"""`train auto`: what is chosen for a dataset and a time, that the time is kept, and what is said to be best."""

import json
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

import raysum
from helpers.factbook_data import write_factbook
from raysum.auto import choice
from raysum.auto.choice import SIZES, Size, choose_config
from raysum.auto.training import AutoResult, summary_words
from raysum.config.loading import load_config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.evaluate.table import Evaluation
from raysum.extract.explanation import explanation_of
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.train.fit import train
from raysum.train.optim import schedule_warning

SMALL = ("model.width=32", "model.ffn=32", "train.threads=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return write_factbook(tmp_path_factory.mktemp("auto") / "data", {"train": 200, "valid": 8})


@pytest.mark.parametrize(
    "low, invented, best", [(0.5, 0.05, "pht"), (-0.5, 0.05, "lexrank"), (0.5, 0.2, "lexrank"), (0.0, 0.0, "lexrank")]
)
def test_the_run_is_best_only_beyond_doubt_and_where_it_hardly_invents(low, invented, best, tmp_path):
    systems = {"pht": {"rouge2": 20.0}, "lead": {"rouge2": 13.0}, "lexrank": {"rouge2": 14.0}}
    systems["pht"] |= {"rouge2_low": 17.5, "rouge2_high": 22.5, "words": 31.0}
    differences = {f"pht - {name}": {"rouge2": 6.0, "rouge2_low": low, "rouge2_high": 9.0} for name in systems}
    evaluation = Evaluation(systems, differences, "", 8, pd.DataFrame())
    result = AutoResult(Run(tmp_path / "pht"), evaluation, invented, 40, "towns: 200 train and 8 valid clusters")
    served = f"{best} --set words=40" if best == "lexrank" else tmp_path / best
    assert result.best == best and result.serve == f"raysum serve {served}"
    printed = StringIO()
    Console(file=printed, width=200).print(result.render())
    assert f"{100 * invented:.0f} % of the summaries of pht have" in printed.getvalue()
    assert ("invents too much" in printed.getvalue()) == (invented > 0.1)
    lines = printed.getvalue().splitlines()
    assert (
        lines[0].startswith("towns: 200 train and 8 valid clusters; compared on 8 valid clusters") and len(lines) < 20
    )
    table = [line.split() for line in lines if line.split()[:1] and line.split()[0] in systems]
    assert table[0] == ["pht", "20.00", "±2.50", "31.0"] and [line[0] for line in table[1:3]] == ["lexrank", "lead"]


@pytest.mark.parametrize(("long", "words"), [(0, 5), (1, 5), (2, 30)])
def test_a_length_that_is_too_short_for_the_sentences_is_not_recommended(long, words, tmp_path):
    lines = []
    for split in ("train", "valid"):
        for number in range(20):
            count = 30 if number < long else 5
            text = " ".join([f"Town{number}", *["lies"] * (count - 2), "here."])
            row = {"id": f"{split}{number}", "title": "Towns", "documents": [f"{text} {text}"], "summary": "a b c d e"}
            lines.append(json.dumps(row | {"split": split}))
    (tmp_path / "towns.jsonl").write_text("\n".join(lines))
    towns = raysum.prepare(tmp_path / "towns.jsonl", tmp_path / "data", vocab_size=80).dataset
    assert summary_words(towns, limit=20) == words


@pytest.mark.slow
def test_auto_trains_for_the_time_given_and_names_what_is_best(data, tmp_path, capsys):
    out = tmp_path / "run"
    asked = (f"data={data.path}", f"out={out}", "train.minutes=0.08", *SMALL)
    result = raysum.train("auto", *asked)
    assert isinstance(result, AutoResult)
    told = capsys.readouterr().err
    assert "200 clusters are few" in told and "width 32" in told and "Chosen:" in told
    config, last = Run(out).config, [*read_lines(Run(out).metrics)][-1]["step"]
    assert load_config(str(out / "config.yaml")) == config  # an ordinary one
    assert config.model.width == 32 and config.optim.schedule == "linear" and schedule_warning(config) is None
    seconds = [line["seconds"] for line in read_lines(Run(out).metrics) if "seconds" in line][-1]
    assert last <= config.train.steps and seconds < 60 * 0.08 + 5
    assert Run(out).best().step in Run(out).validations()
    places = {"extractor": out / "extractor", "lead": "lead", "lexrank": "lexrank", "mmr": "mmr"}
    assert set(result.evaluation.systems) == {"run", *places} and 0 <= result.invented <= 1
    assert result.serve == f"raysum serve {places[result.best]} --set words={result.words}"
    explanation = explanation_of(Run(out / "extractor"))
    assert explanation.gains and explanation.comparison is None  # auto compares it
    printed = json.loads(json.dumps(result.to_dict()))
    assert {"run", "systems", "protocol", "best", "serve", "invented"} <= printed.keys()

    again = raysum.train("auto", *asked)
    assert "is trained" in capsys.readouterr().err and Run(out).config == config
    assert again.evaluation.to_dict() == result.evaluation.to_dict()


def test_more_time_gives_a_larger_model_and_what_the_user_set_stays(data, monkeypatch):
    small = [Size({**SIZES[0].model, "width": 16 * n, "ffn": 16}, 0.01 / n, 10_000 * (n - 1)) for n in (1, 2, 3)]
    monkeypatch.setattr(choice, "SIZES", small)

    def choose(*overrides: str):
        return choose_config(data, (f"data={data.path}", "out=x", "train.threads=1", *overrides), {})

    short, long = choose("train.minutes=0.05"), choose("train.minutes=1000")
    assert short.model.width == 16 and long.model.width == 48 and short.optim.lr > long.optim.lr
    assert short.train.steps < long.train.steps <= 100 * 200 / 8 and short.model.dropout < long.model.dropout == 0.3
    for config in (short, long):
        settings = config.train
        assert schedule_warning(config) is None and settings.validate_every == settings.save_every <= settings.steps
        assert settings.patience == (3 if config.model.dropout else None)
        assert config.source.max_paragraphs == 10 and config.source.paragraph_tokens == 40
    own = choose("train.minutes=0.05", "train.steps=7", "optim.lr=0.5", "train.workers=2", "model.dropout=0.25")
    assert (own.train.steps, own.optim.lr, own.model.dropout) == (7, 0.5, 0.25) and own.train.micro_batches % 2 == 0


def test_auto_needs_a_split_to_compare_by(tmp_path):
    data = write_factbook(tmp_path / "data", {"train": 4})
    with pytest.raises(UserError, match="no valid split with summaries.*--valid 0.1"):
        train("auto", data=str(data.path), out=str(tmp_path / "run"))
    with pytest.raises(UserError, match="write `raysum train auto data=DATA out=RUN"):
        train("auto", data=str(data.path))


def test_a_training_ends_after_its_minutes_and_goes_on_with_more(data, tmp_path, capsys):
    values = {"data": str(data.path), "out": str(tmp_path / "run")}
    settings = {"steps": 100_000, "batch_tokens": 300, "workers": 0, "threads": 1, "validate_every": 10**6}
    run = train("quickstart", *SMALL, **values, train=settings | {"minutes": 0.02, "micro_batches": 1}).run
    assert f"training run: 100%|##########| {run.latest().step}/{run.latest().step} [" in capsys.readouterr().err
    done = run.latest()
    assert 0 < done.step < 100_000 and done.step in run.validations() and 1.2 <= done.state["seconds"] < 10
    train("quickstart", *SMALL, **values, train=settings | {"minutes": 0.02, "micro_batches": 1})
    assert "raise train.minutes to continue" in capsys.readouterr().err and run.latest().step == done.step
    train("quickstart", *SMALL, **values, train=settings | {"minutes": 1, "micro_batches": 1, "steps": done.step + 1})
    assert run.latest().step == done.step + 1
