"""Published checkpoints become runs; whatever is wrong with a file is one message."""

import argparse
import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # an implementation of its own

from helpers.small_models import log_probs, pack
from raysum.config.loading import load_config
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.importing import hiersumm, wiki_sum
from raysum.importing.checkpoint import import_checkpoint
from raysum.importing.tensor_bundle import TensorBundle
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.train.fit import check_resumable
from raysum.train.job_spec import job_spec_of

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
TEXT = "the old mill by the river turns, and its inn is the oldest of the valley."


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> str:
    """Exactly as many pieces as the small published models have."""
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    words = [f"{a}{b}{c}{a}" for a in "mnrst" for b in "aeiou" for c in "bdglp"]
    made = Vocabulary.train([" ".join(words[i : i + 5]) for i in range(len(words))] + [TEXT] * 9, 100, path)
    assert len(made) == 100
    return str(path)


@pytest.fixture(scope="module")
def small(shared) -> Path:
    return shared / "fixtures" / "hiersumm_small_checkpoint.pt.gz"


@pytest.fixture(scope="module")
def plain(small, tmp_path_factory) -> Path:
    """The small checkpoint without its two causal masks of 25 MB, as the published one is named."""
    path = tmp_path_factory.mktemp("hiersumm") / "model_step_500000.pt"
    with gzip.open(small) as packed, torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(packed, weights_only=True)
    for name in [name for name in checkpoint["model"] if name.endswith(".mask")]:
        del checkpoint["model"][name]
    torch.save(checkpoint, path)
    return path


@pytest.fixture(scope="module")
def parameters(shared) -> dict[str, dict[str, np.ndarray]]:
    """Weights of the published PHT and VHT by their object paths; the rest of the fixtures by its own names."""
    found = {}
    for name in ("pht", "vht"):
        with np.load(shared / "fixtures" / f"wikisum_{name}.npz") as archive:
            found[name] = {key: archive[key] for key in archive.files if not key.startswith(("grad/", "meta/"))}
    return found


def write_bundle(prefix: Path, arrays: dict[str, np.ndarray], block: int = 40) -> Path:
    """A TensorFlow checkpoint: keys share prefixes inside blocks of ``block`` entries, restarting every 16."""
    data, entries = bytearray(), {b"": b"\x08\x01\x1a\x02\x08\x01"}  # one shard; version 1
    for name, array in sorted(arrays.items()):
        raw = np.ascontiguousarray(array).tobytes()
        dims = b"".join(b"\x12" + _bytes(b"\x08" + _varint(size)) for size in array.shape)
        dtype = {"float32": 1, "int64": 9, "float64": 2}[str(array.dtype)]
        place = b"\x20" + _varint(len(data)) + b"\x28" + _varint(len(raw))
        crc = b"\x35" + struct.pack("<I", masked_crc32c(raw))
        entries[name.encode()] = b"\x08" + _varint(dtype) + b"\x12" + _bytes(dims) + place + crc
        data += raw
    table, index, items = bytearray(), [], sorted(entries.items())
    for start in range(0, len(items), block):
        part = items[start : start + block]
        index.append((part[-1][0], _add_block(table, part)))
    handles = _add_block(table, []) + _add_block(table, index)
    table += handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    Path(f"{prefix}.index").write_bytes(table)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return prefix


def _add_block(table: bytearray, items: list[tuple[bytes, bytes]]) -> bytes:
    """Append a block; its handle."""
    content, restarts, last = bytearray(), [0], b""
    for number, (key, value) in enumerate(items):
        shared = len(os.path.commonprefix([last, key]))
        if number % 16 == 0:
            shared = 0
            restarts = [*restarts, len(content)] if number else restarts
        content += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        last = key
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = _varint(len(table)) + _varint(len(content))
    table += content + b"\0" + struct.pack("<I", masked_crc32c(bytes(content) + b"\0"))
    return handle


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _bytes(value: bytes) -> bytes:
    return _varint(len(value)) + value


def checkpoint_of(arrays: dict[str, np.ndarray], prefix: Path, updates: int = 1200) -> Path:
    """As wiki_sum saves its model, with the optimizer's moments and counter."""
    weights = {f"model/{key.removeprefix('param/')}": a for key, a in arrays.items() if key.startswith("param/")}
    moments = {f"{name}/.OPTIMIZER_SLOT/optimizer/m{VALUE}": np.zeros_like(a) for name, a in weights.items()}
    counters = {f"optimizer/iter{VALUE}": np.array(updates), f"save_counter{VALUE}": np.array(7)}
    return write_bundle(prefix, {name + VALUE: a for name, a in weights.items()} | moments | counters)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 64
    path.write_bytes(content)


