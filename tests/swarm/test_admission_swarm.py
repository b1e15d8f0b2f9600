"""A run of invited peers with the real programs: who is invited trains, and has mates; who is not is told what to ask for."""

from pathlib import Path

import pytest

from aggregator.cli import main
from aggregator.log.verify import verify_directory
from aggregator.settings.sections import AdmissionSection
from protocol.signing import peer_name
from tests.command import typed
from tests.swarm.processes import Programs, small_run

pytestmark = pytest.mark.swarm


def test_invited_peers_train_in_one_cohort_and_an_uninvited_one_ends_with_a_line(tmp_path: Path) -> None:
    config = small_run(rounds=500).model_copy(update={"admission": AdmissionSection(how="invitation")})
    with Programs(tmp_path, config) as programs:
        programs.start_aggregator()
        invitation = tmp_path / "invitation.txt"
        made = typed(main, "invite", "--dir", tmp_path / "aggregator", "--keys", 2, "--out", invitation)
        assert made.exit_code == 0, made.errors
        environment = {"MANTA_COHORT_TOKEN": "a" * 64}
        for name in ("peer-0", "peer-1"):
            programs.start_peer(name, "ours", "--invitation", str(invitation), environment=environment)
        programs.expect_end("stranger")
        programs.start_peer("stranger", "ours", environment=environment)
        assert programs.wait_for_end("stranger") == 2
        assert "takes invited peers only, and yours" in programs.log("stranger").splitlines()[-1]
        programs.start_peer("late", "ours", "--invitation", str(invitation), environment=environment)
        assert programs.wait_for_end("late") == 2
        assert "used up: it was for 2 keys" in programs.log("late").splitlines()[-1]

        def have_met() -> bool:
            return all(programs.status(name).get("mates") == 1 for name in ("peer-0", "peer-1"))

        programs.wait_until(have_met, "the two are mates")
        together = programs.status("aggregator")["round"]
        programs.wait_for_round(together + 2)
        keys = {programs.status(name)["peer"] for name in ("peer-0", "peer-1")}
    found = verify_directory(tmp_path / "aggregator")
    assert {peer_name(key) for key in found.credits} == keys
