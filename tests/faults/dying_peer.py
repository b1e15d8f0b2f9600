"""A real peer that is gone, as by ``kill -9``, in the middle of a round's reduce: ``python dying_peer.py ROUND join ...``."""

import os
import signal
import sys

from peer.cli import main
from swarm.allreduce import Reduction

ROUND = int(sys.argv.pop(1))
send_part = Reduction._call
seen_attempts: set[bytes] = set()


async def send_part_or_die(self: Reduction, to: bytes, part: bytes) -> None:
    """Send parts until the attempt after ``ROUND`` others; then end without a word, one part on its way."""
    seen_attempts.add(self._attempt)
    if len(seen_attempts) > ROUND:
        os.kill(os.getpid(), signal.SIGKILL)
    await send_part(self, to, part)  # type: ignore[arg-type]


Reduction._call = send_part_or_die  # type: ignore[method-assign,assignment]
main()
