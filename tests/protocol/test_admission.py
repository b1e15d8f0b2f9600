"""Who may take part: invitations, what their holders sign, the tokens that people hand on, and what the log's admissions add up to."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.admission import (
    Admission,
    AdmissionRule,
    Invitation,
    Inviter,
    SignedAdmission,
    SignedInvitation,
    SignedPass,
    Token,
)
from protocol.admitted import NOT_ADMITTED
from protocol.encoding import pack
from protocol.errors import ClaimError, EncodingError, LedgerError, RemoteFault, SignatureError
from protocol.ledger import Ledger
from protocol.records import entry_of, open_entry
from protocol.signing import Identity, sha256
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import OPERATOR, claim_entry, ledger_of, refused

HOLDER, FRIEND = Identity(b"\x21" * 32), PEERS[7]
ALICE, BOB, CAROL = PEERS[:3]
BY_INVITATION = AdmissionRule("invitation", inviters=(Inviter(FRIEND.public_key, 2),))


def invited_run() -> Ledger:
    """Return the log of a run of invited peers, of which ``FRIEND`` may invite two."""
    return ledger_of(admission=BY_INVITATION)


def invitation(ledger: Ledger, issuer: Identity = OPERATOR, holder: Identity = HOLDER, **changes: Any) -> SignedInvitation:
    made = Invitation(ledger.run, issuer.public_key, holder.public_key, keys=2, until_round=3, number=bytes(16))
    return SignedInvitation.sign(replace(made, **changes), issuer)


def admission(signed: SignedInvitation, peer: Identity, holder: Identity = HOLDER) -> bytes:
    return entry_of(SignedAdmission.sign(Admission(signed, peer.public_key), holder))


def test_who_is_invited_counts_from_the_entry_on_that_lets_it_in() -> None:
    ledger = invited_run()
    with pytest.raises(ClaimError, match=NOT_ADMITTED):
        ledger.listed(header_of(ledger, ALICE), 1)
    refused(ledger, claim_entry(header_of(ledger, ALICE)), ClaimError, NOT_ADMITTED)
    ledger.append(admission(invitation(ledger), ALICE))
    assert (ALICE.public_key in ledger.admitted, BOB.public_key in ledger.admitted) == (True, False)
    commit(ledger, [header_of(ledger, ALICE)])
    assert ledger.credits()[ALICE.public_key] == ledger.manifest.reward_pool


def test_operators_and_inviters_are_in_from_the_start() -> None:
    ledger = invited_run()
    commit(ledger, [header_of(ledger, FRIEND), header_of(ledger, OPERATOR)])
    assert ledger.admitted.keys == ()


def test_an_invitation_lets_in_as_many_keys_as_it_says_each_once() -> None:
    ledger = invited_run()
    signed = invitation(ledger)
    ledger.append(admission(signed, ALICE))
    refused(ledger, admission(signed, ALICE), match="in already")
    ledger.append(admission(signed, BOB))
    refused(ledger, admission(signed, CAROL), match="used up")
    ledger.append(admission(invitation(ledger, number=b"\x01" * 16), CAROL))
    assert ledger.admitted.keys == (ALICE.public_key, BOB.public_key, CAROL.public_key)


def test_an_inviter_lets_in_no_more_than_the_manifest_says_by_however_many_invitations() -> None:
    ledger = invited_run()
    for peer, number in ((ALICE, b"\x01"), (BOB, b"\x02")):
        ledger.append(admission(invitation(ledger, FRIEND, number=number * 16), peer))
    refused(ledger, admission(invitation(ledger, FRIEND, number=b"\x03" * 16), CAROL), match="may let in 2 keys")


def test_an_invitation_ends_with_its_round_and_who_came_in_before_stays() -> None:
    ledger = invited_run()
    signed = invitation(ledger, until_round=1)
    ledger.append(admission(signed, ALICE))
    commit(ledger, [header_of(ledger, ALICE)])
    refused(ledger, admission(signed, BOB), match="ended with round 1")
    commit(ledger, [header_of(ledger, ALICE)])


def test_nobody_comes_in_in_the_middle_of_a_table() -> None:
    ledger = invited_run()
    ledger.append(claim_entry(header_of(ledger, FRIEND)))
    refused(ledger, admission(invitation(ledger), ALICE), match="in the middle")


@pytest.mark.parametrize(
    ("signed", "error", "match"),
    [
        (lambda ledger: invitation(ledger, CAROL), LedgerError, "may not invite"),
        (lambda ledger: invitation(ledger, run=sha256(b"another")), LedgerError, "another run"),
        (lambda ledger: SignedInvitation.sign(invitation(ledger).read(), CAROL), SignatureError, "invitation"),
        (lambda ledger: replace(invitation(ledger), payload=pack(Admission(invitation(ledger), bytes(31) + b"\x05"))), EncodingError, ""),
    ],
)
def test_what_is_no_invitation_lets_nobody_in(signed: Any, error: type[RemoteFault], match: str) -> None:
    ledger = invited_run()
    refused(ledger, admission(signed(ledger), ALICE), error, match)


def test_only_the_holder_lets_in_and_what_the_log_shows_is_no_use_to_who_reads_it() -> None:
    ledger = invited_run()
    entry = admission(invitation(ledger), ALICE)
    ledger.append(entry)
    shown = open_entry(entry)
    assert isinstance(shown, SignedAdmission)
    copied = shown.open()[0].invitation
    refused(ledger, admission(copied, BOB, holder=BOB), SignatureError)
    refused(ledger, entry_of(replace(shown, payload=pack(Admission(copied, BOB.public_key)))), SignatureError)


def test_where_all_or_the_listed_may_take_part_nobody_is_invited() -> None:
    for ledger in (ledger_of(), ledger_of(admission=AdmissionRule("list", (ALICE.public_key,)))):
        refused(ledger, admission(invitation(ledger), BOB), match="nobody is invited")


def test_of_a_list_those_count_who_are_on_it() -> None:
    ledger = ledger_of(admission=AdmissionRule("list", (ALICE.public_key,)))
    refused(ledger, claim_entry(header_of(ledger, BOB)), ClaimError, NOT_ADMITTED)
    commit(ledger, [header_of(ledger, ALICE)])


def test_a_copy_of_a_ledger_goes_its_own_way() -> None:
    ledger = invited_run()
    other = ledger.copy()
    other.append(admission(invitation(ledger), ALICE))
    assert (ALICE.public_key in ledger.admitted, ALICE.public_key in other.admitted) == (False, True)


@pytest.mark.parametrize(
    "rule",
    [
        {"how": "whoever"},
        {"how": "list"},
        {"how": "open", "keys": (ALICE.public_key,)},
        {"how": "list", "keys": (BOB.public_key, ALICE.public_key)},
        {"how": "list", "keys": (ALICE.public_key, ALICE.public_key)},
        {"how": "list", "keys": (bytes(32),)},
        {"how": "open", "inviters": (Inviter(ALICE.public_key, 1),)},
        {"how": "invitation", "inviters": (Inviter(ALICE.public_key, 1), Inviter(ALICE.public_key, 2))},
    ],
)
def test_a_rule_that_says_two_things_is_none(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"admission|listed|inviters|order"):
        AdmissionRule(**rule)


@pytest.mark.parametrize("changes", [{"keys": 0}, {"until_round": 0}, {"number": b"short"}, {"holder": bytes(32)}, {"run": b"run"}])
def test_an_invitation_out_of_range_is_none(changes: dict[str, Any]) -> None:
    sound = invitation(invited_run()).read()
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(sound, **changes)


def test_a_token_lets_its_holder_in_or_the_peer_that_it_names() -> None:
    ledger = invited_run()
    bearer = Token(invitation(ledger), b"\x21" * 32)
    assert Token.from_text(bearer.to_text()) == bearer
    follower = ledger.copy()
    step = ledger.append(entry_of(bearer.admission(ALICE)))
    assert step is not None
    follower.follow(step)
    assert vars(follower) == vars(ledger)
    named = Token(invitation(ledger, holder=BOB, number=b"\x01" * 16), b"")
    with pytest.raises(SignatureError, match="another key"):
        named.admission(CAROL)
    ledger.append(entry_of(named.admission(BOB)))
    with pytest.raises(SignatureError, match="secret"):
        replace(bearer, secret=b"\x22" * 32).admission(CAROL)


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


def test_a_pass_is_one_keys_in_one_run_by_its_operator() -> None:
    run = sha256(b"run")
    shown = SignedPass.sign(run, ALICE.public_key, OPERATOR)
    shown.check(run, ALICE.public_key, [BOB.public_key, OPERATOR.public_key])
    for wrong in ((sha256(b"other"), ALICE.public_key), (run, BOB.public_key)):
        with pytest.raises(EncodingError):
            shown.check(*wrong, [OPERATOR.public_key])
    with pytest.raises(SignatureError):
        shown.check(run, ALICE.public_key, [BOB.public_key])
