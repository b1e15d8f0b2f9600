"""The records of audits: what is refused, what is largest, and that nobody signs for another."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.audits import (
    AUDITED,
    DIFFERS,
    HOLDS,
    LOT,
    MAX_EXTRA_BYTES,
    MAX_LOT_BYTES,
    MAX_PROOF,
    OPEN,
    PATIENCE,
    SUM,
    WHOLE,
    WITHHELD,
    Finding,
    LotEvidence,
    SignedFinding,
    Trust,
    signer_of,
)
from protocol.encoding import encode, pack, to_value
from protocol.errors import EncodingError, SignatureError
from protocol.fields import MAX_ROUND
from protocol.private import PrivateData
from protocol.records import MAX_ENTRY_BYTES, entry_of, open_entry
from protocol.signing import sha256
from tests.protocol.record_samples import ALICE, BOB, RUN, SIGNED_CLAIM
from tests.protocol.record_samples import LOT as LOT_RECORD
from tests.runs import manifest_of

REFUSED = "."  # each with a reason
LOW_ORDER = (1).to_bytes(32, "little")
EVIDENCE = LotEvidence(pack(LOT_RECORD), (sha256(b"node"),))
FINDING = Finding(RUN, ALICE.public_key, SIGNED_CLAIM.digest, 4, 0, LOT, 1, HOLDS, b"p" * 32, (EVIDENCE,))
SIGNED = SignedFinding.sign(FINDING, ALICE)


def test_a_finding_is_an_entry_that_its_auditor_answers_for() -> None:
    assert open_entry(entry_of(SIGNED)) == SIGNED
    assert signer_of(SIGNED.open()) == ALICE.public_key
    with pytest.raises(SignatureError):
        SignedFinding(SIGNED.payload, bytes(64)).open()
    with pytest.raises(EncodingError):
        SignedFinding(SIGNED.payload + b"\x00", SIGNED.signature).open()


def test_no_other_record_is_a_finding() -> None:
    with pytest.raises((EncodingError, SignatureError)):
        SignedFinding(SIGNED_CLAIM.payload, SIGNED_CLAIM.signature).open()


def test_the_largest_finding_fits_an_entry() -> None:
    evidence = LotEvidence(b"r" * MAX_LOT_BYTES, (sha256(b"node"),) * MAX_PROOF)
    largest = replace(FINDING, round=MAX_ROUND, row=2**16 - 1, lot=2**40 - 1, evidence=(evidence,))
    signed = SignedFinding.sign(largest, ALICE)
    assert len(signed.payload) <= MAX_EXTRA_BYTES
    assert len(entry_of(signed)) <= MAX_ENTRY_BYTES
    assert signed.open() == largest


@pytest.mark.parametrize(
    "changes",
    [
        {"run": b"short"},
        {"claim": b""},
        {"auditor": LOW_ORDER},
        {"round": 0},
        {"row": 2**16},
        {"row": -1},
        {"check": "guess"},
        {"outcome": "perhaps"},
        {"lot": -1},
        {"lot": 2**40},
        {"projection": b""},
        {"projection": b"p" * 31},
        {"evidence": ()},
        {"evidence": (EVIDENCE, EVIDENCE)},
        {"outcome": WITHHELD},
        {"outcome": WITHHELD, "projection": b""},
        {"check": WHOLE},
        {"check": WHOLE, "evidence": ()},  # a lot's place
        {"check": SUM, "lot": 0},  # a lot's evidence
    ],
    ids=str,
)
def test_a_finding_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        replace(FINDING, **changes)


def test_findings_of_each_check_and_outcome() -> None:
    for outcome in (HOLDS, DIFFERS):
        replace(FINDING, outcome=outcome)
        for check in (SUM, WHOLE):
            replace(FINDING, check=check, lot=0, outcome=outcome, evidence=())
    for check, lot in ((LOT, 3), (SUM, 0), (WHOLE, 0)):
        replace(FINDING, check=check, lot=lot, outcome=WITHHELD, projection=b"", evidence=())


@pytest.mark.parametrize(
    ("record", "proof"), [(b"", ()), (b"r" * (MAX_LOT_BYTES + 1), ()), (b"r", (b"short",)), (b"r", (bytes(32),) * (MAX_PROOF + 1))]
)
def test_evidence_is_bounded(record: bytes, proof: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        LotEvidence(record, proof)


def test_fields_of_other_types_are_no_finding() -> None:
    value = to_value(FINDING)
    assert isinstance(value, tuple)
    for place, other in ((3, "4"), (6, b"1"), (7, b"holds"), (9, ())):
        payload = encode((*value[:place], other, *value[place + 1 :]))
        with pytest.raises(EncodingError):
            SignedFinding(payload, ALICE.sign("finding", payload)).open()


# What a manifest says.

KEYS = tuple(sorted((ALICE.public_key, BOB.public_key)))


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "strict"},
        {"proven": KEYS[::-1]},
        {"proven": (KEYS[0], KEYS[0])},
        {"auditors": (LOW_ORDER,)},
        {"auditors": (b"short",)},
        {"proven_samples": 0},
        {"proven_samples": 2**48 + 1},
        {"kept_rounds": 0},
        {"kept_rounds": 30 - PATIENCE - 1},
        {"pending_rounds": 20 + PATIENCE + 1},
        {"pending_rounds": 2049},
        {"audit_percent": 0},
        {"audit_percent": 101},
        {"audit_lots": 0},
        {"audit_lots": 9},
        {"whole_percent": -1},
        {"whole_percent": 101},
        {"audit_pool_percent": 51},
    ],
    ids=str,
)
def test_trust_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        replace(Trust(AUDITED), **changes)


def test_a_run_is_open_where_its_manifest_says_nothing_else_and_private_data_are_never_audited() -> None:
    assert manifest_of(ALICE).trust == Trust(OPEN)
    assert not Trust(OPEN).is_audited
    assert Trust(AUDITED, KEYS, KEYS[:1]).is_audited
    private = {"data": "private", "private": (PrivateData(("cat", "dog"), 0, 25),)}
    manifest_of(ALICE, **private)
    with pytest.raises(ValueError, match="audit"):
        manifest_of(ALICE, **private, trust=Trust(AUDITED))
