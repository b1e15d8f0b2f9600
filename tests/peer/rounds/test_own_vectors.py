"""A peer's vectors: kept while it works, made ready with the beacon of their table, handed to whoever asks, also after a restart."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from automl.training.local import LocalSteps
from exact.residuals import vector_digest
from protocol.audits import AUDITED, PATIENCE, Trust
from protocol.errors import StorageError, Unreachable
from protocol.evidence import Records
from protocol.exchange import MAX_AGE, Exchange
from protocol.records import SignedClaim
from protocol.rounds import Phase
from protocol.signing import Identity, PublicKey
from protocol.vectors import vectors_asked
from swarm import waits
from swarm.records import RecordsFolder
from swarm.rpc import Refused
from swarm.vectors import VectorsFolder, fetch_vector
from tests.contributions import PEERS
from tests.memory_log import LOT, SMALL_EXCHANGE, start_of, until
from tests.peer.cohort.test_cohort_rounds import met, num_claims, until_together
from tests.peer.scene import Member, Scene, play

pytestmark = pytest.mark.usefixtures("quick_pauses")

STEPS = 4
TRUST = Trust(AUDITED, proven_samples=1 << 20, pending_rounds=11, kept_rounds=5, audit_lots=2, whole_percent=0)
THIN = replace(
    SMALL_EXCHANGE, codec="topk-256-4", local_steps=STEPS, max_claim_samples=STEPS * LOT, weight_cap=STEPS * LOT, first_floor=-24
)
ASKER = Identity(b"\x77" * 32)


class Asker:
    """Somebody who asks for vectors, as an auditor does."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self._scene = scene
        self.endpoint = scene.network.endpoint(PublicKey(ASKER.public_key))
        self.folder = VectorsFolder(directory / "asker", kept_rounds=100, max_bytes=1 << 30)

    async def get(self, member: Member, signed: SignedClaim, digest: bytes) -> np.ndarray:
        """Return a vector as a peer hands it out; its digest is right."""
        await fetch_vector(self.endpoint, member.endpoint.key, signed, digest, self._scene.log.num_weights, self.folder)
        found = self.folder.read(signed.digest, digest)
        assert found is not None
        return found

    async def has_not(self, member: Member, signed: SignedClaim, digest: bytes) -> None:
        """Check that a peer says that it has not got a vector."""
        with pytest.raises(Refused):
            await fetch_vector(self.endpoint, member.endpoint.key, signed, digest, self._scene.log.num_weights, self.folder)


def records_of(scene: Scene, member: Member, signed: SignedClaim) -> Records:
    """Return the records of a claim, as its peer keeps them."""
    folder = RecordsFolder(member.store.records_path(scene.log.signed.run), kept_rounds=100, max_bytes=1 << 24)
    found = folder.records(signed)
    assert found is not None
    return found


def files_of(scene: Scene, member: Member, signed: SignedClaim) -> set[str]:
    """Return the names of a claim's files."""
    return {path.name for path in member.store.vectors_path(scene.log.signed.run).glob(f"*/{signed.digest.hex()}/*")}


def every(records: Records, signed: SignedClaim) -> Iterator[bytes]:
    """Yield the digests of all vectors of a claim, without the weights at the base."""
    for step in records.steps:
        yield from (step.mean, step.vector, *((step.state,) if step.step else ()))
    claim = signed.open()
    yield from (digest for digest in (claim.vector, claim.residual) if digest)


def kept_of(asked: Iterable[bytes], records: Records, signed: SignedClaim) -> set[bytes]:
    """Return the digests of what stays of a claim: what is asked for, the means, and its own vectors."""
    return {*asked, *(step.mean for step in records.steps), *(step.vector for step in signed.open().steps)}


async def handed_in(scene: Scene, member: Member) -> SignedClaim:
    """Return the claim of what a peer handed in for the open round."""

    def found() -> list[SignedClaim]:
        claims = [scene.log.handed[each][0].claims[0] for each in scene.log.in_round()]
        return [signed for signed in claims if signed.open().key == member.identity.public_key]

    await until(lambda: found() and member.phase is Phase.TICKETED)
    return found()[0]


