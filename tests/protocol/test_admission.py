"""Who may take part: invitations, admissions by their secrets, tokens that people hand on, and what the log's admissions add up to."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.network.invitation import Token
from manta_swarm.protocol.admission import GUEST, PROVEN, Admission, AdmissionProof, AdmissionRule, Invitation, access_shown
from manta_swarm.protocol.admitted import LOOKS_ON, NOT_ADMITTED
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import ClaimError, EncodingError, LedgerError, RemoteFault, SignatureError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of, open_entry
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import AuditRules
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import OPERATOR, ledger_of, not_taken, refused

SECRET, OTHER_SECRET = Identity(b"\x21" * 32), Identity(b"\x22" * 32)  # of invitations
ALICE, BOB, CAROL = PEERS[:3]


def invited_run(**changes: Any) -> Ledger:
    """Return the log of a run of invited peers."""
    return ledger_of(admission=AdmissionRule("invitation"), **changes)


def invitation(ledger: Ledger, operator: Identity = OPERATOR, secret: Identity = SECRET, **changes: Any) -> Signed[Invitation]:
    made = Invitation(ledger.run, operator.public_key, secret.public_key, keys=2, until_round=3, access="member")
    return Signed.sign(replace(made, **changes), operator)


def admission(signed: Signed[Invitation], peer: Identity, secret: Identity = SECRET) -> bytes:
    return entry_of(Signed.sign(Admission(signed, peer.public_key), secret))


def test_who_is_invited_counts_from_the_entry_on_that_lets_it_in() -> None:
    ledger = invited_run()
    not_taken(ledger, header_of(ledger, ALICE), NOT_ADMITTED, ClaimError)
    ledger.append(admission(invitation(ledger), ALICE))
    assert (ALICE.public_key in ledger.admitted, BOB.public_key in ledger.admitted) == (True, False)
    commit(ledger, [header_of(ledger, ALICE)])
    assert ledger.credits()[ALICE.public_key] == ledger.manifest.reward_pool


def test_whom_the_manifest_names_is_in_from_the_start() -> None:
    ledger = invited_run(audits=(AuditRules(named=(BOB.public_key,), proven=(ALICE.public_key,)),))
    commit(ledger, [header_of(ledger, peer) for peer in (OPERATOR, ALICE, BOB)])
    assert ledger.admitted.accesses == {}


def test_a_guest_is_in_and_its_claims_count_nowhere() -> None:
    ledger = invited_run()
    ledger.append(admission(invitation(ledger, access=GUEST), ALICE))
    assert ALICE.public_key in ledger.admitted
    assert not ledger.admitted.trains(ALICE.public_key)
    not_taken(ledger, header_of(ledger, ALICE), LOOKS_ON, ClaimError)
    refused(ledger, admission(invitation(ledger, secret=OTHER_SECRET), ALICE, OTHER_SECRET), match="in already")


def test_who_comes_in_by_an_invitation_of_the_proven_is_proven_from_the_start_as_whom_the_manifest_lists() -> None:
    ledger = invited_run(audits=(AuditRules(named=(OPERATOR.public_key,), proven=(CAROL.public_key,)),))
    before = ledger.copy()
    for peer, secret, access in ((ALICE, SECRET, PROVEN), (BOB, OTHER_SECRET, "member")):
        ledger.append(admission(invitation(ledger, secret=secret, access=access), peer, secret))
    assert [ledger.reputation.is_proven(peer.public_key) for peer in (ALICE, BOB, CAROL)] == [True, False, True]
    assert not before.reputation.is_proven(ALICE.public_key)


def test_an_invitation_lets_in_as_many_keys_as_it_says_each_once() -> None:
    ledger = invited_run()
    signed = invitation(ledger)
    ledger.append(admission(signed, ALICE))
    refused(ledger, admission(signed, ALICE), match="in already")
    ledger.append(admission(signed, BOB))
    refused(ledger, admission(signed, CAROL), match="used up")
    refused(ledger, admission(invitation(ledger, keys=1), CAROL), match="used up")  # another of the same key
    ledger.append(admission(invitation(ledger, secret=OTHER_SECRET), CAROL, OTHER_SECRET))
    assert list(ledger.admitted.accesses) == [ALICE.public_key, BOB.public_key, CAROL.public_key]


def test_each_operator_invites() -> None:
    ledger = invited_run(operators=(OPERATOR.public_key, CAROL.public_key), quorum=2)
    ledger.append(admission(invitation(ledger, CAROL), ALICE))
    ledger.append(admission(invitation(ledger, OPERATOR, OTHER_SECRET), BOB, OTHER_SECRET))
    commit(ledger, [header_of(ledger, peer) for peer in (ALICE, BOB)])


def test_an_invitation_ends_with_its_round_and_who_came_in_before_stays() -> None:
    ledger = invited_run()
    signed = invitation(ledger, until_round=1)
    ledger.append(admission(signed, ALICE))
    commit(ledger, [header_of(ledger, ALICE)])
    refused(ledger, admission(signed, BOB), match="ended with round 1")
    commit(ledger, [header_of(ledger, ALICE)])


def test_nobody_comes_in_in_the_middle_of_a_table() -> None:
    ledger = invited_run()
    ledger.append(entry_of(header_of(ledger, OPERATOR)))
    refused(ledger, admission(invitation(ledger), ALICE), match="in the middle")


@pytest.mark.parametrize(
    ("signed", "error", "match"),
    [
        (lambda ledger: invitation(ledger, CAROL), LedgerError, "no operator of the run"),
        (lambda ledger: invitation(ledger, run=sha256(b"another")), LedgerError, "another run"),
        (lambda ledger: Signed.sign(invitation(ledger).unchecked(), CAROL), SignatureError, "invitation"),
        (lambda ledger: replace(invitation(ledger), payload=pack(Admission(invitation(ledger), bytes(31) + b"\x05"))), EncodingError, ""),
    ],
)
def test_what_is_no_invitation_lets_nobody_in(signed: Any, error: type[RemoteFault], match: str) -> None:
    ledger = invited_run()
    refused(ledger, admission(signed(ledger), ALICE), error, match)


def test_only_who_has_the_secret_lets_in_and_what_the_log_shows_is_no_use_to_who_reads_it() -> None:
    ledger = invited_run()
    entry = admission(invitation(ledger), ALICE)
    ledger.append(entry)
    shown = open_entry(entry)
    assert is_signed(shown, Admission)
    copied = shown.open().invitation
    refused(ledger, admission(copied, BOB, BOB), SignatureError)
    refused(ledger, entry_of(replace(shown, payload=pack(Admission(copied, BOB.public_key)))), SignatureError)


def test_where_all_or_the_listed_may_take_part_nobody_is_invited() -> None:
    for ledger in (ledger_of(), ledger_of(admission=AdmissionRule("list", (ALICE.public_key,)))):
        refused(ledger, admission(invitation(ledger), BOB), match="nobody is invited")


def test_of_a_list_those_count_who_are_on_it() -> None:
    ledger = ledger_of(admission=AdmissionRule("list", (ALICE.public_key,)))
    refused(ledger, entry_of(header_of(ledger, BOB)), ClaimError, NOT_ADMITTED)
    commit(ledger, [header_of(ledger, ALICE)])


def test_a_copy_of_a_ledger_goes_its_own_way() -> None:
    ledger = invited_run()
    other, signed = ledger.copy(), invitation(ledger, keys=1)
    other.append(admission(signed, ALICE))
    assert (ALICE.public_key in ledger.admitted, ALICE.public_key in other.admitted) == (False, True)
    ledger.append(admission(signed, BOB))  # here the invitation was not used yet
    assert (BOB.public_key in ledger.admitted, BOB.public_key in other.admitted) == (True, False)


@pytest.mark.parametrize(
    "rule",
    [
        {"how": "whoever"},
        {"how": "list"},
        {"how": "open", "keys": (ALICE.public_key,)},
        {"how": "list", "keys": (BOB.public_key, ALICE.public_key)},
        {"how": "list", "keys": (ALICE.public_key, ALICE.public_key)},
        {"how": "list", "keys": (bytes(32),)},
        {"how": "invitation", "keys": (ALICE.public_key,)},
    ],
)
def test_a_rule_that_says_two_things_is_none(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"admission|listed|order"):
        AdmissionRule(**rule)


@pytest.mark.parametrize(
    "changes", [{"keys": 0}, {"until_round": 0}, {"access": "boss"}, {"key": bytes(32)}, {"operator": bytes(32)}, {"run": b"run"}]
)
def test_an_invitation_out_of_range_is_none(changes: dict[str, Any]) -> None:
    sound = invitation(invited_run()).unchecked()
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(sound, **changes)


@pytest.mark.parametrize("access", [GUEST, "member", PROVEN])
def test_a_token_lets_in_whoever_has_it_and_a_ledger_that_follows_goes_the_same_way(access: str) -> None:
    ledger = invited_run(audits=(AuditRules(named=(OPERATOR.public_key,)),))
    token = Token.from_text(Token(invitation(ledger, access=access), b"\x21" * 32).to_text())
    assert token.open().keys == 2
    stepped = ledger.copy()
    step = ledger.append(entry_of(token.admission(ALICE.public_key)))
    assert step is not None
    stepped.follow(step)
    assert vars(stepped) == vars(ledger)
    with pytest.raises(SignatureError, match="secret"):
        replace(token, secret=b"\x22" * 32).open()
    with pytest.raises(ValueError, match="secret"):
        replace(token, secret=b"")


@given(st.data())
def test_a_token_that_was_cut_or_changed_is_none(data: st.DataObject) -> None:
    text = Token(invitation(invited_run()), b"\x21" * 32).to_text()
    place = data.draw(st.integers(0, len(text) - 1))
    changed = data.draw(
        st.sampled_from(
            [text[:place], text[:place] + "é" + text[place + 1 :], text[:place] + "=" + text[place:], text + "A", text + "AAAA"]
        )
    )
    with pytest.raises(EncodingError):
        Token.from_text(changed)


def test_an_admission_proof_is_one_keys_in_one_run_by_its_operator() -> None:
    run = sha256(b"run")
    shown = Signed.sign(AdmissionProof(run, OPERATOR.public_key, ALICE.public_key, GUEST), OPERATOR)
    assert access_shown(shown, run, ALICE.public_key, [BOB.public_key, OPERATOR.public_key]) == GUEST
    for wrong in ((sha256(b"other"), ALICE.public_key), (run, BOB.public_key)):
        with pytest.raises(EncodingError):
            access_shown(shown, *wrong, [OPERATOR.public_key])
    with pytest.raises(SignatureError):
        access_shown(shown, run, ALICE.public_key, [BOB.public_key])
    with pytest.raises(SignatureError):
        access_shown(Signed.sign(shown.unchecked(), BOB), run, ALICE.public_key, [BOB.public_key, OPERATOR.public_key])
