"""A peer holds the log to what it signed: the whole program, against a log in memory that was replaced by another of the same key."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import LogClient
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.sync.consistency_checker import ConsistencyChecker
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import OtherHistory
from manta_swarm.protocol.histories import Departure, Histories, Shown
from tests.clocks import ManualClock
from tests.memory_log import PEERS, MemoryLog, until
from tests.peer.contexts import context_of, progress_in
from tests.peer.scene import Member, Scene

pytestmark = pytest.mark.usefixtures("quick_pauses")


def kept(directory: Path) -> list[Shown]:
    """Return what the proofs show that a peer has kept."""
    files = sorted((directory / "proofs").glob("*.proof"))
    return [unpack(Histories, file.read_bytes(), max_bytes=2**20).check() for file in files]


def with_rounds(log: MemoryLog, count: int = 2) -> MemoryLog:
    """Return a log with so many more rounds, of other contributions than anybody else makes."""
    for seed in range(count):
        log.give(PEERS[3], 100 + seed)
        log.commit()
    return log


async def replaced(scene: Scene, rounds: int = 0) -> None:
    """Put another log of the same run and key in the place of the scene's: with so many rounds, of other contributions."""
    scene.log.go_away()
    await asyncio.sleep(0)  # who waits for its answer gets none
    with_rounds(await MemoryLog(scene.network).start(), rounds)


async def two_rounds(scene: Scene) -> Member:
    """Return a peer that has taken part in two rounds."""
    member = scene.join(0)
    await scene.rounds(2, 1, member)
    return member


async def end_of(member: Member) -> OtherHistory:
    """Return what the peer ended with."""
    with pytest.raises(ExceptionGroup) as caught:
        await member.ends()
    found = caught.value.exceptions[0]
    assert isinstance(found, OtherHistory)
    return found


async def test_of_an_older_log_a_peer_speaks_once_keeps_the_proof_and_goes_on_with_the_whole_one(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    member = await two_rounds(scene)
    await replaced(scene)
    await until(lambda: bool(member.status.log_fault))
    (shown,) = kept(member.store.directory)
    assert (shown.departure, shown.shown.size, shown.round) == (Departure.ROLLED_BACK, 0, 2)
    assert not member.task.done()

    scene.log.come_back()
    await until(lambda: not member.status.log_fault)
    await scene.rounds(1, 1, member)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "an older copy" in line] == [line for line in printed if "has signed for" in line]
    assert len([line for line in printed if "an older copy" in line]) == 1
    assert "the run's log has again all that it signed" in printed


async def test_a_log_that_went_another_way_ends_a_peer_that_was_there_before(scene: Scene) -> None:
    member = await two_rounds(scene)
    await replaced(scene, 4)
    assert "does not prove" in str(await end_of(member))
    (shown,) = kept(member.store.directory)
    assert (shown.departure, shown.round) == (Departure.UNPROVEN, 2)


async def test_a_peer_that_was_started_again_remembers_what_the_log_had_signed(scene: Scene) -> None:
    member = await two_rounds(scene)
    await member.leaves()
    await replaced(scene, 1)
    again = scene.join(0)
    await until(lambda: bool(again.status.log_fault))
    assert again.loop.machine.held is None  # it takes nothing from such a log
    assert not again.worker.microbatches
    scene.log.come_back()
    await again.reaches(2)


async def test_a_neighbour_that_follows_another_history_proves_it(scene: Scene) -> None:
    member = await two_rounds(scene)
    other = with_rounds(MemoryLog(MemoryNetwork()))
    neighbour = scene.network.endpoint(PEERS[2].public_key)
    with pytest.raises(Refused, match="goes two ways"):
        await neighbour.call(member.key, "commit", pack(other.receipt()), timeout_s=30)
    assert "goes two ways" in str(await end_of(member))
    (shown,) = kept(member.store.directory)
    assert shown.departure is Departure.FORKED


async def test_an_older_log_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    network = MemoryNetwork()
    log = await MemoryLog(network).start()
    log.give(PEERS[1])
    log.commit()
    store, clock = PeerStore(tmp_path), ManualClock()
    client = LogClient(network.endpoint(PEERS[0].public_key), log.manifest, log.signed.run)
    status = PeerStatus("peer", "", "", "test", "here", "cpu", num_rounds=100)
    live_status = LiveStatus(store, status)
    context = context_of(network.endpoint(PEERS[0].public_key), PEERS[0], log.signed, live_status, log=client, clock=clock)
    checker = ConsistencyChecker(context, progress_in(context))
    assert await checker.compare()  # it knows nothing yet
    checker.remember((await client.next_update(client.operator, 0, left_ms=None)).proven_commit)  # type: ignore[arg-type]
    assert await checker.compare()
    await MemoryLog(network).start()
    assert not await checker.compare()
    clock.advance(timeouts.ROLLED_BACK_S)
    checker.check_rollback_time()
    clock.advance(1)
    with pytest.raises(OtherHistory, match=r"older copy; the proof is in .*\.proof"):
        checker.check_rollback_time()
