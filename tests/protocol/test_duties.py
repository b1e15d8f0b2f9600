"""What an auditor is told to look at: only what the beacon asks about a claim on the base that it knows itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.audits import LOT, SUM, WHOLE, Trust
from protocol.duties import MAX_DUTIES, MAX_DUTIES_BYTES, Duties, Duty, check_duty
from protocol.encoding import pack, unpack
from protocol.errors import LedgerError
from protocol.signing import sha256
from protocol.trust import Question, lots_audited, questions_due
from tests.audited import TRUST, audited_ledger, work_of
from tests.contributions import PEERS

LEDGER = audited_ledger()
CLAIM = work_of(LEDGER, PEERS[0], lots=9)
OPENED = CLAIM.open()
BASE = LEDGER.last_commit


def refused(duty: Duty, trust: Trust, beacon: bytes, run: bytes = LEDGER.run, base: bytes = BASE) -> None:
    with pytest.raises(LedgerError):
        check_duty(duty, OPENED, trust, run=run, base=base, beacon=beacon)


@given(beacon=st.binary(min_size=32, max_size=32), lot=st.integers(0, 12), audit_lots=st.integers(1, 8))
def test_of_all_lots_only_the_beacons_are_looked_at(beacon: bytes, lot: int, audit_lots: int) -> None:
    trust = replace(TRUST, audit_lots=audit_lots)
    duty = Duty(CLAIM, 1, 0, LOT, lot)
    if lot in lots_audited(trust, beacon, CLAIM.digest, 9):
        check_duty(duty, OPENED, trust, run=LEDGER.run, base=BASE, beacon=beacon)
        refused(duty, trust, beacon, run=sha256(b"another run"))
        refused(duty, trust, beacon, base=sha256(b"another base"))
        refused(replace(duty, check=SUM, lot=0), trust, beacon)
    else:
        refused(duty, trust, beacon)


@given(beacon=st.binary(min_size=32, max_size=32), whole_percent=st.integers(0, 100))
def test_all_lots_of_a_claim_are_looked_at_where_the_beacon_asks_for_it(beacon: bytes, whole_percent: int) -> None:
    trust, duty = replace(TRUST, whole_percent=whole_percent), Duty(CLAIM, 1, 0, WHOLE, 0)
    if Question(CLAIM.digest, WHOLE, 0) in questions_due(trust, beacon, CLAIM.digest, 9, 100):
        check_duty(duty, OPENED, trust, run=LEDGER.run, base=BASE, beacon=beacon)
        refused(replace(duty, lot=1), trust, beacon)
        refused(duty, trust, beacon, base=sha256(b"another base"))
    else:
        refused(duty, trust, beacon)


def test_duties_fit_their_answer() -> None:
    duty = Duty(CLAIM, 2**20, 2**16 - 1, LOT, 2**40 - 1)
    full = Duties((duty,) * MAX_DUTIES)
    assert unpack(Duties, pack(full), max_bytes=MAX_DUTIES_BYTES) == full
    with pytest.raises(ValueError, match="at most"):
        Duties((duty,) * (MAX_DUTIES + 1))
