"""A home of its own for each test: no test reads or writes what belongs to the person who runs it."""

from tests.command import environment, home

__all__ = ["environment", "home"]
