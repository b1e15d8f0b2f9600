"""What a volunteer sees when something is wrong: one line that says what to do, and nothing is left behind.

Mistakes that need no network to be seen are made in this process, and most of the others in a fork: ``tests/test_start.py`` starts every
command for real.
"""

import asyncio
import contextlib
import dataclasses
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.automl.data.catalog import digits
from manta_swarm.network.log_client import serve_manifest
from manta_swarm.network.node import Node, peer_name
from manta_swarm.peer import joining
from manta_swarm.peer.cli import main
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.versions import PROTOCOL
from manta_swarm.runtime.disk import load_identity, only_process
from manta_swarm.runtime.local_runs import LocalRun, listed
from tests.command import Ended, Home, assert_ended_by_hand, assert_refused, contents, has_keeper, typed, wait_for_line
from tests.network.processes import LISTEN, wait_for
from tests.peer.forked_home import ForkedHome

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # hivemind's way to find its daemon

OPERATOR, STRANGER = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{peer_name(STRANGER.public_key)}"  # a good address where nobody listens


@pytest.fixture
def forks(home: Home) -> ForkedHome:
    """The same home, for commands whose start is shown elsewhere."""
    return ForkedHome(home.directory, home.temporary)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "peer"


def join(directory: Path, *arguments: str) -> Ended:
    """Return how ``manta-peer join`` ended in this process: it must find its mistake before it goes to the network."""
    return typed(main, "join", "--gpus", "none", "--listen", LISTEN, "--dir", directory, *arguments)


def manifest() -> Manifest:
    return RunConfig().manifest(OPERATOR, sha256(b"a state that nobody has"), digits())


@contextlib.asynccontextmanager
async def serving(home: Home, signed: SignedManifest) -> AsyncIterator[str]:
    """Yield the address of a real node that serves a manifest, and nothing else."""
    path = home.directory / "operator.key"
    path.touch(mode=0o600)
    path.write_bytes(OPERATOR.to_libp2p())
    node = await Node.start(OPERATOR, path, listen=[LISTEN])
    try:
        await serve_manifest(node, signed)
        yield (await node.addresses())[0]
    finally:
        await node.close()


async def refusal_of(home: Home, directory: Path, signed: SignedManifest) -> str:
    """Return why a peer, in this process, did not join at a node with the manifest ``signed``."""
    async with serving(home, signed) as address:
        config = PeerConfig(gpus="none", listen=(LISTEN,), dir=directory, initial_peers=(address,))
        with pytest.raises(UserError) as refused:
            await joining.join(config)
    assert not (directory / "last.json").exists()
    return str(refused.value)


