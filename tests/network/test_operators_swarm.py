"""Four real operators of one run, with a real etcd: the leader is killed, a second one too, and both come back, one without its disk."""

import shutil
import signal
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.runtime.disk import IDENTITY
from tests.etcds import etcd_in, needs_etcd
from tests.network.operators import OperatorPrograms, name_of
from tests.network.processes import LITTLE_WORK, small_run

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # hivemind's way to find its daemon
    needs_etcd,
]

PEERS = ("peer-a", "peer-b")


@pytest.mark.timeout(900)
def test_rounds_go_on_without_the_leader_stop_without_a_quorum_and_nothing_promised_is_lost_though_a_disk_is(tmp_path: Path) -> None:
    config = small_run(rounds=10_000, first_open_s=1.5, min_open_s=1.0, max_open_s=3.0, **LITTLE_WORK)
    with etcd_in(tmp_path / "etcd") as etcd, OperatorPrograms(tmp_path, config, [etcd.url]) as programs:
        programs.start_operators()
        for name in PEERS:
            programs.start_peer_of(name, 1)
        programs.wait_until(lambda: programs.round([0, 1, 2, 3]) >= 1, "a round is committed")

        leader = programs.wait_for_leader()
        programs.kill(name_of(leader))
        others = [place for place in range(4) if place != leader]
        before = programs.round(others)
        programs.wait_until(lambda: programs.round(others) >= before + 2, "rounds go on under another leader")

        lost = programs.wait_for_leader()
        programs.kill(name_of(lost))
        minority = [place for place in others if place != lost]
        programs.wait_until(lambda: all(programs.status_of(place).get("leader") is None for place in minority), "nobody writes")
        stopped = programs.round(minority)
        programs.start_operator(leader)  # which lacks what was decided without it
        programs.wait_until(lambda: programs.round([leader]) >= stopped + 2, "the one that was killed first has what it missed")

        lose_disk(tmp_path / name_of(lost))
        programs.start_operator(lost)
        programs.wait_until(lambda: programs.status_of(lost).get("acts_as") == "newcomer", "it begins anew")
        programs.wait_until(lambda: programs.status_of(lost).get("acts_as") in ("follower", "leader"), "it takes part")
        assert "this operator takes part from round" in programs.log(name_of(lost))
        gone = next(place for place in minority if programs.status_of(place).get("acts_as") != "leader")
        programs.kill(name_of(gone))
        at_work = [place for place in range(4) if place != gone]
        before = programs.round(at_work)
        programs.wait_until(lambda: programs.round(at_work) >= before + 2, "rounds go on with its vote")

        for name in PEERS:
            programs.expect_end(name)
            programs.interrupt(name)
        for name in PEERS:
            programs.wait_for_end(name)
            # What has no inclusion promise may be too old, once its peer has found that the operator it talked to is gone: nobody promised
            # it.
            assert programs.status(name)["promises_broken"] == 0, name
        programs.wait_until(lambda: len({programs.status(name_of(place))["ledger_root"] for place in at_work}) == 1, "they have one log")
        size = programs.status(name_of(at_work[0]))["ledger_size"]
        for place in at_work:
            programs.interrupt(name_of(place))
        for place in at_work:
            assert programs.wait_for_end(name_of(place)) == 0
        assert etcd.process is not None
        etcd.stop(signal.SIGTERM)
    logs = [entries_of(tmp_path / name_of(place)) for place in range(4)]
    longest = max(logs, key=len)
    assert all(log == longest[: len(log)] for log in logs)
    assert min(len(logs[place]) for place in at_work) >= size  # of what came later, one may not have heard before it ended


def entries_of(folder: Path) -> list[bytes]:
    """Return an operator's log, which is verified; nobody writes it."""
    return StoredLog(folder).entries(0, verify_directory(folder).size)


def lose_disk(folder: Path) -> None:
    """Leave nothing of an operator but its key."""
    key = (folder / IDENTITY).read_bytes()
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    (folder / IDENTITY).write_bytes(key)
    (folder / IDENTITY).chmod(0o600)
