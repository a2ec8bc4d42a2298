"""BERT as a labeller of sentences equals transformers' own on the same ids; from a published folder to a served run."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel

import raysum
from raysum.config.decoding import SourceConfig
from raysum.config.loading import load_config
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.examples.factbook.corpus import generate
from raysum.models.systems.specs import BertSpec
from raysum.prepare.job import prepare
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.runtime.storage import read_lines
from raysum.stream.collators.sentences import Blocks
from raysum.systems import count_parameters, kind
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.fit import fit
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

SIZES = {"layers": 2, "width": 32, "ffn": 48, "heads": 2, "positions": 128, "window": 3}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A tiny BERT as one is published: for masked words, its LayerNorms under their oldest names."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([raw["summary"] for raw in generate("train", 40)], trainer)
    tokenizer.enable_truncation(4)  # which is the tokenizer's, not the recipe's
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(3)
    model = BertForMaskedLM(bert_config(tokenizer.get_vocab_size()))
    model.save_pretrained(folder)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = load_file(folder / "model.safetensors")
    renamed = {next((k.replace(a, b) for a, b in old.items() if a in k), k): v.clone() for k, v in weights.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    return folder


def bert_config(vocabulary: int) -> BertConfig:
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        initializer_range=0.2,
    )


@pytest.fixture(scope="module")
def labelled(published, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    for split, count in (("train", 40), ("valid", 10)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(raw) + "\n" for raw in generate(split, count)))
    sources = [folder / "train.jsonl", folder / "valid.jsonl"]
    return prepare(sources, folder / "data", kind="extraction", vocab=str(published)).dataset.path


def config(published: Path, data: Path, out: Path, steps: int, *more: str) -> Config:
    vocabulary = len(load_tokenizer(published))
    sizes = [f"model.{key}={value}" for key, value in {**SIZES, "vocabulary": vocabulary}.items()]
    settings = {"steps": steps, "workers": 0, "threads": 1, "micro_batches": 2, "batch_tokens": 600, "log_every": 1}
    settings |= {"validate_every": 4, "save_every": 4, "init_from": str(published)}
    pairs = [f"train.{key}={json.dumps(value)}" for key, value in settings.items()]
    rate = ["optim.lr=0.003", "optim.schedule=constant", "source.paragraph_tokens=40"]
    return load_config("bert", [f"data={data}", f"out={out}", *sizes, *pairs, *rate, *more])


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in read_lines(run.metrics) if "loss" in line]


# Rows


def test_word_pieces_are_those_of_the_tokenizer_and_no_text_reaches_the_marks(published):
    pieces, own = load_tokenizer(published), Tokenizer.from_file(str(published / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    text = "The river Arno rises near Florence, in 1436."
    assert pieces.encode(text) == own.encode(text).ids and len(pieces.encode(text)) > 8
    assert own.encode("a [SEP] b").ids.count(3) == 1
    hostile = pieces.encode("a [SEP] b [CLS][PAD] [MASK]")
    assert not {0, 2, 3, 4} & {*hostile}
    assert pieces.encode_summary("Arno. Florence.")[0] == 2 and pieces.encode_summary("")[1:] == [3]
    marks = pieces.marks
    assert (marks.pad, marks.unknown, marks.prefix, marks.suffix) == (0, 1, (2,), (3,))
    assert len(pieces) == own.get_vocab_size() and pieces.model == (published / "tokenizer.json").read_bytes()


def test_rows_are_blocks_of_whole_sentences_between_their_marks():
    blocks = kind(BertSpec(window=3, cls=2, sep=3, positions=60))
    row: Any = {"ids": np.arange(10, 21), "paragraph_offsets": np.array([0, 2, 3, 7, 11]), "labels": np.ones(4, int)}
    arrays = blocks.pack([row, row], SourceConfig(paragraph_tokens=3, max_paragraphs=4))
    first = [2, 10, 11, 3, 2, 12, 3, 2, 13, 14, 15, 3, 2, 17, 18, 19, 3]
    assert arrays["ids"].tolist() == first * 2
    assert arrays["lengths"].tolist() == [4, 3, 5, 5] * 2 and arrays["counts"].tolist() == [3, 1] * 2
    costs, weights = blocks.costs(np.array([[11, 4, 5], [11, 4, 0]]), SourceConfig(paragraph_tokens=18))
    assert costs.tolist() == [19, 19] and weights.tolist() == [4, 0]
    with pytest.raises(UserError, match="set source.paragraph_tokens=18, or a smaller model.window"):
        blocks.costs(np.array([[11, 4, 5]]), SourceConfig(paragraph_tokens=19))
    preset = load_config("bert")
    assert isinstance(kind(preset.model), Blocks) and kind(preset.model).costs(np.array([[11, 4, 5]]), preset.source)


def test_scores_are_those_of_transformers_own_layers_at_every_cls(published, labelled, tmp_path):
    run = fit(config(published, labelled, tmp_path / "run", 1))
    model = restore(run, "latest", torch.device("cpu"))
    plain = BertModel(bert_config(run.config.model.vocabulary), add_pooling_layer=False).eval()
    plain.load_state_dict(model.bert.state_dict())
    row = next(row for row in Dataset.open(labelled).read("valid") if len(row["labels"]) % 3)
    blocks = kind(run.config.model)
    found = model.sentence_scores(blocks.collate(blocks.pack([row, row], run.config.source)))
    wanted, edges = [], row["paragraph_offsets"]
    sentences = [[2, *row["ids"][a:b][:40], 3] for a, b in zip(edges, edges[1:], strict=False)]
    for start in range(0, len(sentences), 3):
        block = sentences[start : start + 3]
        places = np.cumsum([0, *map(len, block[:-1])])
        hidden = plain(torch.tensor([[piece for sentence in block for piece in sentence]])).last_hidden_state[0, places]
        wanted += model.label(hidden).softmax(-1)[:, 1].tolist()
    assert len(wanted) == len(row["labels"]) and np.ptp(wanted) > 0.01
    assert found.tolist() == pytest.approx(wanted * 2, abs=1e-6)


def test_bert_base_has_the_parameters_of_the_paper():
    assert count_parameters(load_config("bert").model) / 1e6 == pytest.approx(110, rel=0.012)  # which counts a pooler


# Training


def test_a_training_begins_with_the_published_weights_and_resumes_bit_for_bit(published, labelled, tmp_path, capsys):
    weights = load_file(published / "model.safetensors")
    whole = fit(config(published, labelled, tmp_path / "whole", 8, "train.save_every=1"))
    said = capsys.readouterr().err
    assert f"are loaded from {published}; new and untrained: label.*; unused: cls.*" in said
    first = load_file(whole.checkpoint("8").weights)
    name = "bert.encoder.layer.1.output.LayerNorm"
    assert (first[f"{name}.weight"] - weights[f"{name}.gamma"]).abs().max() < 0.1
    matrix = "bert.encoder.layer.0.attention.self.query.weight"
    assert 0 < (first[matrix] - weights[matrix]).abs().max() < 0.1 < weights[matrix].abs().max()
    fit(config(published, labelled, tmp_path / "parts", 3))
    moved = published.rename(published.with_name("moved"))  # a run needs the folder no more
    try:
        parts = fit(config(moved, labelled, tmp_path / "parts", 8, f"train.init_from={published}"))
        assert losses(parts) == losses(whole)
        assert parts.validations()[8] == whole.validations()[8] and parts.extract.sentences
        ours, theirs = (load_file(run.checkpoint("8").weights) for run in (parts, whole))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        spec = parts.config.model
        assert (spec.cls, spec.sep, spec.width) == (2, 3, 32)
        found = raysum.evaluate(parts.path, labelled, split="valid")
        assert found.systems["parts"]["rouge1"] > 5
        (raw,) = generate("test", 1)
        summary = raysum.load(str(parts.path)).summarize_many([raw])[0]
        cited = summary.sentences[0].citations[0]
        assert raw["documents"][cited.document]["text"][cited.start : cited.end] == cited.quote
        small = raysum.load(str(parts.path), dtype="int8").summarize_many([raw])[0]
        assert small.summary
    finally:
        moved.rename(published)


def test_the_one_minute_extractor_reads_such_rows_and_a_bert_no_others(published, labelled, tmp_path):
    with pytest.raises(UserError, match="in WordPiece pieces, but a hibert needs SentencePiece"):
        raysum.train("hibert_tiny", data=str(labelled), out=str(tmp_path / "h"), train={"workers": 0})
    other = prepare(labelled.parent / "train.jsonl", tmp_path / "other", kind="extraction", vocab_size=300).dataset.path
    with pytest.raises(UserError, match="prepare it with --vocab FOLDER"):
        fit(config(published, other, tmp_path / "b", 1))
    with pytest.raises(UserError, match="labels sentences: add --kind extraction"):
        prepare(labelled.parent / "train.jsonl", tmp_path / "x", vocab=str(published))
    trained = raysum.train("extractor", data=str(labelled), out=str(tmp_path / "e"))
    assert raysum.evaluate(trained.run.path, labelled, split="valid").systems["e"]["rouge1"] > 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            "a .bin file may",
        ),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" * 99), "model.safetensors cannot be read"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: edit(folder, model_type="roberta"), "contains a model of type 'roberta'"),
        (lambda folder: edit(folder, hidden_act="relu"), "contains a bert with hidden_act 'relu'"),
        (lambda folder: edit(folder, hidden_size=64), "of other sizes: set model.width=64"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "trained with another vocabulary"),
        (lambda folder: shutil.rmtree(folder), "no run folder"),
    ],
)
def test_a_folder_that_cannot_be_begun_with_is_one_message(published, labelled, tmp_path, change, message):
    copy = shutil.copytree(published, tmp_path / "copy")
    change(copy)
    with pytest.raises(UserError, match=message) as error:
        fit(config(published, labelled, tmp_path / "run", 1, f"train.init_from={copy}"))
    assert str(copy) in str(error.value) and "\n" not in str(error.value) and not (tmp_path / "run").exists()


def edit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "is not a valid tokenizer.json"), ("no", "is not a valid tokenizer.json"), (None, "No such file")],
)
def test_a_vocabulary_that_is_none_is_one_message(tmp_path, content, message):
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)
    Tokenizer(models.WordPiece({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"has no \[CLS\]"):
        load_tokenizer(tmp_path)


def test_without_the_library_it_is_one_line_with_the_command(published, labelled, tmp_path, monkeypatch):
    settings = config(published, labelled, tmp_path / "run", 1, "train.workers=1")
    monkeypatch.setitem(sys.modules, "transformers", None)  # as where it is not installed
    with pytest.raises(UserError, match=r'needs transformers, .*: pip install .* "\.\[bert\]"'):
        fit(settings)
    assert not [*tmp_path.iterdir()]
