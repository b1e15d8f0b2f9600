"""Rounds of a whole aggregator in memory: headers and bodies in, inclusion promises and commits out; and a disk that refuses."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import manta_swarm.aggregator.commit.commits
from manta_swarm.aggregator.intake.admissions import signed_revocation
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.automl.training.update import state_digest
from manta_swarm.network.blobs import AskPiece
from manta_swarm.network.log_client import HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.admission import PEER
from manta_swarm.protocol.closing import Stage
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import OwnFault, StorageError
from manta_swarm.protocol.records import Header, InclusionPromise, entry_of, open_entry
from manta_swarm.protocol.signing import peer_name
from tests.aggregator.at_work import GRACE_MS, OPEN_MS, Aggregator, World
from tests.aggregator.real_run import CONFIG, OPERATOR, PEERS, commit, everybodys, made, made_together, opened
from tests.contributions import PEERS as MANY_PEERS

A, B, C = PEERS
LISTED = CONFIG.model_copy(update={"admission": AdmissionSection(how="list", peers=tuple(peer_name(peer.public_key) for peer in PEERS))})
SHORT = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"rounds": 2})})


def listed_in(log: Aggregator, round_: int) -> list[bytes]:
    return [one.contribution for one in log.ledger.table_at(round_) or ()]


async def test_what_everybody_hands_in_becomes_a_commit_that_all_who_wait_are_told(tmp_path: Path, world: World) -> None:
    log = await world.start()
    contributions = everybodys(log.ledger)
    client = log.client(A)
    waiting = asyncio.create_task(client.next_update(client.operator, 0, left_ms=OPEN_MS))
    for one in contributions:
        assert await log.inclusion_promise(one) == InclusionPromise(log.ledger.run, 1, one.digest)
    log.pass_time(OPEN_MS - 1)
    await asyncio.sleep(0)
    assert (log.ledger.round, waiting.done()) == (0, False)
    log.pass_time(1)
    told = await waiting
    assert told.proven_commit is not None
    assert told.counted is not None
    assert (told.counted.digest, told.left_ms) == (contributions[0].digest, log.ledger.open_ms)
    entry = told.proven_commit.proven.round
    assert entry == log.ledger.newest
    weighed = await client.weighed(entry, client.operator)
    assert [one.body for one in weighed] == [one.header.contribution.open().body for one in contributions]
    assert all(one.clipped == one.weight for one in weighed)  # nobody is clipped in the first round
    for one in contributions:
        found = await log.client(one.peer).counted(1)
        assert found is not None
        assert found.digest == one.digest
        assert found.contribution == one.header.contribution.open()
    by_hand = opened(tmp_path / "by hand")  # the same round without a network comes to the same bytes
    with by_hand.log:
        commit(by_hand, contributions)
        assert by_hand.log.entries(0, 100) == log.run.log.entries(0, 100)


async def test_rounds_follow_each_other_to_the_runs_end_and_then_nothing_is_taken(tmp_path: Path) -> None:
    async with World(tmp_path / "aggregator", SHORT) as world:
        log = await world.start()
        for number in (1, 2):
            late, last = made(log.ledger, MANY_PEERS[3]), made(log.ledger, A)
            await log.everybodys_round()
            assert log.ledger.round == number
            assert log.run.state_keeper.state is not None
            assert state_digest(log.run.state_keeper.state) == log.ledger.state
        for _ in range(2):
            await asyncio.wait_for(log.working, 60)  # it ended by itself
            client = log.client(A)
            assert (await client.next_update(client.operator, 2, left_ms=OPEN_MS)).proven_commit is None
            assert (await log.hand_in(last)).status is HandIn.LISTED
            with pytest.raises(Refused, match="finished"):
                await log.hand_in(late)
            log = await world.restart()


async def test_a_cohorts_contribution_stands_in_the_log_and_not_what_its_member_handed_in_beside_it(world: World) -> None:
    log = await world.start()
    whole, alone, other = made_together(log.ledger, [B, A]), made(log.ledger, A, founder=B.public_key), made(log.ledger, C)
    for one in (alone, whole, other):
        await log.inclusion_promise(one)
    await log.finish_round()
    assert set(listed_in(log, 1)) == {whole.digest, other.digest}
    records = [open_entry(entry) for entry in log.run.log.entries(0, 100)]
    assert sum(len(record.claims) for record in records if isinstance(record, Header)) == 3
    for peer in (A, B):
        found = await log.client(peer).counted(1)
        assert found is not None
        assert found.contribution == whole.header.contribution.open()
    assert (await log.hand_in(alone)).status is HandIn.LISTED
    await log.inclusion_promise(made(log.ledger, A))  # and goes on as it likes
    await log.finish_round()
    await log.commits.close()
    assert replay_directory(log.directory).rounds == 2
    assert len(log.run.bodies.read(1)) == 3  # what had an inclusion promise stays as long as the others


async def test_bodies_are_shown_to_nobody_before_the_commit(world: World) -> None:
    log = await world.start()
    one = made(log.ledger, A)
    root = one.header.contribution.open().body
    await log.inclusion_promise(one)
    with pytest.raises(Refused, match="not here"):
        await log.call(B, "blob", pack(AskPiece(root, 0)))
    await log.finish_round()
    assert await log.call(B, "blob", pack(AskPiece(root, 0))) == one.body
    entry = log.ledger.newest
    assert entry is not None
    for each in (entry.mean, entry.state):
        assert await log.call(B, "blob", pack(AskPiece(each, 0)))


# Time.


async def test_after_its_time_a_round_closes_as_soon_as_all_are_in_whom_it_waits_for(world: World) -> None:
    log = await world.start()
    await log.everybodys_round()
    contributions = everybodys(log.ledger)
    await log.inclusion_promise(contributions[0])
    for one in contributions[1:]:
        assert (await log.header(one)).status == HandIn.SEND_BODY
    log.pass_time(log.ledger.open_ms)
    await log.inclusion_promise(contributions[1])
    assert log.ledger.round == 1
    await log.hand_in(contributions[2])
    await log.round(2)  # though no more time went by
    assert listed_in(log, 2) == [one.digest for one in contributions]


async def test_the_arrival_of_a_body_counts_and_not_the_time_that_its_sync_takes(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    log = await world.start()
    first, second = made(log.ledger, A), made(log.ledger, B)
    await log.inclusion_promise(first)
    lets, append = threading.Event(), log.run.bodies.append
    monkeypatch.setattr(log.run.bodies, "append", lambda kept: (lets.wait(60), append(kept)))
    computed, after_table, commit = threading.Event(), log.run.state_keeper.after_table, log.run.log.commit
    monkeypatch.setattr(log.run.state_keeper, "after_table", lambda *table: (after_table(*table), computed.set())[0])
    were_stored: list[bool] = []  # at each commit
    monkeypatch.setattr(log.run.log, "commit", lambda entries: (were_stored.append(lets.is_set()), commit(entries)))
    handing_in = asyncio.create_task(log.inclusion_promise(second))
    await log.until(lambda: log.closing.is_good(second.digest))
    early = made(log.ledger, C)
    log.pass_time(OPEN_MS + GRACE_MS)
    await log.until(lambda: log.closing.stage is Stage.CLOSED)
    assert (await log.header(early)).round == 2
    await log.until(computed.is_set)
    await log.commits._compute.do(len, ())  # what was computed is back
    for _ in range(10):
        await asyncio.sleep(0)
    assert (log.ledger.round, were_stored, handing_in.done()) == (0, [], False)  # it waits for the disk, however long that takes
    lets.set()
    assert (await handing_in).round == 1
    await log.round(1)
    assert were_stored == [True]
    assert listed_in(log, 1) == [first.digest, second.digest]
    await log.inclusion_promise(early)
    await log.finish_round()
    assert listed_in(log, 2) == [early.digest]


async def test_an_entry_that_is_being_written_while_a_round_is_computed_stands_before_the_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with World(tmp_path / "aggregator", LISTED) as world:
        log = await world.start()
        one = made(log.ledger, A)
        await log.inclusion_promise(one)
        lets, computed, after_table, commit = threading.Event(), threading.Event(), log.run.state_keeper.after_table, log.run.log.commit
        monkeypatch.setattr(log.run.state_keeper, "after_table", lambda *table: (after_table(*table), computed.set())[0])
        monkeypatch.setattr(log.run.log, "commit", lambda entries: (lets.wait(60), commit(entries)))
        revocation = entry_of(signed_revocation(log.ledger, OPERATOR, PEER, C.public_key))
        revoking = asyncio.create_task(log.commits.append(revocation))
        log.pass_time(OPEN_MS)
        await log.until(computed.is_set)
        await log.commits._compute.do(len, ())  # what was computed is back
        for _ in range(10):
            await asyncio.sleep(0)
        lets.set()
        await revoking
        await log.round(1)
        assert log.run.log.entries(0, 2) == [revocation, entry_of(one.header)]


# The order, and a disk that refuses.


async def test_everything_is_on_the_disk_before_anybody_relies_on_it(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    log = await world.start()
    happened: list[str] = []

    def note(owner: Any, name: str, says: str, *, first: bool = False) -> None:
        before = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            if first:
                happened.append(says)
            result = before(*args, **kwargs)
            if not first:
                happened.append(says)
            return result

        monkeypatch.setattr(owner, name, noting)

    note(log.run.bodies, "append", "body stored")
    note(log.intake, "_inclusion_promise", "inclusion_promise", first=True)
    note(log.run.log, "_store", "transaction")
    note(log.run.log, "_sign", "head")
    note(log.closing, "open", "next round open")
    note(log.news, "committed", "told", first=True)
    note(log.run.state_keeper, "save", "snapshot", first=True)
    note(log.run.bodies, "prune", "pruned", first=True)
    await log.inclusion_promise(made(log.ledger, A))
    await log.finish_round()
    await log.commits.close()
    assert happened == ["body stored", "inclusion_promise", "transaction", "head", "next round open", "told", "snapshot", "pruned"]


def refuse(*_: object) -> None:
    raise StorageError("no room; make some")


@pytest.mark.parametrize(
    ("part", "is_committed"),
    [(("log", "_store"), False), (("log", "_sign"), False), (("state_keeper", "save"), True)],
    ids=lambda part: part[1] if isinstance(part, tuple) else None,
)
async def test_a_disk_that_refuses_stops_the_program(
    monkeypatch: pytest.MonkeyPatch, part: tuple[str, str], is_committed: bool, world: World
) -> None:
    log = await world.start()
    contributions = everybodys(log.ledger)
    for one in contributions:
        await log.inclusion_promise(one)
    owner, name = part
    monkeypatch.setattr(getattr(log.run, owner), name, refuse)
    log.pass_time(OPEN_MS + GRACE_MS)
    error = await asyncio.wait_for(asyncio.shield(log.context.broken.told), 60)
    assert str(error) == "no room; make some"
    assert (log.ledger.round, log.news._round) == ((1, 1) if is_committed else (0, 0))
    assert (await log.header(made(log.ledger, A, seed=5))).status == HandIn.LATER
    if not is_committed:
        with pytest.raises(StorageError, match="no room"):
            await log.working
    monkeypatch.undo()
    world.clock = type(world.clock)()
    again = await world.restart()
    assert again.ledger.round == (1 if is_committed or name == "_sign" else 0)
    if again.ledger.round == 0:
        await again.finish_round()
    assert listed_in(again, 1) == [one.digest for one in contributions]
    await again.everybodys_round()


async def test_a_machine_that_computes_wrongly_commits_nothing(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    log = await world.start()
    await log.inclusion_promise(made(log.ledger, A))

    def fail(*_: object) -> None:
        raise OwnFault("this machine is wrong")

    monkeypatch.setattr(log.run.state_keeper, "after_table", fail)
    log.pass_time(OPEN_MS + GRACE_MS)
    with pytest.raises(OwnFault, match="this machine is wrong"):
        await log.working
    assert (log.ledger.round, log.ledger.size) == (0, 0)


async def test_rounds_wait_for_a_disk_that_is_slower_than_they_are(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    log = await world.start()
    lets, save = threading.Semaphore(0), log.run.state_keeper.save
    monkeypatch.setattr(log.run.state_keeper, "save", lambda *args: (lets.acquire(timeout=60), save(*args)))
    for _ in range(3):
        await log.everybodys_round()
    assert len(log.commits._saving) == manta_swarm.aggregator.commit.commits._MAX_SAVING + 1
    for one in everybodys(log.ledger):  # a fourth round may come in, but is not committed
        await log.inclusion_promise(one)
    log.pass_time(log.ledger.open_ms + GRACE_MS)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (log.ledger.round, log.closing.stage) == (3, Stage.OPEN)  # nobody has looked at it
    lets.release(4)
    await log.round(4)
    await log.commits.close()
    assert log.run.state_keeper.snapshots.rounds() == [0, 2, 3, 4]
