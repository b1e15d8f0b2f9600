"""Attacks a run until it is ended: ``python -m tests.faults.strangers ATTACK ADDRESS RUN [GATEWAY_HOST:PORT]``."""

import asyncio
import importlib
import sys

from tests.faults.strangers import Target


def main() -> None:
    """Start the attack that the command line names; it says ``attacks`` once it is under way, by itself."""
    name, address, run, *gateway = sys.argv[1:]
    host, _, port = gateway[0].rpartition(":") if gateway else ("", "", "0")
    target = Target(address, bytes.fromhex(run), (host, int(port)) if gateway else None)
    asyncio.run(importlib.import_module(f"tests.faults.strangers.{name}").attack(target))


main()
