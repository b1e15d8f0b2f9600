"""What a log takes of witnesses, what it refuses, and what it shows of it."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.witness import cosigning
from manta_swarm.aggregator.features.witness.cosigning import MAX_CLOCK_S, SILENT_S, Cosigning
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.log.tree_heads import TreeHeadService
from manta_swarm.aggregator.log.witnessed import WITNESSED, checkpoint, newest_witnessed
from manta_swarm.network.log_client import LogClient
from manta_swarm.network.log_proofs import ask_consistency, bring_cosignature
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.cosignatures import Cosignature, cosign, cosignatures_of
from manta_swarm.protocol.merkle import verify_consistency
from manta_swarm.protocol.notes import head_text
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.aggregator.small_run import ENTRIES, OPERATOR, Deaf, create, grow, opened_head, reopen, signed_manifest

SIGNED = signed_manifest()
WITNESSES = [Identity(bytes([200 + number]) * 32) for number in range(4)]
NOW_S = 1_700_000_000


class Scene:
    """A log, and witnesses that call it; a clock, whose time of day stands still."""

    def __init__(self, directory: Path, log: Log, named: tuple[PublicKey, ...] = ()) -> None:
        self.log, self.directory, self.now = log, directory, 0.0
        self.network = MemoryNetwork()
        endpoint = self.network.endpoint(PublicKey(OPERATOR.public_key))
        self.service = Cosigning(endpoint, log, directory, named, clock=self)
        self.heads = TreeHeadService(endpoint, log, SIGNED, directory, Deaf())

    def now_s(self) -> float:
        return self.now

    def now_ms(self) -> float:
        return 1000 * self.now

    def unix_ms(self) -> int:
        return 1000 * NOW_S

    def client(self, witness: Identity = WITNESSES[0]) -> LogClient:
        return LogClient(self.network.endpoint(witness.public_key), SIGNED.open(), SIGNED.run)

    def cosignature(self, witness: Identity = WITNESSES[0], *, size: int | None = None, time_s: int = NOW_S) -> Cosignature:
        return cosign(head_text(self.log.head_of(self.log.head.size if size is None else size)), time_s, witness)

    async def bring(self, witness: Identity = WITNESSES[0], *, size: int | None = None) -> None:
        size = self.log.head.size if size is None else size
        await bring_cosignature(self.client(witness), size, self.cosignature(witness, size=size))


@contextlib.asynccontextmanager
async def told(directory: Path, named: tuple[PublicKey, ...] = ()) -> AsyncIterator[Scene]:
    with create(directory, SIGNED) as log:
        grow(log, 2)
        scene = Scene(directory, log, named)
        await scene.service.serve()
        await scene.heads.start()
        yield scene


@pytest.fixture
def scene(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    return told(tmp_path)


async def test_cosignatures_stand_with_the_head_and_survive_a_restart(tmp_path: Path) -> None:
    async with told(tmp_path) as scene:
        for witness in WITNESSES[:2]:
            await scene.bring(witness)
        note = checkpoint(scene.log.tree_head, scene.service.witnessed)
        assert {each.key for each in cosignatures_of(note)} == {witness.public_key for witness in WITNESSES[:2]}
        before = newest_witnessed(scene.service.witnessed)
        assert before == note
        grow(scene.log, 1)
        assert checkpoint(scene.log.tree_head, scene.service.witnessed) == scene.log.tree_head
        assert newest_witnessed(scene.service.witnessed) == before
        await scene.bring(WITNESSES[2], size=2 * ENTRIES)  # a head of before: it was on its way
        assert len(cosignatures_of(newest_witnessed(scene.service.witnessed) or "")) == 3
        assert sorted(each.note for each in StoredLog(tmp_path).witnessed()) == sorted(each.note for each in scene.service.witnessed)
    with reopen(tmp_path) as log:
        assert len(Scene(tmp_path, log).service.witnessed) == 3
        (tmp_path / WITNESSED).write_bytes(b"nothing")
        assert Scene(tmp_path, log).service.witnessed == []
        assert StoredLog(tmp_path).witnessed() == []


async def test_what_is_no_cosignature_of_this_logs_head_is_refused(scene: Scene) -> None:
    own, size = scene.cosignature(), scene.log.head.size
    wrong = [
        (size, replace(own, signature=bytes(64))),
        (size, replace(own, time_s=own.time_s + 1)),
        (size, scene.cosignature(WITNESSES[1])),  # another's
        (size, scene.cosignature(size=ENTRIES)),
        (ENTRIES, own),
        (size + 1, own),
        (size, scene.cosignature(time_s=NOW_S + MAX_CLOCK_S + 1)),
        (size, scene.cosignature(time_s=NOW_S - 86_400)),
    ]
    for brought_size, cosignature in wrong:
        with pytest.raises(Refused):
            await bring_cosignature(scene.client(), brought_size, cosignature)
    with pytest.raises(Refused):
        await scene.network.endpoint(WITNESSES[0].public_key).call(PublicKey(OPERATOR.public_key), "cosigned", b"\x80" * 5000, timeout_s=30)
    assert scene.service.witnessed == []
    await scene.bring()
    await bring_cosignature(scene.client(), ENTRIES, scene.cosignature(size=ENTRIES))  # older: what is newer stays
    assert [each.head.size for each in scene.service.witnessed] == [size]


async def test_places_are_few_and_those_of_the_named_are_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosigning, "MAX_COSIGNATURES", 2)
    async with told(tmp_path, named=(WITNESSES[3].public_key,)) as scene:
        await scene.bring(WITNESSES[0])
        await scene.bring(WITNESSES[1])
        with pytest.raises(Refused, match="so many"):
            await scene.bring(WITNESSES[2])
        await scene.bring(WITNESSES[3])  # which is named: the oldest of the others makes room
        assert {each.cosignature.key for each in scene.service.witnessed} == {WITNESSES[1].public_key, WITNESSES[3].public_key}
        scene.now = SILENT_S
        await scene.bring(WITNESSES[2])  # one that is silent for long makes room, too
        assert {each.cosignature.key for each in scene.service.witnessed} == {WITNESSES[2].public_key, WITNESSES[3].public_key}


async def test_the_log_proves_that_any_of_its_heads_goes_on_from_any_before(scene: Scene) -> None:
    newest = opened_head(scene.log)
    for old in range(newest.size + 1):
        before = scene.log.head_of(old)
        proof = await ask_consistency(scene.client(), old, newest.size)
        verify_consistency(old, newest.size, proof, before.root, newest.root)
    with pytest.raises(Refused, match="no proof"):
        await ask_consistency(scene.client(), 1, newest.size + 1)
