"""Records that peers give the log: those of a claim that it has are kept and handed out, all others refused and counted."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.audits.records import RecordsDesk
from protocol.encoding import pack
from protocol.evidence import ASK, GIVE, AskRecords, Records, RecordsPage, pages
from protocol.merkle import leaf_hash, root
from protocol.records import Header, LotRecord, SignedClaim, SignedContribution
from protocol.signing import Identity, PublicKey
from swarm.records import RecordsFolder, fetch_records
from swarm.rpc import Refused
from tests.aggregator.desk import OPERATOR, PEERS, Desk
from tests.aggregator.made import Clock, Made

OWNER, OTHER = PEERS[0], PEERS[1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def with_records(desk: Desk, made: Made, by: Identity) -> tuple[Made, SignedClaim, Records]:
    """Return a contribution whose claim has the root of records that are there."""
    claim = made.header.claims[0].open()
    lots = tuple(LotRecord(0, index, "r32", desk.ledger.manifest.lot_samples, "2.5", bytes(32)) for index in range(claim.lots))
    signed = SignedClaim.sign(replace(claim, lots_root=root([leaf_hash(pack(lot)) for lot in lots])), by)
    contribution = replace(made.header.contribution.open(), claims=(signed.digest,))
    header = Header(SignedContribution.sign(contribution, by), (signed,))
    return replace(made, header=header), signed, Records(lots, ())


def run_with(tmp_path: Path, clock: Clock, scenario: Callable[[Desk, RecordsFolder], Awaitable[None]]) -> None:
    async def run() -> None:
        desk = Desk(tmp_path / "bodies", clock)
        await desk.start()
        folder = RecordsFolder(tmp_path / "records", kept_rounds=8, max_bytes=1 << 20)
        endpoint = desk.network.endpoints[PublicKey(OPERATOR.public_key)]
        await RecordsDesk(endpoint, folder, lambda: desk.ledger, desk.closing, desk.intake.faults).start()
        await scenario(desk, folder)

    asyncio.run(run())


def test_records_of_a_claim_in_hand_are_kept_and_handed_out(tmp_path: Path, clock: Clock) -> None:
    async def scenario(desk: Desk, folder: RecordsFolder) -> None:
        made, signed, records = with_records(desk, desk.made(OWNER), OWNER)
        (page,) = pages(signed, records)
        with pytest.raises(Refused, match="in hand"):
            await desk.call(OWNER, GIVE, pack(page))
        assert not desk.intake.faults.by_reason
        await desk.header(made)
        assert await desk.call(OWNER, GIVE, pack(page)) == b""
        assert folder.records(signed) == records
        another = SignedClaim.sign(replace(signed.open(), lot_ms=7), OWNER)  # of the same key, and nobody handed it in
        with pytest.raises(Refused, match="in hand"):
            await desk.call(OWNER, GIVE, pack(replace(page, claim=another)))
        assert folder.records(another) is None
        asking = desk.network.endpoint(OTHER.public_key)
        assert await fetch_records(asking, PublicKey(OPERATOR.public_key), signed) == [page]
        with pytest.raises(Refused, match="no such records"):
            await desk.call(OTHER, ASK, pack(AskRecords(bytes(32), 0)))

    run_with(tmp_path, clock, scenario)


def test_records_that_are_anothers_or_not_the_claims_are_refused_and_counted(tmp_path: Path, clock: Clock) -> None:
    async def scenario(desk: Desk, folder: RecordsFolder) -> None:
        made, signed, records = with_records(desk, desk.made(OWNER), OWNER)
        await desk.header(made)
        (page,) = pages(signed, records)
        with pytest.raises(Refused):
            await desk.call(OTHER, GIVE, pack(page))
        forged = replace(page, claim=SignedClaim(signed.payload, bytes(64)))
        more = replace(page, lots=(*page.lots, page.lots[0]))
        false = replace(page, lots=(replace(page.lots[0], loss="1"), *page.lots[1:]))
        elsewhere = SignedClaim.sign(replace(signed.open(), run=bytes(32)), OWNER)
        for wrong in (b"no page", pack(forged), pack(more), pack(false), pack(RecordsPage(elsewhere, 0, page.lots, (), ()))):
            with pytest.raises(Refused):
                await desk.call(OWNER, GIVE, wrong)
        assert folder.records(signed) is None
        assert desk.intake.faults.by_reason == {"another's identity": 1, "malformed": 3, "signature": 1, "not for this log": 1}

    run_with(tmp_path, clock, scenario)


def test_whoever_sends_too_much_that_is_wrong_is_not_listened_to(tmp_path: Path, clock: Clock) -> None:
    async def scenario(desk: Desk, folder: RecordsFolder) -> None:
        made, signed, records = with_records(desk, desk.made(OWNER), OWNER)
        await desk.header(made)
        for _ in range(9):
            with pytest.raises(Refused):
                await desk.call(OWNER, GIVE, b"")
        with pytest.raises(Refused, match="too much"):
            await desk.call(OWNER, GIVE, pack(pages(signed, records)[0]))
        assert folder.records(signed) is None

    run_with(tmp_path, clock, scenario)
