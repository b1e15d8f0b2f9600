"""What auditors hand in between rounds: on the disk before anybody hears so, and in the log with the next round, or the settlement."""

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manta_swarm.aggregator.commit.deciding import LoneDecider
from manta_swarm.aggregator.intake import verdicts as verdicts_module
from manta_swarm.aggregator.intake import waiting as waiting_module
from manta_swarm.aggregator.intake.verdicts import Verdicts
from manta_swarm.aggregator.intake.waiting import Waiting
from manta_swarm.aggregator.log.contents import WAITING
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rates import FAULTS_FORGIVEN, CallerFaults
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.auditing import VERDICT
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import LedgerError, SignatureError, StorageError
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import Outcome, Verdict
from tests.aggregator.service import CountedEvent
from tests.audited import AUDITORS, OPERATOR, audited_ledger, go_on, settle, verdict_of
from tests.clocks import ManualClock
from tests.contributions import PEERS, header_of

A, B = PEERS[:2]
FIRST, SECOND = AUDITORS[:2]


class Service:
    """A log's verdicts, and everybody who might call."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / WAITING
        self.ledger = audited_ledger(num_rounds=8, auditors=2)
        for _ in range(2):
            go_on(self.ledger, [A, B])
        self.network = MemoryNetwork()
        self.stopped: list[BaseException] = []
        self.endpoint: MemoryEndpoint = self.network.endpoint(OPERATOR.public_key)
        self.changes = 0
        self.verdicts: Verdicts
        self.waiting: Waiting

    def begin(self) -> None:
        """Begin, as a start of the program does."""
        self.waiting = Waiting(self.path.parent, self)
        context: Any = SimpleNamespace(endpoint=self.endpoint, waiting=self.waiting, ledger=self.ledger)
        self.decider = LoneDecider(None, None)  # type: ignore[arg-type]
        self.verdicts = Verdicts(context, CallerFaults(ManualClock()), CountedEvent(self), self.decider)

    async def __aenter__(self) -> "Service":
        self.begin()
        await self.verdicts.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.end()

    def stop(self, error: BaseException | None) -> None:
        """Take the place of the program's ``Broken``."""
        assert error is not None
        self.stopped.append(error)

    async def end(self) -> None:
        """End, as a stop of the program does."""
        await self.verdicts.close()
        await self.waiting.close()

    async def call(self, signed: Signed[Verdict] | bytes, by: Any = FIRST) -> bytes:
        """Return the answer to a call."""
        request = signed if isinstance(signed, bytes) else pack(signed)
        caller = self.network.endpoints.get(by.public_key) or self.network.endpoint(by.public_key)
        return await caller.call(PublicKey(OPERATOR.public_key), VERDICT, request, timeout_s=20)

    async def again(self) -> None:
        """Kill the program, and start it again on the same disk."""
        await self.end()
        self.begin()

    async def commit(self) -> list[Signed[Verdict]]:
        """Commit a round with what waits; return that."""
        found = await self.verdicts.for_round()
        go_on(self.ledger, [A, B], found)
        await self.verdicts.committed(found)
        return found


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def in_order(verdicts: Sequence[Signed[Verdict]]) -> list[Signed[Verdict]]:
    return sorted(verdicts, key=lambda each: each.digest)


async def test_what_was_taken_is_there_after_a_kill_and_in_the_next_round(service: Service) -> None:
    found = in_order([verdict_of(service.ledger, A, auditor=each) for each in (FIRST, SECOND)])
    assert await asyncio.gather(*(service.call(each) for each in found)) == [b"", b""]
    assert service.changes == 2
    assert await service.call(found[0]) == b""  # the same again is welcome
    await service.again()
    assert await service.verdicts.for_round() == found
    assert await service.commit() == found
    assert service.ledger.reputation.good[A.public_key] == 1
    assert service.path.stat().st_size == 0
    assert await service.commit() == []
    await service.verdicts.hand_in(found[0])  # who did not hear that it was taken says it again, though the log has it
    await service.again()
    assert await service.verdicts.for_round() == []


