"""Accounts of several machines: who may join one, who may end that, and that nothing is taken twice."""

from dataclasses import replace

import pytest

from protocol.audits import OPEN, SignedExtra
from protocol.delegations import MAX_MACHINES, Delegation, Grant, Owners, SignedDelegation, SignedGrant
from protocol.errors import EncodingError, LedgerError, SignatureError
from protocol.ledger import Ledger
from protocol.records import entry_of, open_entry
from protocol.signing import Identity
from tests.audited import audited_ledger, go_on
from tests.contributions import PEERS

A, B = PEERS[:2]
OWNER, OTHER = Identity(b"\x51" * 32), Identity(b"\x52" * 32)


def granted(machine: Identity, account: Identity = OWNER, number: int = 1) -> SignedGrant:
    return SignedGrant.sign(Grant(account.public_key, machine.public_key, number), account)


def joins(ledger: Ledger, machine: Identity, number: int = 1, grant: SignedGrant | None = None) -> SignedDelegation:
    key = machine.public_key
    return SignedDelegation.sign(Delegation(ledger.run, key, key, number, (grant or granted(machine),)), machine)


def leaves(ledger: Ledger, machine: Identity, number: int, signer: Identity) -> SignedDelegation:
    return SignedDelegation.sign(Delegation(ledger.run, signer.public_key, machine.public_key, number, ()), signer)


def at_work(mode: str = "audited") -> Ledger:
    """A run in which both have earned something."""
    ledger = audited_ledger(mode=mode)
    go_on(ledger, (A, B))
    return ledger


def accounts(ledger: Ledger) -> dict[bytes, bytes]:
    return ledger.standing.owners.accounts()


@pytest.mark.parametrize("mode", ["audited", OPEN])
def test_machines_join_an_account_and_leave_it_by_their_own_word_or_the_accounts(mode: str) -> None:
    ledger = at_work(mode)
    go_on(ledger, (A, B), [joins(ledger, A), joins(ledger, B)])
    assert accounts(ledger) == {A.public_key: OWNER.public_key, B.public_key: OWNER.public_key}
    before = ledger.credits()
    go_on(ledger, (A, B), [leaves(ledger, A, 2, A), leaves(ledger, B, 2, OWNER)])
    assert accounts(ledger) == {}
    assert all(ledger.credits()[key] > amount for key, amount in before.items())  # nothing moves
    go_on(ledger, (A, B), [joins(ledger, A, 3, granted(A, OTHER)), joins(ledger, B, 3, granted(B, number=2))])
    assert accounts(ledger) == {A.public_key: OTHER.public_key, B.public_key: OWNER.public_key}
    assert ledger.copy().standing.owners == ledger.standing.owners


def refusals(ledger: Ledger) -> dict[str, SignedExtra]:
    """Return what may not follow in a run in which A belongs to OWNER by its first delegation."""
    other_run = audited_ledger(num_rounds=41)
    return {
        "again": joins(ledger, A),
        "the same grant": joins(ledger, A, 2),
        "an older grant": joins(ledger, A, 2, granted(A, number=1)),
        "a number left out": joins(ledger, B, 2),
        "a stranger's word": leaves(ledger, A, 2, OTHER),
        "nothing to leave": leaves(ledger, B, 1, B),
        "nothing earned": joins(ledger, PEERS[5]),
        "another run": joins(other_run, B),
        "a machine as account": joins(ledger, B, 1, granted(B, A)),
    }


@pytest.mark.parametrize("what", list(refusals(audited_ledger())))
def test_what_may_not_follow_is_refused_and_changes_nothing(what: str) -> None:
    ledger = at_work()
    go_on(ledger, (A, B), [joins(ledger, A)])
    before = accounts(ledger)
    with pytest.raises(LedgerError):
        ledger.check_extra(refusals(ledger)[what])
    assert accounts(ledger) == before


def test_signatures_and_grants_of_others_are_refused() -> None:
    ledger = at_work()
    good = joins(ledger, A)
    assert open_entry(entry_of(good)) == good
    delegation = good.open()
    for forged in (
        replace(good, signature=bytes(64)),
        SignedDelegation.sign(delegation, B),
        SignedDelegation.sign(replace(delegation, grant=(replace(granted(A), signature=bytes(64)),)), A),
    ):
        with pytest.raises(SignatureError):
            forged.open()
    with pytest.raises(EncodingError, match="for another key"):
        SignedDelegation.sign(replace(delegation, grant=(granted(B),)), A).open()
    for wrong in ({"number": 0}, {"number": True}, {"grant": (granted(A), granted(A))}, {"signer": OWNER.public_key}, {"key": bytes(32)}):
        with pytest.raises((ValueError, EncodingError)):
            SignedDelegation.sign(replace(delegation, **wrong), A).open()


def test_a_key_changes_its_account_once_a_round() -> None:
    ledger = at_work()
    two = sorted((joins(ledger, A), joins(ledger, A, 1, granted(A, OTHER))), key=lambda one: one.digest)
    ledger.append(entry_of(two[0]))
    with pytest.raises(LedgerError, match="once a round"):
        ledger.append(entry_of(two[1]))


def test_an_account_has_so_many_machines_and_no_more() -> None:
    owners, run = Owners(), b"r" * 32
    machines = [Identity(bytes([100 + place // 100, place % 100]) * 16) for place in range(MAX_MACHINES + 1)]
    words = [joins_of(run, machine) for machine in machines]
    owners.take(words)  # all before one round: each was good by itself
    assert len(owners.accounts()) == owners.machines[OWNER.public_key] == MAX_MACHINES
    with pytest.raises(LedgerError, match="at most"):
        owners.check(words[-1], has_earned=True)
    owners.take([Delegation(run, OWNER.public_key, machines[0].public_key, 2, ())])
    owners.check(words[-1], has_earned=True)


def joins_of(run: bytes, machine: Identity) -> Delegation:
    return Delegation(run, machine.public_key, machine.public_key, 1, (granted(machine),))
