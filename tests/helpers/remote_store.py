"""A store for tests: a real S3 server on this machine (moto), and clusters to put on it."""

import json
import re
from typing import NamedTuple

import pytest

BUCKET = "raysum-tests"
SECRET = "wJalrXUtnFEMI-secret"
_USER = re.compile(r"Credential=([^/]+)/")


class Download(NamedTuple):
    user: str  # the access key of the process that downloads
    key: str


class Downloads(list[Download]):
    """The downloads of objects from a server, in order."""

    def watch(self, server) -> None:
        application = server._server.app

        def watched(environ, start_response):
            key = environ.get("PATH_INFO", "").removeprefix(f"/{BUCKET}").strip("/")
            if environ["REQUEST_METHOD"] == "GET" and key:
                user = _USER.search(environ.get("HTTP_AUTHORIZATION", ""))
                self.append(Download(user[1] if user else "", key))
            return application(environ, start_response)

        server._server.app = watched


downloads = Downloads()


@pytest.fixture(scope="session")
def server():
    """Where a server of S3 listens that knows any credentials, with an empty bucket."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    downloads.watch(found)
    yield "http://{}:{}".format(*found.get_host_and_port())
    found.stop()


@pytest.fixture
def store(server, tmp_path, monkeypatch):
    """The file system of the server, in whose bucket nothing is, and a cache of the test's own."""
    import fsspec

    given = {"AWS_ENDPOINT_URL": server, "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": SECRET}
    given |= {"AWS_DEFAULT_REGION": "us-east-1", "RAYSUM_CACHE": str(tmp_path / "cache")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    if files.exists(BUCKET):
        files.rm(BUCKET, recursive=True)
    files.mkdir(BUCKET)
    return files


def cluster(number: int, words: int = 12) -> dict[str, object]:
    text = " ".join(f"word{(number * 7 + k) % 50}" for k in range(words))
    return {
        "id": f"c{number}",
        "title": f"town {number}",
        "documents": [f"{text} lies on a river.", f"The {text} has walls."],
        "summary": f"{text} is a town.",
    }


def lines(numbers) -> bytes:
    return "".join(json.dumps(cluster(number)) + "\n" for number in numbers).encode()


def keys(store, folder: str = "") -> list[str]:
    """What is in the bucket, without locks."""
    root = f"{BUCKET}/{folder}".rstrip("/")
    return sorted(name.removeprefix(f"{root}/") for name in store.find(root) if not name.endswith(".lock"))
