"""What an operator sees when something is wrong: one line that says what to do, and nothing is left behind.

The commands run in this process, but where it is about how a process ends, or about another one beside it: ``tests/test_start.py`` starts
every command for real.
"""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.storage import DATABASE, MANIFEST, TREE_HEAD
from manta_swarm.aggregator.settings.config import RunConfig, load_run_file
from manta_swarm.aggregator.states.opening import open_run
from manta_swarm.automl.data.catalog import digits
from manta_swarm.runtime.disk import load_identity, only_process
from tests.command import Ended, Home, assert_ended_by_hand, assert_refused, contents, has_keeper, typed, wait_for_line
from tests.network.processes import DEADLINE_S, LISTEN, wait_for


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "small"\nrounds = 5\n')
    return path


def start(run_file: Path, directory: Path, listen: str = LISTEN) -> Ended:
    return typed(main, "start", run_file, "--dir", directory, "--listen", listen)


def make_run(run_file: Path, directory: Path) -> None:
    """Leave ``directory`` as an aggregator leaves it that was started with ``run_file`` and stopped."""
    directory.mkdir(mode=0o700)
    open_run(load_run_file(run_file), directory, load_identity(directory / "identity.key"), digits()).log.close()


def assert_kept(before: dict[Path, bytes], directory: Path) -> None:
    """Check that every file is there with its content."""
    after = contents(directory)
    for path, data in before.items():
        # An opened database is not the same bytes, and its head is signed anew: what it holds is checked by whoever opens it again.
        assert path in after
        assert path.name == DATABASE or after[path] == data, path


# The run file.


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), RunConfig.thin("classification")),
        (("--dense",), RunConfig.usual("classification")),
        (("--task", "stereo"), RunConfig.thin("stereo")),
    ],
)
def test_init_writes_a_file_that_start_reads_and_says_what_to_do_next(tmp_path: Path, flags: tuple[str, ...], expected: RunConfig) -> None:
    path = tmp_path / "new.toml"
    ended = typed(main, "init", path, *flags)
    assert (ended.exit_code, ended.errors) == (0, "")
    assert f"manta-aggregator start {path} --dir" in ended.output
    assert load_run_file(path) == expected


def test_init_onto_an_existing_file(run_file: Path) -> None:
    before = run_file.read_bytes()
    assert_refused(typed(main, "init", run_file), str(run_file), "exists already", "another name")
    assert run_file.read_bytes() == before


def test_init_where_there_is_no_directory(tmp_path: Path) -> None:
    assert_refused(typed(main, "init", tmp_path / "no" / "run.toml"), "cannot write", "run.toml")


def test_a_run_file_that_does_not_exist(tmp_path: Path, directory: Path) -> None:
    path = tmp_path / "nothing.toml"
    assert_refused(start(path, directory), str(path), f"manta-aggregator init {path}")
    assert not directory.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run]\nronds = 5\n", ("run.ronds", "manta-aggregator init")),
        ("[run\n", ("cannot read",)),
        ('[run]\nname = "My Run"\n', ("plain lower-case name", "My Run")),
        ('[optimizer]\nouter_momentum = "1"\n', ("outer_momentum below 1",)),
        ('[data]\ndataset = "folder-flowers"\n', ("folder-flowers", "--data-root")),
    ],
    ids=["unknown key", "not TOML", "no manifest", "a momentum that grows", "no data"],
)
def test_a_run_file_that_makes_no_run(run_file: Path, directory: Path, text: str, words: tuple[str, ...]) -> None:
    run_file.write_text(text)
    assert_refused(start(run_file, directory), *words)
    assert not (directory / DATABASE).exists()


# A proof against a log.


