"""What a peer brings, to which operator, and when what it keeps may go."""

from pathlib import Path

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.rpc import Busy
from manta_swarm.peer.features.audit.bringing import Bringing
from manta_swarm.protocol.auditing import BRING, WANTED, AskWanted, Fate, Wanted, WantedOf
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import PublicKey
from tests.audit_scene import KEPT_ROUNDS, NUM_WEIGHTS, OPERATORS, A, B, Peer, Rounds, Scene, header_of, vector

MEAN = vector_digest(vector(" mean 0"))


async def handed_in(scene: Scene) -> tuple[Header, Peer, int]:
    """Have a round with a contribution of A, which knows of it; its beacon is not there yet."""
    header = header_of([A])
    peer = scene.peer(A, header, names=[" mean 0"])
    round_ = scene.turn(header)
    await peer.bringing.listed(round_, header.contribution.digest, peer.base)
    return header, peer, round_


def undrawn(scene: Scene, header: Header) -> None:
    """Have the next round's commit not draw a contribution."""
    scene.turn()
    scene.reputation.audits.pop(header.contribution.digest)


async def says(scene: Scene, operator: PublicKey, fate: Fate) -> None:
    """Have an operator say this of whatever it is asked about."""

    async def answer(_caller: PublicKey, request: bytes) -> bytes:
        asked = unpack(AskWanted, request, max_bytes=2**16)
        return pack(Wanted((WantedOf(int(fate), ()),) * len(asked.contributions)))

    await scene.network.endpoints[operator].serve(WANTED, answer)


async def test_before_its_beacon_nothing_goes_and_what_is_not_drawn_goes_with_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    header, peer, _ = await handed_in(scene)
    assert await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    undrawn(scene, header)
    assert await peer.bringing.bring_all()
    assert not peer.vectors.has(peer.base, MEAN)
    assert not peer.again().bases


async def test_what_is_drawn_stays_until_it_is_asked_for_no_more_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    _, peer, _ = await handed_in(scene)
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
    scene = Scene(tmp_path, operators=4, auditors=4)
    await scene.open()
    _, peer, _ = await handed_in(scene)
    scene.turn()
    liar = peer.bringing._line.operator
    await says(scene, liar, Fate.NOTHING)
    assert await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    assert sum(scene.brought[each.public_key].num_bytes > 0 for each in OPERATORS) >= 1  # another one got it


async def test_of_several_operators_a_quorum_says_that_nothing_is_wanted_before_anything_goes(tmp_path: Path) -> None:
    scene = Scene(tmp_path, operators=4, auditors=4)
    await scene.open()
    header, peer, _ = await handed_in(scene)
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
    scene = Scene(tmp_path)
    await scene.open()
    _, peer, _ = await handed_in(scene)
    scene.turn()
    (operator,) = scene.operators
    await says(scene, PublicKey(operator.public_key), Fate.LATER)
    assert not await peer.bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    await scene.brought[operator.public_key].serve(scene.network.endpoints[PublicKey(operator.public_key)])
    assert await peer.bringing.bring_all()
    assert peer.bringing.brought_bytes == 4 * NUM_WEIGHTS


async def test_a_page_is_tried_again_where_an_operator_has_no_place_now(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    _, peer, _ = await handed_in(scene)
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
    scene = Scene(tmp_path)
    await scene.open()
    _, peer, _ = await handed_in(scene)
    (path,) = (tmp_path / f"peer-{A.public_key.hex()[:8]}" / "open").iterdir()
    assert peer.again().bases == {peer.base}
    path.write_bytes(path.read_bytes()[:-1])
    assert not peer.again().bases


async def test_what_another_key_of_this_folder_handed_in_is_nobody_s_here(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    _, peer, _ = await handed_in(scene)
    assert peer.again().bases
    folder = tmp_path / f"peer-{A.public_key.hex()[:8]}"
    other = Bringing(scene.endpoint(B), scene.line(B), peer.vectors, folder, Rounds(scene), kept_rounds=KEPT_ROUNDS)
    assert not other.bases
    scene.turn()
    assert await other.bring_all()


async def test_nothing_goes_while_another_contribution_on_its_base_may_be_listed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    header, peer, _ = await handed_in(scene)
    undrawn(scene, header)
    looked_for = [peer.base]
    folder = tmp_path / f"peer-{A.public_key.hex()[:8]}"
    bringing = Bringing(scene.endpoint(A), scene.line(A), peer.vectors, folder, Rounds(scene, looked_for), kept_rounds=KEPT_ROUNDS)
    await bringing.bring_all()
    assert peer.vectors.has(peer.base, MEAN)
    looked_for.clear()
    await bringing.bring_all()
    assert not peer.vectors.has(peer.base, MEAN)
