"""Taking an admission back from a whole aggregator at work, over an in-memory network, and in the folder of one that is not."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.inviting import invitation
from manta_swarm.network.log_client import HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.admission import TAKEN_BACK, AdmissionRule
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import Identity, peer_name
from tests.aggregator.test_admission_at_work import ALICE, BOB, INVITED, entered, handed_in
from tests.aggregator.test_program_at_work import ended_by_hand, started
from tests.runs import FixedTrainingSpec, manifest_of

pytestmark = pytest.mark.virtual_time

STRANGER = Identity(b"\x2b" * 32)


async def typed(*words: object) -> tuple[int, str]:
    """Type manta-aggregator revoke in another terminal."""
    result = await asyncio.to_thread(CliRunner().invoke, main, ["revoke", *map(str, words)])
    return result.exit_code, result.output


async def test_whose_admission_is_taken_back_is_out_of_calls_the_dht_and_the_log_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "aggregator"
    async with started(directory, monkeypatch, INVITED) as program:
        told = invitation(directory, keys=2).text
        alice, bob = await entered(program, ALICE, told), await entered(program, BOB, told)
        watching = asyncio.create_task(alice.watch_daemon())
        keeping = asyncio.create_task(bob.watch_daemon())

        async def answer(_caller: bytes, _request: bytes) -> bytes:
            return b"here"

        await bob.serve("echo", answer)
        assert await alice.call(bob.key, "echo", b"", timeout_s=20) == b"here"
        assert await handed_in(program, alice, ALICE) is HandIn.HAVE_PROMISE
        assert await typed("--dir", directory, "--peer", peer_name(ALICE.public_key)) == (
            0,
            "taken back; it stands in the log, and peers hear of it within seconds\n",
        )
        with pytest.raises(Refused, match="not admitted"):
            await alice.call(program.node.key, "weights", b"", timeout_s=20)
        with pytest.raises(UserError, match=f"{TAKEN_BACK}, which is this peer's"):
            await asyncio.wait_for(watching, 20)
        with pytest.raises(UserError, match=f"{TAKEN_BACK}, which is this peer's"):
            await entered(program, ALICE)  # though it has its admission proof
        async with asyncio.timeout(20):
            while True:  # another peer hears of it from the log
                try:
                    await alice.call(bob.key, "echo", b"", timeout_s=20)
                except Refused:
                    break
                await asyncio.sleep(0.05)
        await alice.publish("here", b"I am", ttl_s=60)
        assert await bob.lookup("here") == {}
        await program.says("round committed round=1")  # what had an inclusion promise is in it
        code, output = await typed("--dir", directory, "--peer", peer_name(ALICE.public_key))
        assert (code, "not taken back: this key is not in, or was taken back before" in output) == (2, True), output
        keeping.cancel()
        await asyncio.wait([keeping])
        await ended_by_hand(program)
    code, output = await typed("--dir", directory, "--invitation", told)  # of a run that is not at work
    assert (code, "once the aggregator runs again" in output) == (0, True), output
    code, output = await typed("--dir", directory, "--invitation", told)
    assert (code, "taken back before" in output) == (2, True), output
    async with started(directory, monkeypatch, INVITED) as program:
        assert ALICE.public_key in program.context.log.ledger.admitted.out
        with pytest.raises(UserError, match="took the invitation back"):
            await entered(program, STRANGER, told)
        await ended_by_hand(program)
    found = verify_directory(directory)
    assert set(found.credits) == {ALICE.public_key}


def test_of_several_operators_none_takes_back_alone(tmp_path: Path) -> None:
    manifest = manifest_of(ALICE, operators=(ALICE.public_key, BOB.public_key), admission=AdmissionRule("invitation"), quorum=2)
    Log.create(tmp_path / "run", SignedManifest.sign(manifest, ALICE), ALICE, training_spec_of=lambda _: FixedTrainingSpec()).close()
    code, output = asyncio.run(typed("--dir", tmp_path / "run", "--peer", peer_name(STRANGER.public_key)))
    assert (code, "several operators" in output) == (2, True), output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say what is taken back"),
        (["--peer", "12D3", "--invitation", "x"], "say what is taken back"),
        (["--peer", "nobody"], "is no peer's id"),
        (["--invitation", "/nowhere"], "cannot read the invitation"),
        (["--peer", peer_name(ALICE.public_key)], "holds no log"),
    ],
)
def test_a_mistake_is_told_in_a_line(tmp_path: Path, words: list[str], told: str) -> None:
    result = CliRunner().invoke(main, ["revoke", *words, "--dir", str(tmp_path)])
    assert (result.exit_code, told in result.output) == (2, True), result.output