# What is read


def test_hiersumm_becomes_a_run_that_summarizes(small, vocabulary, tmp_path, shared):
    import_checkpoint("hiersumm", str(small), str(tmp_path / "run"), vocabulary)
    run = Run.open(tmp_path / "run")
    assert (run.config.model.encoder, run.config.model.decoder, run.config.model.heads) == ("LGG", "FF", 4)
    assert run.config.decode == load_config("ht").decode and run.config.source.max_paragraphs == 24
    assert run.recipe["normalize"] == "lower" and run.recipe["paragraph_tokens"] == 100
    summarizer = Summarizer.load(tmp_path / "run", max_length=20, min_length=8)
    with gzip.open(small) as packed, torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(packed, weights_only=True)
    arrays = {name: value.numpy() for name, value in checkpoint["model"].items()}
    _, expected = hiersumm.convert(arrays, vars(checkpoint["opt"]))
    weights = restore(run, "best", torch.device("cpu")).state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    summary = summarizer.summarize("The mill", [TEXT, TEXT[20:]])
    assert summary.summary and len(summary.attention) == 2


def test_architecture_and_step_come_from_the_file(plain, vocabulary, tmp_path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(plain, weights_only=True)
    old = {  # of 2019: another file format, other names in LayerNorm, one decoder layer, two heads
        name.replace("norm.weight", "norm.a_2").replace("norm.bias", "norm.b_2"): value
        for name, value in checkpoint["model"].items()
        if "decoder.transformer_layers.1." not in name
    }
    options = argparse.Namespace(**(vars(checkpoint["opt"]) | {"heads": 2, "trunc_src_nblock": 9}))
    file = tmp_path / "wikisum_model_step_320.pt"
    torch.save({"model": old, "opt": options}, file, _use_new_zipfile_serialization=False)
    made = import_checkpoint("hiersumm", str(file), str(tmp_path / "run"), vocabulary)
    assert re.fullmatch(
        r"run: \S+/run, LGG/F, [\d,]+ parameters\nreads 9 paragraphs of 100 tokens\n"
        r"prepare its data: raysum prepare .* --vocab \S+ --max-paragraphs 9 --paragraph-tokens 100",
        made.render(),
    )
    run = made.run
    assert (run.config.model.encoder, run.config.model.decoder, run.config.model.heads) == ("LGG", "F", 2)
    assert run.config.source.max_paragraphs == 9 and run.best().step == 320


def test_a_flat_checkpoint_reads_as_many_tokens_as_it_was_trained_on(plain, vocabulary, tmp_path, shared):
    with torch.serialization.safe_globals([argparse.Namespace]):
        options = vars(torch.load(plain, weights_only=True)["opt"])
    with np.load(shared / "fixtures" / "hiersumm_ft.npz") as arrays:
        model = {name[6:]: torch.from_numpy(arrays[name]) for name in arrays.files if name.startswith("param/")}
    changed = argparse.Namespace(**(options | {"hier": False, "trunc_src_ntoken": 800}))
    torch.save({"model": model, "opt": changed}, tmp_path / "model_step_7.pt")
    config = import_checkpoint(
        "hiersumm", str(tmp_path / "model_step_7.pt"), str(tmp_path / "run"), vocabulary
    ).run.config
    assert (config.model.encoder, config.model.positions, config.decode) == ("SSS", "flat", load_config("ft").decode)
    assert config.source.max_tokens == 801  # its loader adds EOS behind the cut; ours counts it


@pytest.mark.parametrize("name", ["pht", "vht"])
def test_wiki_sum_computes_the_published_outputs(parameters, vocabulary, tmp_path, name):
    arrays = parameters[name]
    prefix = checkpoint_of(arrays, tmp_path / "ckpt-3")
    run = import_checkpoint("wiki_sum", str(prefix), str(tmp_path / "run"), vocabulary).run
    assert run.best().step == 1200  # not 3: that counts the checkpoints
    assert run.config.decode == load_config(name).decode
    assert run.config.model.dropout == 0.3 and run.config.model.heads == 4
    model = Summarizer.load(run.path).model
    source = pack([[[t for t in row if t] for row in example] for example in arrays["in/inp"].tolist()])
    target = torch.from_numpy(arrays["in/tgt"]).long()
    with torch.no_grad():
        hidden, _ = model.decode(target[:, :-1], model.encode(source))
    real = target[:, :-1] != 0
    expected = torch.from_numpy(arrays["out/vocab_dists"])[real].log()
    torch.testing.assert_close(log_probs(model, hidden)[real], expected, atol=1e-5, rtol=0)


def test_all_names_of_a_checkpoint_mean_the_same(parameters, tmp_path):
    checkpoint_of(parameters["pht"], tmp_path / "ckpt-3")
    found = [wiki_sum.load(tmp_path / f"ckpt-3{end}") for end in ("", ".index", ".data-00000-of-00001")]
    for other in found[1:]:
        assert all(torch.equal(value, other.weights[name]) for name, value in found[0].weights.items())
    assert found[0].spec.heads == 4 and wiki_sum.load(tmp_path / "ckpt-3", heads=8).spec.heads == 8


def test_an_imported_run_is_not_trained_over(plain, vocabulary, tmp_path):
    from helpers.small_datasets import write_dataset
    from raysum.data.dataset import Dataset

    dataset = Dataset.open(write_dataset(tmp_path / "data", {"train": 4}))
    run = import_checkpoint("hiersumm", str(plain), str(tmp_path / "run"), vocabulary).run
    run.create(run.config, dataset.manifest["recipe"], dataset.vocabulary_path)
    with pytest.raises(UserError, match="has weights but no training state"):
        check_resumable(job_spec_of(dataset, run.config, run, 0), dataset)


# What is refused


@pytest.mark.parametrize("most", [500, 2000, 20_000])
def test_no_run_is_left_where_it_cannot_be_written(plain, vocabulary, tmp_path, most):
    """The limit of the size of files stands for a full disk."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(UserError, match=rf"cannot write .*{tmp_path.name}"):
            import_checkpoint("hiersumm", str(plain), str(tmp_path / "run"), vocabulary)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def raysum(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "raysum", *arguments], capture_output=True, text=True)


class Dangerous:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_a_pickle_that_would_run_code_is_one_message_and_exit_2(vocabulary, tmp_path, monkeypatch):
    file, out = tmp_path / "model_step_1.pt", tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {}, "opt": Dangerous()}, file)
    done = raysum("import", "hiersumm", str(file), "--out", str(out), "--vocab", vocabulary)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert "mkdir" in done.stderr and len(done.stderr.splitlines()) == 1
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model_step_1.pt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "cannot read"),
        (lambda path: path.write_bytes(b""), "is not a PyTorch checkpoint"),
        (lambda path: path.write_text("a text"), "is not a PyTorch checkpoint"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "is not a PyTorch checkpoint"),
        (lambda path: flip(path, path.stat().st_size // 2), "is damaged: .*data"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes())[:-9]), "cannot unpack"),
        (lambda path: torch.save([1, 2], path), "not a hiersumm checkpoint"),
        (lambda path: torch.save({"model": {}, "opt": argparse.Namespace()}, path), "it lacks"),
    ],
)
def test_damaged_and_wrong_pytorch_files(plain, vocabulary, tmp_path, change, message):
    file = tmp_path / "model_step_1.pt"
    shutil.copyfile(plain, file)
    change(file)
    with pytest.raises(UserError, match=message):
        import_checkpoint("hiersumm", str(file), str(tmp_path / "run"), vocabulary)
    assert not [item for item in tmp_path.iterdir() if item.name != file.name]


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        ({"heads": 5}, {}, "not a multiple of heads 5"),
        ({"inter_heads": 8}, {}, "does not fit the model"),
        ({}, {"decoder.embeddings.weight": torch.zeros(100, 32)}, "another embedding"),
        ({}, {"encoder.layer_norm.bias": torch.zeros(3)}, "does not fit the model"),
        (
            {},
            {"encoder.layer_norm.bias": torch.full((32,), torch.nan)},
            "norm.bias contains .* not finite",
        ),
        ({}, {"encoder.layer_norm.bias": torch.ones(32).to_sparse()}, "encoder.layer_norm.bias: save dense"),
        ({}, {"encoder.layer_norm.bias": torch.ones(32, device="meta")}, "without values in encoder.layer_norm.bias"),
        ({}, {"encoder.layer_norm.bias": torch.ones(32).to(torch.int8)}, "int8, .* in encoder.layer_norm.bias"),
        ({}, {"encoder.layer_norm.bias": 7}, "contains int in encoder.layer_norm.bias"),
        ({}, {"encoder.graph.weight": torch.ones(3)}, "encoder.graph.weight does not exist"),
        ({"trunc_src_nblock": 0}, {}, "trunc_src_nblock is 0, but must be a number from 1"),
        ({"trunc_src_nblock": "24"}, {}, "trunc_src_nblock is '24'"),
        ({"heads": None}, {}, "heads: "),
    ],
)
def test_hiersumm_models_that_cannot_be_ours(plain, vocabulary, tmp_path, options, model, message):
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(plain, weights_only=True)
    changed = argparse.Namespace(**(vars(checkpoint["opt"]) | options))
    torch.save({"model": checkpoint["model"] | model, "opt": changed}, tmp_path / "changed.pt")
    with pytest.raises(UserError, match=message):
        import_checkpoint("hiersumm", str(tmp_path / "changed.pt"), str(tmp_path / "run"), vocabulary)
    assert not (tmp_path / "run").exists()


def test_parameters_are_read_as_the_tensors_they_are(plain, vocabulary, tmp_path):
    """Some tools save nn.Parameter objects, which ask for gradients."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(plain, weights_only=True)
    wrapped = {name: torch.nn.Parameter(tensor) for name, tensor in checkpoint["model"].items()}
    torch.save(checkpoint | {"model": wrapped}, tmp_path / "wrapped.pt")
    found, expected = (hiersumm.load(path).weights for path in (tmp_path / "wrapped.pt", plain))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("end", "change", "message"),
    [
        (".index", lambda path: path.unlink(), "cannot read .*index"),
        (".index", lambda path: os.truncate(path, 100), "not the index of a TensorFlow checkpoint"),
        (".index", lambda path: flip(path, 200), "index is damaged"),
        (".index", lambda path: flip(path, path.stat().st_size - 45), "index is damaged"),
        (".data-00000-of-00001", lambda path: path.unlink(), "cannot read .*data-00000"),
        (".data-00000-of-00001", lambda path: os.truncate(path, 1000), "ends too early"),
        (".data-00000-of-00001", lambda path: flip(path, 10), "the checksum of .* differs"),
    ],
)
def test_damaged_tensorflow_files(parameters, vocabulary, tmp_path, end, change, message):
    prefix = checkpoint_of(parameters["vht"], tmp_path / "ckpt-1")
    change(Path(f"{prefix}{end}"))
    with pytest.raises(UserError, match=message):
        import_checkpoint("wiki_sum", str(prefix), str(tmp_path / "run"), vocabulary)
    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_anywhere_in_an_index_is_a_message_or_changes_nothing(parameters, tmp_path):
    prefix = checkpoint_of(parameters["vht"], tmp_path / "ckpt-1")
    index = Path(f"{prefix}.index")
    entries, content, harmless = TensorBundle(prefix).entries, index.read_bytes(), 0
    places = [*np.random.default_rng(0).integers(0, len(content), 150), *range(len(content) - 48, len(content))]
    for place in map(int, places):
        index.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            assert TensorBundle(prefix).entries == entries
            harmless += 1
        except UserError:
            pass
    assert harmless < 48  # only inside the footer's padding and the handle of what is not read


