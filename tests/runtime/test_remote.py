"""Paths on a store: sources, datasets and runs on S3, served by moto on this machine (``ThreadedMotoServer``, which
needs ``moto[server]`` and ``s3fs``), whose requests are real ones over HTTP; fsspec's memory:// where that is enough.
"""

import gzip
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import raysum
from helpers.remote_store import BUCKET, SECRET, keys, lines
from helpers.small_datasets import write_dataset
from raysum.cli.app import main
from raysum.cli.clusters import input_clusters
from raysum.data.dataset import MANIFEST, Dataset
from raysum.data.inspection import Card, check_dataset
from raysum.errors import UserError
from raysum.prepare import job
from raysum.runs.folder import Run
from raysum.runtime import remote, remote_lock
from raysum.runtime.run_sync import push
from raysum.runtime.storage import new_folder, read_lines, write_page
from raysum.sources.find import find_sources


def spent(folder: Path) -> int:
    """Bytes that the files in a folder take of the disk."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("s3://b/runs/pht/", "s3/b/runs/pht"),
        ("hdfs://host:8020/data", "hdfs/host:8020/data"),
        ("hdfs:///x", "hdfs/@/x"),
    ],
)
def test_what_is_kept_of_a_url_tells_the_url(url, inside, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path))
    kept = remote.local(url)
    assert kept == tmp_path / "kept" / inside and remote.url_of(kept) == remote.address(kept) == url.rstrip("/")
    assert remote.local(Path(url)) == kept or ":///" in url  # pathlib joins slashes
    state = remote.version(kept, b"manifest")
    assert remote.url_of(state / "a.parquet") == f"{url.rstrip('/')}/a.parquet"
    assert remote.local(remote.address(state)) == state
    assert remote.local("data") == Path("data").absolute() and remote.url_of(Path("data").absolute()) is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://b/../../etc", "is no path on a store"),
        ("s3://", "is no path on a store"),
        ("s3://key:hunter2@bucket/x", "must not hold a password"),
    ],
)
def test_a_url_with_a_password_or_out_of_the_cache_is_refused_without_saying_it(url, message):
    with pytest.raises(UserError, match=message) as refused:
        remote.local(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("command", ["prepare {} --out x", "data show x --plot {}", "train pht data={}", "tune {}"])
@pytest.mark.parametrize("url", ["s3://user:hunter2@bucket/x", "https://user:hunt/er2@host/x.jsonl"])
def test_a_password_is_refused_wherever_it_stands_and_never_said(command, url, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["raysum", *command.format(url).split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr()
    assert told.err.endswith(":// URLs must not hold a password; give credentials in the environment\n")
    assert "hunt" not in told.err + told.out and "user" not in told.err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:pass@bucket/x is no path", "s3://***@bucket/x is no path"),
        ("s3:/user:pa/ss@bucket/x", "s3://***@bucket/x"),
        ("cannot read https://token@host/x", "cannot read https://***@host/x"),
        ("hdfs://host:8020/a@b and http://[::1]:80/", "hdfs://host:8020/a@b and http://[::1]:80/"),
        ("hf://datasets/user/name@main", "hf://datasets/user/name@main"),
    ],
)
def test_no_message_holds_the_user_of_a_url(text, shown):
    assert str(UserError(text)) == shown


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/own.jsonl?token=x", "https://127.0.0.1:9/own.jsonl"])
def test_a_web_address_is_refused_with_the_way_out(url, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "cache"))
    for asked in (lambda: find_sources([url]), lambda: input_clusters([url]), lambda: Dataset.open(url)):
        with pytest.raises(UserError, match=r"https?:// is not supported; download the file \(curl -LO URL\)"):
            asked()
    monkeypatch.setattr(job, "write_shards", None)  # before any work
    with pytest.raises(UserError, match="is not supported"):
        raysum.prepare("samples", url, vocab_size=200)


def test_a_file_url_is_a_path_of_this_machine(tmp_path):
    (tmp_path / "own.jsonl").write_bytes(lines(range(3)))
    (tmp_path / "note.txt").write_text("The town lies on a river.")
    (source,) = find_sources([f"file://{tmp_path}/own.jsonl"])
    assert source.name == f"{tmp_path}/own.jsonl" and [one.id for one in source.records()] == ["c0", "c1", "c2"]
    urls = [f"file://{tmp_path}/{name}" for name in ("own.jsonl", "note.txt")]
    assert [one["id"] for one in input_clusters(urls)] == ["c0", "c1", "c2", "note.txt"]
    with pytest.raises(UserError, match=f"no such file or folder: {tmp_path}/none.jsonl"):
        find_sources([f"file://{tmp_path}/none.jsonl"])


@pytest.mark.parametrize("name", ["/proc/x", "taken"])
def test_a_cache_that_cannot_be_written_is_named(name, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    place = str(tmp_path / name)
    monkeypatch.setenv("RAYSUM_CACHE", place)
    for asked in (Dataset.open, Run.open, lambda url: find_sources([url])):
        with pytest.raises(UserError, match=rf"cannot write the cache {place} \(.*\); set RAYSUM_CACHE"):
            asked("memory://bucket/x")


def test_sources_are_listed_as_local_ones_and_take_no_room_but_while_they_are_read(store, tmp_path):
    content = {"train.part-10.jsonl": lines(range(20, 30)), "train.part-2.jsonl": lines(range(20))}
    content |= {"valid.jsonl.gz": gzip.compress(lines(range(30, 40))), ".hidden.jsonl": b"no json"}
    for name, data in content.items():
        store.pipe_file(f"{BUCKET}/raw/{name}", data)
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(data)
    here, there = find_sources([tmp_path / "raw"]), find_sources([f"s3://{BUCKET}/raw"])
    assert [(one.path.name, one.split, one.size) for one in there] == [(s.path.name, s.split, s.size) for s in here]
    assert [one.name for one in there] == [f"s3://{BUCKET}/raw/{one.path.name}" for one in here]
    for one, other in zip(there, here, strict=True):
        reading = one.records()
        first = next(reading)
        assert first.where == f"{one.name}:1"
        assert [first, *reading] == [
            record.__class__(**{**vars(record), "where": record.where.replace(str(other.path), one.name)})
            for record in other.records()
        ]
        assert spent(tmp_path / "cache") == 0
    matched = find_sources([f"s3://{BUCKET}/raw/train.*.jsonl"])
    assert [one.name for one in matched] == [one.name for one in there[:2]]
    with pytest.raises(UserError, match=f"no file on the store matches s3://{BUCKET}/raw/"):
        find_sources([f"s3://{BUCKET}/raw/*.csv"])
    with pytest.raises(UserError, match=f"no such file or folder: s3://{BUCKET}/none.jsonl"):
        find_sources([f"s3://{BUCKET}/none.jsonl"])


def test_what_is_wrong_in_a_source_is_told_by_its_url(store):
    store.pipe_file(f"{BUCKET}/zipped.jsonl", gzip.compress(lines(range(2))))
    with pytest.raises(UserError, match=f"s3://{BUCKET}/zipped.jsonl is not text, but gzipped"):
        find_sources([f"s3://{BUCKET}/zipped.jsonl"])
    store.pipe_file(f"{BUCKET}/torn.jsonl.gz", gzip.compress(lines(range(99)))[:200])
    (torn,) = find_sources([f"s3://{BUCKET}/torn.jsonl.gz"])
    with pytest.raises(UserError, match=f"s3://{BUCKET}/torn.jsonl.gz cannot be read to its end"):
        list(torn.records())


def test_files_beside_a_source_and_folders_of_documents_are_read(store):
    store.pipe_file(f"{BUCKET}/news/a.src", b"one ||||| two\nthree\n")
    store.pipe_file(f"{BUCKET}/news/a.tgt", b"first\nsecond\n")
    (pairs,) = find_sources([f"s3://{BUCKET}/news/a.src"])
    assert [record.raw["summary"] for record in pairs.records()] == ["first", "second"]
    for number in range(3):
        store.pipe_file(f"{BUCKET}/towns/town_{number}/history.txt", f"Town {number} is old.".encode())
        store.pipe_file(f"{BUCKET}/towns/town_{number}/summary.txt", b"An old town.")
    (towns,) = find_sources([f"s3://{BUCKET}/towns"])
    assert [record.raw["documents"][0]["text"] for record in towns.records()] == [f"Town {n} is old." for n in range(3)]


def test_another_process_finds_a_source_by_its_url(store, tmp_path):
    """As a Ray worker on another machine does, whose cache is elsewhere."""
    store.pipe_file(f"{BUCKET}/raw/a.jsonl", lines(range(3)))
    (tmp_path / "source").write_bytes(pickle.dumps(find_sources([f"s3://{BUCKET}/raw"])))
    code = f"import pickle; [one] = pickle.load(open({str(tmp_path / 'source')!r}, 'rb'))"
    code += "; print([record.where for record in one.records()][-1])"
    (tmp_path / "other").mkdir()
    environment = os.environ | {"RAYSUM_CACHE": str(tmp_path / "other"), "TMPDIR": str(tmp_path / "other")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"s3://{BUCKET}/raw/a.jsonl:3\n"
    assert not [*(tmp_path / "other").iterdir()]  # it leaves nothing


@pytest.fixture
def dataset(store, tmp_path) -> str:
    """The URL of a dataset of 40 training rows in four shards, and 8 to validate by."""
    local = write_dataset(tmp_path / "local", {"train": 40, "valid": 8}, shards=4)
    store.put(f"{local}/", f"{BUCKET}/data/", recursive=True)
    return f"s3://{BUCKET}/data"


def test_prepare_reads_and_writes_a_store_and_makes_what_it_makes_here(store, tmp_path):
    store.pipe_file(f"{BUCKET}/raw/train.jsonl", lines(range(30)))
    store.pipe_file(f"{BUCKET}/raw/valid.jsonl", lines(range(30, 36)))
    for name in ("train", "valid"):
        store.get_file(f"{BUCKET}/raw/{name}.jsonl", str(tmp_path / f"{name}.jsonl"))
    url = f"s3://{BUCKET}/made/data"
    made = raysum.prepare(f"s3://{BUCKET}/raw", url, vocab_size=100)
    here = raysum.prepare([tmp_path / "train.jsonl", tmp_path / "valid.jsonl"], tmp_path / "here", vocab_size=100)
    assert made.to_dict()["data"] == url and made.dataset.fingerprint == here.dataset.fingerprint
    assert made.dataset.manifest["sources"] == [f"s3://{BUCKET}/raw/{name}.jsonl" for name in ("train", "valid")]
    assert keys(store, "made/data") == sorted(path.name for path in here.dataset.path.iterdir())
    assert not store.exists(f"{BUCKET}/made/data/.lock")
    for name in set(keys(store, "made/data")) - {MANIFEST, "rejected.jsonl"}:
        assert store.cat_file(f"{BUCKET}/made/data/{name}") == (here.dataset.path / name).read_bytes()
    with pytest.raises(UserError, match=f"{url} exists already; remove it or choose another folder"):
        raysum.prepare(tmp_path / "train.jsonl", url, vocab_size=100)
    store.pipe_file(f"{BUCKET}/made/run/config.yaml", b"{}")
    with pytest.raises(UserError, match=f"{BUCKET}/made/run is a run; choose another folder"):
        raysum.prepare(tmp_path / "train.jsonl", f"s3://{BUCKET}/made/run", vocab_size=100)
    store.rm_file(f"{BUCKET}/made/data/{MANIFEST}")
    with pytest.raises(UserError, match=f"{url} has files but no {MANIFEST}: it is no dataset, or is incomplete"):
        raysum.prepare(tmp_path / "train.jsonl", url, vocab_size=100)
    with pytest.raises(UserError, match=rf"no dataset {url} \(its preparation was not finished\)"):
        Dataset.open(url)


@pytest.fixture
def failing(store, monkeypatch):
    """Uploads of which those fail for whose destination ``failing.uploads(destination)``."""
    failing, put = SimpleNamespace(uploads=lambda there: False), type(store)._put_file

    async def put_file(self, here, there, **options):
        if failing.uploads(there):
            raise ConnectionResetError(f"the connection with {SECRET} was reset")
        return await put(self, here, there, **options)

    monkeypatch.setattr(type(store), "_put_file", put_file)
    monkeypatch.setattr(remote, "_AT_ONCE", 1)
    type(store).clear_instance_cache()  # of those that have it bound
    yield failing
    type(store).clear_instance_cache()


def test_an_upload_that_failed_is_begun_again_by_the_same_command(store, failing, monkeypatch):
    store.pipe_file(f"{BUCKET}/raw/train.jsonl", lines(range(30)))
    url, failing.uploads = f"s3://{BUCKET}/data", lambda there: there.endswith(".npy")
    with pytest.raises(UserError, match=rf"{url} cannot be reached \(ConnectionResetError: the connection with \*\*\*"):
        raysum.prepare(f"s3://{BUCKET}/raw", url, vocab_size=100)
    assert MANIFEST not in keys(store, "data")
    failing.uploads = lambda there: False
    monkeypatch.setattr(job, "write_shards", None)  # it is not made again
    assert raysum.prepare(f"s3://{BUCKET}/raw", url, vocab_size=100).dataset.rows("train") == 30
    assert MANIFEST in keys(store, "data")


def test_shards_are_fetched_when_they_are_read_and_the_same_as_here(store, dataset, tmp_path):
    opened, here = Dataset.open(dataset), Dataset.open(tmp_path / "local")
    assert opened.place == dataset and not [*opened.path.glob("*.parquet")]
    np.testing.assert_array_equal(opened.lengths("train"), here.lengths("train"))
    first = opened.files("train")[0]
    first.with_name(f".{first.name}.partial").write_bytes(b"what a killed reader has left")
    opened.check(first)
    assert [file.name for file in opened.path.glob("*.parquet")] == [first.name]
    ids = [[row["id"] for row in one.read("train")] for one in (opened, here)]
    assert ids[0] == ids[1] and len([*opened.path.glob("*.parquet")]) == 4
    checked, checked_here = (check_dataset(str(folder)).to_dict() for folder in (dataset, tmp_path / "local"))
    assert checked | {"seconds": 0, "data": ""} == checked_here | {"seconds": 0, "data": ""}
    assert Card.of(dataset).to_dict()["splits"] == Card.of(str(tmp_path / "local")).to_dict()["splits"]


def test_what_travels_to_a_worker_opens_the_same_state_on_another_machine(dataset, tmp_path, monkeypatch):
    opened = Dataset.open(dataset)
    travels = opened.address
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "another machine"))
    there = Dataset.open(travels)
    assert there.path.is_relative_to(tmp_path / "another machine") and there.fingerprint == opened.fingerprint
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert Dataset.open(travels).manifest == there.manifest  # nothing is asked twice


def test_a_dataset_that_is_replaced_is_read_anew_and_never_mixed(store, dataset, tmp_path):
    opened = Dataset.open(dataset)
    opened.check(opened.files("train")[0])
    other = write_dataset(tmp_path / "other", {"train": 40}, shards=4, seed=1)
    store.put(f"{other}/", f"{BUCKET}/data/", recursive=True)
    assert Dataset.open(dataset).fingerprint == Dataset.open(other).fingerprint != opened.fingerprint
    opened.check(opened.files("train")[0])  # which is still here
    with pytest.raises(UserError, match=f"{dataset}/train-00001.parquet is damaged"):
        opened.check(opened.files("train")[1])
    assert not opened.files("train")[1].exists()
    shutil.rmtree(opened.path)
    with pytest.raises(UserError, match=f"{dataset} was replaced while it was read"):
        Dataset.open(opened.address)


def test_a_damaged_vocabulary_is_named_and_not_kept(store, dataset):
    name = f"{BUCKET}/data/vocabulary.model"
    good = store.cat_file(name)
    store.pipe_file(name, good[:-1] + bytes([good[-1] ^ 1]))
    for asked in (Dataset.open, check_dataset):
        with pytest.raises(UserError, match=f"^{dataset}/vocabulary.model is damaged"):
            asked(dataset)
    store.pipe_file(name, good)
    opened = Dataset.open(dataset)
    assert opened.vocabulary_path.read_bytes() == good and check_dataset(dataset)
    opened.vocabulary_path.write_bytes(b"what a failing disk has left")
    assert Dataset.open(opened.address).vocabulary_path.read_bytes() == good


def test_a_dataset_on_a_store_that_lacks_shards_is_refused_before_it_is_trained_on(store, dataset):
    Dataset.open(dataset).check_shards()
    store.rm_file(f"{BUCKET}/data/train-00002.parquet")
    store.pipe_file(f"{BUCKET}/data/train-00003.parquet", b"short")
    named = "missing or changed are train-00002.parquet, train-00003.parquet"
    with pytest.raises(UserError, match=f"{dataset} is incomplete: {named}"):
        Dataset.open(dataset).check_shards()
    with pytest.raises(UserError, match=f"{dataset}/train-00002.parquet is missing on the store"):
        check_dataset(dataset)


SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}
TRAIN = {"batch_tokens": 200, "micro_batches": 4, "workers": 0, "save_every": 2, "validate_every": 4, "keep": 2}


def train(data: str | Path, out: str | Path, steps: int):
    settings = TRAIN | {"steps": steps}
    decode = {"num_beams": 1, "min_length": 2, "max_length": 6}
    optim = {"schedule": "constant", "lr": 0.01, "warmup_steps": 0}
    return raysum.train(None, data=str(data), out=str(out), model=SMALL, train=settings, optim=optim, decode=decode)


def weights(run: Run, step: int) -> dict:
    return load_file(run.checkpoint(str(step)).weights)


def test_a_training_on_a_store_goes_on_elsewhere_and_ends_with_the_same_weights(store, dataset, tmp_path, monkeypatch):
    url = f"s3://{BUCKET}/runs/pht"
    here = train(tmp_path / "local", tmp_path / "here", 12)
    train(dataset, url, 5)
    found = keys(store, "runs/pht")
    assert {"config.yaml", "recipe.json", "vocabulary.model", "metrics.jsonl"} <= set(found)
    steps = {name.split("/")[1] for name in found if name.startswith("checkpoints/")}
    assert steps == {path.name for path in remote.local(url).glob("checkpoints/step-*")}
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "another machine"))
    result = train(dataset, url, 12)
    assert result.to_dict() == here.to_dict() | {"run": url}
    ours, theirs = weights(result.run, 12), weights(here.run, 12)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    kept = [path for path in here.run.checkpoint_folder.rglob("*") if path.is_file()]
    assert keys(store, "runs/pht/checkpoints") == sorted(
        str(file.relative_to(here.run.checkpoint_folder)) for file in kept
    )


@pytest.fixture
def run_url(store, dataset) -> str:
    url = f"s3://{BUCKET}/run"
    train(dataset, url, 4)
    return url


def test_a_run_is_read_by_its_url_and_only_what_is_needed_is_fetched(store, run_url, dataset, tmp_path, monkeypatch):
    documents = ["The river runs through the town.", "The town has old walls."]
    before = raysum.load(run_url).summarize("Town", documents).summary
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "another machine"))
    assert raysum.load(run_url).summarize("Town", documents).summary == before
    kept = remote.local(run_url)
    assert [path.parent.name for path in kept.rglob("weights.safetensors")] == [Run.open(run_url).best().path.name]
    assert not [path for path in kept.rglob("engine/*") if path.is_file()]
    told = raysum.evaluate(run_url, dataset, split="valid", scorers=["rouge"])
    place = f"run/evaluation/data-{Dataset.open(dataset).fingerprint[:8]}/valid"
    assert json.loads(store.cat_file(f"{BUCKET}/{place}/table.json")) == told.to_dict()
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "third"))
    assert (Run.open(run_url).path / place.removeprefix("run/") / "outputs.jsonl").is_file()
    raysum.report([run_url], tmp_path / "report.html")
    assert "run" in (tmp_path / "report.html").read_text()


def test_an_unfinished_upload_of_a_checkpoint_does_not_count(store, run_url, dataset, tmp_path, monkeypatch):
    (newest,) = [name for name in keys(store, "run") if name.endswith("00000004/checksums.json")]
    store.rm_file(f"{BUCKET}/run/{newest}")
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "another machine"))
    assert [one.step for one in Run.open(run_url).checkpoints()] == [2]
    train(dataset, run_url, 6)
    assert [one.step for one in Run.open(run_url).checkpoints()][-1] == 6


def test_what_a_store_has_counts_also_where_it_has_nothing_any_more(store, run_url, dataset):
    first = weights(Run.open(run_url), 4)
    store.rm(f"{BUCKET}/run", recursive=True)
    with pytest.raises(UserError, match=f"no run folder {run_url}"):
        Run.open(run_url)
    again = train(dataset, run_url, 4)
    assert [line["step"] for line in read_lines(again.run.metrics) if "valid_loss" in line] == [4]
    assert all(torch.equal(value, first[name]) for name, value in weights(again.run, 4).items())


def test_what_is_damaged_in_the_cache_is_told_by_its_url(store, run_url, capsys, monkeypatch):
    (remote.local(run_url) / "config.yaml").write_text("model: [")
    monkeypatch.setattr(sys, "argv", ["raysum", "serve", run_url])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert f"raysum: {run_url}/config.yaml is damaged" in told and str(remote.cache_folder()) not in told


def test_a_run_is_not_written_where_something_else_is(dataset):
    with pytest.raises(UserError, match=f"{dataset} exists already; remove it or choose another folder"):
        train(dataset, dataset, 2)


def test_a_training_outlives_a_store_that_is_away_for_a_while(store, dataset, failing, capsys):
    url, count = f"s3://{BUCKET}/run", itertools.count()
    failing.uploads = lambda there: next(count) < 3
    train(dataset, url, 12)
    told = capsys.readouterr().err
    assert told.count(f"Not uploaded yet: {url} cannot be reached (ConnectionResetError: ") == 1
    assert "Uploaded after " in told and "run/checkpoints/step-00000012/checksums.json" in keys(store)
    url, failing.uploads = f"s3://{BUCKET}/other", lambda there: True
    with pytest.raises(UserError, match=rf"in the cache, {remote.cache_folder()}; run the same command again"):
        train(dataset, url, 4)
    failing.uploads = lambda there: False
    train(dataset, url, 4)
    assert "other/checkpoints/step-00000004/checksums.json" in keys(store)


def test_shards_of_a_checkpoint_are_uploaded_once_and_those_without_a_seal_removed(store, dataset, failing):
    url, seen = f"s3://{BUCKET}/run", list[str]()
    failing.uploads = lambda there: bool(seen.append(there))
    orphan = f"{BUCKET}/run/checkpoints/step-00000099/engine/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    train(dataset, url, 2)
    store.pipe_file(orphan, b"of a worker that was killed")
    train(dataset, url, 4)
    shards = [there for there in seen if "/engine/" in there]
    assert shards and len(shards) == len({*shards}) and not store.exists(orphan)
    for there in shards:
        step = there.partition("/engine/")[0]
        own = [place for place in seen if place.startswith(step)]
        assert own[0] in shards and own[-1] == f"{step}/checksums.json", "in the background; the seal is the last"


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(remote_lock, "_RENEWED", 0.1)
    monkeypatch.setattr(remote_lock, "_GONE", 1.5)


def test_of_two_writers_on_a_store_the_later_is_refused(store, patience, tmp_path, monkeypatch):
    url = f"s3://{BUCKET}/run"
    with remote_lock.leased(remote.local(url)):
        monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "another machine"))
        with (
            pytest.raises(UserError, match=f"{url} is being written by process {os.getpid()} on .*; wait for its end"),
            remote_lock.leased(remote.local(url)),
        ):
            pytest.fail("both have it")
    assert not store.exists(f"{BUCKET}/run/.lock")


def test_the_lease_of_a_writer_that_is_gone_is_taken_over(store, patience, tmp_path, monkeypatch):
    left = {"token": "old", "machine": "another", "host": "far", "process": 1, "since": "2026-01-01 00:00:00"}
    store.pipe_file(f"{BUCKET}/run/.lock", json.dumps(left).encode())
    began = time.monotonic()
    with remote_lock.leased(remote.local(f"s3://{BUCKET}/run")):
        assert time.monotonic() - began > 1.5
        assert json.loads(store.cat_file(f"{BUCKET}/run/.lock"))["token"] != "old"
    died = left | {"machine": remote_lock._machine(), "process": 2**22 - 1}
    store.pipe_file(f"{BUCKET}/run/.lock", json.dumps(died).encode())
    began = time.monotonic()
    with remote_lock.leased(remote.local(f"s3://{BUCKET}/run")):
        assert time.monotonic() - began < 1.5  # it is known to be gone


def test_a_store_tells_whether_a_folder_is_written(store, patience):
    url = f"s3://{BUCKET}/run"
    assert not remote_lock.is_leased(url)
    with remote_lock.leased(remote.local(url)):
        assert remote_lock.is_leased(url)
    assert not remote_lock.is_leased(url)
    store.pipe_file(f"{BUCKET}/run/.lock", b"{}")  # of a writer that was killed
    assert remote_lock.is_leased(url)
    time.sleep(4.1)  # the store's times are whole seconds
    assert not remote_lock.is_leased(url)


@pytest.mark.parametrize("skew", [-60, 60])
def test_a_store_whose_clock_differs_by_a_minute_tells_it_too(store, patience, monkeypatch, skew):
    url, now = f"s3://{BUCKET}/run", time.time
    monkeypatch.setattr(remote_lock.time, "time", lambda: now() + skew)
    with remote_lock.leased(remote.local(url)):
        assert remote_lock.is_leased(url)
    assert not remote_lock.is_leased(url)
    if skew > 0:
        store.pipe_file(f"{BUCKET}/run/.lock", b'{"token": "old"}')  # of a writer that was killed
        assert not remote_lock.is_leased(url)


def test_a_writer_that_lost_its_lease_uploads_nothing_more(store, run_url):
    folder = remote.local(run_url)
    with remote_lock.leased(folder):
        (folder / "decode.yaml").write_text("beta: 0.4\n")
        taken = {"token": "other", "machine": "another", "host": "far", "process": 1, "since": "now"}
        store.pipe_file(f"{BUCKET}/run/.lock", json.dumps(taken).encode())
        with pytest.raises(UserError, match=f"{run_url} was taken over by another command"):
            push(folder)
    assert "decode.yaml" not in keys(store, "run") and store.exists(f"{BUCKET}/run/.lock")


def refused(*arguments: str, **environment: str) -> str:
    """What a command says that ends with 2, in bounded time."""
    command = [sys.executable, "-m", "raysum", *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stderr
    told = done.stderr.strip().splitlines()
    assert told[-1].startswith("raysum: ") and "Traceback" not in done.stderr and SECRET not in done.stderr
    return told[-1]


@pytest.fixture
def denying(server, store):
    """The server denies whatever it is asked for."""
    import httpx

    httpx.post(f"{server}/moto-api/reset-auth", content="0")
    yield
    httpx.post(f"{server}/moto-api/reset-auth", content="1000000000")


def test_what_a_store_refuses_is_one_message(store, denying):
    assert f"raysum: s3://{BUCKET}/data/manifest.json is denied" in refused("data", "show", f"s3://{BUCKET}/data")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "show", "s3://no-such-bucket/data"], "there is no bucket s3://no-such-bucket"),
        (["prepare", "s3://no-such-bucket/raw", "--out", "x"], "there is no bucket s3://no-such-bucket"),
        (["prepare", "s3:/no-such-bucket", "--out", "x"], "there is no bucket s3://no-such-bucket"),
        (["prepare", "samples", "--out", "s3://no-such-bucket/data"], "there is no such bucket; make it first"),
        (["serve", "s3://no-such-bucket/run"], "there is no bucket s3://no-such-bucket"),
        (["data", "show", f"s3://{BUCKET}/data"], f"no dataset s3://{BUCKET}/data; make one with"),
        (["data", "show", "abfs://bucket/data"], "abfs:// needs a library that is not found: "),
        (["data", "show", "s4://bucket/data"], "s4:// is an unknown protocol; use s3://, gs://"),
    ],
)
def test_a_wrong_place_is_one_message(arguments, message, store):
    assert message in refused(*arguments)


def test_a_store_that_does_not_answer_is_one_message_soon(store):
    began = time.monotonic()
    told = refused("data", "show", "s3://bucket/data", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert "s3://bucket/data/manifest.json cannot be reached (EndpointConnectionError: Could not connect" in told
    assert time.monotonic() - began < 60


def test_a_library_that_is_not_installed_is_named_with_its_command(tmp_path):
    (tmp_path / "s3fs.py").write_text("raise ImportError")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    told = refused("data", "show", "s3://bucket/data", PYTHONPATH=path)
    assert 's3:// needs s3fs, which is not installed: pip install -c constraints.txt ".[remote]"' in told


def test_any_protocol_of_fsspec_will_do(tmp_path, monkeypatch):
    """memory:// is a file system, too, though of this process alone."""
    import fsspec

    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    files.pipe_file("/raw/train.jsonl", lines(range(30)))
    files.pipe_file("/raw/valid.jsonl", lines(range(30, 36)))
    made = raysum.prepare("memory://raw/*.jsonl", "memory://data", vocab_size=100)
    assert made.to_dict()["splits"] == {"train": 30, "valid": 6} and files.exists("/data/manifest.json")
    run = train("memory://data", "memory://run", 2).run
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "other"))
    assert Run.open("memory://run").checkpoint().step == 2 and Run.open("memory://run").path != run.path
    files.rm("/", recursive=True)


def test_what_is_written_on_this_machine_alone_says_so():
    assert "s3://bucket/quick is on a store, but this command needs a local path" in refused(
        "quickstart", "--out", "s3://bucket/quick"
    )
    with pytest.raises(UserError, match="s3://bucket/page.html is on a store, .* choose another --html"):
        write_page(Path("s3://bucket/page.html"), "<!doctype html>", "--html")
    with (
        pytest.raises(UserError, match="s3://bucket/run is on a store"),
        new_folder(Path("s3://bucket/run").absolute()),
    ):
        pytest.fail("it is made")
    assert "s3://bucket/runs is on a store" in refused("board", "s3://bucket/runs")
    sheets = ["human", "sheets", "s3://bucket/out", "--design", "rating", "--out", "x"]
    assert "s3://bucket/out is on a store" in refused(*sheets)


def test_names_on_a_store_lead_nowhere_else(store, tmp_path):
    store.pipe_file(f"{BUCKET}/escaped", b"evil")
    with pytest.raises(UserError, match="leads out of its folder; it is not fetched"):
        remote.fetch(remote.local(f"s3://{BUCKET}/run") / "../escaped")
    assert not [*tmp_path.rglob("escaped")]
