"""Addresses that are listened on: found free before anything is started for them, and named as URLs."""

import socket

from raysum.errors import UserError


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at ``port`` of ``host``, for 0 at any free one. Raises UserError where that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port or --host"
        ) from None


def url_of(host: str, port: int) -> str:
    """As a client on this machine writes it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
