import asyncio
import shutil
import stat
from pathlib import Path

import pytest

from aggregator.config import FollowerSection, RunConfig
from aggregator.log import Log
from aggregator.operator import Operator, open_log
from aggregator.storage import DATABASE, MANIFEST
from automl.update import state_digest
from protocol.errors import StorageError, UserError
from protocol.records import Round, claim_entry, round_entry
from swarm.disk import only_process
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, STRANGER, attempt
from tests.command import contents

SNAPSHOT = "snapshots/round-00000000.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


def changed(**sections: dict[str, object]) -> RunConfig:
    """Return ``CONFIG`` with other values in some sections."""
    values = CONFIG.model_dump()
    return RunConfig.model_validate({**values, **{name: values[name] | changes for name, changes in sections.items()}})


def make(directory: Path) -> bytes:
    """Make the run of ``CONFIG`` in ``directory`` and return its id."""
    log, signed, _ = open_log(CONFIG, directory, OPERATOR, DATASET)
    log.close()
    return signed.run


def test_a_new_directory_gets_a_run_whose_first_state_is_the_operators(directory: Path) -> None:
    log, signed, follower = open_log(CONFIG, directory, OPERATOR, DATASET)
    with log:
        assert (log.ledger.round, log.ledger.size) == (0, 0)
        assert log.ledger.run == signed.run
        assert signed.open() == CONFIG.manifest(OPERATOR, signed.open().initial_state, DATASET)
        assert follower.state is not None
        assert state_digest(follower.state) == signed.open().initial_state
        assert (directory / SNAPSHOT).exists()


def test_the_same_run_file_opens_the_same_run_again_where_it_was(directory: Path) -> None:
    log, signed, follower = open_log(CONFIG, directory, OPERATOR, DATASET)
    with log:
        assert follower.state is not None
        made = attempt(log.ledger, follower.state)
        proposal = made.proposal()
        follower.save(made.state)
        entries = [claim_entry(one) for one in made.claims]
        log.commit([*entries, round_entry(Round(proposal.statement, tuple(one.digest for one in made.claims), proposal.votes))])
    log, again, follower = open_log(CONFIG, directory, OPERATOR, DATASET)
    with log:
        assert again == signed
        assert (log.ledger.round, log.ledger.size) == (1, 4)
        assert follower.state is not None
        assert state_digest(follower.state) == log.ledger.state == made.statement.state


def test_a_run_goes_on_with_the_state_it_began_with_and_makes_no_other(directory: Path) -> None:
    make(directory)
    before = contents(directory / "snapshots")
    make(directory)
    assert contents(directory / "snapshots") == before


@pytest.mark.parametrize(
    "other",
    [
        changed(run={"name": "other"}),
        changed(run={"seed": 1}),
        changed(run={"rounds": 10}),
        changed(run={"schedule": "shrinking"}),
        changed(optimizer={"learning_rate": "0.009"}),
        changed(codec={"swarm": "fp16"}),
        changed(round={"deadline_s": 21}),
    ],
    ids=["name", "seed", "rounds", "schedule", "rate", "codec", "deadline"],
)
def test_a_directory_of_another_run_is_refused_and_left_as_it_is(directory: Path, other: RunConfig) -> None:
    run = make(directory)
    before = contents(directory)
    with pytest.raises(UserError, match=f"{directory} holds another run .*{run.hex()[:16]}.*--dir"):
        open_log(other, directory, OPERATOR, DATASET)
    after = contents(directory)
    assert set(before) == set(after)
    assert all(after[path] == data for path, data in before.items() if path.name != DATABASE)  # SQLite counts who opened it
    assert make(directory) == run  # the refusal has kept no lock


def test_what_is_no_part_of_the_run_may_change(directory: Path) -> None:
    run = make(directory)
    other = changed(follower=FollowerSection(evaluate_every=3, keep_snapshots=9, data_root="elsewhere").model_dump())
    log, signed, _ = open_log(other, directory, OPERATOR, DATASET)
    log.close()
    assert signed.run == run


def test_a_run_file_that_makes_no_run_is_refused_and_keeps_no_lock(directory: Path) -> None:
    make(directory)
    with pytest.raises(UserError, match="plain lower-case name"):
        open_log(changed(run={"name": "My Run"}), directory, OPERATOR, DATASET)
    make(directory)


