"""A verdict that one operator of several acknowledged stands in the log, whoever dies: a quorum keeps it, and hands it on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
from protocol.audits import AUDITED, WITHHELD, SignedFinding

from aggregator.operators.messages import VERDICTS, AskVerdicts
from aggregator.operators.writer import Writer
from aggregator.rounds.verdicts import Verdicts
from aggregator.settings.sections import TrustSection
from protocol.encoding import pack
from protocol.errors import Unreachable
from protocol.ledger import Ledger
from protocol.records import entry_of
from protocol.signing import Identity, PublicKey
from swarm.budget import Faults
from swarm.rpc import Refused
from tests.aggregator.operators.four import FOUR, OF_FOUR, Four, Story, until
from tests.aggregator.operators.four import tell as told
from tests.aggregator.real_run import PEERS, everybodys
from tests.audited import finding_of

Tell = Callable[[Story], None]
CONFIG = OF_FOUR.model_copy(update={"trust": TrustSection(mode=AUDITED)})


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Tell a story of four operators."""
    return partial(told, tmp_path, config=CONFIG)


def withheld(ledger: Ledger, auditor: Identity | None = None) -> SignedFinding:
    """Return the word of an auditor, or of an operator that is asked: the first peer shows nothing of its claim in the table before."""
    if auditor is not None:
        return finding_of(ledger, auditor, PEERS[0], WITHHELD)
    asked = next(due.panel for due in ledger.standing.due() if due.claimed.key == PEERS[0].public_key)
    return finding_of(ledger, next(operator for operator in FOUR if operator.public_key in asked), PEERS[0], WITHHELD)


def found(four: Four, place: int) -> set[bytes]:
    """Return the claims on which the log of an operator has findings."""
    return {question.claim for question in four.runs[place].log.ledger.standing.votes}


@contextlib.asynccontextmanager
async def writing(four: Four, place: int, term: int) -> AsyncIterator[tuple[Writer, Verdicts]]:
    """Let an operator write, and take verdicts meanwhile."""
    writer, _ = await four.write(place, term)
    log, endpoint = four.runs[place].log, four.network.endpoints[FOUR[place].public_key]
    verdicts = Verdicts(endpoint, four.waiting[place], lambda: log.ledger, Faults(lambda: 0.0), writer.keep_verdicts)
    await verdicts.start()
    try:
        yield writer, verdicts
    finally:
        writer.end()
        await verdicts.close()


async def commit(four: Four, writer: Writer, place: int, verdicts: Verdicts) -> None:
    """Have a round committed with what waits."""
    found = await verdicts.for_round()
    contributions = everybodys(four.runs[place].log.ledger)
    await writer.keep([(four.runs[place].log.ledger.round + 1, one.kept) for one in contributions])
    await four.commit(writer, place, contributions, found)
    await verdicts.committed(found)


async def hand_in(four: Four, place: int, signed: SignedFinding) -> bytes:
    """Return the answer of an operator to a peer that hands in a verdict."""
    peer = four.network.endpoint(PEERS[0].public_key)
    return await peer.call(PublicKey(FOUR[place].public_key), "verdict", entry_of(signed), timeout_s=60)


def test_what_a_writer_acknowledged_right_before_it_died_for_good_stands_in_the_log(tell: Tell) -> None:
    async def story(four: Four) -> None:
        async with writing(four, 0, 1) as (writer, verdicts):
            for _ in range(2):  # the second one's commit is the first one's beacon
                await commit(four, writer, 0, verdicts)
            await four.until_all_have(2, range(4))
            four.lost = lambda sender, receiver, _method: FOUR[3].public_key in (sender, receiver)
            signed = withheld(four.runs[0].log.ledger)
            assert await hand_in(four, 0, signed) == b""
            assert all(signed.digest in four.waiting[place].stored for place in (1, 2))
        await four.kill(0)
        four.lost = lambda *_: False
        for place in (1, 2):  # both who keep it were away meanwhile
            await four.kill(place)
            await four.start(place)
        assert signed.digest not in four.waiting[3]
        async with writing(four, 3, 2) as (writer, verdicts):
            await until(lambda: signed.digest in four.waiting[3].stored)
            await commit(four, writer, 3, verdicts)
            await four.until_all_have(3, (1, 2, 3))
            assert all(found(four, place) == {signed.open().claim} for place in (1, 2, 3))
            await until(lambda: not any(four.waiting[place].stored for place in (1, 2, 3)))
            await commit(four, writer, 3, verdicts)  # nobody brings it again

    tell(story)


def test_nothing_is_acknowledged_without_a_quorum_and_what_waited_is_told_to_be_brought_to_another(tell: Tell) -> None:
    async def story(four: Four) -> None:
        async with writing(four, 0, 1) as (writer, verdicts):
            for _ in range(2):  # the second one's commit is the first one's beacon
                await commit(four, writer, 0, verdicts)
            await four.until_all_have(2, range(4))
            tried = list[PublicKey]()

            def lost(_sender: PublicKey, receiver: PublicKey, method: str) -> bool:
                is_lost = method == VERDICTS and receiver != FOUR[1].public_key
                tried.extend([receiver] if is_lost else [])
                return is_lost

            four.lost = lost
            signed = withheld(four.runs[0].log.ledger)
            handing_in = asyncio.create_task(hand_in(four, 0, signed))
            await until(lambda: signed.digest in four.waiting[1].stored and len(tried) >= 4)
            assert not handing_in.done()
            writer.end()
            with pytest.raises(Unreachable, match="busy"):
                await handing_in
        four.lost = lambda *_: False
        async with writing(four, 2, 2) as (writer, verdicts):
            assert await hand_in(four, 2, signed) == b""
            await commit(four, writer, 2, verdicts)
            await four.until_all_have(3, range(4))
            assert found(four, 0) == {signed.open().claim}

    tell(story)


def test_who_is_behind_keeps_nothing_yet_and_what_no_log_takes_is_not_kept(tell: Tell) -> None:
    async def story(four: Four) -> None:
        async with writing(four, 0, 1) as (writer, verdicts):
            for _ in range(2):  # the second one's commit is the first one's beacon
                await commit(four, writer, 0, verdicts)
            await four.until_all_have(2, range(4))
            ledger, head = four.runs[0].log.ledger, four.runs[0].log.head
            signed = withheld(ledger)
            unknown = withheld(ledger, Identity(b"\x40" * 32))  # who is no auditor
            operator, fellow = four.network.endpoints[FOUR[0].public_key], PublicKey(FOUR[1].public_key)

            async def ask(size: int, *entries: bytes) -> bytes:
                return await operator.call(fellow, VERDICTS, pack(AskVerdicts(size, entries)), timeout_s=60)

            with pytest.raises(Unreachable, match="busy"):
                await ask(head.size + 1, entry_of(signed))
            with pytest.raises(Refused, match="no verdict"):
                await ask(head.size, four.runs[0].log.entries(head.size - 1, 1)[0])
            assert await ask(head.size, entry_of(unknown), entry_of(signed)) == b""
            assert list(four.waiting[1].stored) == [signed.digest]
            stranger = four.network.endpoint(PEERS[1].public_key)
            with pytest.raises(Refused, match="operators"):
                await stranger.call(fellow, VERDICTS, pack(AskVerdicts(1, (entry_of(signed),))), timeout_s=60)

    tell(story)
