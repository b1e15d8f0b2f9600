"""docs/verifier.py: whole runs hold, and each of many tampered ones is refused by the rule that it breaks."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.log.tiles import export
from aggregator.log.verify import verify_directory
from automl.training.course import RunCourse
from protocol.admission import Admission, AdmissionRule, Invitation, SignedAdmission, SignedInvitation
from protocol.encoding import decode, encode, pack
from protocol.ledger import Ledger
from protocol.manifest import SignedManifest
from protocol.merkle import Tree, leaf_hash
from protocol.notes import TreeHead, origin, sign_tree_head
from protocol.records import ClaimStep, Entry, Header, Receipt, SignedClaim, StepMean, Threshold, entry_of
from protocol.revocation import PEER, Revocation, SignedRevocation
from protocol.signing import Identity, sha256
from tests.aggregator import real_run
from tests.aggregator.real_run import CONFIG, OPERATOR, PEERS, SHRINKING, STRANGER, THIN_PARTS
from tests.contributions import cohort_header_of, header_of, in_order, round_of, with_contribution
from tests.docs.verifiers import VERIFIER, export_of, verifier

ONE, TWO, THREE = PEERS
SMALL = real_run.signed_manifest().open()
Entries = list[bytes]


@dataclass
class Log:
    """A log that holds so far, as its entries."""

    signed: SignedManifest
    ledger: Ledger
    entries: Entries

    def header(self, peer: Identity = ONE, **changes: Any) -> Header:
        """What a peer hands in for the next round: a lot of each architecture."""
        return header_of(self.ledger, peer, **{"lots": self.lots(**changes), **changes})

    def cohort(self, members: Sequence[Identity] = PEERS, **changes: Any) -> Header:
        return cohort_header_of(self.ledger, members, **{"lots": self.lots(**changes), **changes})

    def lots(self, **changes: Any) -> tuple[int, ...]:
        round_ = changes.get("round") or self.ledger.round + 1
        return (1,) * len(self.ledger.course.costs(min(round_, self.ledger.manifest.num_rounds), "here"))

    def append(self, entries: Entries) -> None:
        for entry in entries:
            self.ledger.append(entry)
        self.entries += entries

    def round(self, headers: Sequence[Header], **lies: Any) -> Entries:
        """The entries of the next round of these, which hold but for ``lies``."""
        table = in_order(headers)
        listed = [self.ledger.listed(header, self.ledger.round + 1) for header in table]
        return [*map(entry_of, table), entry_of(round_of(self.ledger, listed, **lies))]

    def grow(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.append(self.round([self.header(peer) for peer in PEERS]))


def log_of(rounds: int = 2, **changes: Any) -> Log:
    """A log of the manifest with these changes."""
    signed = SignedManifest.sign(replace(SMALL, **changes), OPERATOR)
    log = Log(signed, Ledger(signed, RunCourse(signed.open())), [])
    log.grow(rounds)
    return log


def refused(folder: Path, rule: str, where: str, run: str | None = None, receipts: Sequence[Path] = ()) -> None:
    with pytest.raises(verifier.Refused) as caught:
        verifier.verify_all(folder, run, tuple(receipts))
    assert (caught.value.rule, caught.value.where) == (rule, where), str(caught.value)


def resigned(header: Header, signer: Identity, place: int = 0, **changes: Any) -> Header:
    """The header with one of its claims changed and signed by ``signer``, and so a contribution of other claims."""
    claims = list(header.claims)
    claims[place] = SignedClaim.sign(replace(claims[place].open(), **changes), signer)
    founder = next(peer for peer in PEERS if peer.public_key == header.contribution.open().founder)
    return with_contribution(replace(header, claims=tuple(claims)), founder, claims=tuple(claim.digest for claim in claims))


def with_fields(header: Header, change: Callable[[list[Any]], None]) -> Entries:
    """The entry of a contribution of ONE whose only claim has other fields, whatever they are."""
    fields: list[Any] = list(decode(header.claims[0].payload, max_bytes=4000))  # type: ignore[arg-type]
    change(fields)
    payload = encode(tuple(fields))
    claim = SignedClaim(payload, ONE.sign("claim", payload))
    return [entry_of(with_contribution(replace(header, claims=(claim,)), ONE, claims=(claim.digest,)))]


# What is put after a log's last round, and the rule that refuses it, at the place of the entry that breaks it.
Tampered = Callable[[Log], Entries]
ENTRIES: dict[str, tuple[str, Tampered]] = {}


def tampered(rule: str) -> Callable[[Tampered], Tampered]:
    def add(made: Tampered) -> Tampered:
        ENTRIES[made.__name__] = rule, made
        return made

    return add


def of_header(header: Header) -> Entries:
    return [entry_of(header)]


@tampered("S2")
def a_byte_of_a_claim_is_changed(log: Log) -> Entries:
    header = log.header()
    payload = header.claims[0].payload
    assert payload.endswith(b"\x00")  # the last field, an integer
    return [entry_of(header).replace(payload, payload[:-1] + b"\x01")]


@tampered("B2")
def a_byte_follows_an_entry(log: Log) -> Entries:
    return [of_header(log.header())[0] + b"\0"]


@tampered("B2")
def an_entry_is_cut(log: Log) -> Entries:
    return [of_header(log.header())[0][:-1]]


@tampered("B2")
def a_length_is_not_in_its_shortest_form(log: Log) -> Entries:
    entry = of_header(log.header())[0]
    return [b"\x98\x02" + entry[1:]]


@tampered("B1")
def an_entry_holds_a_map(log: Log) -> Entries:
    return [b"\xa0"]


@tampered("B1")
def an_entry_is_nested_too_deep(log: Log) -> Entries:
    return [b"\x81" * 9 + b"\0"]


@tampered("B1")
def a_signed_record_is_too_long(log: Log) -> Entries:
    header = log.header()
    return [entry_of(replace(header, claims=(replace(header.claims[0], payload=bytes(32_769)),)))]


@tampered("B3")
def a_claim_lacks_a_field(log: Log) -> Entries:
    return with_fields(log.header(), lambda fields: fields.pop())


@tampered("B3")
def a_number_of_a_claim_is_out_of_range(log: Log) -> Entries:
    return with_fields(log.header(), lambda fields: fields.__setitem__(13, 0))


@tampered("S1")
def a_claim_names_an_account_that_is_no_key(log: Log) -> Entries:
    return with_fields(log.header(), lambda fields: fields.__setitem__(4, bytes(32)))


@tampered("E1")
def an_entry_is_of_no_known_kind(log: Log) -> Entries:
    entry = of_header(log.header())[0]
    return [entry.replace(b"\x6ccontribution", b"\x6ccontributiom")]


@tampered("S2")
def a_claim_is_signed_by_another_key(log: Log) -> Entries:
    return of_header(resigned(log.header(), TWO))


@tampered("S2")
def a_contribution_is_signed_by_another_key(log: Log) -> Entries:
    return of_header(with_contribution(log.header(), TWO))


@tampered("S1")
def a_claim_is_of_a_key_that_fits_any_signature(log: Log) -> Entries:
    return of_header(resigned(log.header(), ONE, key=bytes(32)))


@tampered("E1")
def a_contribution_is_of_another_run(log: Log) -> Entries:
    return of_header(with_contribution(log.header(), ONE, run=sha256(b"another")))


@tampered("E3")
def a_contribution_has_a_wrong_base(log: Log) -> Entries:
    return of_header(log.header(base=sha256(b"another")))


@tampered("E3")
def a_contribution_is_for_a_round_to_come(log: Log) -> Entries:
    return of_header(log.header(round=log.ledger.round + 2))


@tampered("E5")
def a_contribution_lists_another_claim(log: Log) -> Entries:
    return of_header(with_contribution(log.header(), ONE, claims=(sha256(b"another"),)))


@tampered("E6")
def claims_are_not_sorted(log: Log) -> Entries:
    header = log.cohort()
    claims = header.claims[::-1]
    return of_header(with_contribution(replace(header, claims=claims), ONE, claims=tuple(each.digest for each in claims)))


@tampered("E6")
def a_key_has_two_claims_in_a_contribution(log: Log) -> Entries:
    header = log.cohort((ONE, TWO))
    claims = (header.claims[0], header.claims[0])
    return of_header(with_contribution(replace(header, claims=claims), ONE, claims=tuple(each.digest for each in claims)))


@tampered("E6")
def a_founder_has_no_claim(log: Log) -> Entries:
    return of_header(with_contribution(log.header(TWO, founder=ONE.public_key), ONE, founder=ONE.public_key))


@tampered("E7")
def a_claim_is_of_another_cohort(log: Log) -> Entries:
    return of_header(resigned(log.cohort(), TWO, 1, cohort="there"))


@tampered("E7")
def a_claim_names_another_founder(log: Log) -> Entries:
    return of_header(resigned(log.cohort(), TWO, 1, founder=TWO.public_key))


@tampered("E7")
def a_claim_is_on_another_base(log: Log) -> Entries:
    before = log.ledger.commit_at(log.ledger.round - 1)
    return of_header(resigned(log.cohort(), TWO, 1, round=log.ledger.round, base=before))


@tampered("E9")
def a_claim_has_other_local_steps(log: Log) -> Entries:
    steps = (ClaimStep(0, 1, (), bytes(32)), ClaimStep(2, 3, (), bytes(32)))
    return of_header(log.header(steps=steps, lots=(1, 1, 1, 1)))


@tampered("E9")
def a_claim_counts_lots_that_its_indices_are_not_of(log: Log) -> Entries:
    return of_header(log.header(steps=(ClaimStep(0, 3, (), bytes(32)),), lots=(2, 0, 1, 1)))


@tampered("E9")
def a_step_counts_a_claim_that_is_none(log: Log) -> Entries:
    return of_header(with_contribution(log.header(), ONE, steps=(StepMean(bytes(32), 3),)))


@tampered("E10")
def a_claim_counts_other_architectures(log: Log) -> Entries:
    return of_header(log.header(lots=(1, 1, 1, 1, 1)))


@tampered("E10")
def a_claim_has_too_many_samples(log: Log) -> Entries:
    return of_header(log.header(lots=(2**20,) * 4))


@tampered("E10")
def a_claim_has_shards_of_a_set_that_does_not_travel(log: Log) -> Entries:
    return of_header(log.header(shards=1))


@tampered("E11")
def work_on_a_base_counts_again(log: Log) -> Entries:
    return of_header(log.header(round=log.ledger.round, lot_ms=11))


@tampered("E11")
def a_key_stands_twice_in_a_round(log: Log) -> Entries:
    return [entry_of(log.cohort((ONE, TWO))), entry_of(log.header(TWO))]


@tampered("E12")
def a_dense_body_leaves_a_residual(log: Log) -> Entries:
    return of_header(log.header(left=sha256(b"residual")))


@tampered("E13")
def contributions_are_not_sorted_by_founder(log: Log) -> Entries:
    return [entry_of(log.header(TWO)), entry_of(log.header(ONE))]


@tampered("E2")
def a_round_has_no_contributions(log: Log) -> Entries:
    return log.round([log.header()])[-1:]


@tampered("R1")
def a_round_has_another_number(log: Log) -> Entries:
    return log.round([log.header()], round=log.ledger.round + 2)


@tampered("R1")
def a_round_has_another_base(log: Log) -> Entries:
    return log.round([log.header()], base=sha256(b"another"))


@tampered("E1")
def a_round_is_of_another_run(log: Log) -> Entries:
    return log.round([log.header()], run=sha256(b"another"))


@tampered("R2")
def a_round_counts_other_contributions(log: Log) -> Entries:
    return log.round([log.header(ONE), log.header(TWO)], contributions=1)


@tampered("R2")
def a_round_names_other_places(log: Log) -> Entries:
    return log.round([log.header(ONE), log.header(TWO)], first=log.ledger.size + 1)


@tampered("R3")
def the_floor_jumps(log: Log) -> Entries:
    return log.round([log.header()], floor=log.ledger.floor_at(log.ledger.round) + 2)


@tampered("R4")
def the_next_round_is_open_for_too_long(log: Log) -> Entries:
    return log.round([log.header()], open_ms=log.ledger.manifest.exchange.max_open_ms + 1)


@tampered("R4")
def the_next_round_is_open_for_too_short(log: Log) -> Entries:
    return log.round([log.header()], open_ms=log.ledger.manifest.exchange.min_open_ms - 1)


@tampered("B3")
def thresholds_are_not_sorted(log: Log) -> Entries:
    (*before, last) = log.round([log.header()], thresholds=(Threshold(0, 1, 1), Threshold(1, 1, 1)))
    zero, one = encode((0, 1, 1)), encode((1, 1, 1))
    return [*before, last.replace(zero + one, one + zero)]


@tampered("X1")
def an_extra_stands_in_an_open_run(log: Log) -> Entries:
    return [pack(Entry("finding", encode((encode((log.ledger.run, ONE.public_key)), bytes(64)))))]


@tampered("A1")
def somebody_is_admitted_to_an_open_run(log: Log) -> Entries:
    return [entry_of(admission(log.ledger.run, STRANGER))]


@tampered("A1")
def somebody_is_taken_back_in_an_open_run(log: Log) -> Entries:
    return [entry_of(revocation(log.ledger.run, ONE))]


SECRET, OTHER_SECRET = Identity(b"\x21" * 32), Identity(b"\x22" * 32)


def admission(run: bytes, peer: Identity, *, operator: Identity = OPERATOR, secret: Identity = SECRET, **changes: Any) -> SignedAdmission:
    """An admission of ``peer``, by an invitation for one key with changes."""
    invitation = replace(Invitation(run, operator.public_key, SECRET.public_key, 1, 5, "member"), **changes)
    return SignedAdmission.sign(Admission(SignedInvitation.sign(invitation, operator), peer.public_key), secret)


def invitation_taken_back(run: bytes) -> SignedRevocation:
    return SignedRevocation.sign(Revocation(run, OPERATOR.public_key, "invitation", SECRET.public_key), OPERATOR)


def revocation(run: bytes, peer: Identity, operator: Identity = OPERATOR) -> SignedRevocation:
    return SignedRevocation.sign(Revocation(run, operator.public_key, PEER, peer.public_key), operator)


@pytest.mark.parametrize("name", ENTRIES)
def test_a_tampered_log_is_refused_by_the_rule_that_it_breaks(tmp_path: Path, name: str) -> None:
    rule, made = ENTRIES[name]
    log = log_of()
    after = made(log)
    export_of(tmp_path, log.signed, [*log.entries, *after], OPERATOR)
    refused(tmp_path, rule, f"entry {len(log.entries) + len(after) - 1}")


def test_each_rule_refuses_something_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert [rule for rule in verifier.RULES if f'"{rule}"' not in here] == []


INVITED = {"admission": AdmissionRule("invitation")}
ADMISSIONS: dict[str, tuple[str, Callable[[bytes], Entries]]] = {
    "nobody let this key in": ("E8", lambda run: []),
    "the invitation is used up": ("A2", lambda run: [entry_of(admission(run, ONE)), entry_of(admission(run, TWO))]),
    "the key is in": ("A2", lambda run: [entry_of(admission(run, ONE, keys=2))] * 2),
    "a stranger invites": ("A2", lambda run: [entry_of(admission(run, ONE, operator=STRANGER))]),
    "who has not the secret signs": ("S2", lambda run: [entry_of(admission(run, ONE, secret=STRANGER))]),
    "the invitation is taken back": ("A2", lambda run: [entry_of(invitation_taken_back(run)), entry_of(admission(run, ONE))]),
    "the invitation is to another run": ("E1", lambda run: [entry_of(admission(sha256(b"another"), ONE))]),
    "a stranger takes a key back": ("A3", lambda run: [entry_of(admission(run, ONE)), entry_of(revocation(run, ONE, STRANGER))]),
    "a key is taken back that is not in": ("A3", lambda run: [entry_of(revocation(run, ONE))]),
}


@pytest.mark.parametrize("name", ADMISSIONS)
def test_who_may_not_come_in_is_refused(tmp_path: Path, name: str) -> None:
    rule, made = ADMISSIONS[name]
    log = log_of(0, **INVITED)
    entries = made(log.ledger.run) or of_header(log.header())
    export_of(tmp_path, log.signed, entries, OPERATOR)
    refused(tmp_path, rule, f"entry {len(entries) - 1}")


def test_a_guest_stands_in_no_round(tmp_path: Path) -> None:
    log = log_of(0, **INVITED)
    log.append([entry_of(admission(log.ledger.run, peer, keys=3)) for peer in PEERS[1:]])
    log.entries += [entry_of(admission(log.ledger.run, PEERS[0], secret=OTHER_SECRET, key=OTHER_SECRET.public_key, role="guest"))]
    log.entries += of_header(log.header())
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E8", f"entry {len(log.entries) - 1}")


def test_whoever_was_taken_back_stands_in_two_more_rounds_and_then_in_none(tmp_path: Path) -> None:
    log = log_of(0, **INVITED)
    log.append([entry_of(admission(log.ledger.run, peer, keys=3)) for peer in PEERS])
    log.append([entry_of(revocation(log.ledger.run, ONE))])
    log.grow(2)
    export_of(tmp_path / "holds", log.signed, log.entries, OPERATOR)
    verifier.verify_all(tmp_path / "holds")
    log.entries += of_header(log.header())
    export_of(tmp_path / "refused", log.signed, log.entries, OPERATOR)
    refused(tmp_path / "refused", "E8", f"entry {len(log.entries) - 1}")


def test_an_invitation_that_has_ended_lets_nobody_in(tmp_path: Path) -> None:
    log = log_of(0, **INVITED)
    log.append([entry_of(admission(log.ledger.run, peer, keys=3)) for peer in PEERS])
    log.grow(2)
    log.entries.append(entry_of(admission(log.ledger.run, STRANGER, keys=4, until_round=2)))
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "A2", f"entry {len(log.entries) - 1}")


def test_credit_adds_up_to_the_accounts_that_claims_name(tmp_path: Path) -> None:
    log = log_of(1)
    log.append(log.round([log.header(peer, payout=STRANGER.public_key) for peer in PEERS]))
    log.append(log.round([log.header(ONE, payout=TWO.public_key), log.header(TWO)]))
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    ledger, _ = verifier.verify_all(tmp_path)
    assert dict(ledger.credits) == log.ledger.credits()
    assert log.ledger.credit_of(STRANGER.public_key) == log.ledger.manifest.reward_pool


def test_a_base_that_is_five_commits_old_is_refused(tmp_path: Path) -> None:
    log = log_of(0)
    late = header_of(log.ledger, STRANGER, lots=log.lots())
    log.grow(5)
    log.entries += of_header(late)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E3", f"entry {len(log.entries) - 1}")


def test_a_base_from_before_the_channels_were_sorted_is_refused(tmp_path: Path) -> None:
    log = log_of(0, schedule="shrinking", num_rounds=8)
    sorts = next(round_ for round_ in range(1, 9) if log.ledger.course.sorts_after(round_))
    log.grow(sorts - 1)
    late = header_of(log.ledger, STRANGER, lots=log.lots())
    log.grow()
    log.entries += of_header(late)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E4", f"entry {len(log.entries) - 1}")


def test_more_contributions_than_max_rows_are_refused(tmp_path: Path) -> None:
    log = log_of(0, exchange=replace(SMALL.exchange, max_rows=2))
    log.entries += [entry_of(log.header(peer)) for peer in PEERS]
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E13", f"entry {len(log.entries) - 1}")


def test_fewer_steps_than_the_run_has_are_refused(tmp_path: Path) -> None:
    log = log_of(0, exchange=replace(SMALL.exchange, local_steps=2))
    steps = (ClaimStep(0, 7, (), bytes(32)),)
    log.entries += of_header(log.header(steps=steps, lots=(1,) * 8))
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E9", f"entry {len(log.entries) - 1}")


def test_an_architecture_without_a_price_is_refused(tmp_path: Path) -> None:
    log = log_of(0)
    lots = log.lots()
    cheap = SignedManifest.sign(replace(SMALL, costs=SMALL.costs[:-1]), OPERATOR)
    log = Log(cheap, Ledger(cheap, log.ledger.course), [])
    log.entries += of_header(header_of(log.ledger, ONE, lots=lots))
    export_of(tmp_path, cheap, log.entries, OPERATOR)
    refused(tmp_path, "C1", f"entry {len(log.entries) - 1}")


def test_nothing_follows_the_last_round(tmp_path: Path) -> None:
    log = log_of(0, num_rounds=2)
    after = log.header()
    log.grow(2)
    log.entries += of_header(after)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E2", f"entry {len(log.entries) - 1}")


def test_a_log_does_not_end_in_the_middle_of_a_round(tmp_path: Path) -> None:
    log = log_of()
    log.entries += of_header(log.header())
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "E2", f"entry {len(log.entries)}")


# The manifest, the tree and its heads.


def manifests() -> dict[str, tuple[str, SignedManifest]]:
    signed = SignedManifest.sign(SMALL, OPERATOR)
    quorum = encode((*decode(signed.payload, max_bytes=2**20)[:-1], 2))  # type: ignore[index]
    return {
        "another key signed it": ("S2", SignedManifest.sign(SMALL, STRANGER)),
        "it is of another version": ("M1", replace(signed, protocol=signed.protocol + 1)),
        "it is changed": ("S2", replace(signed, payload=signed.payload.replace(b"digits", b"difits"))),
        "its quorum is more than its operators": ("M2", SignedManifest(quorum, OPERATOR.sign("manifest", quorum))),
    }


@pytest.mark.parametrize("name", manifests())
def test_a_manifest_that_does_not_hold_is_refused(tmp_path: Path, name: str) -> None:
    rule, signed = manifests()[name]
    export_of(tmp_path, signed, log_of().entries, OPERATOR)
    refused(tmp_path, rule, "manifest.cbor")


def test_another_run_than_the_one_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    verifier.verify_all(tmp_path, log.ledger.run.hex())
    refused(tmp_path, "M3", "manifest.cbor", run="00" * 32)


def test_a_head_that_a_stranger_signed_is_refused(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, STRANGER)
    refused(tmp_path, "T2", "checkpoint")


def test_a_head_of_another_run_is_refused(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    note = (tmp_path / "checkpoint").read_text().partition("\n")[2]
    (tmp_path / "checkpoint").write_text(f"manta/{'00' * 32}\n{note}")
    refused(tmp_path, "S2", "checkpoint")


def test_a_head_that_is_no_note_is_refused(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    (tmp_path / "checkpoint").write_text((tmp_path / "checkpoint").read_text().replace("\n\n", "\n"))
    refused(tmp_path, "T1", "checkpoint")


def test_a_head_of_too_few_operators_is_refused(tmp_path: Path) -> None:
    keys = (OPERATOR.public_key, STRANGER.public_key)
    log = log_of(1, operators=keys, quorum=2)
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    refused(tmp_path, "T2", "checkpoint")


def test_a_head_of_other_entries_is_refused(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    name = origin(log.signed.run)
    head = TreeHead(name, len(log.entries), sha256(b"another"))
    (tmp_path / "checkpoint").write_text(sign_tree_head(head, name, OPERATOR))
    refused(tmp_path, "T3", "checkpoint")


def test_a_tile_that_is_changed_is_refused(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    (tile,) = tmp_path.glob("tile/0/*.p/*")
    tile.write_bytes(bytes([tile.read_bytes()[0] ^ 1]) + tile.read_bytes()[1:])
    refused(tmp_path, "T4", str(tile.relative_to(tmp_path)))


def test_receipts_are_checked(tmp_path: Path) -> None:
    log = log_of()
    export_of(tmp_path, log.signed, log.entries, OPERATOR)
    tree = Tree()
    for entry in log.entries:
        tree.append(leaf_hash(entry))
    receipt = Receipt(log.entries[3], 3, tuple(tree.inclusion_proof(3)), (tmp_path / "checkpoint").read_text())
    (tmp_path / "holds").write_bytes(pack(receipt))
    (tmp_path / "lies").write_bytes(pack(replace(receipt, index=2)))
    verifier.verify_all(tmp_path, None, (tmp_path / "holds",))
    refused(tmp_path, "T5", str(tmp_path / "lies"), receipts=[tmp_path / "holds", tmp_path / "lies"])


@pytest.mark.parametrize("size", range(1, 18))
def test_proofs_lead_to_no_other_root(size: int) -> None:
    leaves = [leaf_hash(bytes([place])) for place in range(size)]
    theirs, tree = Tree(), verifier.Tree(leaves)
    roots = []
    for leaf in leaves:
        theirs.append(leaf)
        roots.append(theirs.root())
    for index in range(size):
        proof = tree.inclusion(index, 0, size)
        assert proof == theirs.inclusion_proof(index)
        assert verifier.root_by_inclusion(leaves[index], index, size, proof) == roots[-1]
        for old in range(index):
            assert verifier.root_by_inclusion(leaves[old], index, size, proof) != roots[-1]
        proof = tree.consistency(index + 1, 0, size)
        assert proof == theirs.consistency_proof(index + 1)
        assert verifier.roots_by_consistency(index + 1, size, proof, roots[index]) == (roots[index], roots[-1])
        with pytest.raises(verifier.Refused):
            verifier.roots_by_consistency(index + 1, size, [*proof, bytes(32)], roots[index])


# Runs with bodies and states.

RUNS = {"dense": CONFIG, "sparse": THIN_PARTS, "shrinking": SHRINKING}


@pytest.fixture(scope="module", params=RUNS)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that came to its end."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    run = real_run.opened(folder, RUNS[request.param])
    real_run.play(run, CONFIG.run.rounds)
    run.log.close()
    return folder


def test_a_whole_run_holds_and_so_does_its_export(played: Path, tmp_path: Path) -> None:
    ledger, said = verifier.verify_all(played)
    found = verify_directory(played)
    assert dict(ledger.credits) == found.credits
    assert (len(ledger.rounds) - 1, said[0]) == (found.rounds, f"run {found.run.hex()}")
    assert said[3] == "27 bodies, 9 means and 9 next states hold, bit for bit"
    export(played, tmp_path / "export")
    exported, said = verifier.verify_all(tmp_path / "export")
    assert (exported.credits, said[3]) == (ledger.credits, "an export has no bodies and no states")


def lied(tmp_path: Path, **lies: Any) -> Path:
    """The folder of a run whose second round lies."""
    run = real_run.opened(tmp_path / "run")
    real_run.play(run, 1)
    real_run.commit(run, real_run.everybodys(run.log.ledger), **lies)
    run.log.close()
    return tmp_path / "run"


LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "weights": ("V1", {"weights": sha256(b"another")}),
    "mean": ("V2", {"mean": sha256(b"another")}),
    "thresholds": ("V3", {"thresholds": (Threshold(0, 1, 1),)}),
    "state": ("U2", {"state": sha256(b"another")}),
}


@pytest.mark.parametrize("name", LIES)
def test_a_round_that_lies_of_what_its_bodies_come_to_is_refused(tmp_path: Path, name: str) -> None:
    rule, lies = LIES[name]
    refused(lied(tmp_path, **lies), rule, "round 2")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tampered") / "run"
    run = real_run.opened(folder)
    real_run.play(run, 2)
    run.log.close()
    return folder


@pytest.fixture
def copy(dense: Path, tmp_path: Path) -> Path:
    """A copy of a run of two rounds."""
    shutil.copytree(dense, tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def restored(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the body of the first contribution in a file, with the digest that its storage has."""
    data = path.read_bytes()
    header, size = (int.from_bytes(data[at : at + 8], "big") for at in (8, 16))
    start = 24 + header
    stored = data[:start] + change(data[start : start + size])
    path.write_bytes(stored + sha256(stored) + data[start + size + 32 :])


