"""What manta-peer status prints."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from manta_swarm.network.log_client import CreditWord
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.cli import main
from manta_swarm.peer.commands.report import lines_of
from manta_swarm.peer.status import credit_fields
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.reputation import WITHHELD, Fault
from manta_swarm.protocol.verdicts import AuditRules
from tests.memory_log import OPERATOR

STATUS = PeerStatus(
    "12D3KooWpeer",
    "aa",
    "0123456789abcdef" * 4,
    "digits",
    "near-0123456789ab",
    "cpu",
    num_rounds=9,
    round=4,
    stage="working",
    members=5,
    samples_counted=640,
    rounds_counted=3,
    why="same host as 2 others",
    round_trips="1.0 ms from the aggregator",
    reach="others can call this peer",
)


def told(directory: Path, **changes: Any) -> list[str]:
    """Return what is printed once a peer has written its status."""
    PeerStore(directory).write_status(replace(STATUS, **changes))
    return lines_of(directory)


def test_it_says_where_the_peer_stands_and_why_it_is_in_its_cohort(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "manta_swarm.peer.cli"], stdin=subprocess.PIPE) as peer:
        lines = told(tmp_path, pid=peer.pid)
        assert peer.stdin is not None
        peer.stdin.close()
    assert lines == [
        "peer 12D3KooWpeer in run digits (0123456789abcdef): working, round 4 of 9",
        "counted: 640 samples in 3 rounds; about 5 peers in the run",
        "cohort near-0123456789ab: same host as 2 others",
        "round trips: 1.0 ms from the aggregator",
        "reach: others can call this peer",
    ]


@pytest.mark.parametrize(("says", "count"), [(None, 0), (False, 1), (True, 0)])
def test_a_peer_is_not_proven_only_where_the_log_says_so(tmp_path: Path, says: bool | None, count: int) -> None:
    lines = told(tmp_path, credit=7, is_proven=says, good=3, proven_after=20)
    assert sum(line.startswith("not proven yet: 3 of 20 contributions found good") for line in lines) == count


@pytest.mark.parametrize(
    ("until", "words"),
    [
        (6, "paid round by round, the last of it with round 6, unless audits find something"),
        (0, "paid round by round, the last of it when the run is settled after its last round, 9, unless audits find something"),
    ],
)
@pytest.mark.parametrize("is_light", [False, True])
def test_of_pending_credit_it_says_when_it_is_paid_and_of_each_fault_what_it_means(
    tmp_path: Path, is_light: bool, until: int, words: str
) -> None:
    word = CreditWord(5, 1000, 2500, until, (Fault(4, WITHHELD, bytes(32)),), 2, 0, ())
    fields = credit_fields(word, AuditRules((OPERATOR.public_key,), proven_after=7))
    if is_light:
        status = PeerStatus("12D3KooWlight", "aa", run="ab" * 32, name="digits", num_rounds=9, gateway="http://a")
        PeerStore(tmp_path).write_status(replace(status, **fields))
        lines = lines_of(tmp_path)
    else:
        lines = told(tmp_path, **fields)
    assert f"of it paid 1,000, pending 2,500 ({words}), as the log says" in lines
    assert any(line.startswith("contribution 0000000000000000 was found withheld with round 4: ") for line in lines)
    assert any(line.startswith("not proven yet: 2 of 7 contributions found good so far") for line in lines)


@pytest.mark.parametrize(("finished", "state"), [(True, "finished"), (False, "not running")])
def test_the_last_peer_is_shown_when_none_runs(tmp_path: Path, finished: bool, state: str) -> None:
    lines = told(tmp_path, pid=os.getpid(), finished=finished)  # this process is no peer
    assert lines[0].endswith(f": {state}, round 4 of 9")
    assert not [line for line in lines if line.startswith(("reach", "round trips"))]


@pytest.mark.parametrize(
    ("figures", "lines"),
    [
        ({"size": "1 of 4: its slowest device is that of vYdBfeSB"}, ["size 1 of 4: its slowest device is that of vYdBfeSB"]),
        (
            {"near": "same host as 1 other"},
            ["near you: same host as 1 other; if you trust them, give all the same --cohort NAME and MANTA_COHORT_TOKEN"],
        ),
        ({"waiting_for": "the log"}, ["waiting for the log"]),
        ({"audits": 12, "audits_against": 1}, ["audited 12 contributions of others; 1 were not what they say"]),
        (
            {"audited": 3, "brought_bytes": 2_500_000},
            ["audits asked about 3 of its contributions; 2.5 MB of what it rests on were brought"],
        ),
        (
            {"own_round": 3, "own_samples": 121, "own_largest": 0.884, "own_smallest": 0.5, "epsilon": 0.79452, "delta": 1e-5},
            [
                "on 121 held-out images of your own, after round 3: largest subnet 88.4%, smallest 50.0%",
                "given away of your images: epsilon=0.7945 at delta=1e-05 so far",
            ],
        ),
        ({"leases_at": "http://0.0.0.0:8080/"}, ["leases microbatches to light contributors at http://0.0.0.0:8080/"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_peer_knows_or_does_beside_its_rounds_is_a_line(tmp_path: Path, figures: dict[str, Any], lines: list[str]) -> None:
    assert set(lines) <= set(told(tmp_path, **figures))


def test_of_a_light_contributor_it_says_where_it_leases_and_what_the_log_has(tmp_path: Path) -> None:
    status = PeerStatus("12D3KooWlight", "aa", gateway="", waiting_for="a gateway: no answer", pid=os.getpid())
    PeerStore(tmp_path).write_status(status)
    assert lines_of(tmp_path) == [
        "light contributor 12D3KooWlight in no run yet: not running, round 0 of 0",
        "the log has 0 samples of 0 leases; 0 came to nothing",
        "waiting for a gateway: no answer",
    ]
    status = replace(status, run="ab" * 32, name="digits", num_rounds=9, round=4, gateway="http://a", waiting_for="", finished=True)
    PeerStore(tmp_path).write_status(replace(status, taken=3, samples_counted=96, lost=1))
    assert lines_of(tmp_path) == [
        "light contributor 12D3KooWlight in run digits (abababababababab): finished, round 4 of 9",
        "the log has 96 samples of 3 leases; 1 came to nothing",
        "leases from http://a",
    ]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"peer": 1}', b'{"peer": "p", "key": "k", "of_tomorrow": 1}', b"\xff\xfe"])
def test_what_is_no_status_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(UserError, match="no peer's status"):
        lines_of(tmp_path)


def test_where_no_peer_ever_ran_it_says_so_in_one_line(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["status", "--dir", str(tmp_path / "nothing")])
    assert ended.exit_code == 2
    assert ended.output.startswith("manta-peer: no peer ever ran in ")
    assert ended.output.count("\n") == 1
    assert not (tmp_path / "nothing").exists()


def test_the_command_prints_it(tmp_path: Path) -> None:
    expected = told(tmp_path, pid=1)
    ended = CliRunner().invoke(main, ["status", "--dir", str(tmp_path)])
    assert ended.exit_code == 0
    assert ended.output.splitlines() == expected
