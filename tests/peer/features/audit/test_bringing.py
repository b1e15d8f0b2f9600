"""What peers bring to the log, over a network in memory: what, to which operator, and when what they keep may go."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.rpc import Busy, Refused
from manta_swarm.peer.features.audit.auditor import Auditor
from manta_swarm.peer.features.audit.bringing import Bringing
from manta_swarm.protocol.auditing import (
    BRING,
    MAX_WANTED_BYTES,
    PAGE_BYTES,
    WANTED,
    AskWanted,
    PlacedContribution,
    VectorPage,
    WantedAnswer,
    WantedFate,
    WantedOf,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.verdicts import Outcome
from manta_swarm.runtime.atomic_file import AtomicFile
from tests.audit_scene import AUDITORS, KEPT_ROUNDS, NUM_WEIGHTS, OPERATORS, A, B, Peer, Rounds, Scene, header_of, vector

pytestmark = pytest.mark.usefixtures("quick_pauses")
MEAN = vector_digest(vector(" mean 0"))


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
    page = VectorPage(header.contribution.digest, digest, first, data)
    if what == "what nobody asked for":
        assert await call(operator, BRING, pack(page), timeout_s=5) == b""
    elif what == "a false vector":
        await call(operator, BRING, pack(page), timeout_s=5)
        last = VectorPage(header.contribution.digest, digest, PAGE_BYTES, bytes(len(mean) - PAGE_BYTES))
        with pytest.raises(Refused, match="another vector"):
            await call(operator, BRING, pack(last), timeout_s=5)
    else:
        with pytest.raises(Refused):
            await call(operator, BRING, pack(page), timeout_s=5)
    (brought,) = scene.brought.values()
    assert brought.num_bytes == 0
    answer = await scene.endpoint(A).call(
        operator, WANTED, pack(AskWanted((PlacedContribution(1, header.contribution.digest),))), timeout_s=5
    )
    (wanted,) = unpack(WantedAnswer, answer, max_bytes=MAX_WANTED_BYTES).answers
    assert (wanted.fate, wanted.vectors) == (WantedFate.BRING, (vector_digest(vector(" mean 0")),))


async def handed_in(directory: Path, **settings: Any) -> tuple[Scene, Header, Peer]:
    """Return a scene, and a contribution of A that a round has and A knows of; its beacon is not there yet."""
    scene = Scene(directory, **settings)
    await scene.open()
    header = header_of([A])
    peer = scene.peer(A, header, names=[" mean 0"])
    await peer.bringing.listed(scene.turn(header), header.contribution.digest, peer.base)
    return scene, header, peer


def undrawn(scene: Scene, header: Header) -> None:
    """Have the next round's commit not draw a contribution."""
    scene.turn()
    scene.reputation.audits.pop(header.contribution.digest)


async def says(scene: Scene, operator: PublicKey, fate: WantedFate) -> None:
    """Have an operator say this of whatever it is asked about."""

    async def answer(_caller: PublicKey, request: bytes) -> bytes:
        asked = unpack(AskWanted, request, max_bytes=2**16)
        return pack(WantedAnswer((WantedOf(int(fate), ()),) * len(asked.contributions)))

    await scene.network.endpoints[operator].serve(WANTED, answer)


async def test_before_its_beacon_nothing_goes_and_what_is_not_drawn_goes_with_it(tmp_path: Path) -> None:
    scene, header, peer = await handed_in(tmp_path)
    assert await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    undrawn(scene, header)
    assert await peer.bringing.bring_all()
    assert not peer.vectors.has(peer.base, MEAN)
    assert not peer.again().bases


async def test_what_is_drawn_stays_until_it_is_asked_for_no_more_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    scene, _, peer = await handed_in(tmp_path)
    scene.turn()
    bringing = peer.again()
    assert await bringing.bring_all()
    assert (bringing.brought_bytes, bringing.audited) == (4 * NUM_WEIGHTS, 1)
    for _ in range(KEPT_ROUNDS - 2):
        scene.turn()
        await bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    scene.turn()
    await bringing.bring_all()
    assert not peer.vectors.has(peer.base, MEAN)
    assert (bringing.brought_bytes, bringing.audited) == (4 * NUM_WEIGHTS, 1)  # nothing twice