def test_a_file_that_is_no_proof(tmp_path: Path) -> None:
    path = tmp_path / "wrong-group-3-0.proof"
    command = ("ledger", "check-proof", path)
    assert_refused(typed(main, *command), str(path), "cannot read", "check the name")
    path.write_bytes(b"no proof")
    assert_refused(typed(main, *command), str(path), "is no proof", "ask whoever kept it")
    assert_refused(typed(main, *command, "--run", "me"), "64 hexadecimal digits", "'me'")


# The address.


@pytest.mark.swarm
def test_a_port_in_use(home: Home, run_file: Path, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}"
        ended = home.run("manta_swarm.aggregator.cli", "start", run_file, "--dir", directory, "--listen", listen)
    assert_refused(ended, listen, "in use", "--listen")


def test_an_address_that_cannot_be_listened_on(run_file: Path, directory: Path) -> None:
    listen = "/ip4/203.0.113.7/tcp/31000"
    assert_refused(start(run_file, directory, listen), "cannot listen on", listen)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gateway", "8080"), ("--gateway '8080'", "HOST:PORT")),
        (("--gateway-cert", "gateway.crt", "--gateway-key", "gateway.key"), ("are for a gateway", "--gateway HOST:PORT")),
        (("--gateway", "127.0.0.1:0", "--gateway-cert", "gateway.crt"), ("go together",)),
    ],
)
def test_a_gateways_settings_that_cannot_be(run_file: Path, directory: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(typed(main, "start", run_file, "--dir", directory, *arguments), *words)
    assert not directory.exists()


def test_a_gateways_port_in_use(run_file: Path, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ended = typed(main, "start", run_file, "--dir", directory, "--listen", LISTEN, "--gateway", address)
    assert_refused(ended, f"cannot listen on {address}", "--gateway HOST:PORT")
    assert not (directory / DATABASE).exists()


def test_a_gateway_where_data_stay_with_their_owners(run_file: Path, directory: Path) -> None:
    run_file.write_text('[run]\ndata = "private"\n')
    ended = typed(main, "start", run_file, "--dir", directory, "--listen", LISTEN, "--gateway", "127.0.0.1:0")
    assert_refused(ended, "data stay with their owners", "leave --gateway out")


# The directory.


def test_a_directory_of_another_run(run_file: Path, directory: Path, tmp_path: Path) -> None:
    make_run(run_file, directory)
    before = contents(directory)
    other = tmp_path / "other.toml"
    other.write_text('[run]\nname = "another"\n')
    assert_refused(start(other, directory), str(directory), "holds another run", "small", "--dir")
    assert_kept(before, directory)


def test_a_new_directory_that_another_process_uses(run_file: Path, directory: Path) -> None:
    directory.mkdir()
    with only_process(directory):
        assert_refused(start(run_file, directory), str(directory), "another", "--dir")
    assert set(contents(directory)) == {directory / "lock"}


def test_a_file_where_the_directory_should_be(run_file: Path, tmp_path: Path) -> None:
    below = run_file / "aggregator"
    assert_refused(start(run_file, below), "cannot make the directory", str(below), "--dir")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda key: key.chmod(0o640), ("chmod 600",)),
        (lambda key: key.write_text("garbage"), ("is no identity", "backup")),
        (Path.unlink, ("is missing", "backup")),
    ],
    ids=["others can read it", "garbage", "lost"],
)
def test_an_identity_that_is_none(run_file: Path, directory: Path, spoil: Callable[[Path], object], words: tuple[str, ...]) -> None:
    make_run(run_file, directory)
    key = directory / "identity.key"
    spoil(key)
    before = contents(directory)
    assert_refused(start(run_file, directory), str(key), *words)
    assert_kept(before, directory)
    assert key.exists() is (key in before)


@pytest.mark.parametrize(
    ("lost", "named"), [("snapshots/round-00000000.safetensors", "snapshots holds no state"), (MANIFEST, MANIFEST), (TREE_HEAD, TREE_HEAD)]
)
def test_a_lost_file_is_the_machines_fault_and_named(run_file: Path, directory: Path, lost: str, named: str) -> None:
    make_run(run_file, directory)
    (directory / lost).unlink()
    before = contents(directory)
    ended = start(run_file, directory)
    assert ended.exit_code == 1
    assert len(ended.errors.splitlines()) == 1
    assert named in ended.errors
    assert_kept(before, directory)


