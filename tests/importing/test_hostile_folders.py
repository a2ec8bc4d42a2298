"""Published folders that are damaged, absurd or malicious: one message that names the thing, and nothing is written."""

import gzip
import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.pretrained import published
from helpers.published_tokenizers import published as published_tokenizer
from raysum.cli.app import main
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.importing.checkpoint import export_checkpoint, import_checkpoint
from raysum.models.family.spec import Backbone
from raysum.runs.folder import Run
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.fit import train

Edit = Callable[[Path], Any]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
QUERY = "model.encoder.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def bart(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bart")
    published_tokenizer(folder, "bart")
    told = json.loads((folder / "config.json").read_text())
    told.pop("model_type")
    published("bart", folder, **told)
    return folder


@pytest.fixture
def folder(bart, tmp_path) -> Path:
    return Path(copytree(bart, tmp_path / "folder"))


def refused(folder: Path, words: str, *overrides: str) -> None:
    with pytest.raises(UserError) as told:
        import_checkpoint("huggingface", str(folder), str(folder.parent / "run"), overrides=overrides)
    assert words in str(told.value)
    assert {one.name for one in folder.parent.iterdir()} <= {"folder", ".run.lock", "t5"}


def changed(name: str, **changes: Any) -> Edit:
    """Of a JSON file of the folder; of the two that tell of ids both."""

    def edit(folder: Path) -> None:
        for file in (name, "generation_config.json") if name == "config.json" else (name,):
            told = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
            (folder / file).write_text(json.dumps(told | changes))

    return edit


def written(name: str, content: str | bytes) -> Edit:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def tensors(change: Callable[[torch.Tensor], torch.Tensor], name: str = QUERY) -> Edit:
    def edit(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        save_file(found | {name: change(found[name]).contiguous()}, folder / WEIGHTS, {"format": "pt"})

    return edit


DEEP = '{"a":' * 100_000


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (written("config.json", DEEP), "config.json cannot be read"),
        (written("tokenizer.json", DEEP), "is not a valid tokenizer.json"),
        (written("tokenizer_config.json", DEEP), "tokenizer_config.json is not valid JSON"),
        (changed("config.json", model_type=[]), "is a [], but must be one of bart"),
        (changed("config.json", model_type="bart\x1b[31m"), r"is a bart\x1b[31m, but must be one of bart"),
        (changed("config.json", encoder_layers="2"), "its encoder_layers is '2', but must be 1 to 1000"),
        (changed("config.json", encoder_layers=10**10), "encoder_layers is 10000000000, but"),
        (changed("config.json", decoder_layers=0), "decoder_layers is 0, but"),
        (changed("config.json", activation_function={}), "its activation is {}"),
        (changed("config.json", encoder_ffn_dim=32, decoder_ffn_dim=32), "our encoder.0.block.ffn.inner.weight is "),
        (changed("config.json", vocab_size=10**12), "has 1000000000000 ids by its config.json and tokenizer"),
        (changed("config.json", eos_token_id=-1), "has no id for the end"),
        (changed("config.json", pad_token_id=2, eos_token_id=2), "has the id 2 for both the end and padding"),
        (tensors(lambda t: t.half().int()), "contains a tensor of torch.int32"),
        (tensors(lambda t: t > 0), "contains a tensor of torch.bool"),
        (tensors(lambda t: t * float("nan")), "not finite"),
        (tensors(lambda t: t[:, :7]), "q_proj.weight and encoder.layers.0.self_attn.k_proj.weight"),
        (tensors(lambda t: torch.cat([t, t])), "our encoder.0.block.attention.qkv.weight is 96 x 32 by its"),
        (tensors(lambda t: t[:0]), "our encoder.0.block.attention.qkv.weight is "),
        (tensors(lambda t: t.T, "model.shared.weight"), "our embedding.weight is "),
        (tensors(lambda t: t[0, 0], "model.shared.weight"), "its shared.weight is a single number"),
        (tensors(lambda t: t[:2], "model.encoder.embed_positions.weight"), "2 and 1026 positions, but must have 3"),
    ],
)  # fmt: skip
def test_files_that_tell_nonsense(folder, edit, words):
    edit(folder)
    refused(folder, words)


