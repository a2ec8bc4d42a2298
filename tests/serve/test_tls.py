"""TLS of `raysum serve`: wrong files are one message, and a server with a certificate answers https only."""

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from helpers.servers import serving
from raysum.errors import UserError
from raysum.serve.build import app
from raysum.serve.client import Client
from raysum.serve.config import ServeConfig
from raysum.serve.ports import tls_options

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for this machine, its key without and with a password, and another key."""
    folder = tmp_path_factory.mktemp("tls")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem -days 2 -subj /CN=localhost"
        " -addext subjectAltName=DNS:localhost,IP:127.0.0.1",
        "rsa -in key.pem -aes128 -passout pass:secret -out locked.pem",
        "genrsa -out other.pem 2048",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("certificate.pem", None, "TLS needs both"),
        (None, "key.pem", "TLS needs both"),
        ("none.pem", "key.pem", "cannot use .*No such file.*; name PEM files that belong together"),
        ("certificate.pem", "locked.pem", "cannot use .*without a password"),
        ("certificate.pem", "other.pem", "cannot use .*name PEM files that belong together"),
        ("key.pem", "key.pem", "cannot use .*name PEM files"),
    ],
)
def test_files_that_cannot_be_used_are_one_message(folder: Path, certificate: str, key: str, message: str):
    files = {"tls_certificate": certificate and str(folder / certificate), "tls_key": key and str(folder / key)}
    with pytest.raises(UserError, match=message):
        tls_options(ServeConfig(run="lead", **files))
    with pytest.raises(UserError, match="http_options of the configuration file: ssl_certfile"):
        app({"run": "lead", **files})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_with_a_certificate_answers_https_only(folder: Path, monkeypatch: pytest.MonkeyPatch):
    certificate = folder / "certificate.pem"
    with serving("lexrank", f"--tls-certificate={certificate}", f"--tls-key={folder / 'key.pem'}") as server:
        server.wait_until_ready()
        address = f"https://localhost:{server.port}"
        with pytest.raises(UserError, match="CERTIFICATE_VERIFY_FAILED"):
            Client(address, retries=0).health()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert Client(address).summarize("Florence", ["Florence is a city. It has a gate."])["summary"]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{server.port}/healthz")