async def test_what_the_log_has_already_is_not_brought_again_after_a_kill_before_it_was_forgotten(service: Service) -> None:
    await service.verdicts.hand_in(verdict_of(service.ledger, A))
    found = await service.verdicts.for_round()
    go_on(service.ledger, [A, B], found)  # and then the program dies
    await service.again()
    assert await service.verdicts.for_round() == []


async def test_what_is_refused_says_why_and_leaves_nothing(service: Service) -> None:
    with pytest.raises(LedgerError, match="no named auditor"):
        await service.verdicts.hand_in(verdict_of(service.ledger, A, auditor=B))
    with pytest.raises(LedgerError, match="may still come"):
        await service.verdicts.hand_in(verdict_of(service.ledger, A, Outcome.DEMOTED))
    signed = verdict_of(service.ledger, A)
    with pytest.raises(SignatureError):
        await service.verdicts.hand_in(Signed(Verdict, signed.payload, bytes(64)))
    header = pack(header_of(service.ledger, A))
    for request, reason in ((b"junk", "CBOR|cut"), (bytes(5000), "CBOR|bytes"), (pack(signed)[:-1], "cut"), (header, ".")):
        with pytest.raises(Refused, match=reason):
            await service.call(request, B)
    assert not service.path.exists()
    for _ in range(FAULTS_FORGIVEN):
        with pytest.raises(Refused, match=r"CBOR|cut"):
            await service.call(b"junk", A)
    with pytest.raises(Refused, match=r"CBOR|cut"):
        await service.call(b"junk", A)
    with pytest.raises(Refused, match="later"):
        await service.call(signed, A)
    assert await service.call(signed) == b""


async def test_an_auditor_says_one_thing_of_a_contribution_whatever_waits(service: Service) -> None:
    await service.call(verdict_of(service.ledger, A))
    with pytest.raises(Refused, match="another verdict"):
        await service.call(verdict_of(service.ledger, A, Outcome.VOID))
    await service.call(verdict_of(service.ledger, B, Outcome.VOID))
    assert len(await service.commit()) == 2


async def test_what_waits_is_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts_module, "MAX_VERDICTS", 2)
    go_on(service.ledger, [A, B])
    for peer, round_ in ((A, 1), (B, 1), (A, 2), (B, 2)):
        await service.verdicts.hand_in(verdict_of(service.ledger, peer, round=round_))
    with pytest.raises(NotTaken, match="too many"):
        await service.verdicts.hand_in(verdict_of(service.ledger, A, auditor=SECOND))
    first = await service.commit()
    assert len(first) == 2  # a round's worth
    second = await service.commit()
    assert len(second) == 2
    assert set(first).isdisjoint(second)
    assert await service.commit() == []


async def test_what_is_not_audited_any_more_is_dropped(service: Service) -> None:
    late = verdict_of(service.ledger, A)
    await service.verdicts.hand_in(late)
    while late.open().contribution in service.ledger.reputation.audits:
        go_on(service.ledger, [A, B])
    assert await service.commit() == []
    with pytest.raises(LedgerError, match="not any more"):
        await service.verdicts.hand_in(late)


async def test_after_the_last_round_verdicts_are_taken_until_the_run_is_settled(service: Service) -> None:
    while not service.ledger.finished:
        go_on(service.ledger, [A, B])
    mine, others = verdict_of(service.ledger, A), verdict_of(service.ledger, A, auditor=SECOND)
    await service.call(mine)

    async def of_others() -> Sequence[Signed[Verdict]]:
        return [others, mine]

    service.decider.waiting_verdicts = of_others  # type: ignore[method-assign]
    found = await service.verdicts.for_settlement()
    assert found == in_order([mine, others])
    with pytest.raises(Refused, match="settled"):
        await service.call(verdict_of(service.ledger, B))
    await service.call(mine)  # which is taken
    settle(service.ledger, found)
    await service.verdicts.committed(found)
    assert service.path.stat().st_size == 0
    await service.again()
    await service.verdicts.start()
    with pytest.raises(LedgerError, match="settled"):
        service.ledger.check_verdict(mine)
    with pytest.raises(Refused, match="settled"):
        await service.call(mine)


