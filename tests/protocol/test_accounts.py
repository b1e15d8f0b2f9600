"""Payout accounts: credit is earned by a claim's key, which alone answers for it, and adds up to the account that the claim names."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounts import Account, Accounts, Fault, Void
from protocol.audits import DIFFERS, HOLDS, OPEN, WITHHELD
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.records import Claim
from protocol.signing import Identity
from tests.audited import OPERATOR, SECOND, THIRD, audited_ledger, finding_of, go_on
from tests.contributions import PEERS, claim_of

A, B, C = PEERS[:3]
OWNER, OTHER = (Identity(bytes([seed]) * 32).public_key for seed in (0x51, 0x52))
KEYS = [b"k%d" % each for each in range(3)]


@pytest.mark.parametrize("mode", ["audited", OPEN])
def test_what_several_keys_earn_adds_up_to_the_account_that_their_claims_name(mode: str) -> None:
    ledger = audited_ledger(mode=mode)
    for _ in range(2):
        go_on(ledger, (A, B), payout=OWNER)
    pool = ledger.manifest.work_pool
    assert ledger.credits() == {OWNER: 2 * pool}
    assert ledger.credit_of(OWNER) == ledger.standing.accounts.of_account(OWNER).credit == 2 * pool
    assert [ledger.credit_of(peer.public_key) for peer in (A, B)] == [0, 0]
    assert [ledger.standing.account(peer.public_key).credit for peer in (A, B)] == [pool, pool]
    assert ledger.copy().standing.accounts == ledger.standing.accounts


def test_who_names_another_account_leaves_what_was_earned_before_where_it_is() -> None:
    ledger = audited_ledger(mode=OPEN)
    go_on(ledger, (A,), payout=OWNER)
    go_on(ledger, (A,), payout=OTHER)
    go_on(ledger, (A,))
    assert ledger.credits() == dict.fromkeys(sorted((OWNER, OTHER, A.public_key)), 1000)
    accounts = ledger.standing.accounts
    assert accounts.of(A.public_key).final == 3_000
    assert accounts.of(A.public_key, OWNER).final == 1_000
    assert accounts.by_account() == {account: {A.public_key: 1_000} for account in sorted((OWNER, OTHER, A.public_key))}


def test_guilt_takes_back_what_the_key_has_pending_whatever_accounts_it_is_for_and_nothing_of_the_others() -> None:
    ledger = audited_ledger(auditors=(SECOND.public_key,))
    go_on(ledger, (A, B), payout=OTHER)
    go_on(ledger, (A, B), payout=OWNER)
    go_on(ledger, (A, B), [finding_of(ledger, auditor, A, DIFFERS) for auditor in (OPERATOR, SECOND)], payout=OWNER)
    accounts, half = ledger.standing.accounts, ledger.manifest.work_pool // 2
    fault = ledger.standing.guilty[A.public_key]
    assert (fault.reason, fault.round) == (DIFFERS, 3)
    assert accounts.of_account(OTHER) == Account(0, ((1, half),), (Void(half, fault),))
    assert accounts.of_account(OWNER) == Account(0, ((2, half), (3, half)), (Void(2 * half, fault),))  # of round 3 what A would have had
    assert accounts.of(A.public_key) == Account(0, (), (Void(3 * half, fault),))
    assert accounts.of(B.public_key) == Account(0, ((1, half), (2, half), (3, half)), ())
    assert accounts.by_account()[OTHER] == {key: half * (key == B.public_key) for key in sorted((A.public_key, B.public_key))}


def test_pay_for_an_audit_adds_up_to_the_account_of_the_auditors_newest_claim_and_without_one_to_its_own_key() -> None:
    ledger = audited_ledger(auditors=(B.public_key,), audit_percent=100)
    go_on(ledger, (A, B), payout=OWNER)
    go_on(ledger, (A,), payout=OTHER)
    before = ledger.credits()
    go_on(ledger, (A,), [finding_of(ledger, B, A, HOLDS, round=1), finding_of(ledger, OPERATOR, A, HOLDS, round=1)])
    accounts = ledger.standing.accounts
    assert accounts.of(B.public_key, OWNER).credit > ledger.manifest.work_pool // 2
    assert accounts.of(B.public_key).credit == accounts.of(B.public_key, OWNER).credit
    assert ledger.credit_of(OWNER) > before[OWNER]
    assert ledger.credit_of(OPERATOR.public_key) == accounts.of(OPERATOR.public_key).credit > 0


@dataclass
class Share:
    """What one round pays one key, as the model keeps it."""

    round: int
    key: bytes
    account: bytes
    amount: int
    fault: Fault | None = None


@given(st.data(), st.integers(0, 4))
def test_sums_by_key_and_by_account_are_those_of_a_list_of_all_that_was_paid(data: st.DataObject, pending_rounds: int) -> None:
    accounts, paid = Accounts(pending_rounds), list[Share]()
    named = {key: key for key in KEYS}
    for round_ in range(1, data.draw(st.integers(1, 8)) + 1):
        for key in data.draw(st.sets(st.sampled_from(KEYS))):
            fault = Fault(round_, WITHHELD, b"")
            accounts.take_back(key, fault)
            for one in paid:
                if one.key == key and one.fault is None and one.round > round_ - 1 - pending_rounds and pending_rounds:
                    one.fault = fault
        changes = data.draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([*KEYS, OWNER])))
        shares = data.draw(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 5)))
        named |= changes
        before, same = accounts.copy(), accounts.copy()
        accounts.name(changes)
        accounts.earn(round_, shares)
        assert before == same  # a copy shares nothing that changes
        paid += [Share(round_, key, named[key], amount) for key, amount in shares.items()]
        for account in (*KEYS, OWNER):
            of_account = [one for one in paid if one.account == account]
            assert seen(accounts.of_account(account)) == summed(of_account, round_ - pending_rounds)
            for key in KEYS:
                of_both = [one for one in of_account if one.key == key]
                assert seen(accounts.of(key, account)) == summed(of_both, round_ - pending_rounds)
        for key in KEYS:
            assert seen(accounts.of(key)) == summed([one for one in paid if one.key == key], round_ - pending_rounds)
        total: Counter[bytes] = Counter()
        for one in paid:
            total[one.account] += 0 if one.fault else one.amount
        assert accounts.credits() == {account: total[account] for account in sorted(total) if total[account]}
        assert {account: sum(of_keys.values()) for account, of_keys in accounts.by_account().items() if any(of_keys.values())} == {
            account: amount for account, amount in total.items() if amount
        }


def seen(account: Account) -> tuple[int, dict[int, int], int]:
    return account.final, dict(account.pending), sum(void.amount for void in account.void)


def summed(paid: list[Share], last_final: int) -> tuple[int, dict[int, int], int]:
    """Return what is final, pending by round, and void of these."""
    pending: Counter[int] = Counter()
    for one in paid:
        if one.fault is None and one.round > last_final:
            pending[one.round] += one.amount
    final = sum(one.amount for one in paid if one.fault is None and one.round <= last_final)
    return final, {round_: amount for round_, amount in pending.items() if amount}, sum(one.amount for one in paid if one.fault)


@pytest.mark.parametrize("payout", [b"", A.public_key[:31], A.public_key + b"\0", bytes(32), b"\xff" * 32])
def test_a_claim_names_a_key_that_can_be_one(payout: bytes) -> None:
    claim = claim_of(audited_ledger(), A, payout=OWNER).open()
    with pytest.raises(ValueError, match="payout"):
        replace(claim, payout=payout)
    head = bytes([0x58, 32])  # of a byte string of 32 bytes, in CBOR
    packed = pack(claim).replace(head + OWNER, bytes([0x58, len(payout)]) + payout if len(payout) > 23 else b"\x40" + payout)
    assert packed != pack(claim)
    with pytest.raises(EncodingError, match="payout"):
        unpack(Claim, packed, max_bytes=4096)


def test_a_claims_own_key_answers_for_it_alone() -> None:
    """Who names another's key gives pay away, and nothing else: neither its trust nor its faults go along."""
    ledger = audited_ledger(auditors=(SECOND.public_key, THIRD.public_key))
    go_on(ledger, (A, B))
    go_on(ledger, (A,), payout=B.public_key)
    go_on(ledger, (B,))
    findings = [finding_of(ledger, auditor, A, DIFFERS, round=2) for auditor in (OPERATOR, SECOND, THIRD)]
    before = ledger.standing.account(B.public_key)
    go_on(ledger, (B,), findings)
    assert ledger.standing.guilty.keys() == {A.public_key}
    assert ledger.standing.account(B.public_key).pending[: len(before.pending)] == before.pending
    assert ledger.standing.account(B.public_key).void == ()
    assert [void.amount for void in ledger.standing.accounts.of_account(B.public_key).void] == [ledger.manifest.work_pool]
