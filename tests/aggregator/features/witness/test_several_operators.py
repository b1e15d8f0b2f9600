"""A witness of a log with several operators follows whichever of them is there, and believes no one of them alone."""

import asyncio
from pathlib import Path

from manta_swarm.aggregator.features.witness.program import Witness
from manta_swarm.aggregator.features.witness.rule import WitnessMemory
from manta_swarm.network.log_proofs import Consistency, Cosigned
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.consoles import Lines
from tests.memory_log import OPERATOR, PEERS, MemoryLog, until

OPERATORS = [OPERATOR, *(Identity(bytes([seed]) * 32) for seed in (2, 3))]
WITNESS = Identity(b"\x77" * 32)


async def test_it_goes_on_where_operators_are_killed_or_prove_nothing(tmp_path: Path) -> None:
    network = MemoryNetwork()
    log = await MemoryLog(network, OPERATORS).start()
    taken: list[tuple[PublicKey, int]] = []
    said = Lines()

    for key, endpoint in log.endpoints.items():

        async def on_cosigned(_caller: PublicKey, request: bytes, key: PublicKey = key) -> bytes:
            taken.append((key, unpack(Cosigned, request, max_bytes=256).size))
            return b""

        await endpoint.serve("cosigned", on_cosigned)

    def commit() -> int:
        log.give(PEERS[0], log.ledger.round)
        log.commit()
        return log._tree.size

    memory = WitnessMemory(tmp_path, WITNESS, log.signed)
    witness = Witness(network.endpoint(WITNESS.public_key), memory, tmp_path, said)
    task = asyncio.create_task(witness.follow())
    size = commit()
    await until(lambda: size in [each for _, each in taken])
    first, second, third = witness._log.line.in_turn

    async def nothing(_caller: PublicKey, _request: bytes) -> bytes:
        return pack(Consistency((bytes(32),)))

    await log.endpoints[first].serve("consistency", nothing)
    size = commit()
    await until(lambda: (second, size) in taken)
    log.go_away(second)
    size = commit()
    await until(lambda: (third, size) in taken)
    assert memory.head.size == size
    assert not task.done()
    assert not (tmp_path / "proofs").exists()
    task.cancel()
    await asyncio.wait([task])
    for key in log.endpoints:
        log.go_away(key)