def test_a_body_that_is_damaged_is_missing(copy: Path) -> None:
    flip(copy / "bodies" / "round-00000002.bodies", -40)
    refused(copy, "D1", "round 2")


def test_another_body_than_the_contribution_names_is_refused(copy: Path) -> None:
    restored(copy / "bodies" / "round-00000002.bodies", lambda body: body[:1] + bytes([body[1] ^ 1]) + body[2:])
    refused(copy, "D1", "round 2")


def test_a_body_that_no_values_are_coded_to_is_refused(copy: Path) -> None:
    restored(copy / "bodies" / "round-00000002.bodies", lambda body: b"\x14" + body[1:])
    refused(copy, "D2", "round 2")


def test_a_snapshot_that_is_changed_is_refused(copy: Path) -> None:
    flip(copy / "snapshots" / "round-00000001.safetensors", -2)
    refused(copy, "U1", "snapshots/round-00000001.safetensors")


@pytest.mark.parametrize(
    ("rule", "where", "statement"),
    [
        ("T4", "node 1/0", "UPDATE nodes SET hash = zeroblob(32) WHERE level = 1 AND position = 0"),
        ("T4", "the tree", "DELETE FROM nodes WHERE level = 1 AND position = 0"),
        ("T3", "the tree", "UPDATE log SET root = zeroblob(32)"),
        ("T3", "log.sqlite3", "DELETE FROM entries WHERE position IN (4, 5)"),
    ],
)
def test_a_database_that_is_changed_is_refused(copy: Path, rule: str, where: str, statement: str) -> None:
    with closing(sqlite3.connect(copy / "log.sqlite3")) as database:
        database.execute(statement)
        database.commit()
    refused(copy, rule, where)


def test_the_command_says_what_holds_and_what_does_not(copy: Path) -> None:
    def ended(*arguments: str) -> tuple[int, list[str], str]:
        done = subprocess.run([sys.executable, str(VERIFIER), *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr

    code, lines, _ = ended(str(copy))
    assert (code, lines[3]) == (0, "6 bodies, 2 means and 2 next states hold, bit for bit")
    flip(copy / "snapshots" / "round-00000002.safetensors", -2)
    code, lines, _ = ended(str(copy))
    assert (code, lines) == (1, ["refused: snapshots/round-00000002.safetensors: U1: a snapshot is the state that the log names"])
    code, lines, errors = ended(str(copy.parent / "nothing"))
    assert (code, lines, len(errors.splitlines())) == (2, [], 1)


def test_the_verifier_imports_nothing_of_ours() -> None:
    command = "import sys; sys.path.insert(0, sys.argv[1]); import verifier; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-P", "-c", command, str(VERIFIER.parent)], capture_output=True, text=True, check=True, cwd="/")
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"protocol", "exact", "automl", "swarm", "peer", "aggregator", "torch"})
    assert len(VERIFIER.read_text().splitlines()) <= 900
