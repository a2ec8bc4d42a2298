"""Listening addresses: check that a port is free before a server starts, and format addresses as URLs."""

import socket

from raysum.errors import UserError


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``port`` of ``host``; port 0 chooses a free one. Raises UserError on failure."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port or --host"
        ) from None


def url_of(host: str, port: int) -> str:
    """Return the URL of the address for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
