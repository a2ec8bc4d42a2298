"""Addresses and ports: listen on one, find a free one, and check that a server answers."""

import socket
from contextlib import suppress

from raysum.errors import UserError


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``port`` of ``host``; port 0 chooses a free one. Raises UserError on failure."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port or --host"
        ) from None


def http_url(host: str, port: int, is_secure: bool = False) -> str:
    """Return the URL of the address for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http{'s' * is_secure}://{f'[{host}]' if ':' in host else host}:{port}"


def free_port(first: int) -> int:
    """Return the first free port of 127.0.0.1, from ``first`` up."""
    for port in range(first, first + 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free for the dashboard")


def check_listening(address: str) -> None:
    """Raises OSError if nothing listens at ``host:port``. Ignores other forms of addresses."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
