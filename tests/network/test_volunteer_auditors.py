"""Peers that audit for a run of real programs: who says yes to all is found out, who accuses everybody takes nothing from anybody."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import AggregatorSection, TrustSection
from manta_swarm.peer.features.audit.auditor import Volunteers
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory
from tests.network.processes import Programs, small_run

pytestmark = [pytest.mark.swarm, pytest.mark.faults]

VOLUNTEERS, AUDITS = ("accuser", "yes"), ("--audit", "100%")
SIDECAR = "aggregator/auditor"


def test_volunteers_that_do_not_look_are_found_out_and_take_nothing_from_anybody(tmp_path: Path) -> None:
    keys = {name: key_in(tmp_path / name) for name in VOLUNTEERS}  # proven from the start, so they audit from the start
    trust = TrustSection(
        mode="audited",
        proven=tuple(map(peer_name, keys.values())),
        proven_after=2,
        audit_percent=20,
        newcomer_percent=100,
        kept_rounds=60,
        pending_rounds=70,
    )
    small = small_run(rounds=10_000, first_open_s=4, min_open_s=4, max_open_s=8, target_batch=64, max_claim_samples=64, weight_cap=64)
    config = small.model_copy(update={"trust": trust, "aggregator": AggregatorSection(audit_share=1.0)})
    noisy = list[str]()
    with Programs(tmp_path, config) as programs:

        def audits(name: str, what: str = "audits") -> int:
            return int(programs.status(name).get(what, 0))

        programs.start_aggregator()
        programs.start_peer("one", "one")
        programs.start_cheat("accuser", "accuse", *AUDITS)
        programs.wait_until(lambda: audits("accuser", "audits_against") > 0, "a volunteer accuses somebody")
        before = audits(SIDECAR)
        programs.wait_until(lambda: audits(SIDECAR) > before + 1, "the auditor looks itself")
        programs.interrupt("accuser")
        programs.wait_for_end("accuser")
        programs.start_cheat("yes", "yes", *AUDITS)
        programs.wait_until(lambda: audits(SIDECAR, "audits_taken_over") > 0, "the auditor takes over what another volunteer found")
        while not is_distrusted(tmp_path, keys["yes"]):  # it looks again at a part of what that found good, which nobody knows
            noisy.append(f"noise-{len(noisy)}")
            programs.start_cheat(noisy[-1], "noise")
            programs.expect_end(noisy[-1])
            assert programs.wait_for_end(noisy[-1]) == 4
            keys[noisy[-1]] = key_in(tmp_path / noisy[-1])
        keys["one"] = key_in(tmp_path / "one")
        for name in ("one", "yes", "aggregator"):
            programs.interrupt(name)
            programs.wait_for_end(name)
    last = list[Ledger]()
    verify_directory(tmp_path / "aggregator", on_round=lambda ledger: last.__setitem__(slice(None), [ledger]))
    reputation = last[0].reputation
    assert set(reputation.guilty) == {keys[name] for name in noisy}
    assert set(reputation.faults) == set(reputation.guilty)
    assert all(reputation.is_proven(keys[name]) for name in VOLUNTEERS)
    assert reputation.good[keys["one"]] > 0


def key_in(directory: Path) -> bytes:
    """Return the key of a peer of this directory; it is made if it is not there."""
    make_directory(directory)
    return load_identity(directory / IDENTITY).public_key


def is_distrusted(directory: Path, volunteer: bytes) -> bool:
    """Return whether the aggregator's auditor has found out a volunteer."""
    return any(volunteer in Volunteers(path).distrusted for path in (directory / SIDECAR / "runs").glob("*/distrusted"))
