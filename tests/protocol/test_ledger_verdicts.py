"""Verdicts and the settlement in the log: where they may stand, whose they may be, and what becomes of everybody's pay."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol.errors import LedgerError, RemoteFault, SignatureError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Outcome, Settlement
from tests.audited import AUDITOR, AUDITORS, audit_of, audited_ledger, go_on, settle, verdict_of, works_of
from tests.contributions import PEERS, header_of
from tests.protocol.ledgers import append, ledger_of, refused, seen

A, B, C = PEERS[:3]


def played(ledger: Ledger, rounds: int = 2, peers: tuple[Identity, ...] = (A, B)) -> Ledger:
    """Return the ledger after so many rounds: the beacons of all but the newest are there."""
    for _ in range(rounds):
        go_on(ledger, peers)
    return ledger


def test_a_verdict_stands_before_contributions_and_takes_effect_with_their_round() -> None:
    ledger = played(audited_ledger(proven_after=1))
    verdict = verdict_of(ledger, A)
    ledger.append(entry_of(verdict))
    assert not ledger.is_between_rounds
    assert not ledger.reputation.is_proven(A.public_key)
    headers = works_of(ledger, (A, B))
    append(ledger, headers[0])
    refused(ledger, entry_of(verdict_of(ledger, B)), match="after the contributions")
    ledger = played(audited_ledger(proven_after=1))
    go_on(ledger, (A, B), [verdict])
    assert ledger.reputation.is_proven(A.public_key)
    assert not ledger.reputation.is_proven(B.public_key)
    refused(ledger, entry_of(verdict), match="has judged")


def test_verdicts_are_sorted_and_none_stands_twice() -> None:
    ledger = played(audited_ledger())
    first, second = sorted((verdict_of(ledger, peer) for peer in (A, B)), key=lambda verdict: verdict.digest)
    ledger.append(entry_of(second))
    for verdict in (first, second):
        refused(ledger, entry_of(verdict), match="sorted by digest")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"run": sha256(b"another")}, "another run"),
        ({"auditor": PEERS[5].public_key}, "no named auditor"),
        ({"contribution": sha256(b"another")}, "not audited"),
        ({"round": 2}, "not audited"),
        ({"outcomes": (0, 0)}, "other claims"),
        ({"by": A.public_key}, "may not look"),
        ({"by": C.public_key}, "may not look"),  # who is not proven
    ],
)
def test_a_verdict_is_a_named_auditor_s_on_a_contribution_that_was_drawn(changes: dict[str, Any], match: str) -> None:
    ledger = played(audited_ledger(proven=(A,)))
    signer = PEERS[5] if "auditor" in changes else AUDITOR
    verdict = Signed.sign(replace(verdict_of(ledger, A).open(), **changes), signer)
    with pytest.raises(LedgerError, match=match):
        ledger.check_verdict(verdict)
    refused(ledger, entry_of(verdict), match=match)


def test_a_verdict_that_its_auditor_did_not_sign_is_refused() -> None:
    ledger = played(audited_ledger())
    refused(ledger, entry_of(replace(verdict_of(ledger, A), signature=bytes(64))), SignatureError)


def test_no_verdict_stands_in_an_unaudited_run() -> None:
    audited, ledger = played(audited_ledger()), ledger_of()
    refused(ledger, entry_of(Signed.sign(replace(verdict_of(audited, A).open(), run=ledger.run), AUDITOR)), match="no named auditor")


def ended(**changes: Any) -> Ledger:
    """Return the ledger of a run whose four rounds are over."""
    return played(audited_ledger(num_rounds=4, proven=(B,), **changes), 4)


def test_after_the_last_round_verdicts_and_the_settlement_follow_and_all_is_paid() -> None:
    ledger = ended()
    pool = ledger.manifest.work_pool
    assert (ledger.finished, ledger.settled, ledger.credits()) == (True, False, {})
    settle(ledger, [verdict_of(ledger, A, round=1), verdict_of(ledger, A, Outcome.VOID, round=2)])
    assert (ledger.settled, ledger.settlement) == (True, ledger.size - 1)
    assert ledger.is_between_rounds
    # A is not proven: only its first round was found good, and it is guilty since: B has the others.
    standing = ledger.reputation.standing(A.public_key)
    assert (standing.paid, standing.pending) == (ledger.reputation.earned[A.public_key], ())
    assert ledger.reputation.earned[B.public_key] + standing.paid == 4 * pool
    assert 0 < standing.paid < pool
    assert ledger.credits()[AUDITOR.public_key] == 2 * ledger.manifest.audit_pool
    assert not ledger.reputation.pending


FALSE: dict[str, tuple[Callable[[Ledger], Settlement], str]] = {
    "of another run": (lambda ledger: Settlement(sha256(b"another"), ledger.last_commit), "another run"),
    "of another round": (lambda ledger: Settlement(ledger.run, ledger.commit_at(3) or b""), "another last round"),
}


@pytest.mark.parametrize(("made", "match"), FALSE.values(), ids=FALSE)
def test_a_settlement_is_of_the_last_round(made: Callable[[Ledger], Settlement], match: str) -> None:
    ledger = ended()
    refused(ledger, entry_of(made(ledger)), match=match)


def test_a_settlement_stands_after_the_last_round_only_and_once() -> None:
    ledger = played(audited_ledger(num_rounds=4), 3)
    refused(ledger, entry_of(Settlement(ledger.run, ledger.last_commit)), match="before the last round")
    go_on(ledger, (A,))
    settle(ledger)
    for record in (Settlement(ledger.run, ledger.last_commit), header_of(ledger, A)):
        refused(ledger, entry_of(record), match="finished")
    with pytest.raises(RemoteFault):
        ledger.check_verdict(verdict_of(ended(), A, round=1))


def test_an_open_run_is_settled_with_its_last_round() -> None:
    ledger = ledger_of(num_rounds=1)
    go_on(ledger, (A,))
    assert (ledger.finished, ledger.settled, ledger.settlement) == (True, True, None)
    assert ledger.credits()[A.public_key] == ledger.manifest.reward_pool
    refused(ledger, entry_of(Settlement(ledger.run, ledger.last_commit)), match="finished")


def test_a_ledger_that_follows_goes_the_same_way() -> None:
    ledger = audited_ledger(num_rounds=3, auditors=3, proven=(A,))
    stepped = ledger.copy()

    def take(entry: bytes) -> None:
        if (step := ledger.append(entry)) is not None:
            stepped.follow(step)

    for _ in range(3):
        before = []
        if ledger.round >= 2:
            before = [verdict_of(ledger, B, auditor=auditor) for auditor in AUDITORS[:3]]
        copy = ledger.copy()
        go_on(copy, (A, B), before)
        headers = works_of(ledger, (A, B))
        for entry in map(entry_of, (*sorted(before, key=lambda verdict: verdict.digest), *headers, copy.newest)):  # type: ignore[arg-type]
            take(entry)
        assert seen(ledger) == seen(stepped) == seen(copy)
    auditor = next(each for each in AUDITORS if each.public_key == audit_of(ledger, A, 2).auditor)
    for record in (verdict_of(ledger, A, round=2, auditor=auditor), Settlement(ledger.run, ledger.last_commit)):
        take(entry_of(record))
    assert seen(ledger) == seen(stepped)
    assert stepped.settled
    assert stepped.reputation == ledger.reputation