def test_with_the_beacon_all_that_may_be_asked_for_is_there_and_of_the_rest_only_means_and_own_vectors(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        member, asker = scene.join(0), Asker(scene, tmp_path)
        await handed_in(scene, member)
        scene.log.commit()
        await member.reaches(1)
        signed = await handed_in(scene, member)  # in this round there is a residual to add
        records, claim = records_of(scene, member, signed), signed.open()
        base = start_of(scene.log.plan) if claim.round == 1 else scene.log.state
        scene.log.commit()
        await handed_in(scene, member)
        assert {digest.hex() for digest in every(records, signed)} - files_of(scene, member, signed)  # weights before later steps
        scene.log.commit()
        asked = vectors_asked(scene.log.manifest.trust, scene.log.ledger.last_commit, signed.digest, claim, records)
        found = {digest: await asker.get(member, signed, digest) for digest in asked}
        assert claim.residual in found
        assert any(step.state in found for step in records.steps[1:])
        kept = kept_of(asked, records, signed)
        await until(lambda: files_of(scene, member, signed) == {digest.hex() for digest in kept})
        local = LocalSteps(base, scene.log.plan)
        for step in records.steps:
            assert vector_digest(local.weights.numpy()) == step.state
            if step.state in found:
                assert found[step.state].tobytes() == local.weights.numpy().tobytes()
            if step.mean not in found:
                break
            local.step(torch.from_numpy(found[step.mean]))
        for digest in set(every(records, signed)) - kept:
            await asker.has_not(member, signed, digest)

    play(tmp_path, story, exchange=THIN, trust=TRUST)


@pytest.mark.parametrize("exchange", [THIN, SMALL_EXCHANGE], ids=["several steps", "one step, dense"])
def test_in_a_cohort_each_member_hands_out_its_own_vectors_and_the_means(tmp_path: Path, exchange: Exchange) -> None:
    async def story(scene: Scene) -> None:
        scene.log.left_ms = 10_000
        members, asker = [scene.join(number, token=bytes(range(32))) for number in range(2)], Asker(scene, tmp_path)
        await met(*members)
        await until_together(scene, 2)
        (header,) = (scene.log.handed[each][0] for each in scene.log.in_round())
        for _ in range(2):
            scene.log.commit()
            await until(lambda: num_claims(scene) >= 2)
        beacon = scene.log.ledger.last_commit
        for signed in header.claims:
            (member,) = (each for each in members if each.identity.public_key == signed.open().key)
            records = records_of(scene, member, signed)
            asked = vectors_asked(scene.log.manifest.trust, beacon, signed.digest, signed.open(), records)
            assert signed.open().vector in asked
            for digest in asked:
                await asker.get(member, signed, digest)
            assert all(step.mean != step.vector for step in records.steps)

    play(tmp_path, story, exchange=exchange, trust=TRUST)


def test_a_peer_that_was_killed_before_the_beacon_hands_out_all_of_it(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        signed = await handed_in(scene, scene.join(0))
        await scene.end()  # as kill -9 does
        again, asker = scene.join(0), Asker(scene, tmp_path)
        await until(lambda: again.phase is Phase.TICKETED)
        records = records_of(scene, again, signed)
        for digest in every(records, signed):
            await asker.get(again, signed, digest)
        base = records.steps[0].state
        await until(lambda: base.hex() not in files_of(scene, again, signed))
        scene.log.commit()
        await again.reaches(1)
        await handed_in(scene, again)
        scene.log.commit()
        asked = vectors_asked(scene.log.manifest.trust, scene.log.ledger.last_commit, signed.digest, signed.open(), records)
        kept = kept_of(asked, records, signed)
        await until(lambda: files_of(scene, again, signed) == {digest.hex() for digest in kept})

    play(tmp_path, story, exchange=THIN, trust=TRUST)


def test_a_peer_that_was_killed_after_the_beacon_has_what_that_asks_for(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        member = scene.join(0)
        signed = await handed_in(scene, member)
        scene.log.commit()
        await member.reaches(1)
        await handed_in(scene, member)
        scene.log.commit()
        records = records_of(scene, member, signed)
        asked = vectors_asked(scene.log.manifest.trust, scene.log.ledger.last_commit, signed.digest, signed.open(), records)
        names = {digest.hex() for digest in kept_of(asked, records, signed)}
        await until(lambda: files_of(scene, member, signed) == names)
        await scene.end()
        again, asker = scene.join(0), Asker(scene, tmp_path)
        await again.reaches(2)
        for digest in asked:
            await asker.get(again, signed, digest)
        assert files_of(scene, again, signed) == names

    play(tmp_path, story, exchange=THIN, trust=TRUST)


def test_who_leaves_stays_until_audits_could_ask_for_what_it_handed_in_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waits, "ASKED_S", (60.0, 60.0))
    said = []

    def has_said(words: str) -> bool:
        said.append(capsys.readouterr().out)
        return words in "".join(said)

    async def story(scene: Scene) -> None:
        member, other, asker = scene.join(0), scene.join(1), Asker(scene, tmp_path)
        signed = await handed_in(scene, member)
        member.loop.leave()
        await until(lambda: has_said("it stays until audits could ask"))
        for round_ in (1, 2):
            await handed_in(scene, other)
            scene.log.commit()
            await other.reaches(round_)
        records = records_of(scene, member, signed)
        for digest in vectors_asked(scene.log.manifest.trust, scene.log.ledger.last_commit, signed.digest, signed.open(), records):
            await asker.get(member, signed, digest)
        assert not member.task.done()
        assert len(member.worker.lots) == STEPS  # it trains no more
        await handed_in(scene, other)
        scene.log.commit()
        await member.ends()

    play(tmp_path, story, exchange=THIN, trust=TRUST)
    assert not has_said("audits may still ask")


def test_who_cannot_wait_for_audits_is_told_until_when_it_may_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(scene: Scene) -> None:
        member = scene.join(0)
        await handed_in(scene, member)
        scene.log.commit()
        await member.reaches(1)
        await handed_in(scene, member)
        await member.leaves()

    play(tmp_path, story, exchange=THIN, trust=TRUST)
    assert f"before round {2 + TRUST.kept_rounds - 1} is over" in capsys.readouterr().out


def test_where_the_log_is_away_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waits, "ASKED_S", (1e6, 1e6))
    monkeypatch.setattr(waits, "LAST_ROWS_S", 0.1)

    async def story(scene: Scene) -> None:
        member = scene.join(0)
        await handed_in(scene, member)
        scene.log.go_away()
        await until(lambda: "cannot be reached" in member.status.waiting_for)
        await member.leaves()

    play(tmp_path, story, exchange=THIN, trust=TRUST)
    assert "audits may still ask for what it handed in last" in capsys.readouterr().out


def test_who_handed_in_nothing_that_rests_on_vectors_leaves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "ASKED_S", (1e6, 1e6))

    async def story(scene: Scene) -> None:
        member = scene.join(0)
        await handed_in(scene, member)
        await member.leaves()

    play(tmp_path, story, exchange=SMALL_EXCHANGE, trust=TRUST)


