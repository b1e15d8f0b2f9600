"""manta-swarm without its programs: what it refuses, what a peer's end means, and what a report finds."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from aggregator.local import Settings, main, make_settings
from aggregator.local_progress import Progress
from aggregator.local_report import (
    Accuracy,
    AggregatorStatus,
    Fate,
    LedgerReport,
    PeerReport,
    PeerStatus,
    Report,
    fate,
    make_report,
    read_status,
    show,
)

STATE, OTHER_STATE, ROOT = "aa" * 32, "bb" * 32, "cc" * 32


def settings(directory: Path | None, *, rounds: int | None = None, min_largest: float | None = None) -> Settings:
    return make_settings(
        peers=4,
        cohorts=2,
        rounds=rounds,
        algorithm="data-parallel",
        directory=directory,
        seed=0,
        min_largest=min_largest,
        min_smallest=None,
    )


def peer(name: str, *, state: str = STATE, end: Fate = Fate.FINISHED, dropped: int = 0) -> PeerReport:
    status = PeerStatus(key=name, cohort="cohort-0", round=3, state=state, attempts_dropped={"timeout": dropped} if dropped else {})
    return PeerReport.make(name, status, end, credits=7)


def report(
    *peers: PeerReport,
    rounds: int = 3,
    accuracy: Accuracy | None = None,
    verified: bool = True,
    min_largest: float | None = None,
    min_smallest: float | None = None,
) -> Report:
    return make_report(
        AggregatorStatus(run="ee" * 32, name="digits", num_rounds=3, round=rounds, state=STATE, accuracy=accuracy, finished=rounds == 3),
        peers or (peer("peer-0"), peer("peer-1")),
        LedgerReport(verified=verified, size=9, root=ROOT, detail="9 entries" if verified else "entry 4 does not hold"),
        algorithm="data-parallel",
        seed=0,
        min_largest=min_largest,
        min_smallest=min_smallest,
        wall_time_s=61.04,
        directory=Path("/somewhere"),
    )


def failed(made: Report) -> list[str]:
    assert made.succeeded == (not [check for check in made.checks if not check.passed])
    return [check.name for check in made.checks if not check.passed]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peers", "0"], "--peers takes a number from 1"),
        (["--peers", "3", "--cohorts", "4"], "--cohorts takes a number from 1 to that of the peers (3), not 4"),
        (["--cohorts", "0"], "--cohorts takes a number from 1"),
        (["--rounds", "0"], "--rounds takes a number from 1"),
        (["--algorithm", "gossip"], "--algorithm takes data-parallel or model-parallel, not 'gossip'"),
        (["--seed", "-1"], "--seed takes a number from 0"),
        (["--min-largest", "101"], "--min-largest takes percent"),
        (["--min-smallest", "nan"], "--min-smallest takes percent"),
    ],
)
def test_a_value_that_cannot_be_is_one_line_and_exit_code_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(main, ["up", "--dir", str(tmp_path / "new"), *arguments])
    assert outcome.exit_code == 2
    assert outcome.output.startswith("manta-swarm: ")
    assert says in outcome.output
    assert outcome.output.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_directory_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "earlier"
    directory.mkdir()
    (directory / "report.json").write_text("{}")
    outcome = CliRunner().invoke(main, ["up", "--dir", str(directory)])
    assert outcome.exit_code == 2
    assert "holds something already" in outcome.output
    assert outcome.output.count("\n") == 1
    assert [path.name for path in directory.iterdir()] == ["report.json"]
    assert (directory / "report.json").read_text() == "{}"


def test_a_directory_that_is_a_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = CliRunner().invoke(main, ["up", "--dir", str(tmp_path / "file")])
    assert outcome.exit_code == 2
    assert outcome.output.count("\n") == 1


def test_the_full_schedule_has_thresholds_and_a_shorter_one_has_those_that_were_given(tmp_path: Path) -> None:
    full, short = settings(tmp_path / "a"), settings(tmp_path / "b", rounds=5)
    given, given_short = settings(tmp_path / "c", min_largest=50), settings(tmp_path / "d", rounds=5, min_largest=50)
    assert (full.min_largest, full.min_smallest) == (90, 80)
    assert (short.min_largest, short.min_smallest) == (None, None)
    assert (given.min_largest, given.min_smallest) == (50, 80)
    assert (given_short.min_largest, given_short.min_smallest) == (50, None)


@pytest.mark.parametrize(("peers", "cohorts", "sizes"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (3, 3, [1, 1, 1]), (1, 1, [1])])
def test_cohorts_have_equal_shares_of_the_peers(peers: int, cohorts: int, sizes: list[int], tmp_path: Path) -> None:
    made = Settings(peers, cohorts, None, "data-parallel", tmp_path, 0, None, None)
    names = [made.cohort(index) for index in range(peers)]
    assert [names.count(f"cohort-{index}") for index in range(cohorts)] == sizes


@pytest.mark.parametrize(
    ("returncode", "finished", "expected"),
    [
        (0, True, Fate.FINISHED),
        (0, False, Fate.LEFT),
        (130, False, Fate.LEFT),
        (-9, False, Fate.KILLED),
        (-9, True, Fate.KILLED),
        (-15, False, Fate.KILLED),
        (1, False, Fate.FAILED),
        (2, False, Fate.FAILED),
        (1, True, Fate.FAILED),
        (-11, False, Fate.FAILED),
    ],
)
def test_a_peer_that_crashed_has_failed_and_one_that_was_killed_has_not(returncode: int, finished: bool, expected: Fate) -> None:
    assert fate(returncode, PeerStatus(finished=finished)) is expected


def test_a_run_that_did_everything_succeeds() -> None:
    assert failed(report(accuracy=Accuracy(largest=0.97, smallest=0.8, random=(0.9,)), min_largest=90, min_smallest=80)) == []


def test_a_missing_round_fails() -> None:
    assert failed(report(rounds=2)) == ["every round is committed"]


def test_a_peer_with_another_state_fails_and_is_named() -> None:
    made = report(peer("peer-0"), peer("peer-1", state=OTHER_STATE))
    assert failed(made) == ["all peers hold the log's state"]
    assert not made.all_peers_agree
    assert "peer-1" in next(check.detail for check in made.checks if not check.passed)


def test_peers_that_agree_on_another_state_than_the_log_fail() -> None:
    assert failed(report(peer("peer-0", state=OTHER_STATE), peer("peer-1", state=OTHER_STATE))) == ["all peers hold the log's state"]


@pytest.mark.parametrize("end", [Fate.KILLED, Fate.LEFT])
def test_a_peer_that_was_killed_or_left_is_not_compared(end: Fate) -> None:
    made = report(peer("peer-0"), peer("peer-1", state=OTHER_STATE, end=end))
    assert failed(made) == []
    assert made.all_peers_agree


def test_a_peer_that_does_not_end_with_the_run_fails() -> None:
    assert failed(report(peer("peer-0"), peer("peer-1", end=Fate.LATE))) == ["peers ran to the end"]


def test_a_run_without_a_peer_at_its_end_fails() -> None:
    assert failed(report(peer("peer-0", end=Fate.KILLED))) == ["peers ran to the end", "all peers hold the log's state"]


def test_a_ledger_that_does_not_verify_fails() -> None:
    assert failed(report(verified=False)) == ["ledger verifies"]


def test_accuracy_below_a_threshold_fails_and_without_a_threshold_does_not() -> None:
    low = Accuracy(largest=0.8999, smallest=0.7999, random=())
    assert failed(report(accuracy=low)) == []
    assert failed(report(accuracy=low, min_largest=90, min_smallest=80)) == [
        "the largest subnet reaches 90 %",
        "the smallest subnet reaches 80 %",
    ]


def test_accuracy_that_was_not_measured_fails_a_threshold() -> None:
    assert failed(report(min_largest=90)) == ["the largest subnet reaches 90 %"]


def test_the_report_comes_back_from_its_json() -> None:
    made = report(peer("peer-0", dropped=2), peer("peer-1", dropped=1), accuracy=Accuracy(largest=0.9, smallest=0.8, random=(0.85, 0.86)))
    text = made.model_dump_json()
    assert Report.model_validate_json(text) == made
    assert json.loads(text)["attempts_dropped"] == 3
    assert json.loads(text)["peers"][0]["attempts_dropped"] == {"timeout": 2}


def test_a_person_reads_what_failed_and_every_digit_of_the_root() -> None:
    console = Console(file=io.StringIO(), width=80)
    show(report(peer("peer-0", dropped=2), accuracy=Accuracy(largest=0.5, smallest=0.4, random=(0.45,)), min_largest=90), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert ROOT in printed
    assert "50.0 % on held-out data (the aim is 97 %)" in printed
    assert "2 (timeout: 2)" in printed
    assert "failed: the largest subnet reaches 90 %" in printed
    assert "…" not in printed


def test_a_status_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    assert read_status(PeerStatus, tmp_path) is None
    (tmp_path / "status.json").write_text('{"key": "ab", "round": 4, "phase": "training", "attempts_dropped": {"late": 1}}')
    assert read_status(PeerStatus, tmp_path) == PeerStatus(key="ab", round=4, attempts_dropped={"late": 1})
    (tmp_path / "status.json").write_text('{"key": "ab", "rou')
    assert read_status(PeerStatus, tmp_path) is None


def test_without_a_terminal_progress_is_plain_lines_and_the_end_is_said_once() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Progress(console, 2) as progress:
        progress.update(0, 4, None)
        progress.update(1, 4, 2.5)
        progress.update(2, 4, 2.25)
        progress.update(2, 4, 2.25)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == ["training round=0/2 peers=4", "evaluating round=2/2 peers=4 loss=2.250"]


def test_on_a_terminal_progress_is_a_bar() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Progress(console, 8) as progress:
        progress.update(3, 4, 1.5)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3/8" in printed
    assert "loss 1.500" in printed