# The ledger.


@pytest.mark.parametrize("command", ["verify", "replay"])
def test_where_there_is_no_log(directory: Path, command: str) -> None:
    words = (str(directory), "holds no log", "check the path")
    assert_refused(typed(main, "ledger", command, "--dir", directory), *words)
    assert not directory.exists()
    directory.mkdir()
    assert_refused(typed(main, "ledger", command, "--dir", directory), *words)
    assert contents(directory) == {}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("verify", "root e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),  # SHA-256 of nothing
        ("replay", "replayed 0 of 0 rounds"),
    ],
)
def test_a_new_run_is_read_and_nothing_is_written(run_file: Path, directory: Path, command: str, said: str) -> None:
    make_run(run_file, directory)
    before = contents(directory)
    ended = typed(main, "ledger", command, "--dir", directory)
    assert (ended.exit_code, ended.errors) == (0, "")
    assert said in ended.output
    assert contents(directory) == before


@pytest.mark.parametrize(
    ("command", "spoilt", "words"), [("verify", TREE_HEAD, TREE_HEAD), ("replay", "snapshots/round-00000000.safetensors", "no snapshot")]
)
def test_a_log_that_does_not_hold_is_no_users_mistake(run_file: Path, directory: Path, command: str, spoilt: str, words: str) -> None:
    make_run(run_file, directory)
    (directory / spoilt).write_text("garbage")
    before = contents(directory)
    ended = typed(main, "ledger", command, "--dir", directory)
    assert (ended.exit_code, len(ended.errors.splitlines())) == (1, 1)
    assert words in ended.errors
    assert contents(directory) == before


# Ctrl-C.


@pytest.mark.swarm
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which libraries a process has loaded so far")
@pytest.mark.parametrize("library", ["libtorch_cpu", "_multiarray_umath"])
def test_ctrl_c_while_the_program_loads(home: Home, run_file: Path, directory: Path, library: str) -> None:
    process = home.start("manta_swarm.aggregator.cli", "start", run_file, "--dir", directory, "--listen", LISTEN)
    wait_for(lambda: any(library in mapped.path for mapped in psutil.Process(process.pid).memory_maps()), f"{library} is loaded")
    assert_ended_by_hand(home.interrupted(process), (-2, 130))  # a shell shows 130 for both


@pytest.mark.swarm
def test_ctrl_c_while_its_daemon_starts_and_a_second_start_goes_on_beside_which_no_other_one_does(
    home: Home, run_file: Path, directory: Path
) -> None:
    command = ("manta_swarm.aggregator.cli", "start", run_file, "--dir", directory, "--listen", LISTEN, "--no-monitor")
    process = home.start(*command)
    wait_for(lambda: has_keeper(process), "the daemon's keeper is there")
    assert_ended_by_hand(home.interrupted(process), (130,))
    manifest = (directory / MANIFEST).read_bytes()
    process = home.start(*command)
    wait_for_line(process, "volunteers join with:")
    wait_for((directory / "status.json").exists, "it has written where it stands")
    (address,) = json.loads((directory / "status.json").read_text())["addresses"]
    assert address.startswith((directory / "listen").read_text())  # where the next start listens
    another = home.start(*command)
    output, errors = another.communicate(timeout=DEADLINE_S)
    assert_refused(Ended(another.returncode, output, errors), str(directory), "another", "--dir")
    assert process.poll() is None  # and the first one has not noticed
    ended = home.interrupted(process)
    assert_ended_by_hand(ended, (0,))
    assert "stopped at round 0" in ended.output
    assert (directory / MANIFEST).read_bytes() == manifest
