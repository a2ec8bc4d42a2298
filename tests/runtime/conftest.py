"""Fixtures of a remote store."""

from helpers.remote_store import server, store  # noqa: F401 - fixtures