def assert_waits(home: Home, directory: Path, address: str, *words: str) -> None:
    """Check that a peer says why nobody is there, once and in one line, and goes on trying until the person ends it."""
    process = home.start(
        "manta_swarm.peer.cli", "join", "--gpus", "none", "--listen", LISTEN, "--dir", directory, "--initial-peers", address
    )
    line = wait_for_line(process, "it is tried again until somebody answers")
    assert all(word in line for word in words), line
    ended = home.interrupted(process)
    assert_ended_by_hand(ended, (130,))
    assert "tried again" not in ended.output
    assert not (directory / "last.json").exists()


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """Yield a socket that listens, and neither accepts nor answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


# Mistakes that need no network to be seen.


def test_no_address_and_no_run_or_another_than_the_one_on_this_computer(directory: Path) -> None:
    assert_refused(join(directory), "no run was found", "--initial-peers", "MANTA_INITIAL_PEERS", "manta-aggregator start")
    with listed(LocalRun("1" * 64, "digits", (NOBODY,))):
        assert_refused(join(directory, "--run", "2" * 64), "no run was found", "--initial-peers")
    assert not (directory / "last.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(
            (("--initial-peers", address), (address, "/ip4/203.0.113.7/tcp/31000/p2p/"))
            for address in ("127.0.0.1:31000", NOBODY.rpartition("/p2p/")[0], NOBODY[:-1], f"/p2p/{NOBODY.rpartition('/')[2]}")
        ),
        (("--initial-peers", NOBODY, "--run", "digits"), ("--run", "64 hexadecimal digits", "digits")),
        (("--initial-peers", NOBODY, "--gpus", "0,99"), ("--gpus", "is not there")),
        *(
            (("--initial-peers", NOBODY, "--listen", listen), (listen, "/ip4/0.0.0.0/tcp/31000"))
            for listen in ("0.0.0.0:31000", "/ip4/127.0.0.1/udp/1", "/ip4/127.0.0.1/tcp/99999")
        ),
    ],
)
def test_what_is_malformed_or_not_there(directory: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(typed(main, "join", "--dir", directory, *arguments), *words)


@pytest.mark.parametrize("payout", ["me", NOBODY.rpartition("/")[2][:-1], "ab" * 32, "12D3Koo\n"])
def test_an_account_that_is_no_key(directory: Path, payout: str) -> None:
    started_s = time.monotonic()
    for more in (("--initial-peers", NOBODY), ("--light", "--gateway", "http://127.0.0.1:1/")):
        assert_refused(typed(main, "join", *more, "--dir", directory, "--payout", payout), "--payout", "12D3Koo", "manta-peer identity")
    assert not directory.exists()
    assert time.monotonic() - started_s < 2


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--duty", "0%", "1"),
        ("--max-upload", "fast", "as 10Mbit"),
        ("--max-download", "1kB", "at least 100kB"),
        ("--schedule", "22-7", "22:00-07:00"),
        ("--when-idle", "soon", "as 90s"),
        ("--gpu-memory", "6", "6GB"),
    ],
)
def test_a_limit_that_cannot_be(directory: Path, flag: str, value: str, words: str) -> None:
    for command in (("join", "--initial-peers", NOBODY), ("limits",)):
        assert_refused(typed(main, *command, "--dir", directory, flag, value), flag, words)
    assert not directory.exists()


def test_limits_are_kept_for_a_peer_that_does_not_run(directory: Path) -> None:
    assert typed(main, "identity", "new", "--dir", directory).exit_code == 0
    ended = typed(main, "limits", "--dir", directory, "--duty", "60%", "--schedule", "22:00-07:00", "--on-ac")
    assert (ended.exit_code, ended.errors) == (0, "")
    assert ended.output == f"no peer runs on {directory}; at its next start: duty 60%, schedule 22:00-07:00, on-ac\n"
    ended = typed(main, "limits", "--dir", directory, "--no-on-ac", "--duty", "none")
    assert ended.output.endswith("at its next start: schedule 22:00-07:00\n")
    assert typed(main, "limits", "--dir", directory).output == ended.output


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_without_a_peer_gets_no_limits(directory: Path, is_there: bool) -> None:
    if is_there:
        directory.mkdir()
    for limits in ((), ("--duty", "50%")):
        assert_refused(typed(main, "limits", "--dir", directory, *limits), f"there is no peer in {directory}", "--dir")
    assert directory.exists() == is_there
    assert contents(directory) == {}


@pytest.mark.parametrize("word", ["pause", "resume", "leave"])
def test_no_peer_to_pause(directory: Path, word: str) -> None:
    assert_refused(typed(main, word, "--dir", directory), f"no peer runs on {directory}", "--dir")
    assert not directory.exists()


@pytest.mark.swarm
def test_a_port_in_use(home: Home, directory: Path) -> None:
    with listening() as server:
        listen = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
        ended = home.run("manta_swarm.peer.cli", "join", "--listen", listen, "--dir", directory, "--initial-peers", NOBODY)
    assert_refused(ended, listen, "in use", "--listen")


def test_a_directory_that_another_process_uses(directory: Path) -> None:
    directory.mkdir()
    load_identity(directory / "identity.key")
    before = contents(directory)
    with only_process(directory):
        assert_refused(join(directory, "--initial-peers", NOBODY), str(directory), "another", "--dir")
        with pytest.raises(UserError), only_process(directory):  # nobody has taken the lock away either
            pass
    assert contents(directory) == before | {directory / "lock": b""}


def test_an_identity_that_others_can_read_or_that_is_garbage(directory: Path) -> None:
    directory.mkdir()
    key = directory / "identity.key"
    load_identity(key)
    key.chmod(0o644)
    before = contents(directory)
    assert_refused(join(directory, "--initial-peers", NOBODY), f"chmod 600 {key}")
    assert before.items() <= contents(directory).items()
    key.chmod(0o600)
    key.write_text("garbage")
    assert_refused(join(directory, "--initial-peers", NOBODY), "identity.key", "is no identity", "backup")
    assert key.read_text() == "garbage"


# Mistakes that show once the network is there.


@pytest.mark.swarm
def test_an_unreachable_address_is_tried_until_somebody_answers(forks: ForkedHome, directory: Path) -> None:
    assert_waits(forks, directory, NOBODY, NOBODY, "no answer", "check the address")


@pytest.mark.swarm
def test_an_address_where_something_listens_that_does_not_answer(forks: ForkedHome, directory: Path) -> None:
    with listening() as server:
        address = NOBODY.replace("/tcp/1/", f"/tcp/{server.getsockname()[1]}/")
        assert_waits(forks, directory, address, address, "no answer", "check the address")


@pytest.mark.swarm
async def test_an_address_with_another_nodes_key(forks: ForkedHome, directory: Path) -> None:
    async with serving(forks, SignedManifest.sign(manifest(), OPERATOR)) as address:
        wrong = address.replace(peer_name(OPERATOR.public_key), peer_name(STRANGER.public_key))
        await asyncio.to_thread(assert_waits, forks, directory, wrong, wrong, "no answer", "check the address")


@pytest.mark.swarm
async def test_another_run_than_the_one_asked_for(forks: ForkedHome, directory: Path) -> None:
    signed = SignedManifest.sign(manifest(), OPERATOR)
    PeerStore(directory)
    (directory / "last.json").write_text("of an earlier life")
    async with serving(forks, signed) as address:
        where = ("--listen", LISTEN, "--dir", directory, "--initial-peers", address)
        ended = await asyncio.to_thread(forks.run, "manta_swarm.peer.cli", "join", "--gpus", "none", *where, "--run", "1" * 64)
    assert_refused(ended, signed.run.hex(), "1" * 64, "--run")
    assert (directory / "last.json").read_text() == "of an earlier life"


@pytest.mark.swarm
@pytest.mark.parametrize("fault", ["signed by a stranger", "changed after it was signed", "not a manifest"])
async def test_a_manifest_that_its_operator_did_not_sign(home: Home, directory: Path, fault: str) -> None:
    good = SignedManifest.sign(manifest(), OPERATOR)
    bad = {
        "signed by a stranger": SignedManifest(good.payload, STRANGER.sign("manifest", good.payload)),
        "changed after it was signed": SignedManifest(good.payload.replace(b"digits", b"dogits"), good.signature),
        "not a manifest": SignedManifest(b"garbage", OPERATOR.sign("manifest", b"garbage")),
    }[fault]
    found = await refusal_of(home, directory, bad)
    for words in ("the manifest that /ip4/127.0.0.1/tcp/", "is refused", "ask the operator"):
        assert words in found


@pytest.mark.swarm
async def test_a_run_of_a_later_version_of_the_protocol(home: Home, directory: Path) -> None:
    found = await refusal_of(home, directory, SignedManifest(b"what this program cannot know", bytes(64), PROTOCOL + 1, "9.1"))
    for words in ("of another version", f"version {PROTOCOL + 1} of the protocol", "install manta-swarm 9.1 or a later release"):
        assert words in found


@pytest.mark.swarm
async def test_a_run_that_this_computer_cannot_train_is_not_joined(home: Home, directory: Path) -> None:
    other = dataclasses.replace(manifest(), data_digest=sha256(b"other data"))
    assert "is not the run's" in await refusal_of(home, directory, SignedManifest.sign(other, OPERATOR))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_digest": sha256(b"other data")}, ("'digits'", sha256(b"other data").hex()[:16], "install")),
        ({"dataset": "imaginary"}, ("needs the data set 'imaginary'", "this version", "digits")),
        ({"dataset": "folder-flowers"}, ("needs the data set 'folder-flowers'", "--data-root")),
        ({"supernet": "giant"}, ("'giant'", "this version", "install")),
        ({"supernet": "classifier-tiny-3x100"}, ("classifier-tiny-3x100 does not fit", "digits", "ask the operator")),
        ({"task": "stereo"}, ("classifier-tiny is for classification", "stereo", "ask the operator")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_why_this_computer_cannot_train_a_run_is_said_in_a_line(changes: dict[str, object], words: tuple[str, ...]) -> None:
    def prepare(wanted: Manifest) -> None:
        joining.check_supported(wanted)
        joining.PLUGGED_IN.load(PeerConfig(), wanted, None)

    with pytest.raises(UserError) as refused:
        prepare(dataclasses.replace(manifest(), **changes))  # type: ignore[arg-type]
    assert all(each in str(refused.value) for each in words)
    assert "\n" not in str(refused.value)


@pytest.mark.swarm
async def test_an_address_of_a_node_that_is_no_aggregator(forks: ForkedHome, directory: Path) -> None:
    path = forks.directory / "operator.key"
    node = await Node.start(load_identity(path), path, listen=[LISTEN])
    try:
        address = (await node.addresses())[0]
        await asyncio.to_thread(assert_waits, forks, directory, address, "no manifest could be fetched", "ask the operator")
    finally:
        await node.close()


# Ctrl-C.


@pytest.mark.swarm
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which libraries a process has loaded so far")
@pytest.mark.parametrize("library", ["_multiarray_umath", "libtorch_cpu", "_C.cpython"])
def test_ctrl_c_while_the_program_loads(home: Home, directory: Path, library: str) -> None:
    process = home.start_program("peer", "join", "--dir", directory, "--initial-peers", NOBODY)
    wait_for(lambda: any(library in mapped.path for mapped in psutil.Process(process.pid).memory_maps()), f"{library} is loaded")
    assert_ended_by_hand(home.interrupted(process), (-signal.SIGINT, 130))  # a shell shows 130 for both


@pytest.mark.swarm
def test_ctrl_c_while_its_daemon_starts(forks: ForkedHome, directory: Path) -> None:
    process = forks.start("manta_swarm.peer.cli", "join", "--listen", LISTEN, "--dir", directory, "--initial-peers", NOBODY)
    wait_for(lambda: has_keeper(process), "the daemon's keeper is there")
    assert_ended_by_hand(forks.interrupted(process), (130,))


@pytest.mark.swarm
def test_ctrl_c_while_it_connects(forks: ForkedHome, directory: Path) -> None:
    with listening() as server:
        address = NOBODY.replace("/tcp/1/", f"/tcp/{server.getsockname()[1]}/")
        process = forks.start("manta_swarm.peer.cli", "join", "--listen", LISTEN, "--dir", directory, "--initial-peers", address)
        assert select.select([server], [], [], 240.0)[0], "it never connected"
        assert_ended_by_hand(forks.interrupted(process), (130,))


@pytest.mark.swarm
@pytest.mark.parametrize("presses", [1, 2])
async def test_ctrl_c_while_it_waits_for_the_log(forks: ForkedHome, directory: Path, presses: int) -> None:
    async with serving(forks, SignedManifest.sign(manifest(), OPERATOR)) as address:
        where = ("--listen", LISTEN, "--dir", directory, "--initial-peers", address)
        process = forks.start("manta_swarm.peer.cli", "join", "--gpus", "none", *where)
        await asyncio.to_thread(wait_for_line, process, "waiting for the run's log")
        if presses == 2:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(wait_for_line, process, "press Ctrl-C again")
        ended = await asyncio.to_thread(forks.interrupted, process)
    if presses == 1:
        assert_ended_by_hand(ended, (0,))
        assert "left the run round=0" in ended.output
    else:  # the first one may have done its work by the time of the second: then that one meets a peer that has left, or none
        stopped = "manta-peer: stopped at once; what was signed is kept, and is handed in at the next start\n"
        assert (ended.exit_code, ended.errors) in ((0, ""), (130, stopped), (130, "manta-peer: ended by Ctrl-C\n")), ended
    assert (directory / "identity.key").stat().st_mode & 0o077 == 0
