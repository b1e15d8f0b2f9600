"""A run computed again: every committed state bit for bit, and one clear line where that cannot be."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.states.replay import Replayed, replay_directory
from manta_swarm.automl.training.update import state_digest
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.table import weights_root
from tests.aggregator.made import made_of, values_of
from tests.aggregator.real_run import (
    CONFIG,
    NUM_WEIGHTS,
    PEERS,
    SHRINKING,
    THIN_PARTS,
    commit,
    everybodys,
    made,
    made_together,
    opened,
    play,
    with_aggregator,
)
from tests.command import contents

ROUNDS = 6
KEEP = with_aggregator(CONFIG, keep_snapshots=1, keep_bodies=4)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run of some rounds, all bodies and snapshots kept."""
    directory = tmp_path_factory.mktemp("replay") / "aggregator"
    run = opened(directory)
    with run.log:
        play(run, ROUNDS - 1)
        commit(run, everybodys(run.log.ledger)[1:])  # one does not come
    return directory


@pytest.fixture
def directory(played: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "aggregator"
    shutil.copytree(played, copy)
    return copy


def states_of(directory: Path) -> dict[int, bytes]:
    """Return what the log says of the state after each round."""
    run = opened(directory)
    with run.log as log:
        return {round_: log.ledger.state_at(round_) for round_ in range(log.ledger.round + 1)}


def replayed(directory: Path) -> tuple[Replayed, dict[int, bytes]]:
    shown: dict[int, bytes] = {}

    def show(round_: int, state: bytes) -> None:
        shown[round_] = state

    return replay_directory(directory, show), shown


def snapshot(directory: Path, round_: int) -> Path:
    return directory / "snapshots" / f"round-{round_:08d}.safetensors"


def bodies(directory: Path, round_: int) -> Path:
    return directory / "bodies" / f"round-{round_:08d}.bodies"


def keep_only(directory: Path, *rounds: int) -> None:
    """Remove the snapshots of the other rounds."""
    for round_ in set(range(ROUNDS + 1)) - set(rounds):
        snapshot(directory, round_).unlink(missing_ok=True)


def complaint(directory: Path) -> str:
    """Return what replay says of a directory: one line."""
    with pytest.raises(StorageError) as caught:
        replay_directory(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_committed_state_is_computed_again_bit_for_bit(directory: Path) -> None:
    states = states_of(directory)
    keep_only(directory, 0)
    before = contents(directory)
    found, shown = replayed(directory)
    assert shown == {round_: states[round_] for round_ in range(1, ROUNDS + 1)}
    assert (found.rounds, found.first, found.size, found.state) == (ROUNDS, 0, 4 * ROUNDS - 1, states[ROUNDS])
    assert contents(directory) == before  # nothing was written


@pytest.mark.parametrize(("kept", "first"), [((0, 4, 5, 6), 0), ((4, 6), 4), ((6,), 6)])
def test_it_begins_with_the_oldest_snapshot_there_is(directory: Path, kept: tuple[int, ...], first: int) -> None:
    keep_only(directory, *kept)
    found, shown = replayed(directory)
    assert found.first == first
    assert sorted(shown) == list(range(first + 1, ROUNDS + 1))


def test_a_snapshot_older_than_the_kept_bodies_is_not_begun_with(directory: Path) -> None:
    bodies(directory, 2).unlink()
    found, _ = replayed(directory)
    assert found.first == 4  # the next one that was kept


def test_about_as_many_rounds_as_bodies_are_kept_can_always_be_computed_again(tmp_path: Path) -> None:
    run = opened(tmp_path / "aggregator", KEEP)
    with run.log:
        for newest in (1, 4, 7):
            play(run, newest - run.log.ledger.round)
            found, _ = replayed(tmp_path / "aggregator")  # beside the log at work
            assert found.rounds == newest
            assert min(newest, 2) <= newest - found.first <= 4
    assert run.bodies.rounds() == [4, 5, 6, 7]


def test_a_run_that_shrinks_and_sorts_and_has_a_teacher_is_computed_again(tmp_path: Path) -> None:
    run = opened(tmp_path / "aggregator", SHRINKING)
    with run.log as log:
        states = play(run, 9)
        assert log.ledger.finished
        assert any(run.state_keeper.plan.sorts_after(round_) for round_ in range(1, 10))
        for round_ in range(1, 10):
            if round_ not in (0, 3):
                snapshot(tmp_path / "aggregator", round_).unlink(missing_ok=True)
    found, shown = replayed(tmp_path / "aggregator")
    assert found.first == 0
    assert shown == {state.round: state_digest(state) for state in states}
    assert states[-1].teacher == state_digest(states[2])
    snapshot(tmp_path / "aggregator", 0).unlink()
    found, shown = replayed(tmp_path / "aggregator")
    assert (found.first, shown[9]) == (3, state_digest(states[-1]))  # the teacher's


def test_late_contributions_are_computed_again_on_the_min_exponents_of_their_bases(tmp_path: Path) -> None:
    run = opened(tmp_path / "aggregator")
    with run.log as log:
        play(run, 1)
        late = made(log.ledger, PEERS[0])
        for _ in range(2):
            commit(run, everybodys(log.ledger)[1:])
        contributions = [late, *everybodys(log.ledger)[1:]]
        commit(run, contributions)
        table = log.ledger.table_at(4)
        assert table is not None
        assert [one.weighing.age for one in table] == [2, 0, 0]
    found, _ = replayed(tmp_path / "aggregator")
    assert (found.first, found.rounds) == (0, 4)


def test_a_clipped_contribution_and_roles_that_are_not_in_every_round_are_computed_again(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"algorithm": "model-parallel"})})
    run = opened(tmp_path / "aggregator", config)
    with run.log as log:
        for round_ in range(1, 6):
            cohorts = ("here", "there", "elsewhere")[: 1 + round_ % 3]
            contributions = [made(log.ledger, peer, cohort=cohort) for peer, cohort in zip(PEERS, cohorts, strict=False)]
            if round_ == 5:
                loud = 100 * values_of(NUM_WEIGHTS)
                contributions[0] = made_of(log.ledger, PEERS[0], loud, microbatches=(1,), cohort=cohorts[0])
            after = commit(run, contributions)
        assert after.table_mean.clipped[0] < after.table_mean.weights[0]
        assert len(log.ledger.thresholds) > len({one.weighing.role for one in log.ledger.table_at(5) or ()})
    found, _ = replayed(tmp_path / "aggregator")
    assert (found.first, found.rounds) == (0, 5)


