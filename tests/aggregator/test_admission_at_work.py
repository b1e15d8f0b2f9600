"""A whole aggregator, over an in-memory network, in a run that takes invited peers only."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.inviting import invitation
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.network.admission_filter import NOT_ADMITTED
from manta_swarm.network.invitation import Token
from manta_swarm.network.log_client import HandIn, LogClient
from manta_swarm.network.rpc import OwnNode, Refused
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.entering import NotThere, enter
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.admission import GUEST, MEMBER, Admission, AdmissionProof, AdmissionRule, access_shown
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, peer_name
from tests.aggregator.real_run import CONFIG, PEERS, everybodys
from tests.aggregator.test_program_at_work import Program, ended_by_hand, started
from tests.runs import FixedTrainingSpec, manifest_of

pytestmark = pytest.mark.virtual_time

ALICE, BOB, CAROL = PEERS
INVITED = CONFIG.model_copy(update={"admission": AdmissionSection(how="invitation")})


def config_of(directory: Path, peer: Identity, told: str | None = None) -> PeerConfig:
    return PeerConfig(dir=directory / peer_name(peer.public_key)[-8:], invitation=told)


async def entered(program: Program, peer: Identity, told: str | None = None, *, trains: bool = True) -> OwnNode:
    """Return a peer's node once the run has let it in."""
    config, signed = config_of(program.directory.parent, peer, told), program.context.opened.signed
    return await enter(program.network.endpoint(peer.public_key), peer, PeerStore(config.dir), config, signed, trains=trains)


async def handed_in(program: Program, node: OwnNode, peer: Identity) -> HandIn:
    ledger = program.context.log.ledger
    made = next(one for one in everybodys(ledger) if one.peer.public_key == peer.public_key)
    return (await LogClient(node, ledger.manifest, ledger.run).hand_in(made.header, made.groups)).status


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


