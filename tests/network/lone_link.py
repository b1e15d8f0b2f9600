"""A peer in a program of its own that another one on this host links itself to, and that answers no call.

``python -m tests.network.lone_link RUN OTHER KEY GREETING``, all in hexadecimal: the other's key, its own, and the other's greeting to it.
It prints its own greeting to the other.
"""

import asyncio
import sys

from manta_swarm.network.links import Greeting, Links
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import UNIX
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import PublicKey


async def hang(_caller: PublicKey, _request: bytes) -> bytes:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def stay() -> None:
    """Be linked until something ends this program."""
    run, other, key, greeting = map(bytes.fromhex, sys.argv[1:])
    links = Links(MemoryNetwork().endpoint(key), run, ways=[UNIX])
    await links.start()
    links.learn(PublicKey(other), unpack(Greeting, greeting, max_bytes=4096))
    await links.serve("hang", hang)
    print(pack(links.greeting(PublicKey(other))).hex(), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Be it."""
    asyncio.run(stay())


if __name__ == "__main__":
    main()
