"""What an operator takes back: a key is out at once and for good, an invitation lets nobody in any more, and the log shows both."""

import pytest

from manta_swarm.protocol.admission import INVITED, PEER, AdmissionRule, Revocation
from manta_swarm.protocol.admitted import NOT_ADMITTED
from manta_swarm.protocol.errors import ClaimError, LedgerError, SignatureError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import OPERATOR, ledger_of, not_taken, refused
from tests.protocol.test_admission import ALICE, BOB, CAROL, OTHER_SECRET, SECRET, admission, invitation, invited_run


def revocation(ledger: Ledger, what: str, target: bytes, operator: Identity = OPERATOR) -> bytes:
    return entry_of(Signed.sign(Revocation(ledger.run, operator.public_key, what, target), operator))


def of_peer(ledger: Ledger, peer: Identity) -> bytes:
    return revocation(ledger, PEER, peer.public_key)


def test_a_key_that_is_taken_back_is_out_for_good_and_keeps_what_it_earned() -> None:
    ledger = invited_run()
    ledger.append(admission(invitation(ledger), ALICE))
    commit(ledger, [header_of(ledger, ALICE)])
    stepped = ledger.copy()
    step = ledger.append(of_peer(ledger, ALICE))
    assert step is not None
    stepped.follow(step)
    assert vars(stepped) == vars(ledger)
    assert ALICE.public_key not in ledger.admitted
    assert ALICE.public_key in ledger.admitted.out
    assert ledger.credits() == {ALICE.public_key: ledger.manifest.reward_pool}
    refused(ledger, of_peer(ledger, ALICE), match="not in, or was taken back before")
    refused(ledger, admission(invitation(ledger, secret=OTHER_SECRET), ALICE, OTHER_SECRET), match="took this key's admission back")


def test_what_it_has_inclusion_promises_for_is_kept_and_nothing_after_that() -> None:
    ledger = invited_run()
    ledger.append(admission(invitation(ledger), ALICE))
    ledger.append(admission(invitation(ledger), BOB))
    ledger.append(of_peer(ledger, ALICE))  # while round 1 is open: an inclusion promise is for that one, or the next
    for _ in range(2):
        commit(ledger, [header_of(ledger, ALICE)])
    not_taken(ledger, header_of(ledger, ALICE), NOT_ADMITTED, ClaimError)
    commit(ledger, [header_of(ledger, BOB)])


def test_an_invitation_that_is_taken_back_lets_nobody_in_and_who_is_in_stays() -> None:
    ledger = invited_run()
    signed = invitation(ledger)
    ledger.append(admission(signed, ALICE))
    ledger.append(revocation(ledger, INVITED, SECRET.public_key))
    refused(ledger, admission(signed, BOB), match="took the invitation back")
    refused(ledger, revocation(ledger, INVITED, SECRET.public_key), match="taken back before")
    assert ALICE.public_key in ledger.admitted
    ledger.append(admission(invitation(ledger, secret=OTHER_SECRET), BOB, OTHER_SECRET))
    assert len(ledger.admitted.revocations) == 1


def test_one_that_nobody_used_yet_can_be_taken_back_by_another_operator_too() -> None:
    ledger = invited_run(operators=(OPERATOR.public_key, CAROL.public_key), quorum=2)
    ledger.append(revocation(ledger, INVITED, SECRET.public_key, CAROL))
    refused(ledger, admission(invitation(ledger), ALICE), match="took the invitation back")


def test_only_an_operator_takes_back_and_only_what_there_is() -> None:
    ledger = invited_run()
    ledger.append(admission(invitation(ledger), ALICE))
    refused(ledger, revocation(ledger, PEER, ALICE.public_key, BOB), match="no operator")
    refused(ledger, of_peer(ledger, CAROL), match="not in")
    refused(ledger, of_peer(ledger, OPERATOR), match="an operator of the run stays")
    other = Revocation(bytes(32), OPERATOR.public_key, PEER, ALICE.public_key)
    refused(ledger, entry_of(Signed.sign(other, OPERATOR)), match="another run")
    good = Signed.sign(Revocation(ledger.run, OPERATOR.public_key, PEER, ALICE.public_key), OPERATOR)
    refused(ledger, entry_of(Signed(Revocation, good.payload, bytes(64))), SignatureError)
    ledger.append(entry_of(header_of(ledger, ALICE)))
    refused(ledger, entry_of(good), match="in the middle of a table")
    everybody = ledger_of()
    with pytest.raises(LedgerError, match="open to everybody"):
        everybody.append(of_peer(everybody, ALICE))
    with pytest.raises(ValueError, match="a revocation is of"):
        Revocation(ledger.run, OPERATOR.public_key, "round", bytes(32))


def test_whom_the_manifest_lists_can_be_taken_back_too() -> None:
    keys = tuple(sorted(peer.public_key for peer in PEERS[:3]))
    ledger = ledger_of(admission=AdmissionRule("list", keys))
    ledger.append(of_peer(ledger, ALICE))
    assert ALICE.public_key not in ledger.admitted
    refused(ledger, revocation(ledger, INVITED, bytes(32)), match="nobody is invited")
