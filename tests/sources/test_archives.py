"""Archives: zip and tar files as sources, and hostile ones, which stay bounded."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from helpers.lisbon import read_records
from raysum.errors import UserError
from raysum.runtime.remote import cache_folder
from raysum.sources import archives
from raysum.sources.find import find_sources

ROW = json.dumps({"id": "a", "documents": ["It rained."], "summary": "Rain."}).encode()
FILES = {
    "set/README.md": b"About.",
    "set/train.jsonl": ROW,
    "set/dev.jsonl.gz": gzip.compress(ROW),
    "__MACOSX/x": b"",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSUM_CACHE", str(tmp_path / "cache"))
    archives._process_folder.cache_clear()
    archives._unpack.cache_clear()


def zipped(files: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w:gz", *members: tarfile.TarInfo) -> bytes:
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.zip", zipped(FILES)),
        ("a.tar.gz", tarred(FILES)),
        ("a.TBZ2", tarred(FILES, "w:bz2")),
        ("a.tar", tarred(FILES, "w")),
    ],
)
def test_the_files_of_an_archive_are_sources(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    found = [
        (source.split, source.name, record.where)
        for source in find_sources([tmp_path / name])
        for record in source.records()
    ]
    train, dev = f"{tmp_path}/{name}/set/train.jsonl", f"{tmp_path}/{name}/set/dev.jsonl.gz"
    assert found == [("valid", dev, f"{dev}:1"), ("train", train, f"{train}:1")]
    assert len(read_records([tmp_path / name / "train.jsonl"])) == len(read_records([train])) == 1
    with pytest.raises(UserError, match=f"no such file or folder: {tmp_path}/{name}/set/other"):
        read_records([tmp_path / name / "other"])


def test_clusters_in_archives_in_archives(tmp_path):
    inner = tarred({f"docs/{n}/{m}.txt": b"The river rose." for n in "ab" for m in "12"})
    (tmp_path / "a.zip").write_bytes(zipped({"inner.tgz": inner}))
    assert [record.id for record in read_records([tmp_path / "a.zip"])] == ["a", "b"]
    content = inner
    for _ in range(4):
        content = zipped({"deeper.zip": content})
    (tmp_path / "deep.zip").write_bytes(content)
    with pytest.raises(UserError, match="deep.zip/.*holds neither files"):
        read_records([tmp_path / "deep.zip"])


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_links_devices_and_names_outside_of_the_archive_are_skipped(tmp_path, capsys):
    (tmp_path / "secret").write_bytes(ROW)
    outside = [link("b.jsonl", str(tmp_path / "secret")), link("c.jsonl", "../../secret", tarfile.LNKTYPE)]
    outside.append(link("pipe.jsonl", "", tarfile.FIFOTYPE))
    names = {"a.jsonl": ROW, "../out.jsonl": ROW, f"{tmp_path}/out.jsonl": ROW}
    (tmp_path / "a.tar").write_bytes(tarred(names, "w", *outside))
    (tmp_path / "b.zip").write_bytes(zipped({"a.jsonl": ROW, "../out.jsonl": ROW, "x\\..\\..\\out.jsonl": ROW}))
    for name in ("a.tar", "b.zip"):
        assert len(read_records([tmp_path / name])) == 1
    messages = capsys.readouterr().err
    assert "a.tar: skipped 5 links, devices or names" in messages and "b.zip: skipped 2 links" in messages
    assert not [*tmp_path.rglob("out.jsonl")] and not [*(tmp_path / "cache").rglob("secret")]


def nested_bomb() -> bytes:
    content = zipped({f"{n}.jsonl": bytes(16 << 20) for n in range(8)})
    return zipped({f"{n}.zip": content for n in range(8)})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.zip", zipped({"a.jsonl": bytes(200 << 20)})),
        ("a.tar.gz", tarred({"a.jsonl": bytes(200 << 20)})),
        ("a.tar.xz", tarred({"a.jsonl": bytes(200 << 20)}, "w:xz")),
        ("nested.zip", nested_bomb()),
    ],
)
def test_archive_bombs_are_refused_in_bounded_space(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} unpacks to more than [0-9]+ MiB .*if you trust it, unpack it"):
        read_records([tmp_path / name])
    used = sum(file.stat().st_size for file in cache_folder().rglob("*") if file.is_file())
    assert used <= (64 << 20) + 101 * len(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"PK\x03\x04 no", "is damaged"),
        ("a.tar.gz", tarred(FILES)[:100], "is damaged"),
        ("a.zip", zipped({"a.jsonl": ROW * 99})[:100] + b"x" * 40, "is damaged"),
        ("a.zip", b"", "is empty"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c", "is an archive; unpack it"),
    ],
    # Archives contain the time, so their bytes cannot name the tests of two workers.
    ids=["no zip", "cut tar", "cut zip", "empty zip", "7z"],
)
def test_damaged_archives_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} {message}"):
        read_records([tmp_path / name])


def test_unpacked_files_are_removed_at_the_end_and_after_a_kill(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped(FILES))
    killed = "import os; os.kill(os.getpid(), 9)"
    environment = os.environ | {"RAYSUM_CACHE": str(tmp_path / "c")}
    for ending, left in ((killed, 1), ("", 0)):
        program = f"from raysum.sources.find import find_sources; find_sources([{str(tmp_path / 'a.zip')!r}]); {ending}"
        subprocess.run([sys.executable, "-c", program], env=environment, check=False)
        assert len([*Path(tmp_path / "c").glob("unpacked-*")]) == left
