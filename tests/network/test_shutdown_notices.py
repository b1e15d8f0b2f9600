"""What a log says before it stops, and from whom it is believed."""

import asyncio

import pytest

from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.network.shutdown_notices import METHOD, ShutdownNotice, ShutdownNotices, say_shutdown_notice
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.signing import PublicKey, sha256

RUN = sha256(b"run")
LOG, PEER, OTHER, STRANGER = (PublicKey(sha256(b"%d" % number)) for number in range(4))


async def test_all_who_are_connected_are_told_and_those_who_do_not_answer_hold_nobody_up() -> None:
    network, shutdown_notices = MemoryNetwork(), ShutdownNotices([LOG], RUN)
    log = network.endpoint(LOG)
    await shutdown_notices.start(network.endpoint(PEER))
    network.endpoint(OTHER)  # of a version that knows no such call
    log.ways = {PEER: [], OTHER: [], STRANGER: [], LOG: []}
    shutdown_notice = ShutdownNotice(RUN, 0, "a new disk; back at eight")
    assert await say_shutdown_notice(log, shutdown_notice) == 1
    assert await shutdown_notices.next() == (LOG, shutdown_notice)


async def test_nobody_but_the_log_gives_a_shutdown_notice_for_it() -> None:
    network, shutdown_notices = MemoryNetwork(), ShutdownNotices([LOG], RUN)
    await shutdown_notices.start(network.endpoint(PEER))
    for caller, data in (
        (STRANGER, pack(ShutdownNotice(RUN, 1, ""))),
        (LOG, pack(ShutdownNotice(sha256(b"another run"), 1, ""))),
        (LOG, pack((RUN, 1, "two\nlines"))),
        (LOG, pack((RUN, 1, "\x1b[31mred"))),
        (LOG, pack((RUN, 2, ""))),
        (LOG, pack((RUN, 1, "x" * 5000))),
        (LOG, b"\xff"),
    ):
        with pytest.raises(Refused):
            await network.endpoint(caller).call(PEER, METHOD, data, timeout_s=5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await shutdown_notices.next()
