"""Fixtures for the small cluster."""

from helpers.lisbon import recipe, vocabulary  # noqa: F401 - fixtures