def more(name: str) -> Edit:
    return lambda folder: save_file(load_file(folder / WEIGHTS) | {name: torch.ones(3, 4)}, folder / WEIGHTS)


def without(name: str) -> Edit:
    def edit(folder: Path) -> None:
        save_file({key: t for key, t in load_file(folder / WEIGHTS).items() if key != name}, folder / WEIGHTS)

    return edit


@pytest.mark.parametrize(
    ("family", "edit", "words"),
    [
        ("bart-untied", without("lm_head.weight"), "it lacks 'lm_head.weight'"),
        ("bart", without("model.shared.weight"), "it lacks 'shared.weight'"),
        ("bart", without("model.encoder.layers.1.fc1.bias"), "it lacks 'encoder.layers.1.fc1.bias'"),
        ("umt5", without("decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"), "it lacks 'decoder"),
        (
            "t5",
            more("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"),
            "parameter encoder.block.1",
        ),
        ("bart", more("model.encoder.layers.2.fc1.bias"), "its parameter encoder.layers.2.fc1.bias does not exist"),
        ("bart", more("encoder.layers.1.fc1.bias"), "it has both model.encoder.layers.1.fc1.bias and encoder.layers"),
        ("bart", more("shared.weight"), "it has both model.shared.weight and shared.weight"),
    ],
)
def test_a_tensor_that_is_missing_or_has_no_place_is_named(tmp_path, family, edit, words):
    published(family, tmp_path / "folder")
    edit(tmp_path / "folder")
    refused(tmp_path / "folder", words)


def test_waves_of_absurd_length_are_not_made(tmp_path):
    published("pegasus", tmp_path / "folder")
    found = {name: t for name, t in load_file(tmp_path / "folder" / WEIGHTS).items() if "embed_pos" not in name}
    save_file(found, tmp_path / "folder" / WEIGHTS, {"format": "pt"})
    changed("config.json", max_position_embeddings=10**6)(tmp_path / "folder")
    refused(tmp_path / "folder", "it has 1000000 and 1000000 positions, but must have 1 to 131072")


def test_buckets_that_leave_no_room_for_far_distances():
    with pytest.raises(ValueError, match="farthest 16 must be above half of the 32 buckets"):
        Backbone(buckets=32, farthest=16)


def tokens(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        told = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(told | changes))

    return edit


NO_UNKNOWN: dict[str, Any] = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0], ["</s>", -1.0], ["<pad>", -1.0]]}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (tokens(added_tokens=[5]), "is not a valid tokenizer.json"),
        (tokens(added_tokens=None), "is not a valid tokenizer.json"),
        (tokens(model=NO_UNKNOWN), "Encountered an unknown token"),
        (tokens(model={"type": "BPE", "vocab": {}, "merges": []}), "has no pieces for letters"),
        (changed("tokenizer_config.json", eos_token=["</s>"]), ""),
    ],
)  # fmt: skip
def test_tokenizers_that_do_not_read(folder, edit, words):
    edit(folder)
    if words:
        refused(folder, words)
    else:  # config.json tells it, too
        assert load_tokenizer(folder).marks.end == 2


def test_a_text_of_which_a_tokenizer_leaves_nothing(folder):
    tokens(normalizer={"type": "Replace", "pattern": {"Regex": "[\u200b\x01]+"}, "content": ""})(folder)
    assert load_tokenizer(folder).encode_sentences(["\u200b\x01\u200b"], "none") == [[[]]]


# Weights in files


def sharded(places: dict[str, Any], make: Edit = lambda folder: None) -> Edit:
    def edit(folder: Path) -> None:
        names = dict.fromkeys(load_file(folder / WEIGHTS), "part.safetensors")
        (folder / WEIGHTS).rename(folder / "part.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": names | places}))
        make(folder)

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        *((sharded({QUERY: name}), "does not name the files") for name in ("../x", "/etc/passwd", "..", "a\0b")),
        (sharded({QUERY: "other.safetensors"}), "lacks other.safetensors, which model.safetensors.index.json lists"),
        (sharded({QUERY: "pipe"}, lambda folder: os.mkfifo(folder / "pipe")), "lacks pipe, which"),
        (sharded({QUERY: "dir"}, lambda folder: (folder / "dir").mkdir()), "lacks dir, which"),
    ],
)  # fmt: skip
def test_an_index_names_files_of_its_folder_alone(folder, edit, words):
    edit(folder)
    refused(folder, words)


