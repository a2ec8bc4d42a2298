"""Truncated rows are reported, with the options that read them whole."""

import numpy as np
import pytest

from helpers.small_datasets import write_dataset
from helpers.small_runs import write_run
from helpers.special_ids import PAD
from raysum.config.decoding import SourceConfig
from raysum.config.loading import section_of
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.evaluation import evaluate
from raysum.models.family.spec import Backbone, FamilySpec
from raysum.stream.truncation import DECODING, TRAINING, split_truncation, truncation
from raysum.tokenizers.special_tokens import PUBLISHED
from raysum.train.fit import train

SIZES = ([10] * 40, [8] * 16, [30])  # tokens of the paragraphs of each row: 558 in all
MARKS = PUBLISHED.model_copy(update={"prefix": (1,), "suffix": (2,), "joined_end": (2,)})
TABLE = Backbone(places="learned", source_places=102, target_places=102, place_offset=2)
ALONE = FamilySpec(encoder="L", decoder="F", positions="paragraph")
PRETRAINED = FamilySpec(encoder="L", decoder="F", positions="paragraph", marks=MARKS, backbone=TABLE)
JOINED = PRETRAINED.model_copy(update={"encoder": "S", "positions": "flat"})


def rows():
    for sizes in SIZES:
        yield {"ids": np.full(sum(sizes), PAD), "paragraph_offsets": np.cumsum([0, *sizes])}


@pytest.mark.parametrize(
    ("spec", "source", "told"),
    [
        (ALONE, {"max_paragraphs": 40}, None),
        (ALONE, {"max_paragraphs": 39, "paragraph_tokens": 29},
         "98 %, 39 of up to 40 paragraphs; use source.max_paragraphs=40 source.paragraph_tokens=30 to read all"),
        (ALONE, {"max_paragraphs": 16}, "57 %, 16 of up to 40 paragraphs; use source.max_paragraphs=40 to read all"),
        (ALONE, {"max_paragraphs": 40, "max_tokens": 120}, "48 %; use source.max_tokens=400 to read all"),
        # With marks 672 tokens, of which 400 + 160 + 10 are read.
        (PRETRAINED, {"max_paragraphs": 40, "paragraph_tokens": 10},
         "85 %; use source.paragraph_tokens=32 to read all"),
        # 400 + 39 + 2, 128 + 15 + 2, 30 + 2.
        (JOINED, {"max_paragraphs": 40, "max_tokens": 90}, "34 %; use source.max_tokens=100 to read more"),
        (JOINED, {"max_paragraphs": 40, "max_tokens": 100}, "38 %"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_told_with_the_keys_that_read_it(spec, source, told):
    limits = SourceConfig(**source)
    found = truncation([*rows()], spec, limits, TRAINING)
    assert found == (told and told.replace(" %", " % of the tokens are read", 1))
    if told and told.endswith("all"):
        pairs = [pair.removeprefix("source.") for pair in found.rpartition("; ")[2].split() if "=" in pair]
        assert truncation([*rows()], spec, section_of(SourceConfig, limits.model_dump(), pairs), TRAINING) is None


def test_a_training_and_an_evaluation_say_it_once(tmp_path, capsys):
    data = write_dataset(tmp_path / "data", {"train": 600, "test": 20}, paragraphs=4, tokens=12)
    settings = [f"data={data}", f"out={tmp_path / 'run'}", "source.max_paragraphs=2", "model.width=16", "model.ffn=32"]
    settings += ["train.steps=2", "train.workers=0", "train.batch_tokens=200", "decode.max_length=4"]
    dataset = Dataset.open(data)
    sizes = [np.diff(row["paragraph_offsets"]) for _, row in zip(range(500), dataset.read("train"), strict=False)]
    share = sum(one[:2].sum() for one in sizes) / sum(one.sum() for one in sizes)
    told = f"of train: {100 * share:.0f} % of the tokens are read, 2 of up to 4 paragraphs; use source.max_paragraphs=4"
    run = train("pht", *settings).run
    assert capsys.readouterr().err.count(told) == 1
    train("pht", *settings, "train.steps=3")
    assert "tokens are read" not in capsys.readouterr().err
    evaluate(run.path, data, split="test", limit=4)
    assert capsys.readouterr().err.count("the first 4 rows of test") == 1
    evaluate(run.path, data, split="test", limit=4, decode={"source_paragraphs": 4})
    assert "tokens are read" not in capsys.readouterr().err
    told = split_truncation(dataset, "test", run.config.model, run.config.source, DECODING)
    assert told and told.endswith("use --set source_paragraphs=4 to read all")


def test_summarizing_raw_texts_says_it(tmp_path, capsys):
    run = write_run(tmp_path)
    texts = [f"Florence lies on the river Arno, and this is number {number} of its tales." for number in range(6)]
    clusters = [{"title": "Florence", "paragraphs": texts}]
    Summarizer.load(run, source_paragraphs=4).summarize_each(clusters)
    assert "4 of up to 6 paragraphs; use --set source_paragraphs=6 to read all" in capsys.readouterr().err
    Summarizer.load(run).summarize_each(clusters)
    assert capsys.readouterr().err == ""
