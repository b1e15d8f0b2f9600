"""A node in a program of its own, which says where its sockets are and waits: ``python -m tests.network.lone_node DIR``."""

import asyncio
import sys
from pathlib import Path

from tests.network.nodes import start


async def stay() -> None:
    """Be a node until something ends this program."""
    node = await start(Path(sys.argv[1]), 0)
    print(node._socket_dir, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Be it."""
    asyncio.run(stay())


if __name__ == "__main__":
    main()
