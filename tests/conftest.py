"""Fixtures for all rooms."""

pytest_plugins = ("tests.postgres", "tests.wheel")