@pytest.fixture
def program(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[Program]:
    return started(directory, monkeypatch, INVITED)


async def test_who_is_invited_takes_part_and_who_is_not_is_told_what_to_ask_for(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(directory, monkeypatch, INVITED) as program:
        assert any(line.startswith("  manta-peer join") and line.endswith(" --invitation FILE") for line in program.lines)
        await program.says("each needs an invitation, which manta-aggregator invite makes")
        told = invitation(directory).text
        alice = await entered(program, ALICE, told)
        assert await handed_in(program, alice, ALICE) is HandIn.HAVE_PROMISE
        await program.says("round committed round=1")
        with pytest.raises(UserError, match=rf"invited peers only.*{peer_name(BOB.public_key)}.*--invitation FILE"):
            await entered(program, BOB)
        with pytest.raises(UserError, match=r"used up: it was for 1 keys.*ask who gave it"):
            await entered(program, BOB, told)
        stranger = program.network.endpoint(BOB.public_key)
        for method in ("header", "blob", "contributions", "credit", "dial-back"):
            with pytest.raises(Refused, match=f"{NOT_ADMITTED}: .* ask its operator for an invitation"):
                await stranger.call(program.node.key, method, b"", timeout_s=20)
        for method in ("manifest", "ping"):
            await stranger.call(program.node.key, method, b"", timeout_s=20)
        carol = await entered(program, CAROL, invitation(directory).text)
        assert await handed_in(program, carol, CAROL) is HandIn.HAVE_PROMISE
        await program.says("round committed round=2")
        await ended_by_hand(program)
    found = verify_directory(directory)
    assert (found.rounds, found.size, set(found.credits)) == (2, 1 + 2 + 1 + 2, {ALICE.public_key, CAROL.public_key})
    async with started(directory, monkeypatch, INVITED) as program:
        assert program.context.log.ledger.admitted.accesses == {ALICE.public_key: MEMBER, CAROL.public_key: MEMBER}
        assert await handed_in(program, await entered(program, ALICE), ALICE) is HandIn.HAVE_PROMISE
        with pytest.raises(UserError, match="used up"):
            await entered(program, BOB, told)
        await ended_by_hand(program)


async def test_who_is_in_may_bring_anothers_admission_and_a_stranger_may_not(directory: Path, program: Program) -> None:
    run = program.context.opened.signed.run
    token = Token.from_text(invitation(directory).text)
    of_bob, of_alice = pack(token.admission(BOB.public_key)), pack(token.admission(ALICE.public_key))
    with pytest.raises(Refused, match="another key than the one that brings it"):
        await program.network.endpoint(ALICE.public_key).call(program.node.key, "admission", of_bob, timeout_s=20)
    carol = await entered(program, CAROL, invitation(directory).text)
    for _ in range(2):
        answer = await carol.call(program.node.key, "admission", of_bob, timeout_s=20)
        access_shown(
            unpack(Signed[AdmissionProof], answer, max_bytes=512), run, BOB.public_key, program.context.log.ledger.manifest.operators
        )
    with pytest.raises(Refused, match="used up"):
        await carol.call(program.node.key, "admission", of_alice, timeout_s=20)
    assert program.context.log.ledger.admitted.accesses.keys() == {CAROL.public_key, BOB.public_key}
    await ended_by_hand(program)


async def test_two_who_hold_one_invitation_come_in_side_by_side_as_far_as_it_goes(directory: Path, program: Program) -> None:
    text = invitation(directory).text
    ends = await asyncio.gather(*(entered(program, peer, text) for peer in (ALICE, BOB)), return_exceptions=True)
    assert [isinstance(end, UserError) for end in ends].count(True) == 1
    assert len(program.context.log.ledger.admitted.accesses) == 1
    assert program.context.log.head.size == 1


async def test_who_lost_its_admission_proof_gets_it_again_and_who_has_it_needs_no_log(directory: Path, program: Program) -> None:
    await entered(program, ALICE, invitation(directory).text)
    run_ = program.context.opened.signed.run
    store = PeerStore(config_of(directory.parent, ALICE).dir)
    store.own_proof(run_).write(b"damaged")
    await entered(program, ALICE)
    program.network.lost = lambda _sender, _receiver, method: method == "admission"
    await entered(program, ALICE)
    with pytest.raises(NotThere, match="does not answer"):
        await entered(program, BOB)
    assert program.context.log.head.size == 1


async def test_what_lets_nobody_in_is_refused_and_counted(directory: Path, program: Program) -> None:
    token = Token.from_text(invitation(directory, keys=5).text)
    admission, stranger = token.admission(ALICE.public_key), program.network.endpoint(BOB.public_key)

    async def refused(request: bytes, match: str) -> None:
        with pytest.raises(Refused, match=match):
            await stranger.call(program.node.key, "admission", request, timeout_s=20)

    await refused(pack(admission), "another key than the one that brings it")
    await refused(entry_of(admission), "expected")
    await refused(pack(Signed(Admission, admission.payload, bytes(64))), "does not verify")
    for _ in range(6):
        await refused(b"\x9b", "cut")
    await refused(pack(token.admission(BOB.public_key)), "try again in a minute")
    assert program.context.log.head.size == 0


async def test_a_guest_looks_on_and_is_told_that_it_does_not_train(directory: Path, program: Program) -> None:
    guest = await entered(program, ALICE, invitation(directory, access=GUEST).text, trains=False)
    with pytest.raises(UserError, match="as a guest, who looks on and trains nothing"):
        await entered(program, ALICE)
    bob = await entered(program, BOB, invitation(directory).text)
    await guest.publish("members", b"guest", ttl_s=60)
    await bob.publish("members", b"bob", ttl_s=60)
    for node in (bob, guest):
        assert await node.lookup("members") == {BOB.public_key: b"bob"}
    ledger = program.context.log.ledger
    word = await LogClient(guest, ledger.manifest, ledger.run).credit(0, bob.key)  # which the log tells nobody who is not in
    assert word.faults == ()
    with pytest.raises(Refused, match="a guest, who trains nothing"):
        await handed_in(program, guest, ALICE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--guest", "--proven"], "leave --guest or --proven out"),
        (["--proven"], "not audited, so nobody has to be proven"),
        (["--until-round", "99"], "the run has"),
        (["--keys", "2000000"], "lets in 1048576 peers at most"),
        (["--dir", "elsewhere"], "holds no log"),
    ],
)
def test_an_invitation_that_cannot_be_is_told_in_a_line(
    directory: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    manifest = manifest_of(ALICE, num_rounds=9, admission=AdmissionRule("invitation"))
    Log.create(directory, SignedManifest.sign(manifest, ALICE), ALICE, training_spec_of=lambda _: FixedTrainingSpec()).close()
    monkeypatch.chdir(directory.parent)
    result = CliRunner().invoke(main, ["invite", "--dir", str(directory), *words])
    assert (result.exit_code, told in result.output, result.output.count("\n")) == (2, True, 1), result.output
