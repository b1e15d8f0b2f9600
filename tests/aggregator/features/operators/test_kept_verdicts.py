"""A verdict that one operator of several acknowledged stands in the log, whoever dies: a quorum keeps it, and hands it on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from manta_swarm.aggregator.features.operators.leader import Leader
from manta_swarm.aggregator.features.operators.service import ACCEPT
from manta_swarm.aggregator.features.operators.verdicts import VERDICTS, AskVerdicts
from manta_swarm.aggregator.intake.verdicts import Verdicts
from manta_swarm.aggregator.settings.sections import TrustSection
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.auditing import VERDICT
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from manta_swarm.protocol.verdicts import Settlement, Verdict
from tests.aggregator.features.operators.four import FOUR, OF_FOUR, Four, of_four
from tests.aggregator.real_run import PEERS
from tests.audited import AUDITORS, verdict_of
from tests.clocks import ManualClock
from tests.memory_log import until

TRUST = TrustSection(
    mode="audited",
    auditors=tuple(peer_name(each.public_key) for each in AUDITORS),
    audit_percent=100,
    newcomer_percent=100,
    kept_rounds=1,
    pending_rounds=6,
    settle_s=100,
)
CONFIG = OF_FOUR.model_copy(update={"trust": TRUST})
ROUNDS = 3
BEACON = 2  # rounds: the second one's commit is the first one's beacon
SHORT = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"rounds": ROUNDS})})


def good(ledger: Ledger, auditor: Identity = AUDITORS[0], *, peer: Identity = PEERS[0], round_: int = 1) -> Signed[Verdict]:
    """Return the word of an auditor that what lists the claim of a peer, by default of the first one in round 1, is good."""
    return verdict_of(ledger, peer, auditor=auditor, round=round_)


def found(four: Four, place: int) -> set[bytes]:
    """Return the auditors whose verdicts on the contributions of round 1 the log of an operator has."""
    audits = four.runs[place].log.ledger.reputation.audits.values()
    return {verdict.auditor for audit in audits if audit.round == 1 for verdict in audit.verdicts}


@contextlib.asynccontextmanager
async def writing(four: Four, place: int, term: int, rounds: int = 0) -> AsyncIterator[tuple[Leader, Verdicts]]:
    """Let an operator write, and take verdicts meanwhile, once all have so many rounds."""
    leader, _ = await four.write(place, term)
    endpoint = four.network.endpoints[FOUR[place].public_key]
    verdicts = Verdicts(replace(four.contexts[place], endpoint=endpoint), CallerFaults(ManualClock()), asyncio.Event(), leader)
    await verdicts.start()
    try:
        for _ in range(rounds):
            await commit(four, leader, place, verdicts)
        await four.until_all_have(rounds, range(4) if rounds else ())
        for settling in four.settling.values():
            settling.look()
        yield leader, verdicts
    finally:
        leader.end()
        await verdicts.close()


async def commit(four: Four, leader: Leader, place: int, verdicts: Verdicts) -> None:
    """Have a round committed with what waits."""
    found = await verdicts.for_round()
    await four.round(leader, place, found)
    await verdicts.committed(found)


async def hand_in(four: Four, place: int, signed: Signed[Verdict]) -> bytes:
    """Return the answer of an operator to a peer that hands in a verdict."""
    peer = four.network.endpoint(PEERS[0].public_key)
    return await peer.call(PublicKey(FOUR[place].public_key), VERDICT, pack(signed), timeout_s=60)


@of_four(CONFIG)
async def test_what_a_leader_acknowledged_right_before_it_died_for_good_stands_in_the_log(four: Four) -> None:
    async with writing(four, 0, 1, BEACON) as (leader, verdicts):
        four.lost = lambda sender, receiver, _method: FOUR[3].public_key in (sender, receiver)
        signed = good(four.runs[0].log.ledger)
        assert await hand_in(four, 0, signed) == b""
        assert all(signed.digest in four.waiting[place].stored for place in (1, 2))
    await four.kill(0)
    four.lost = lambda *_: False
    for place in (1, 2):  # both who keep it were away meanwhile
        await four.kill(place)
        await four.start(place)
    assert signed.digest not in four.waiting[3]
    async with writing(four, 3, 2) as (leader, verdicts):
        await until(lambda: signed.digest in four.waiting[3].stored)
        await commit(four, leader, 3, verdicts)
        await four.until_all_have(3, (1, 2, 3))
        assert all(found(four, place) == {AUDITORS[0].public_key} for place in (1, 2, 3))
        await until(lambda: not any(four.waiting[place].stored for place in (1, 2, 3)))
        await commit(four, leader, 3, verdicts)  # nobody brings it again


@of_four(CONFIG)
async def test_nothing_is_acknowledged_without_a_quorum_and_what_waited_is_told_to_be_brought_to_another(four: Four) -> None:
    async with writing(four, 0, 1, BEACON) as (leader, verdicts):
        four.lost = lambda _sender, receiver, method: method == VERDICTS and receiver != FOUR[1].public_key
        signed = good(four.runs[0].log.ledger)
        handing_in = asyncio.create_task(hand_in(four, 0, signed))
        await until(lambda: signed.digest in four.waiting[1].stored)
        await four.until_asked_again(VERDICTS, (2, 3))
        assert not handing_in.done()
        leader.end()
        with pytest.raises(Unreachable, match="busy"):
            await handing_in
    four.lost = lambda *_: False
    async with writing(four, 2, 2) as (leader, verdicts):
        assert await hand_in(four, 2, signed) == b""
        await commit(four, leader, 2, verdicts)
        await four.until_all_have(3, range(4))
        assert found(four, 0) == {AUDITORS[0].public_key}


@of_four(CONFIG)
async def test_who_is_behind_keeps_nothing_yet_and_what_no_log_takes_is_not_kept(four: Four) -> None:
    async with writing(four, 0, 1, BEACON):
        ledger, head = four.runs[0].log.ledger, four.runs[0].log.head
        signed = good(ledger)
        unknown = good(ledger, Identity(b"\x40" * 32))  # who is no auditor
        operator, follower = four.network.endpoints[FOUR[0].public_key], PublicKey(FOUR[1].public_key)

        async def ask(size: int, *entries: bytes) -> bytes:
            return await operator.call(follower, VERDICTS, pack(AskVerdicts(size, entries, ())), timeout_s=60)

        with pytest.raises(Unreachable, match="busy"):
            await ask(head.size + 1, entry_of(signed))
        with pytest.raises(Refused, match="no verdict"):
            await ask(head.size, four.runs[0].log.entries(head.size - 1, 1)[0])
        assert await ask(head.size, entry_of(unknown), entry_of(signed)) == b""
        assert list(four.waiting[1].stored) == [signed.digest]
        stranger = four.network.endpoint(PEERS[1].public_key)
        with pytest.raises(Refused, match="operators"):
            await stranger.call(follower, VERDICTS, pack(AskVerdicts(1, (entry_of(signed),), ())), timeout_s=60)


@of_four(CONFIG)
async def test_a_leader_that_others_do_not_listen_to_any_more_acknowledges_nothing(four: Four) -> None:
    async with writing(four, 0, 1, BEACON):
        signed = good(four.runs[0].log.ledger)
        for place in (1, 2, 3):
            await four.own_operators[place].listen_to(Leader(four.own_operators[3], 2).ballot)
        with pytest.raises(Unreachable, match="busy"):
            await hand_in(four, 0, signed)
        assert all(signed.digest not in four.waiting[place].stored for place in (1, 2, 3))


async def settle(four: Four, leader: Leader, place: int, verdicts: Verdicts) -> list[Signed[Verdict]]:
    """Have the run settled, as a leader does; return what stands before that."""
    found = await verdicts.for_settlement()
    ledger = four.runs[place].log.ledger
    async with asyncio.timeout(60):
        await leader.write([*map(entry_of, found), entry_of(Settlement(ledger.run, ledger.last_commit))])
    await verdicts.committed(found)
    return found


@of_four(SHORT)
async def test_what_was_acknowledged_is_before_the_settlement_whoever_writes_that(four: Four) -> None:
    async with writing(four, 0, 1, ROUNDS) as (leader, verdicts):
        four.lost = lambda sender, receiver, _method: FOUR[3].public_key in (sender, receiver)
        signed = [good(four.runs[0].log.ledger, auditor) for auditor in AUDITORS]
        for each in signed:
            await hand_in(four, 0, each)
    await four.kill(0)
    four.lost = lambda *_: False
    for place in range(1, 4):
        four.handing_on[place].cancel()  # nobody hands anything on: the leader asks
    async with writing(four, 3, 2) as (leader, verdicts):
        four.clock.advance(TRUST.settle_s)
        assert {each.digest for each in await settle(four, leader, 3, verdicts)} == {each.digest for each in signed}
        await until(lambda: all(four.runs[place].log.ledger.settled for place in (1, 2, 3)))
        assert len(four.heads((1, 2, 3))) == 1


@of_four(SHORT)
async def test_nobody_settles_before_the_time_where_verdicts_lack(four: Four) -> None:
    async with writing(four, 0, 1, ROUNDS) as (leader, verdicts):
        settling = asyncio.create_task(settle(four, leader, 0, verdicts))
        await four.until_asked_again(ACCEPT, (1, 2, 3))
        assert not any(four.runs[place].log.ledger.settled for place in range(4))
        four.clock.advance(TRUST.settle_s)
        assert await settling == []
        await until(lambda: all(four.runs[place].log.ledger.settled for place in range(4)))


@of_four(SHORT)
async def test_where_all_is_judged_nobody_waits(four: Four) -> None:
    async with writing(four, 0, 1, ROUNDS) as (leader, verdicts):
        ledger = four.runs[0].log.ledger
        for audit in ledger.reputation.audits.values():
            (auditor,) = [each for each in AUDITORS if each.public_key == audit.auditor]
            (peer,) = [each for each in PEERS if each.public_key in audit.work.keys]
            await hand_in(four, 0, good(ledger, auditor, peer=peer, round_=audit.round))
        assert four.settling[1].left_s([]) == TRUST.settle_s
        assert four.settling[0].left_s(verdicts.opened()) == 0
        assert len(await settle(four, leader, 0, verdicts)) == len(PEERS) * (ROUNDS - 1)
        await until(lambda: all(four.runs[place].log.ledger.settled for place in range(4)))
        assert sum(four.runs[3].log.ledger.credits().values()) > 0
