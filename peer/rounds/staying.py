"""A peer of an audited run stays for a while after its last contribution: what audits ask for is drawn a round later (``protocol.audits``).

What nobody showed is not paid. Who cannot stay so long comes back while it may still be asked: its vectors are on the disk.
"""

import asyncio
import contextlib

from peer.rounds.vectors import OwnVectors
from peer.status import StatusBoard
from protocol.rounds import RoundMachine
from swarm import waits

_ROUNDS = 4  # that it may take: what is left of the present one, the one with the beacon, one in which the log asks, and their closing


async def stay(
    vectors: OwnVectors, machine: RoundMachine, board: StatusBoard, changed: asyncio.Event, *, open_ms: int, num_rounds: int, is_away: bool
) -> None:
    """Return once audits had time to ask for what was handed in, or when that takes too long.

    Args:
        vectors: that they may ask for.
        machine: knows the newest round.
        board: is told what is waited for, and what was not awaited.
        changed: is set at each commit.
        open_ms: how long a round is open.
        num_rounds: the run's; no audits look at its last ones.
        is_away: the log cannot be reached: nobody asks, then.
    """

    def is_over() -> bool:
        return machine.newest.round >= min(vectors.asked_by, num_rounds)

    if is_over():
        return
    if not is_away:
        least_s, most_s = waits.ASKED_S
        limit_s = min(most_s, least_s + _ROUNDS * open_ms / 1000)
        board.say(f"handed in; it stays until audits could ask for what that rests on, {limit_s:.0f} s at most (Ctrl-C: leave now)")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not is_over():
                    changed.clear()
                    await changed.wait()
    if not is_over():
        board.say(
            f"audits may still ask for what it handed in last: if they do, that is paid only if this peer is here again "
            f"before round {vectors.kept_until} is over"
        )
