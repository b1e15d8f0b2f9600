"""Audits while operators change: what one of them was told goes on with the next one that writes, and a liar among them takes nothing."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.cli import main as aggregator_main
from manta_swarm.aggregator.features.audits.facts import verdicts_in
from manta_swarm.aggregator.log.contents import AUDITOR
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.inviting import auditor_key
from manta_swarm.aggregator.settings.sections import AdmissionSection, TrustSection
from manta_swarm.peer.cli import main as peer_main
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.reputation import FALSE, WITHHELD
from manta_swarm.protocol.signing import PublicKey, key_named, peer_name
from manta_swarm.protocol.verdicts import Outcome
from manta_swarm.runtime.disk import make_directory
from tests.command import typed
from tests.etcds import etcd_in, needs_etcd
from tests.network.operators import OperatorPrograms, name_of
from tests.network.processes import LITTLE_WORK, small_run

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # hivemind's way to find its daemon
    needs_etcd,
]

MACHINES = ("first", "second")  # of one account
LIAR = "liar"  # the named auditor of the last operator
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1200)
def test_audits_admissions_and_accounts_outlive_the_leader_and_a_liar_takes_nothing(tmp_path: Path) -> None:
    auditors = [auditor_in(tmp_path / name_of(place)) for place in range(3)] + [auditor_in(tmp_path / LIAR)]
    trust = TrustSection(
        mode="audited",
        auditors=tuple(map(peer_name, auditors)),
        proven_after=2,
        audit_percent=100,
        newcomer_percent=100,
        kept_rounds=4,
        pending_rounds=10,
        settle_s=45,
    )
    settings = {"trust": trust, "admission": AdmissionSection(how="invitation")}
    config = small_run(rounds=30, first_open_s=4, min_open_s=4, max_open_s=8, **LITTLE_WORK).model_copy(update=settings)
    config = config.model_copy(update={"aggregator": config.aggregator.model_copy(update={"audit_share": 1.0})})
    with etcd_in(tmp_path / "etcd") as etcd, OperatorPrograms(tmp_path, config, [etcd.url]) as programs:
        programs.start_operators()
        start_liar(programs, tmp_path / LIAR / AUDITOR)
        invitation = invited(tmp_path / name_of(1), 5)
        account = made_account(tmp_path / "owner")
        for place, name in enumerate(MACHINES, 1):
            programs.start_peer_of(name, place, "--invitation", invitation, "--payout", account)
        programs.start_peer_of("guest", 3, "--invitation", invitation)
        programs.wait_until(lambda: counted(programs, *MACHINES, "guest"), "all of them count in a round")
        programs.wait_until(lambda: verdicts_at(programs, 3) > 0, "somebody judges, also as the last operator knows it")

        killed = programs.wait_for_leader()
        programs.kill(name_of(killed))
        programs.wait_until(lambda: programs.leader() not in (None, killed), "another operator writes")
        follower = next(place for place in programs.at_work() if place != programs.wait_for_leader())
        programs.start_cheat("cheat", "noise", "--invitation", invitation, at=name_of(follower))
        programs.expect_end("cheat")
        programs.expect_end("guest")
        programs.wait_until(lambda: taken_back(programs, "guest"), "the one that writes takes back what let the guest in")
        assert programs.wait_for_end("guest") == 2
        programs.start_operator(killed)
        programs.wait_until(lambda: all(programs.status(name_of(place)).get("settled") for place in range(4)), "the run is settled")
        for name in (*MACHINES, *map(name_of, range(4))):
            programs.expect_end(name)
            programs.interrupt(name)
            programs.wait_for_end(name)
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in (*MACHINES, "guest", "cheat")}
        assert all(programs.status(name)["promises_broken"] == 0 for name in MACHINES)
    last: list[Ledger] = []
    verify_directory(tmp_path / name_of(killed), on_round=lambda ledger: last.__setitem__(slice(None), [ledger]))
    reputation = last[0].reputation
    honest = {keys[name] for name in (*MACHINES, "guest")}
    said = list(verdicts_in(tmp_path / name_of(killed)))
    accused = [one for one in said if one.verdict.auditor == auditors[3] and Outcome.VOID in one.outcomes and honest.issuperset(one.keys)]
    assert accused  # for nothing
    assert {one.verdict.auditor for one in said} == set(auditors)
    assert {key: fault.reason for key, fault in reputation.guilty.items()} == {keys["cheat"]: FALSE}
    assert not any(reputation.standing(keys[name]).faults for name in MACHINES)
    # Whose admission was taken back can bring nothing any more, also of work that is drawn only then.
    assert {fault.reason for fault in reputation.standing(keys["guest"]).faults} <= {WITHHELD}
    assert any(reputation.good[key] >= trust.proven_after for key in honest)
    machines = sorted(keys[name] for name in MACHINES)
    assert list(reputation.by_account()[key_named(account)]) == machines
    assert reputation.credits()[key_named(account)] == sum(reputation.standing(key).paid for key in machines) > 0
    added_up = typed(peer_main, "credits", "--account", account, *(tmp_path / name for name in MACHINES))
    assert (added_up.exit_code, "total of 2 peers" in added_up.output) == (0, True)


def auditor_in(directory: Path) -> PublicKey:
    """Make the key of an operator's auditor, as manta-aggregator key does, before its operator starts; return it."""
    make_directory(directory)
    return auditor_key(directory)


def start_liar(programs: OperatorPrograms, directory: Path) -> None:
    """Start the last operator's auditor, which accuses everybody of everything."""
    status = programs.status(name_of(3))
    where = ("--initial-peers", status["addresses"][0], "--run", status["run"], "--listen", "none", "--dir", str(directory))
    what = ("--audit-only", "--audit", "100%", "--evaluation", "0%", "--threads", "1", "--gpus", "none")
    environment = {"PYTHONPATH": str(ROOT)}
    programs.start_command(LIAR, "-P", "-m", "tests.network.cheats", "accuse", "join", *where, *what, environment=environment)
    programs.expect_end(LIAR)


def verdicts_at(programs: OperatorPrograms, place: int) -> int:
    """Return how many verdicts on what is not paid yet an operator's log has."""
    found: int = (programs.status(name_of(place)).get("audits") or {}).get("verdicts", 0)
    return found


def invited(directory: Path, keys: int) -> str:
    """Return the file of an invitation for so many keys, made by the operator of a folder."""
    made = typed(aggregator_main, "invite", "--dir", directory, "--keys", str(keys), "--out", directory / "invitation.txt")
    assert made.exit_code == 0, made.errors
    return str(directory / "invitation.txt")


def taken_back(programs: OperatorPrograms, name: str) -> bool:
    """Take back, as the operator that writes now, what let a peer in; False: another one writes by then."""
    words = ("revoke", "--dir", programs.directory / name_of(programs.wait_for_leader()), "--peer", programs.status(name)["peer"])
    out = typed(aggregator_main, *words)
    assert out.exit_code == 0 or any(said in out.errors for said in ("writes now", "try again")), out.errors
    return out.exit_code == 0


def counted(programs: OperatorPrograms, *names: str) -> bool:
    """Return whether each of these has counted in a round."""
    return all(programs.status(name).get("rounds_counted", 0) for name in names)


def made_account(directory: Path) -> str:
    """Make the key of an account, as a person does it; return its name."""
    made = typed(peer_main, "identity", "new", "--dir", directory)
    assert made.exit_code == 0, made.errors
    return typed(peer_main, "identity", "--dir", directory).output.split()[0]
