"""What was good once, brought again: to another run with the same keys, to a later round, side by side. Each kind of entry is refused."""

import pytest

from manta_swarm.protocol.admission import Admission, AdmissionProof, AdmissionRule, Invitation, access_shown
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import InclusionPromise, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import OPERATOR, ledger_of, refused

ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group: S + L verifies where S is not compared with it
SECRET, ALICE, BOB = Identity(b"\x21" * 32), PEERS[0], PEERS[1]


def run_named(name: str) -> Ledger:
    """Return the log of a run of invited peers, with nothing in it; runs with other names differ in nothing else."""
    return ledger_of(name=name, admission=AdmissionRule("invitation"))


def admission_to(ledger: Ledger, peer: Identity) -> bytes:
    invitation = Invitation(ledger.run, OPERATOR.public_key, SECRET.public_key, keys=3, until_round=9, access="member")
    return entry_of(Signed.sign(Admission(Signed.sign(invitation, OPERATOR), peer.public_key), SECRET))


def history_of(ledger: Ledger) -> list[bytes]:
    """Return the entries of two rounds with one peer's work, appended to a new log."""
    entries = [admission_to(ledger, ALICE)]
    ledger.append(entries[0])
    for _ in range(2):
        entries += commit(ledger, [header_of(ledger, ALICE)])
    return entries


def test_no_entry_of_a_run_is_taken_by_another_one_of_the_same_people() -> None:
    entries, other = history_of(run_named("first")), run_named("second")
    for entry in entries:
        refused(other, entry)
    other.append(admission_to(other, ALICE))
    for entry in entries:
        refused(other, entry)


def test_no_entry_is_taken_again_in_a_later_round() -> None:
    ledger = run_named("first")
    for entry in history_of(ledger):
        refused(ledger, entry)
    commit(ledger, [header_of(ledger, ALICE)])


def pass_in(run: bytes) -> Signed[AdmissionProof]:
    return Signed.sign(AdmissionProof(run, OPERATOR.public_key, ALICE.public_key, "member"), OPERATOR)


def test_an_inclusion_promise_of_one_kind_of_promise_is_none_of_another() -> None:
    inclusion_promise = Signed.sign(InclusionPromise(sha256(b"run"), 1, sha256(b"contribution")), OPERATOR)
    taken_for_a_pass = Signed(AdmissionProof, inclusion_promise.payload, inclusion_promise.signature)
    with pytest.raises(RemoteFault):
        access_shown(taken_for_a_pass, sha256(b"run"), sha256(b"contribution"), [OPERATOR.public_key])


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), (2**255 - 19).to_bytes(32, "little"), b"short"])
def test_a_key_of_low_order_or_none_is_nobodys_in_an_admission(key: bytes) -> None:
    invitation = Signed.sign(
        Invitation(sha256(b"run"), OPERATOR.public_key, SECRET.public_key, keys=1, until_round=1, access="member"), OPERATOR
    )
    with pytest.raises(ValueError, match="key"):
        Admission(invitation, key)
    with pytest.raises(ValueError, match="key"):
        Invitation(sha256(b"run"), OPERATOR.public_key, key, keys=1, until_round=1, access="member")


def test_an_admission_with_a_signature_plus_the_order_of_the_group_is_refused() -> None:
    ledger = run_named("first")
    invitation = Signed.sign(
        Invitation(ledger.run, OPERATOR.public_key, SECRET.public_key, keys=1, until_round=9, access="member"), OPERATOR
    )
    good = Signed.sign(Admission(invitation, ALICE.public_key), SECRET)
    refused(ledger, entry_of(Signed(Admission, good.payload, _plus_order(good.signature))), RemoteFault)
    other = Signed(Invitation, invitation.payload, _plus_order(invitation.signature))
    refused(ledger, entry_of(Signed.sign(Admission(other, ALICE.public_key), SECRET)), RemoteFault)
    ledger.append(entry_of(good))
    assert ledger.size == 1


def _plus_order(signature: bytes) -> bytes:
    return signature[:32] + (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
