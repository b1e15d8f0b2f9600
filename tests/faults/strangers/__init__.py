"""Strangers: programs with free keys and one address that attack a run from outside, as anybody can who knows its address.

Each module but ``__main__`` that has an ``attack`` is one attack; tests start it beside a run of real programs, and
``benchmarks/strangers.py`` measures what a run suffers by each.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """What a stranger knows of a run."""

    address: str  # an operator's full multiaddress
    run: bytes
    gateway: tuple[str, int] | None = None  # host and port of a gateway for light contributors