@pytest.mark.parametrize("size", [0, 2**31, 2**63])
def test_a_header_of_another_size(folder, size):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", size) + content[8:])
    refused(folder, "cannot be read")


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"x": Evil(path.with_name("executed"))}, 4))


def deflated(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (1 << 20))


def repeated(path: Path) -> None:
    torch.save({"x": torch.zeros(1).expand(10**5, 10**5)}, path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (pickled, "is not a PyTorch checkpoint"),
        (lambda path: torch.save({"x": Evil(path.with_name("executed"))}, path), "which may run code"),
        (deflated, "the checksum of archive/data.pkl differs"),
        (repeated, "contains fewer numbers than x has"),
        (lambda path: path.write_bytes(gzip.compress(b"\0" * (1 << 20))), "is not a PyTorch checkpoint"),
    ],
)
def test_a_bin_runs_nothing_and_fills_no_memory(folder, make, words, recwarn):
    (folder / WEIGHTS).unlink()
    make(folder / "pytorch_model.bin")
    refused(folder, words)
    assert not (folder / "executed").exists() and not recwarn.list


def test_transformers_runs_nothing_where_it_makes_the_tokenizer(folder, monkeypatch):
    """It asks whether code of the folder may run, and the answer may come from anywhere."""
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n\n\nclass Own:\n    pass\n")
    changed("tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]}, tokenizer_class="Own")(folder)
    changed("config.json", auto_map={"AutoConfig": "own.Own"}, model_type="own")(folder)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(UserError, match="has no tokenizer.json, and transformers cannot make it of merges.txt"):
        load_tokenizer(folder)
    assert not (folder / "executed").exists()


def test_a_tokenizer_of_another_model(folder, tmp_path):
    published_tokenizer(tmp_path / "t5", "t5")
    (folder / "tokenizer.json").write_bytes((tmp_path / "t5" / "tokenizer.json").read_bytes())
    refused(folder, "texts end with id 2 in config.json, but with 1 in tokenizer.json")


# What a user asks for


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.encoder=5", "model.encoder: Input should be a valid string"),
        ("model=5", "model: must be a section"),
        *(
            (f"model.{one}", f"model.{one.split('=')[0].split('.')[0]} comes from the weights of")
            for one in ("heads=2", "width=64", "norm=pre", "tied_output=false", "marks.end=9", "backbone.eps=0.1")
        ),
    ],
)  # fmt: skip
def test_what_weights_tell_is_not_chosen(folder, override, words):
    refused(folder, words, override)


@pytest.mark.parametrize("mix", ["SS", "LL"])
def test_what_is_longer_than_the_positions_is_cut(folder, tmp_path, mix):
    import_checkpoint("huggingface", str(folder), str(tmp_path / "run"), overrides=[f"model.encoder={mix}"])
    text = "The bridge of Sarsu fell into the river. " * 400
    assert Summarizer.load(tmp_path / "run", max_length=4, num_beams=1, min_length=0).summarize("", [text]).summary


def test_training_with_a_folder_in_place_of_a_run(folder, tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="is a published model, not a run; import it with `raysum import huggingface"):
        train(str(folder), "data=none", f"out={tmp_path / 'out'}")
    monkeypatch.setattr(sys, "argv", ["raysum", "train", "x" * 100_000])  # in no more than a moment
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and len(capsys.readouterr().err) < 2000


@pytest.mark.parametrize("content", [None, b"{}", DEEP.encode(), b'{"marks": [], "tokenizer": null}'])
def test_a_run_without_its_tokenizer_is_not_exported(folder, tmp_path, content):
    run = Run(import_checkpoint("huggingface", str(folder), str(tmp_path / "run")).run.path)
    if content is None:
        run.vocabulary.unlink()
    else:
        run.vocabulary.write_bytes(content)
        (run.path / "checksums.json").unlink()
        recipe = json.loads((run.path / "recipe.json").read_text())
        told = {name: value for name, value in recipe.items() if name not in ("sealed", "vocabulary_sha256")}
        (run.path / "recipe.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"vocabulary\.model"):
        export_checkpoint("huggingface", str(run.path), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