async def test_what_is_on_its_way_to_the_disk_is_in_the_settlement(service: Service) -> None:
    while not service.ledger.finished:
        go_on(service.ledger, [A, B])
    signed = verdict_of(service.ledger, A)
    calling = asyncio.create_task(service.call(signed))
    for _ in range(5):
        await asyncio.sleep(0)
    assert signed.digest in service.waiting
    assert await service.verdicts.for_settlement() == [signed]
    assert await calling == b""


# The disk.


@pytest.fixture
def written(service: Service) -> list[Signed[Verdict]]:
    """Verdicts in the service's file, each synced by itself."""
    found = [verdict_of(service.ledger, A, auditor=each) for each in (FIRST, SECOND)]

    async def hand_in() -> None:
        async with service:
            for each in found:
                await service.verdicts.hand_in(each)

    asyncio.run(hand_in())
    return found


async def waiting(service: Service) -> list[Signed[Verdict]]:
    service.begin()
    try:
        return await service.verdicts.for_round()
    finally:
        await service.end()


def test_what_a_crash_tore_off_is_cut_off_and_nothing_else(service: Service, written: list[Signed[Verdict]]) -> None:
    data = service.path.read_bytes()
    whole = data.index(entry_of(written[1])) - 16  # where the second one begins
    for size in (whole, whole + 1, whole + 20, len(data) - 1):
        service.path.write_bytes(data[:size])
        assert asyncio.run(waiting(service)) == written[:1]
        assert service.path.read_bytes() == data[:whole]
    service.path.write_bytes(data + os.urandom(5))
    assert asyncio.run(waiting(service)) == in_order(written)
    assert service.path.read_bytes() == data


def test_damage_before_what_was_synced_is_told(service: Service, written: list[Signed[Verdict]]) -> None:
    data = service.path.read_bytes()
    place = data.index(entry_of(written[0])) + 50
    service.path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(StorageError, match="damaged"):
        service.begin()


async def test_a_disk_that_fails_stops_the_log_and_nothing_is_promised(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(NotTaken, match="stops"):
        await service.verdicts.hand_in(verdict_of(service.ledger, A))
    monkeypatch.undo()
    assert [type(error) for error in service.stopped] == [StorageError]
    with pytest.raises(NotTaken, match="stops"):
        await service.verdicts.hand_in(verdict_of(service.ledger, B))
    assert await service.verdicts.for_round() == []


async def test_the_file_of_a_log_that_takes_much_does_not_grow_for_ever(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "_REWRITTEN_BYTES", 1)
    monkeypatch.setattr(verdicts_module, "MAX_VERDICTS", 7)
    for _ in range(3):
        go_on(service.ledger, PEERS[:7])
    for round_ in (3, 4):
        for peer in PEERS[:7]:
            await service.verdicts.hand_in(verdict_of(service.ledger, peer, round=round_))
    before = service.path.stat().st_size
    monkeypatch.setattr(waiting_module, "MAX_SIGNED_BYTES", 100)
    assert len(await service.commit()) == 7
    assert before // 3 < service.path.stat().st_size < 2 * before // 3
    monkeypatch.undo()
    await service.again()
    assert len(await service.verdicts.for_round()) == 7


async def test_what_is_being_stored_when_the_file_could_be_written_anew_is_there_after_a_kill(service: Service) -> None:
    await service.verdicts.hand_in(verdict_of(service.ledger, A))
    found, late = await service.verdicts.for_round(), verdict_of(service.ledger, B)
    lets, append = threading.Event(), service.waiting._append
    service.waiting._append = lambda verdicts: (lets.wait(60), append(verdicts))[1]  # type: ignore[method-assign]
    handing_in = asyncio.create_task(service.verdicts.hand_in(late))
    for _ in range(5):
        await asyncio.sleep(0)
    go_on(service.ledger, [A, B], found)
    committed = asyncio.create_task(service.verdicts.committed(found))
    for _ in range(5):
        await asyncio.sleep(0)
    lets.set()
    await asyncio.gather(handing_in, committed)
    await service.again()
    assert await service.verdicts.for_round() == [late]
