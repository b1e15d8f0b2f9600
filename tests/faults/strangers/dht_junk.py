"""Fills the names of a run with junk of free keys: those of its members, and that of its operators' heads.

Keys cost nothing. A few of them have connections of their own, over which they bring what is theirs.
"""

import asyncio

from hivemind.dht.routing import DHTID

from tests.faults.strangers import Target
from tests.faults.strangers.dht import VALUE_BYTES, bring, junk, new_keys, operator_of, strangers

_KEYS, _CONNECTIONS = 520, 4
_VALUE_BYTES = (VALUE_BYTES, 1000, 200, 10)  # the smaller ones fill what is left
_PAUSE_S = 2.0


def names_of(run: bytes) -> list[DHTID]:
    """Return the names under which a run's members and its operators' heads are found."""
    return [DHTID.generate(source=f"manta-{run.hex()}-{what}") for what in ("members", "head")]


async def attack(target: Target) -> None:
    """Attack until cancelled."""
    operator, names = operator_of(target), names_of(target.run)
    async with strangers(target, _CONNECTIONS) as found:
        is_first = True
        while True:
            for name in names:
                for value_bytes in _VALUE_BYTES:
                    await bring(found[0][1], operator, junk([name], new_keys(_KEYS), value_bytes), 20)
            for own, node in found:
                await bring(node, operator, junk(names, [own], 2000), 1)
            if is_first:
                print("attacks", flush=True)
            is_first = False
            await asyncio.sleep(_PAUSE_S)
