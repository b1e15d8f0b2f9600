"""A log that is replaced by an older copy of itself hears of it from whoever holds a newer head, and never signs again."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.guard import EVIDENCE
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.tree_heads import TreeHeadService
from manta_swarm.network.log_proofs import HeldHead, ShownHead
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import OtherHistory, StorageError
from manta_swarm.protocol.histories import Departure, Histories, departure
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import ProvenRound, open_round_receipt
from manta_swarm.protocol.records import Receipt
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    OTHER_OPERATOR,
    PEERS,
    STRANGER,
    create,
    grow,
    next_round,
    opened_head,
    quorum_note,
    reopen,
    signed_manifest,
)

SIGNED = signed_manifest()


class Scene:
    """A log at work, and those who ask it for its head."""

    def __init__(self, directory: Path, log: Log, signed: SignedManifest) -> None:
        self.directory, self.log = directory, log
        self.all_heard: list[tuple[PublicKey, int | None]] = []
        self.network = MemoryNetwork()
        endpoint = self.network.endpoint(PublicKey(OPERATOR.public_key))
        self.service = TreeHeadService(endpoint, log, signed, directory, self)

    def heard(self, key: PublicKey, held: ProvenRound | None) -> None:
        self.all_heard.append((key, None if held is None else held.round.round))

    async def watch(self) -> None:
        """Wait until the log has heard of a head that it should have; a log that does not stop for it fails the test."""
        async with asyncio.timeout(30):
            await self.service.watch()

    async def ask(self, *receipts: Receipt) -> ShownHead:
        """Return what the log shows to a peer that holds a commit."""
        endpoint = self.network.endpoint(PEERS[0].public_key)
        answer = await endpoint.call(PublicKey(OPERATOR.public_key), "tree-head", pack(HeldHead(receipts)), timeout_s=30)
        return unpack(ShownHead, answer, max_bytes=2**20)


@contextlib.asynccontextmanager
async def told(directory: Path, signed: SignedManifest = SIGNED) -> AsyncIterator[Scene]:
    """The log in ``directory`` at work."""
    with reopen(directory) as log:
        scene = Scene(directory, log, signed)
        await scene.service.start()
        yield scene


def newest(log: Log) -> Receipt:
    """Return the receipt of the newest round."""
    index = log.ledger.index_at(log.ledger.round)
    assert index is not None
    return log.receipt(index)


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, Receipt]:
    """The folder of a log, put back to its second round after it had signed for five, and the newest commit."""
    directory, copy = tmp_path / "run", tmp_path / "copy"
    with create(directory, SIGNED) as log:
        grow(log, 2)
    shutil.copytree(directory, copy)
    with reopen(directory) as log:
        grow(log, 3)
        receipt = newest(log)
    shutil.move(directory, tmp_path / "lost")
    shutil.copytree(copy, directory)
    return directory, receipt


async def test_a_whole_log_proves_that_it_goes_on_from_what_is_held(tmp_path: Path) -> None:
    with create(tmp_path, SIGNED) as log:
        grow(log, 2)
        receipt = newest(log)
        grow(log, 1)
    async with told(tmp_path) as scene:
        shown = await scene.ask(receipt)
        held = open_round_receipt(receipt, Operators(SIGNED.run, (OPERATOR.public_key,), 1))
        assert shown.tree_head == scene.log.tree_head
        assert departure(held.tree_head, opened_head(scene.log), shown.consistency) is None
        assert (await scene.ask()).tree_head == scene.log.tree_head
        assert scene.all_heard == [(PEERS[0].public_key, 2), (PEERS[0].public_key, None)]
        grow(scene.log, 1)


async def test_an_older_copy_stops_signing_once_it_hears_of_a_newer_head_and_keeps_the_proof(old: tuple[Path, Receipt]) -> None:
    directory, receipt = old
    async with told(directory) as scene:
        before = scene.log.tree_head
        shown = await scene.ask(receipt)
        assert (shown.tree_head, shown.consistency) == (before, ())
        with pytest.raises(OtherHistory, match=r"has 8 entries, .* signed for 20 entries, up to round 5: 12 entries are missing"):
            await scene.watch()
        with pytest.raises(OtherHistory, match="missing"):
            scene.log.commit(next_round(scene.log.ledger))
        assert (scene.log.tree_head, scene.all_heard) == (before, [])
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(directory / EVIDENCE)])  # which only this log's own operator can tell
    assert (result.exit_code, "heads of 20 entries, up to round 5, and of 8" in result.output) == (5, True), result.output
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(directory / EVIDENCE), "--run", "00" * 32])
    assert (result.exit_code, "another run" in result.output) == (2, True), result.output
    kept = unpack(Histories, (directory / EVIDENCE).read_bytes(), max_bytes=2**20)
    assert kept.heads[0] == receipt.tree_head
    assert kept.check().departure is Departure.ROLLED_BACK
    # Also not after a restart, with nobody there to say it again.
    note = (directory / "tree-head.txt").read_bytes()
    with pytest.raises(OtherHistory, match="12 entries are missing"):
        reopen(directory)
    assert (directory / "tree-head.txt").read_bytes() == note


async def test_many_who_tell_it_at_once_are_one_proof(old: tuple[Path, Receipt]) -> None:
    directory, receipt = old
    async with told(directory) as scene:
        shown = await asyncio.gather(*(scene.ask(receipt) for _ in range(20)))
        assert {one.tree_head for one in shown} == {scene.log.tree_head}
        with pytest.raises(OtherHistory, match="12 entries are missing"):
            await scene.watch()
    assert (directory / EVIDENCE).exists()


async def test_the_whole_folder_opens_again_and_the_proof_is_gone(old: tuple[Path, Receipt], tmp_path: Path) -> None:
    directory, receipt = old
    async with told(directory) as scene:
        await scene.ask(receipt)
        with pytest.raises(OtherHistory):
            await scene.watch()
    shutil.copy(directory / EVIDENCE, tmp_path / "lost")
    with reopen(tmp_path / "lost") as log:
        grow(log, 1)
    assert not (tmp_path / "lost" / EVIDENCE).exists()


async def test_a_log_that_went_another_way_stops_too(old: tuple[Path, Receipt]) -> None:
    directory, receipt = old
    with reopen(directory) as log:
        for number in range(5):
            log.commit(next_round(log.ledger, mean=b"another %d" % number))
        assert log.head.size == 7 * ENTRIES
    async with told(directory) as scene:
        shown = await scene.ask(receipt)
        held = open_round_receipt(receipt, Operators(SIGNED.run, (OPERATOR.public_key,), 1))
        assert departure(held.tree_head, opened_head(scene.log), shown.consistency) is Departure.UNPROVEN
        with pytest.raises(OtherHistory, match="not the only one"):
            await scene.watch()
    with pytest.raises(OtherHistory):
        reopen(directory)


async def test_nobody_but_the_logs_own_key_can_stop_it(old: tuple[Path, Receipt]) -> None:
    directory, receipt = old
    name = origin(SIGNED.run)
    head = TreeHead(name, 20, b"\x07" * 32)
    forged = [
        replace(receipt, tree_head=sign_tree_head(head, name, STRANGER)),
        replace(receipt, index=18),
        replace(receipt, tree_head=receipt.tree_head.replace("\n20\n", "\n21\n")),
        replace(receipt, entry=b"\x00" + receipt.entry),
    ]
    async with told(directory) as scene:
        for one in forged:
            with pytest.raises(Refused):
                await scene.ask(one)
        with pytest.raises(Refused):
            await scene.network.endpoint(PEERS[0].public_key).call(
                PublicKey(OPERATOR.public_key), "tree-head", b"\x80" * 100_000, timeout_s=30
            )
        assert not scene.service.broken.done()
        grow(scene.log, 1)
    assert not (directory / EVIDENCE).exists()


async def test_one_of_several_operators_goes_on_at_a_head_that_is_ahead_of_its_log_and_stops_at_one_beside_it(tmp_path: Path) -> None:
    """Also where it has signed that head itself: it signs before it has the entries."""
    signed, both = signed_manifest(operators=(OPERATOR, OTHER_OPERATOR)), (OPERATOR, OTHER_OPERATOR)

    def grow_together(log: Log, rounds: int, mean: bytes = b"mean") -> list[bytes]:
        entries = list[bytes]()
        for _ in range(rounds):
            entries += (batch := next_round(log.ledger, mean=mean))
            log.commit(batch, quorum_note(log, batch, *both))
        return entries

    with create(tmp_path / "behind", signed) as log:
        grow_together(log, 2)
    shutil.copytree(tmp_path / "behind", tmp_path / "ahead")
    shutil.copytree(tmp_path / "behind", tmp_path / "beside")
    with reopen(tmp_path / "ahead") as log:
        entries, receipt, note = grow_together(log, 3), newest(log), log.tree_head
    with reopen(tmp_path / "beside") as log:
        grow_together(log, 4, b"another")
    async with told(tmp_path / "behind", signed) as scene:
        before = scene.log.tree_head
        assert (await scene.ask(receipt)).tree_head == before
        assert not scene.service.broken.done()
        scene.log.commit(entries, note)
        assert (await scene.ask(receipt)).tree_head == note
    assert not (tmp_path / "behind" / EVIDENCE).exists()
    async with told(tmp_path / "beside", signed) as scene:
        await scene.ask(receipt)
        with pytest.raises(OtherHistory, match="not the only one"):
            await scene.watch()
    assert unpack(Histories, (tmp_path / "beside" / EVIDENCE).read_bytes(), max_bytes=2**20).heads[0] == receipt.tree_head


def test_damaged_evidence_is_no_reason_to_go_on(old: tuple[Path, Receipt]) -> None:
    directory, _ = old
    (directory / EVIDENCE).write_bytes(b"nothing")
    with pytest.raises(StorageError, match="damaged"):
        reopen(directory)