def test_a_run_file_that_makes_no_run_makes_no_directory(directory: Path) -> None:
    with pytest.raises(UserError, match="plain lower-case name"):
        open_log(changed(run={"name": "My Run"}), directory, OPERATOR, DATASET)
    assert not directory.exists()


def test_another_operators_directory_is_refused(directory: Path) -> None:
    make(directory)
    with pytest.raises(UserError, match="another operator"):
        open_log(CONFIG, directory, STRANGER, DATASET)


def test_a_directory_that_is_open_is_refused(directory: Path) -> None:
    log, _, _ = open_log(CONFIG, directory, OPERATOR, DATASET)
    with log, pytest.raises(UserError, match=f"another aggregator uses {directory}"):
        open_log(CONFIG, directory, OPERATOR, DATASET)


@pytest.mark.parametrize("lost", [SNAPSHOT, MANIFEST])
def test_a_lost_file_is_a_storage_error_that_names_it_and_keeps_no_lock(directory: Path, tmp_path: Path, lost: str) -> None:
    run = make(directory)
    shutil.move(directory / lost, tmp_path / "kept")
    with pytest.raises(StorageError, match=lost):
        open_log(CONFIG, directory, OPERATOR, DATASET)
    shutil.move(tmp_path / "kept", directory / lost)
    assert make(directory) == run


def test_a_start_that_was_killed_before_the_log_was_there_begins_anew(directory: Path) -> None:
    make(directory)
    (directory / DATABASE).rename(directory / f"{DATABASE}.new")
    make(directory)


# The program around it, as far as it needs no network.


def operator(directory: Path) -> Operator:
    return Operator(CONFIG, directory, lambda line: None)


def test_a_lost_key_is_not_replaced_by_a_new_one(directory: Path) -> None:
    make(directory)
    with pytest.raises(UserError, match=r"identity\.key is missing.*backup"):
        asyncio.run(operator(directory).run(None))
    assert not (directory / "identity.key").exists()


def test_a_directory_in_use_is_refused_before_anything_is_written(directory: Path) -> None:
    directory.mkdir()
    with only_process(directory), pytest.raises(UserError, match=f"uses {directory}"):
        asyncio.run(operator(directory).run(None))
    assert set(contents(directory)) == {directory / "lock"}


@pytest.mark.parametrize("listen", ["/ip4/0.0.0.0/tcp/31000", "/ip4/127.0.0.1/tcp/31000"])
def test_an_address_with_a_port_is_taken_as_it_is_and_not_remembered(directory: Path, listen: str) -> None:
    directory.mkdir()
    assert operator(directory)._listen_address(listen) == listen
    one = operator(directory)
    one._listen_address(listen)
    one._remember_address((f"{listen}/p2p/12D3KooW",))
    assert contents(directory) == {}


@pytest.mark.parametrize("listen", [None, "/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/tcp/0"])
def test_a_free_port_stays_the_same_after_a_restart(directory: Path, listen: str | None) -> None:
    directory.mkdir()
    first = operator(directory)
    asked = first._listen_address(listen)
    assert asked.endswith("/tcp/0")
    first._remember_address(("/ip4/10.0.0.7/tcp/45678/p2p/12D3KooW", "/ip4/127.0.0.1/tcp/45678/p2p/12D3KooW"))
    assert operator(directory)._listen_address(listen) == asked.removesuffix("0") + "45678"
    assert operator(directory)._listen_address("/ip4/1.2.3.4/tcp/0") == "/ip4/1.2.3.4/tcp/0"  # another address was asked for


def test_a_spoilt_memory_of_the_port_is_no_traceback(directory: Path) -> None:
    directory.mkdir()
    (directory / "listen").write_bytes(b"\xff\xfe")
    assert operator(directory)._listen_address(None) == "/ip4/0.0.0.0/tcp/0"
    (directory / "listen").write_text("")
    assert operator(directory)._listen_address(None) == "/ip4/0.0.0.0/tcp/0"


def test_the_log_is_its_owners_alone(directory: Path) -> None:
    log, _, _ = open_log(CONFIG, directory, OPERATOR, DATASET)
    log.close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with Log.open(directory, OPERATOR) as again:
        assert again.ledger.round == 0
