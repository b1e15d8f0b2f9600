"""Trust while operators change: what one writer was told, and what auditors do for it, goes on with the next one."""

from pathlib import Path

import pytest

from aggregator.cli import main as aggregator_main
from aggregator.log.verify import verify_directory
from aggregator.settings.sections import AdmissionSection, TrustSection
from peer.cli import main as peer_main
from peer.commands.earnings import runs_of
from protocol.audits import DIFFERS
from protocol.ledger import Ledger
from protocol.signing import key_named
from tests.command import typed
from tests.etcds import etcd_in, needs_etcd
from tests.swarm.operators import OperatorPrograms, name_of
from tests.swarm.processes import small_run

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),  # hivemind's way to find its daemon
    needs_etcd,
]

MACHINES = ("auditor", "trainer")  # of one account


@pytest.mark.timeout(900)
def test_audits_admissions_and_accounts_outlive_the_writer(tmp_path: Path) -> None:
    trust = TrustSection(mode="audited", proven_samples=64, whole_percent=0)
    settings = {"trust": trust, "admission": AdmissionSection(how="invitation")}
    config = small_run(rounds=10_000, first_open_s=2, min_open_s=2, max_open_s=4).model_copy(update=settings)
    with etcd_in(tmp_path / "etcd") as etcd, OperatorPrograms(tmp_path, config, [etcd.url]) as programs:
        programs.start_operators()
        invitation = invited(tmp_path / name_of(1), 5)
        account = made_account(tmp_path / "owner")
        programs.start_peer_of("auditor", 1, "--invitation", invitation, "--audit", "100%", "--payout", account)
        programs.start_peer_of("trainer", 2, "--invitation", invitation, "--payout", account)
        programs.start_peer_of("guest", 3, "--invitation", invitation)
        programs.wait_until(lambda: counted(programs, *MACHINES, "guest"), "all of them count in a round")
        assert all(programs.status(name)["account"] == account for name in MACHINES)
        programs.wait_until(lambda: programs.status("auditor").get("audits", 0) > 0, "a volunteer looks")

        killed = programs.wait_for_writer()
        programs.kill(name_of(killed))
        programs.wait_until(lambda: programs.writer() not in (None, killed), "another operator writes")
        writer = programs.wait_for_writer()
        looked_before, round_ = programs.status("auditor")["audits"], programs.round(programs.at_work())
        fellow = next(place for place in programs.at_work() if place != writer)
        programs.start_cheat("cheat", "noise", "--invitation", invitation, at=name_of(fellow))
        programs.expect_end("cheat")
        programs.wait_until(lambda: programs.status("auditor")["audits"] >= looked_before + 4, "the volunteer goes on for the next writer")
        assert programs.wait_for_end("cheat") == 4  # the next writer found it guilty
        programs.expect_end("guest")
        programs.wait_until(lambda: taken_back(programs, "guest"), "the one that writes takes back what let the guest in")
        assert programs.wait_for_end("guest") == 2

        programs.start_operator(killed)
        before = programs.round([writer])
        programs.wait_until(lambda: programs.round([killed]) >= before + 2, "the one that was killed has what it missed")
        for name in (*MACHINES, *map(name_of, range(4))):
            programs.interrupt(name)
            programs.wait_for_end(name)
        keys = {name: bytes.fromhex(str(programs.status(name)["key"])) for name in (*MACHINES, "guest", "cheat")}
        assert all(programs.status(name)["promises_broken"] == 0 for name in MACHINES)
    last: list[Ledger] = []
    verify_directory(tmp_path / name_of(killed), on_round=lambda ledger: last.__setitem__(slice(None), [ledger]))
    standing = last[0].standing
    assert last[0].round > round_
    assert {key: fault.reason for key, fault in standing.guilty.items()} == {keys["cheat"]: DIFFERS}
    assert not any(standing.account(keys[name]).void for name in (*MACHINES, "guest"))
    machines = sorted(keys[name] for name in MACHINES)
    assert list(standing.accounts.by_account()[key_named(account)]) == machines
    assert last[0].credit_of(key_named(account)) == sum(standing.account(key).credit for key in machines) > 0
    assert not any(last[0].credit_of(key) for key in machines)  # what the auditor got for audits is in the account, too
    added_up = typed(peer_main, "credits", "--account", account, *(tmp_path / name for name in MACHINES))
    assert (added_up.exit_code, "total of 2 peers" in added_up.output) == (0, True)
    for name in MACHINES:
        (earned,) = runs_of(tmp_path / name, verify=True)
        assert earned.problems == []


def invited(directory: Path, keys: int) -> str:
    """Return the file of an invitation for so many keys, made by the operator of a folder."""
    made = typed(aggregator_main, "invite", "--dir", directory, "--keys", str(keys), "--out", directory / "invitation.txt")
    assert made.exit_code == 0, made.errors
    return str(directory / "invitation.txt")


def taken_back(programs: OperatorPrograms, name: str) -> bool:
    """Take back, as the operator that writes now, what let a peer in; False: another one writes by then."""
    words = ("revoke", "--dir", programs.directory / name_of(programs.wait_for_writer()), "--peer", programs.status(name)["peer"])
    out = typed(aggregator_main, *words)
    assert out.exit_code == 0 or "writes now" in out.errors, out.errors
    return out.exit_code == 0


def counted(programs: OperatorPrograms, *names: str) -> bool:
    """Return whether each of these has counted in a round."""
    return all(programs.status(name).get("rounds_counted", 0) for name in names)


def made_account(directory: Path) -> str:
    """Make the key of an account, as a person does it; return its name."""
    made = typed(peer_main, "identity", "new", "--dir", directory)
    assert made.exit_code == 0, made.errors
    return typed(peer_main, "identity", "--dir", directory).output.split()[0]
