"""What peers bring to the log, over a network in memory."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.features.audit.auditor import Auditor
from manta_swarm.protocol.auditing import BRING, MAX_WANTED_BYTES, PAGE_BYTES, WANTED, AskWanted, Fate, Page, Placed, Wanted
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import Outcome
from manta_swarm.runtime.atomic_file import AtomicFile
from tests.audit_scene import AUDITORS, NUM_WEIGHTS, OPERATORS, A, B, Peer, Scene, header_of, vector

GOOD, UNPAID, DEMOTED, VOID = Outcome.GOOD, Outcome.UNPAID, Outcome.DEMOTED, Outcome.VOID


async def listed(scene: Scene, header: Header, *peers: Peer) -> int:
    """Have a round with a contribution, and the one after it; tell its peers."""
    round_ = scene.turn(header)
    scene.turn()
    for peer in peers:
        await peer.bringing.listed(round_, header.contribution.digest, peer.base)
    return round_


async def audited(scene: Scene, auditor: Auditor) -> None:
    """Let an auditor do what waits for it, once."""
    await auditor.do_one(await auditor.assignments())


async def test_each_member_brings_what_it_has_and_nothing_twice(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    header = header_of([A, B], steps=2, residual=True)
    means = [" mean 0", " mean 1"]
    one = scene.peer(A, header, names=[*means, f" residual {A.public_key.hex()[:8]}"])
    other = scene.peer(B, header, names=[*means, f" residual {B.public_key.hex()[:8]}"])
    await listed(scene, header, one, other)
    await one.bringing.bring_all()
    await other.bringing.bring_all()
    assert (one.bringing.brought_bytes, other.bringing.brought_bytes) == (3 * 4 * NUM_WEIGHTS, 4 * NUM_WEIGHTS)
    auditor, computing = scene.auditor(AUDITORS[0])
    await audited(scene, auditor)
    assert [verdict.outcomes for verdict in scene.waiting] == [(GOOD, GOOD)]
    assert len(computing.asked) == 1


async def test_bringing_goes_on_after_a_restart_and_ends_when_nothing_is_wanted(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    header = header_of([A])
    peer = scene.peer(A, header, names=[" mean 0"])
    await listed(scene, header, peer)
    bringing = peer.again()
    assert bringing.bases == {peer.base}
    await bringing.bring_all()
    auditor, _ = scene.auditor(AUDITORS[0])
    await audited(scene, auditor)
    for _ in range(25):
        scene.turn()
    await bringing.bring_all()
    assert not bringing.bases
    assert not peer.again().bases


async def test_what_is_told_of_while_all_is_brought_is_written_down_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = set[bytes](), list[int]()
    save = AtomicFile.save

    def saved(file: AtomicFile, one: Any) -> None:
        assert one.placed.contribution not in under_way
        under_way.add(one.placed.contribution)
        most.append(len(under_way))
        time.sleep(0.02)  # a slow disk
        save(file, one)
        under_way.remove(one.placed.contribution)

    monkeypatch.setattr(AtomicFile, "save", saved)

    scene = Scene(tmp_path)
    await scene.open()
    header = header_of([A])
    peer = scene.peer(A, header, names=[" mean 0"])
    peer.bringing.found(1, header.contribution.digest, peer.base)
    await asyncio.gather(peer.bringing.bring_all(), peer.bringing.listed(1, header.contribution.digest, peer.base))
    assert peer.again().bases == {peer.base}
    assert most == [1]


@pytest.mark.parametrize("what", ["another's", "a false vector", "a short page", "from the middle", "what nobody asked for"])
async def test_what_strangers_and_liars_bring_is_refused(tmp_path: Path, what: str) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    header = header_of([A])
    await listed(scene, header)
    who = B if what == "another's" else A
    mean = vector(" mean 0").tobytes()
    digest, data, first = vector_digest(vector(" mean 0")), mean[:PAGE_BYTES], 0
    if what == "a short page":
        data = data[:-4]
    if what == "from the middle":
        first, data = PAGE_BYTES, mean[PAGE_BYTES:]
    if what == "what nobody asked for":
        digest = vector_digest(vector("other"))
    call = scene.endpoint(who).call
    operator = PublicKey(OPERATORS[0].public_key)
    page = Page(header.contribution.digest, digest, first, data)
    if what == "what nobody asked for":
        assert await call(operator, BRING, pack(page), timeout_s=5) == b""
    elif what == "a false vector":
        await call(operator, BRING, pack(page), timeout_s=5)
        last = Page(header.contribution.digest, digest, PAGE_BYTES, bytes(len(mean) - PAGE_BYTES))
        with pytest.raises(Refused, match="another vector"):
            await call(operator, BRING, pack(last), timeout_s=5)
    else:
        with pytest.raises(Refused):
            await call(operator, BRING, pack(page), timeout_s=5)
    (brought,) = scene.brought.values()
    assert brought.num_bytes == 0
    answer = await scene.endpoint(A).call(operator, WANTED, pack(AskWanted((Placed(1, header.contribution.digest),))), timeout_s=5)
    (wanted,) = unpack(Wanted, answer, max_bytes=MAX_WANTED_BYTES).answers
    assert (wanted.fate, wanted.vectors) == (Fate.BRING, (vector_digest(vector(" mean 0")),))
