"""A run of invited peers with the real programs: who is invited trains with a cohort, or searches; who is not is told what to ask for."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import AdmissionSection
from manta_swarm.protocol.signing import peer_name
from tests import forked
from tests.command import typed
from tests.network.processes import LITTLE_WORK, Programs, small_run

pytestmark = pytest.mark.swarm


def search_as_a_guest(directory: Path, address: str) -> None:
    """Have the members measure for a search: for somebody who is not in it ends with a line, and an invitation lets it in once for all."""
    guests, out = directory / "guests.txt", directory / "found"
    assert typed(main, "invite", "--dir", directory / "aggregator", "--guest", "--out", guests).exit_code == 0
    find = (
        "tests.network.searching",
        "find",
        "--peers",
        address,
        "--macs",
        "1M",
        "--population",
        "3",
        "--no-predictor",
        "--random",
        "1",
        "--out",
        out,
    )
    stranger = forked.run(*find, "--generations", "1")
    assert (stranger.returncode, "takes invited peers only, and yours" in stranger.stderr) == (2, True)
    guest = forked.run(*find, "--generations", "1", "--invitation", guests)
    assert guest.returncode == 0, guest.stderr
    assert (out / "best.json").exists()
    again = forked.run(*find, "--generations", "1")  # its key and its admission proof lie beside what it found
    assert again.returncode == 0, again.stderr


def test_invited_peers_train_in_one_cohort_and_an_uninvited_one_ends_with_a_line(tmp_path: Path) -> None:
    config = small_run(rounds=500, first_open_s=2.0, max_open_s=8.0, **LITTLE_WORK).model_copy(
        update={"admission": AdmissionSection(how="invitation")}
    )
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
            return all(programs.status(name).get("cohort_peers") == 1 for name in ("peer-0", "peer-1"))

        programs.wait_until(have_met, "the two are cohort peers")
        search_as_a_guest(tmp_path, str(programs.status("aggregator")["addresses"][0]))
        together = programs.status("aggregator")["round"]
        programs.wait_for_round(together + 2)
        keys = {programs.status(name)["peer"] for name in ("peer-0", "peer-1")}
    found = verify_directory(tmp_path / "aggregator")
    assert {peer_name(key) for key in found.credits} == keys