def test_who_asks_too_early_is_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "VECTORS_READY_S", 0.01)

    async def story(scene: Scene) -> None:
        member, asker = scene.join(0), Asker(scene, tmp_path)
        signed = await handed_in(scene, member)
        state = records_of(scene, member, signed).steps[2].state
        with pytest.raises(Unreachable, match="busy"):
            await asker.get(member, signed, state)

    play(tmp_path, story, exchange=THIN, trust=TRUST)


def test_what_no_table_has_is_dropped_once_none_can_have_it(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        member, other = scene.join(0), scene.join(1)
        signed = await handed_in(scene, member)
        await handed_in(scene, other)
        scene.log.loses.update(each for each in scene.log.in_round() if scene.log.handed[each][0].claims[0] == signed)
        for round_ in range(1, MAX_AGE + PATIENCE + 3):
            assert files_of(scene, member, signed)
            scene.log.commit()
            await member.reaches(round_)
            await handed_in(scene, member)
        await until(lambda: not files_of(scene, member, signed))

    play(tmp_path, story, exchange=THIN, trust=TRUST)


def test_who_slept_for_longer_than_a_claim_may_count_has_what_is_asked_of_one_that_did(tmp_path: Path) -> None:
    trust = replace(TRUST, kept_rounds=20, pending_rounds=30)

    async def story(scene: Scene) -> None:
        member, asker = scene.join(0), Asker(scene, tmp_path)
        signed = await handed_in(scene, member)
        records = records_of(scene, member, signed)
        scene.log.go_away()
        for seed in range(MAX_AGE + PATIENCE + 3):
            scene.log.give(PEERS[3], seed=seed)
            scene.log.commit()
        scene.log.come_back()
        await member.reaches(scene.log.ledger.round)
        await handed_in(scene, member)
        asked = vectors_asked(trust, scene.log.ledger.commit_at(2), signed.digest, signed.open(), records)
        for digest in asked:
            await asker.get(member, signed, digest)
        assert member.status.promises_broken == 0

    play(tmp_path, story, exchange=THIN, trust=trust)


def test_vectors_go_with_the_rounds_whose_claims_nobody_may_ask_about(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        member = scene.join(0)
        signed = await handed_in(scene, member)
        last = TRUST.shown_rounds + MAX_AGE + 2
        for round_ in range(1, last + 1):
            if round_ < last:
                await until(lambda: files_of(scene, member, signed))
            await handed_in(scene, member)
            scene.log.commit()
            await member.reaches(round_)
        await until(lambda: not files_of(scene, member, signed))

    play(tmp_path, story, exchange=THIN, trust=TRUST)


@pytest.mark.parametrize("codec", ["int16", "topk-256-4"])
def test_with_one_step_and_nobody_else_the_gradient_is_kept_and_what_a_sparse_body_was_made_of(tmp_path: Path, codec: str) -> None:
    async def story(scene: Scene) -> None:
        member, asker = scene.join(0), Asker(scene, tmp_path)
        await handed_in(scene, member)
        scene.log.commit()
        await member.reaches(1)
        signed = await handed_in(scene, member)
        claim = signed.open()
        (digest,) = scene.log.in_round()
        mean = scene.log.handed[digest][0].contribution.open().steps[0].mean
        kept = {claim.vector, mean} if codec == "int16" else {claim.vector, claim.residual, mean}
        assert len(kept) == (1 if codec == "int16" else 3)
        assert files_of(scene, member, signed) == {each.hex() for each in kept}
        for each in kept:
            await asker.get(member, signed, each)

    play(tmp_path, story, exchange=replace(SMALL_EXCHANGE, codec=codec, first_floor=-24), trust=TRUST)


def test_an_open_run_keeps_no_vectors(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        member = scene.join(0)
        await scene.log.wait_for(1)
        assert not member.store.vectors_path(scene.log.signed.run).exists()

    play(tmp_path, story, exchange=THIN)


def test_a_disk_without_room_ends_the_peer_before_anything_is_handed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.rounds.vectors.most_vectors_bytes", lambda _exchange, _trust, num_weights: 4 * num_weights)

    async def story(scene: Scene) -> None:
        member = scene.join(0)
        with pytest.raises(BaseExceptionGroup) as raised:
            await member.ends()
        assert raised.group_contains(StorageError, match="no room")
        assert scene.log.headers == []
        scene.members.clear()

    play(tmp_path, story, exchange=THIN, trust=TRUST)
