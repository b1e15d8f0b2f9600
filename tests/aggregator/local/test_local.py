"""manta-swarm without its programs: what it refuses, what a peer's end means, and what a report finds."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from manta_swarm.aggregator.local.cli import main
from manta_swarm.aggregator.local.report import (
    LedgerReport,
    PeerFate,
    PeerReport,
    QualityLimits,
    Report,
    fate,
    make_report,
    show,
)
from manta_swarm.aggregator.local.settings import Options, SwarmSettings, make_settings
from manta_swarm.aggregator.local.swarm import SwarmProgress
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import ExchangeSection, RoundSection, RunSection
from manta_swarm.aggregator.status import AggregatorStatus, Quality
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.training.settings import usual
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.programs import _run
from manta_swarm.protocol.errors import RemoteFault, UserError
from manta_swarm.protocol.signing import Identity

NO_LIMITS = QualityLimits()
THIN = RunConfig(exchange=ExchangeSection(local_steps=10, codec="topk-512-3"))
STATE, OTHER_STATE, ROOT = "aa" * 32, "bb" * 32, "cc" * 32


def accuracy(largest: float, smallest: float, *random: float) -> Quality:
    return Quality(metric="accuracy", largest=largest, smallest=smallest, random=random)


def epe(largest: float, smallest: float, baseline: float | None = 4.5) -> Quality:
    return Quality(metric="epe", largest=largest, smallest=smallest, random=(2.0,), baseline=baseline)


def peer(
    name: str, *, state: str = STATE, end: PeerFate = PeerFate.FINISHED, dropped: int = 0, broken: int = 0, handed_in: int = 0
) -> PeerReport:
    status = PeerStatus(
        "12D3KooW" + name,
        key=name,
        cohort="cohort-0",
        round=3,
        state=state,
        samples_counted=96,
        samples_lost=4 * dropped,
        rounds_counted=3 - dropped,
        dropped={"too old": dropped} if dropped else {},
        promises_broken=broken,
        bytes_handed_in=handed_in,
    )
    return PeerReport.make(name, status, end, credits=7)


def report(
    *peers: PeerReport,
    rounds: int = 3,
    quality: Quality | None = None,
    verified: bool = True,
    dataset: str = "digits",
    limits: QualityLimits = NO_LIMITS,
    refused: dict[str, int] | None = None,
) -> Report:
    finished = rounds == 3
    return make_report(
        AggregatorStatus(
            run="ee" * 32,
            name="test",
            dataset=dataset,
            num_rounds=3,
            round=rounds,
            state=STATE,
            quality=quality,
            finished=finished,
            refused=refused or {},
        ),
        peers or (peer("peer-0"), peer("peer-1")),
        LedgerReport(verified=verified, size=9, root=ROOT, detail="9 entries" if verified else "entry 4 does not hold"),
        run=THIN,
        cohorts=2,
        limits=limits,
        wall_time_s=61.04,
        directory=Path("/somewhere"),
    )


def printed(made: Report) -> str:
    """Return what a person reads of a report."""
    written = io.StringIO()
    show(made, Console(file=written, width=80))
    return written.getvalue()


def failed(made: Report) -> list[str]:
    assert made.succeeded == (not [check for check in made.checks if not check.passed])
    return [check.name for check in made.checks if not check.passed]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peers", "0"], "'--peers': 0 is not in the range 1<=x<=256"),
        (["--peers", "3", "--cohorts", "4"], "--cohorts takes a number from 1 to that of the peers (3), not 4"),
        (["--cohorts", "2", "--affinity"], "--affinity goes without --cohorts"),
        (["--workers", "257"], "'--workers': 257 is not in the range"),
        (["--rounds", "0"], "'--rounds': 0 is not in the range 1<=x<="),
        (["--local-steps", "1025"], "'--local-steps': 1025 is not in the range 1<=x<=512"),
        (["--codec", "fp16"], "--codec: unknown codec 'fp16': int16, int8 or topk-KEPT-BITS"),
        (["--algorithm", "gossip"], "'--algorithm': 'gossip' is not one of 'data-parallel', 'model-parallel'"),
        (["--task", "speech"], "'--task': 'speech' is not one of 'classification', 'stereo'"),
        (["--data", "imaginary"], "unknown data set 'imaginary'"),
        (["--data", "layers", "--task", "classification"], "--data layers is for stereo, not for classification"),
        (["--supernet", "giant"], "unknown supernet 'giant'"),
        (["--task", "stereo", "--supernet", "classifier-tiny"], "--supernet classifier-tiny is for classification, not for stereo"),
        (["--max-epe", "1"], "for classification give --min-largest and --min-smallest"),
        (["--task", "stereo", "--max-epe", "-1"], "--max-epe takes pixels"),
        (["--task", "stereo", "--min-largest", "90"], "for stereo give --max-epe"),
        (["--seed", "-1"], "'--seed': -1 is not in the range 0<=x<="),
        (["--min-largest", "101"], "--min-largest takes percent"),
        (["--min-smallest", "nan"], "--min-smallest takes percent"),
        (["--private", "/nowhere"], "--private: cannot read /nowhere"),
    ],
)
def test_a_value_that_cannot_be_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run("manta-swarm", main, args=["up", "--dir", str(tmp_path / "new"), *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("manta-swarm: ")
    assert says in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
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
    made = {
        Options(directory=tmp_path / "a"): QualityLimits(min_largest=90, min_smallest=80),
        Options(directory=tmp_path / "b", rounds=5): QualityLimits(),
        Options(directory=tmp_path / "c", min_largest=50): QualityLimits(min_largest=50, min_smallest=80),
        Options(directory=tmp_path / "d", rounds=5, min_largest=50): QualityLimits(min_largest=50),
        Options(directory=tmp_path / "e", task="stereo"): QualityLimits(beats_constant=True),
        Options(directory=tmp_path / "f", task="stereo", rounds=5): QualityLimits(),
        Options(directory=tmp_path / "g", task="stereo", rounds=5, max_epe=2.5): QualityLimits(max_epe=2.5),
    }
    for options, limits in made.items():
        assert make_settings(options).limits == limits


def test_the_run_is_the_usual_one_of_the_task_with_what_was_asked_for(tmp_path: Path) -> None:
    stereo = make_settings(Options(directory=tmp_path / "a", task="stereo", rounds=3, seed=7, schedule="shrinking", data_root=tmp_path)).run
    assert (stereo.run.rounds, stereo.run.seed, stereo.run.schedule) == (3, 7, "shrinking")
    assert (stereo.data.dataset, stereo.data.supernet, stereo.data_root) == ("layers", "stereo-tiny", tmp_path)
    assert stereo.optimizer_settings() == usual("stereo").optimizer
    plain = make_settings(Options(directory=tmp_path / "b")).run
    quick = RoundSection(first_open_s=0.5, min_open_s=0.2, max_open_s=120)  # rounds adapt by themselves, from a short one on
    shown = MonitorSection(evaluate_share=0.1)
    assert plain == RunConfig(run=RunSection(name="digits-data-parallel", cohorts="affinity"), round=quick, monitor=shown)


def test_the_task_may_follow_from_the_data(tmp_path: Path) -> None:
    made = make_settings(Options(directory=tmp_path / "a", data="layers")).run
    assert (made.data.dataset, made.data.supernet) == ("layers", "stereo-tiny")


def test_local_steps_make_fewer_rounds_of_more_samples_unless_rounds_are_asked_for(tmp_path: Path) -> None:
    dense = usual("classification")
    for steps, rounds in ((1, 200), (10, 20), (7, 29), (300, 1)):
        made = make_settings(Options(directory=tmp_path / str(steps), local_steps=steps, codec="topk-256-4")).run
        assert (made.run.rounds, made.round.target_batch) == (rounds, dense.target_batch * steps)
        assert (made.exchange.local_steps, made.exchange.codec) == (steps, "topk-256-4")
        manifest = made.manifest(Identity(b"\x01" * 32), bytes(32), digits())  # what is asked for goes together
        assert manifest.exchange.max_claim_samples >= steps * manifest.microbatch_samples
    made = make_settings(Options(directory=tmp_path / "rounds", local_steps=10, rounds=3)).run
    assert (made.run.rounds, made.round.target_batch, made.exchange.codec) == (3, 10 * dense.target_batch, "int16")


@pytest.mark.parametrize(("peers", "cohorts", "sizes"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (3, 3, [1, 1, 1]), (1, 1, [1])])
def test_cohorts_have_equal_shares_of_the_peers(peers: int, cohorts: int, sizes: list[int], tmp_path: Path) -> None:
    made = SwarmSettings(peers, cohorts, RunConfig(), None, tmp_path, QualityLimits())
    names = [made.cohort(index) for index in range(peers)]
    assert [names.count(f"cohort-{index}") for index in range(cohorts)] == sizes


def test_by_affinity_peers_have_no_label(tmp_path: Path) -> None:
    made = make_settings(Options(directory=tmp_path / "1", affinity=True))
    assert [made.cohort(index) for index in range(made.peers)] == [None] * made.peers
    assert made.run.run.cohorts == "affinity"
    (tmp_path / "own" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="--affinity goes without --private"):
        make_settings(Options(private=tmp_path / "own", affinity=True))


def test_with_private_data_there_is_a_peer_for_each_folder_and_each_is_alone(tmp_path: Path) -> None:
    for name in ("b", "a", "c", ".hidden"):
        (tmp_path / "own" / name).mkdir(parents=True)
    (tmp_path / "own" / "notes.txt").touch()
    made = make_settings(Options(directory=tmp_path / "1", private=tmp_path / "own"))
    assert [path.name for path in made.private] == ["a", "b", "c"]
    assert (made.peers, made.cohorts, made.limits, made.run.run.data) == (3, 3, QualityLimits(), "private")
    together = make_settings(Options(directory=tmp_path / "2", private=tmp_path / "own", cohorts=1, peers=3))
    assert (together.peers, together.cohorts) == (3, 1)
    for options, says in (
        (Options(private=tmp_path / "own", peers=2), "--peers is 2, and .* has 3 folders"),
        (Options(private=tmp_path / "own" / "a"), "has no folders"),
        (Options(private=tmp_path / "own", task="stereo"), "is for labelled images"),
    ):
        with pytest.raises(UserError, match=says):
            make_settings(options)


@pytest.mark.parametrize(
    ("returncode", "finished", "expected"),
    [
        (0, True, PeerFate.FINISHED),
        (0, False, PeerFate.LEFT),
        (130, False, PeerFate.LEFT),
        (-9, False, PeerFate.KILLED),
        (-15, False, PeerFate.KILLED),
        (1, False, PeerFate.FAILED),
        (1, True, PeerFate.FAILED),
        (-11, False, PeerFate.FAILED),
    ],
)
def test_a_peer_that_crashed_has_failed_and_one_that_was_killed_has_not(returncode: int, finished: bool, expected: PeerFate) -> None:
    assert fate(returncode, PeerStatus("", "", finished=finished)) is expected


@pytest.mark.parametrize(
    ("made", "fails"),
    [
        (report(quality=accuracy(0.97, 0.8, 0.9), limits=QualityLimits(min_largest=90, min_smallest=80)), []),
        (report(rounds=2), ["every round is committed"]),
        (report(peer("peer-0", state=OTHER_STATE), peer("peer-1", state=OTHER_STATE)), ["all peers hold the log's state"]),
        (report(peer("peer-0"), peer("peer-1", end=PeerFate.LATE)), ["peers ran to the end"]),
        (report(peer("peer-0", end=PeerFate.KILLED)), ["peers ran to the end", "all peers hold the log's state"]),
        (report(verified=False), ["ledger verifies"]),
        (report(peer("peer-0"), peer("peer-1", broken=1)), ["every inclusion promise was kept"]),
    ],
    ids=["all is well", "a round is missing", "another state", "a late peer", "no peer at the end", "no ledger", "a broken promise"],
)
def test_a_run_in_which_something_does_not_hold_fails(made: Report, fails: list[str]) -> None:
    assert failed(made) == fails


def test_a_peer_with_another_state_fails_and_is_named() -> None:
    made = report(peer("peer-0"), peer("peer-1", state=OTHER_STATE))
    assert failed(made) == ["all peers hold the log's state"]
    assert not made.all_peers_agree
    assert "peer-1" in next(check.detail for check in made.checks if not check.passed)


@pytest.mark.parametrize("end", [PeerFate.KILLED, PeerFate.LEFT])
def test_a_peer_that_was_killed_or_left_is_not_compared(end: PeerFate) -> None:
    made = report(peer("peer-0"), peer("peer-1", state=OTHER_STATE, end=end))
    assert failed(made) == []
    assert made.all_peers_agree


def test_accuracy_below_a_threshold_fails_and_without_a_threshold_does_not() -> None:
    low = accuracy(0.8999, 0.7999)
    assert failed(report(quality=low)) == []
    assert failed(report(quality=low, limits=QualityLimits(min_largest=90, min_smallest=80))) == [
        "the largest subnet reaches 90 %",
        "the smallest subnet reaches 80 %",
    ]


def test_an_error_above_a_limit_or_a_constants_fails_and_without_a_limit_does_not() -> None:
    assert failed(report(quality=epe(9.0, 9.0))) == []
    assert failed(report(quality=epe(2.5, 2.51), limits=QualityLimits(max_epe=2.5))) == ["the smallest subnet errs by 2.5 px at most"]
    assert failed(report(quality=epe(4.4, 4.5), limits=QualityLimits(beats_constant=True))) == [
        "the smallest subnet beats a constant disparity"
    ]
    assert failed(report(quality=epe(4.4, 4.4), limits=QualityLimits(max_epe=4.4, beats_constant=True))) == []


def test_what_was_not_measured_fails_every_limit() -> None:
    assert failed(report(limits=QualityLimits(min_largest=90))) == ["the largest subnet reaches 90 %"]
    assert len(failed(report(limits=QualityLimits(max_epe=1, beats_constant=True)))) == 4
    assert len(failed(report(quality=epe(1, 1, baseline=None), limits=QualityLimits(beats_constant=True)))) == 2


def test_the_report_comes_back_from_its_json() -> None:
    made = report(peer("peer-0", dropped=2), peer("peer-1", dropped=1), quality=accuracy(0.9, 0.8, 0.85, 0.86))
    text = made.model_dump_json()
    assert Report.model_validate_json(text) == made
    assert (json.loads(text)["samples_counted"], json.loads(text)["samples_lost"]) == (2 * 96, 3 * 4)
    assert json.loads(text)["peers"][0]["dropped"] == {"too old": 2}


def test_a_person_reads_what_failed_and_every_digit_of_the_root() -> None:
    refused = {"malformed": 1, "no body": 2}
    peers = peer("peer-0", dropped=2, handed_in=1_500_000), peer("peer-1", handed_in=500_000)
    read = printed(report(*peers, quality=accuracy(0.5, 0.4, 0.45), limits=QualityLimits(min_largest=90), refused=refused))
    assert ROOT in read
    assert "50.0 % on held-out data (the aim is 97 %)" in read
    assert "192 (96.0 % of those trained)" in read
    assert "2 cohorts, 10 local steps a round, topk-512-3" in read
    assert "1.0 MB a peer, 1.5 MB at most" in read
    assert "2 (too old: 2)" in read
    assert "3 (malformed: 1, no body: 2)" in read
    assert "failed: the largest subnet reaches 90 %" in read
    assert "…" not in read


def test_a_person_reads_errors_in_pixels_and_what_a_constant_would_have() -> None:
    read = printed(report(quality=epe(1.654, 2.0), dataset="layers", limits=QualityLimits(beats_constant=True)))
    assert "1.65 px on held-out data" in read
    assert "4.50 px: the held-out data's median" in read
    assert "the aim" not in read
    assert "everything that had to hold holds" in read


def test_a_report_ends_with_the_command_that_takes_a_network_out_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "aggregator" / "snapshots"
    folder.mkdir(parents=True)
    for taken in (False, True):
        read = printed(report().model_copy(update={"directory": str(tmp_path)}))
        assert (f"manta-search export --snapshot {folder / 'round-00000012.safetensors'} --arch" in read) == taken
        for round_ in (8, 12):
            (folder / f"round-{round_:08}.safetensors").touch()


def test_a_status_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    assert PeerStatus.read(tmp_path) is None
    status = PeerStatus("12D3KooWpeer", "ab", round=4, dropped={"late": 1})
    (tmp_path / "status.json").write_text(status.to_json())
    assert PeerStatus.read(tmp_path) == status
    (tmp_path / "status.json").write_text('{"key": "ab", "rou')
    with pytest.raises(RemoteFault, match="no status of a peer"):
        PeerStatus.read(tmp_path)


def test_without_a_terminal_progress_is_plain_lines_and_the_end_is_said_once() -> None:
    console = Console(file=io.StringIO(), width=80)
    with SwarmProgress(console, 2) as progress:
        progress.update(0, 4, None)
        progress.update(1, 4, 2.5)
        progress.update(2, 4, 2.25)
        progress.update(2, 4, 2.25)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == ["training round=0/2 peers=4", "evaluating round=2/2 peers=4 loss=2.250"]


def test_on_a_terminal_progress_is_a_bar() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with SwarmProgress(console, 8) as progress:
        progress.update(3, 4, 1.5)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3/8" in printed
    assert "loss 1.500" in printed


def test_the_aggregator_is_told_where_its_monitor_is_to_be(tmp_path: Path) -> None:
    assert make_settings(Options(directory=tmp_path / "a")).monitor == ()
    assert make_settings(Options(directory=tmp_path / "b", no_monitor=True)).monitor == ("--no-monitor",)
    assert make_settings(Options(directory=tmp_path / "c", monitor="localhost:0")).monitor == ("--monitor", "localhost:0")
    with pytest.raises(UserError, match="do not go together"):
        make_settings(Options(directory=tmp_path / "d", monitor="127.0.0.1:0", no_monitor=True))
    for wrong in ("8787", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:65536", "127.0.0.1:-1", "http://127.0.0.1:80"):
        with pytest.raises(UserError, match=r"--monitor .*HOST:PORT"):
            make_settings(Options(directory=tmp_path / "d", monitor=wrong))
    with pytest.raises(UserError, match=r"cannot listen on a\.\.b:80"):
        make_settings(Options(directory=tmp_path / "d", monitor="a..b:80"))
    assert not (tmp_path / "d").exists()