def test_cohorts_that_train_parts_in_several_local_steps_are_computed_again(tmp_path: Path) -> None:
    run = opened(tmp_path / "aggregator", THIN_PARTS)
    with run.log as log:
        assert run.state_keeper.state is not None
        assert len(run.state_keeper.state.moments) == 1  # the outer momentum
        for round_ in range(1, 5):
            late = [made(log.ledger, PEERS[2], cohort="there", round=round_ - 1)] if round_ == 4 else []
            contributions = [made_together(log.ledger, PEERS[:2], cohort="here"), *late]
            if not late and round_ != 3:
                contributions.append(made(log.ledger, PEERS[2], cohort="there"))
            commit(run, contributions)
    found, _ = replayed(tmp_path / "aggregator")
    assert (found.first, found.rounds) == (0, 4)


# What does not hold.


def test_a_missing_body_is_named_by_its_round(directory: Path) -> None:
    path = bodies(directory, 4)
    path.write_bytes(path.read_bytes()[:-1])
    assert complaint(directory) == "a body of round 4 is missing; restore the bodies from a backup"
    shutil.copy(bodies(directory, 2), bodies(directory, 3))
    assert complaint(directory) == "a body of round 3 is missing; restore the bodies from a backup"


def test_a_body_that_is_damaged_or_another_than_its_header_says_is_found(directory: Path) -> None:
    run = opened(directory)
    kept, path = run.bodies.read(3), bodies(directory, 3)
    run.log.close()
    path.unlink()
    for one in (type(kept[0])(kept[0].header, kept[1].body), *kept[1:]):  # as they come: each has a sync of its own
        run.bodies.append([(3, one)])
    assert complaint(directory) == "a body of round 3 is damaged (it is another one than the log lists); restore the bodies from a backup"
    data = bytearray(path.read_bytes())
    data[len(data) // 6] ^= 1
    path.write_bytes(data)
    assert complaint(directory) == f"{path} is damaged after its first 0 bytes; restore it from a backup"


def test_without_a_snapshot_that_the_bodies_follow_there_is_nothing_to_begin_with(directory: Path) -> None:
    keep_only(directory, 0)
    bodies(directory, 2).unlink()
    assert complaint(directory) == ("no snapshot is here from which the bodies of all later rounds are kept; restore them from a backup")
    shutil.rmtree(directory / "snapshots")
    assert "no snapshot is here" in complaint(directory)


@pytest.mark.parametrize("lies", [{"state": bytes(32)}, {"weights": weights_root(())}], ids=["state", "weights"])
def test_a_log_that_says_what_is_false_is_found(directory: Path, lies: dict[str, bytes]) -> None:
    """Every signature and proof of it holds: only who computes it again can tell."""
    run = opened(directory)
    with run.log:
        commit(run, everybodys(run.log.ledger), **lies)
    assert complaint(directory) == f"round {ROUNDS + 1} does not come to what the log says of it: the log, or this machine, is wrong"


def test_a_log_that_does_not_verify_is_not_computed_again(directory: Path) -> None:
    (directory / "tree-head.txt").write_text("garbage")
    assert "tree-head.txt" in complaint(directory)


def test_a_directory_without_a_log_is_the_users_mistake(tmp_path: Path) -> None:
    for look in (replay_directory, verify_directory):
        with pytest.raises(UserError, match="holds no log"):
            look(tmp_path)


# The command.


def test_the_command_says_what_it_found(directory: Path) -> None:
    states = states_of(directory)
    keep_only(directory, 0)
    ended = CliRunner().invoke(main, ["ledger", "replay", "--dir", str(directory)])
    assert ended.exit_code == 0, ended.output
    assert f"replayed {ROUNDS} of {ROUNDS} rounds, from the state of round 0 on: each comes to" in ended.output
    assert ended.output.splitlines()[-1] == f"state {states[ROUNDS].hex()}"
    assert f"verified {4 * ROUNDS - 1} entries, {ROUNDS} rounds\n" in ended.output
    assert "round 1 state" not in ended.output
    told = CliRunner().invoke(main, ["ledger", "replay", "--dir", str(directory), "--verbose"])
    assert [line for line in told.output.splitlines() if line.startswith("round ")] == [
        f"round {round_} state {states[round_].hex()}" for round_ in range(1, ROUNDS + 1)
    ]
