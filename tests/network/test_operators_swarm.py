"""Four real operators of one run, with a real etcd: the leader is killed, a second one too, and both come back."""

import shutil
import signal
from pathlib import Path

import pytest

from manta_swarm.runtime.disk import IDENTITY
from tests.etcds import etcd_in, needs_etcd
from tests.network.operators import OperatorPrograms, log_of, name_of
from tests.network.processes import LITTLE_WORK, small_run

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # hivemind's way to find its daemon
    needs_etcd,
]


def begin(programs: OperatorPrograms) -> None:
    """Start four operators and two peers, and wait for two rounds."""
    programs.start_operators()
    for name in ("peer-a", "peer-b"):
        programs.start_peer_of(name, 1)
    programs.wait_until(lambda: programs.round([0, 1, 2, 3]) >= 2, "two rounds are committed")


@pytest.mark.timeout(900)
def test_rounds_go_on_without_the_leader_stop_without_a_quorum_and_nothing_promised_is_lost(tmp_path: Path) -> None:
    config = small_run(rounds=10_000, first_open_s=1.5, min_open_s=1.0, max_open_s=3.0, **LITTLE_WORK)
    with etcd_in(tmp_path / "etcd") as etcd, OperatorPrograms(tmp_path, config, [etcd.url]) as programs:
        begin(programs)

        leader = programs.wait_for_leader()
        programs.kill(name_of(leader))
        others = [place for place in range(4) if place != leader]
        before = programs.round(others)
        programs.wait_until(lambda: programs.round(others) >= before + 2, "rounds go on under another leader")

        second = programs.wait_for_leader()
        programs.kill(name_of(second))
        minority = [place for place in others if place != second]
        programs.wait_until(lambda: all(programs.status_of(place).get("leader") is None for place in minority), "nobody writes")
        stopped = programs.round(minority)
        programs.start_operator(leader)  # which lacks what was decided without it
        programs.wait_until(lambda: programs.round([leader]) >= stopped + 2, "the one that was killed first has what it missed")
        programs.start_operator(second)
        programs.wait_until(lambda: programs.round([second]) >= stopped + 2, "and the other one")

        for name in ("peer-a", "peer-b"):
            programs.expect_end(name)
            programs.interrupt(name)
        for name in ("peer-a", "peer-b"):
            programs.wait_for_end(name)
            # What has no inclusion promise may be too old, once its peer has found that the operator it talked to is gone: nobody promised
            # it.
            assert programs.status(name)["promises_broken"] == 0, name
        for place in range(4):
            programs.interrupt(name_of(place))
        for place in range(4):
            assert programs.wait_for_end(name_of(place)) == 0
        assert etcd.process is not None
        etcd.stop(signal.SIGTERM)
        logs = [log_of(tmp_path / name_of(place)) for place in range(4)]
        longest = max(logs, key=lambda lines: int(lines[0].split()[1]))
        assert sum(lines == longest for lines in logs) >= 3  # which makes a head count; one may not have heard of it before it ended


@pytest.mark.timeout(900)
def test_an_operator_whose_disk_is_lost_begins_anew_under_its_key_and_is_needed_again(tmp_path: Path) -> None:
    config = small_run(rounds=10_000, first_open_s=1.5, min_open_s=1.0, max_open_s=3.0, **LITTLE_WORK)
    with etcd_in(tmp_path / "etcd") as etcd, OperatorPrograms(tmp_path, config, [etcd.url]) as programs:
        begin(programs)

        lost = programs.wait_for_leader()
        programs.kill(name_of(lost))
        folder = tmp_path / name_of(lost)
        key = (folder / IDENTITY).read_bytes()
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
        (folder / IDENTITY).write_bytes(key)
        (folder / IDENTITY).chmod(0o600)
        others = [place for place in range(4) if place != lost]
        before = programs.round(others)
        programs.wait_until(lambda: programs.round(others) > before, "rounds go on without it")
        programs.start_operator(lost)
        programs.wait_until(lambda: programs.status_of(lost).get("role") == "newcomer", "it begins anew")
        programs.wait_until(lambda: programs.status_of(lost).get("role") in ("follower", "leader"), "it takes part")
        assert "this operator takes part from round" in programs.log(name_of(lost))

        gone = next(place for place in others if programs.status_of(place).get("role") != "leader")
        programs.kill(name_of(gone))
        before = programs.round(others)
        programs.wait_until(lambda: programs.round(others) >= before + 2, "rounds go on with its vote")
        for name in ("peer-a", "peer-b"):
            assert programs.status(name)["promises_broken"] == 0, (
                name
            )  # what has no inclusion promise yet may be refused: nobody promised it