async def test_of_several_operators_one_that_says_that_nothing_is_wanted_takes_nothing_from_the_others(tmp_path: Path) -> None:
    scene, _, peer = await handed_in(tmp_path, operators=4, auditors=4)
    scene.turn()
    liar = peer.bringing._line.operator
    await says(scene, liar, WantedFate.NOTHING)
    assert await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    assert sum(scene.brought[each.public_key].num_bytes > 0 for each in OPERATORS) >= 1  # another one got it


async def test_of_several_operators_a_quorum_says_that_nothing_is_wanted_before_anything_goes(tmp_path: Path) -> None:
    scene, header, peer = await handed_in(tmp_path, operators=4, auditors=4)
    undrawn(scene, header)
    first, *others = peer.bringing._line.in_turn
    away = {key: scene.network.endpoints.pop(key) for key in others[:2]}
    await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)  # two of four said so
    scene.network.endpoints |= away
    assert await peer.bringing.bring_all()
    assert not peer.vectors.has(peer.base, MEAN)
    assert peer.bringing._line.operator == first


async def test_an_operator_that_is_behind_is_asked_again(tmp_path: Path) -> None:
    scene, _, peer = await handed_in(tmp_path)
    scene.turn()
    (operator,) = scene.operators
    await says(scene, PublicKey(operator.public_key), WantedFate.LATER)
    assert not await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    await scene.brought[operator.public_key].serve(scene.network.endpoints[PublicKey(operator.public_key)])
    assert await peer.bringing.bring_all()
    assert peer.bringing.brought_bytes == 4 * NUM_WEIGHTS


async def test_a_page_is_tried_again_where_an_operator_has_no_place_now(tmp_path: Path) -> None:
    scene, _, peer = await handed_in(tmp_path)
    scene.turn()
    (operator,) = scene.operators
    brought, calls = scene.brought[operator.public_key], list[bytes]()

    async def answer(caller: PublicKey, request: bytes) -> bytes:
        calls.append(request)
        if len(calls) < 3:
            raise Busy("others bring their vectors")
        return await brought._on_bring(caller, request)

    await scene.network.endpoints[PublicKey(operator.public_key)].serve(BRING, answer)
    assert await peer.bringing.bring_all()
    assert (len(calls), peer.bringing.brought_bytes) == (4, 4 * NUM_WEIGHTS)


async def test_what_a_peer_was_promised_is_known_after_a_restart_and_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    _, _, peer = await handed_in(tmp_path)
    (path,) = (tmp_path / f"peer-{A.public_key.hex()[:8]}" / "open").iterdir()
    assert peer.again().bases == {peer.base}
    path.write_bytes(path.read_bytes()[:-1])
    assert not peer.again().bases


async def test_what_another_key_of_this_folder_handed_in_is_nobody_s_here(tmp_path: Path) -> None:
    scene, _, peer = await handed_in(tmp_path)
    assert peer.again().bases
    folder = tmp_path / f"peer-{A.public_key.hex()[:8]}"
    other = Bringing(scene.endpoint(B), scene.line(B), peer.vectors, folder, Rounds(scene), kept_rounds=KEPT_ROUNDS)
    assert not other.bases
    scene.turn()
    assert await other.bring_all()


async def test_nothing_goes_while_another_contribution_on_its_base_may_be_listed(tmp_path: Path) -> None:
    scene, header, peer = await handed_in(tmp_path)
    undrawn(scene, header)
    looked_for = [peer.base]
    folder = tmp_path / f"peer-{A.public_key.hex()[:8]}"
    bringing = Bringing(scene.endpoint(A), scene.line(A), peer.vectors, folder, Rounds(scene, looked_for), kept_rounds=KEPT_ROUNDS)
    await bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    looked_for.clear()
    await bringing.bring_all()
    assert not peer.vectors.has(peer.base, MEAN)