def test_tensorflow_checkpoints_of_other_codes(parameters, tmp_path):
    write_bundle(tmp_path / "other", {f"model/kernel{VALUE}": np.ones((2, 3), np.float32)})
    with pytest.raises(UserError, match="it lacks 'decoder/embedding/embeddings'"):
        wiki_sum.load(tmp_path / "other")
    for name, array, message in (
        ("param/out_layer/bias", np.full(100, np.nan, np.float32), "out_layer/bias contains .* not finite"),
        ("param/graph/kernel", np.ones((2, 2), np.float32), "graph/kernel does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            wiki_sum.load(checkpoint_of(parameters["vht"] | {name: array}, tmp_path / "ckpt-2"))
    write_bundle(tmp_path / "wide", {f"model/kernel{VALUE}": np.ones((2, 3))})
    with pytest.raises(UserError, match="type number 2"):
        wiki_sum.load(tmp_path / "wide")
    with pytest.raises(UserError, match="not a multiple of heads 5"):
        wiki_sum.load(checkpoint_of(parameters["pht"], tmp_path / "ckpt-1"), heads=5)
    with pytest.raises(KeyError):
        TensorBundle(tmp_path / "wide").read("none")


def test_wrong_choices(plain, vocabulary, tmp_path, shared):
    def make(kind="hiersumm", out="run", vocab=vocabulary, **options) -> None:
        import_checkpoint(kind, str(plain), str(tmp_path / out), str(vocab), **options)

    with pytest.raises(UserError, match="choose one of hiersumm, wiki_sum"):
        make("opennmt")
    with pytest.raises(UserError, match="leave --heads and --dropout out"):
        make(heads=4)
    with pytest.raises(UserError, match="has 32000 pieces, but the model of .* 100"):
        make(vocab=shared / "data" / "wikisum_vocab" / "spm9998_3.model")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        make(out="taken")
    assert [item.name for item in tmp_path.iterdir()] == ["taken"]
