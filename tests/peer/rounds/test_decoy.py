"""A decoy's records: false wherever a lot is computed again, and fitting its body wherever none is; and what its file has to be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automl.training.auditing import FP32, mean_projection, values_of
from peer.rounds.decoy import falsified, read_decoy
from protocol.audits import HOLDS
from protocol.decoys import FILE, Decoy
from protocol.encoding import pack
from protocol.errors import UserError
from protocol.records import LotRecord, entry_of
from protocol.signing import Identity
from protocol.standing import APPROVED_DECOY, DECOY
from tests.audited import OPERATOR, audited_ledger, finding_of, go_on
from tests.contributions import PEERS

A, B, C = PEERS[:3]
SALT = b"s" * 16


@given(lots=st.integers(1, 20), steps=st.integers(1, 4), seed=st.integers(0, 2**32), spread=st.floats(1.0, 20.0))
def test_every_lots_record_is_false_and_their_mean_is_true_in_each_step(lots: int, steps: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    norms = rng.uniform(1.0, spread, size=lots)
    true = [
        LotRecord(at * steps // lots, at, "r32", 16, "1.5", (norm * rng.normal(size=8)).astype("<f4").tobytes())
        for at, norm in enumerate(norms)
    ]
    false = falsified(true, rng)
    for one, other, norm in zip(true, false, norms, strict=True):
        apart = np.sqrt(np.square(values_of(one.projection) - values_of(other.projection)).mean())
        assert apart > 3 * FP32.projection * norm / 4  # a norm of eight draws may be far from the largest
        assert replace(other, projection=one.projection) == one
    for step in range(steps):
        before, after = ([record for record in records if record.step == step] for records in (true, false))
        if len(before) > 1:
            np.testing.assert_allclose(mean_projection(after), mean_projection(before), atol=1e-4 * spread)


def test_a_planted_decoy_finds_out_who_said_that_its_claims_hold_and_nobody_else(tmp_path: Path) -> None:
    ledger = audited_ledger(proven=tuple(sorted(peer.public_key for peer in (A, B))))
    decoy = Decoy.made(ledger.run, OPERATOR, C.public_key, SALT)
    go_on(ledger, [A, B, C], [decoy.plant])
    go_on(ledger, [A, B, C])
    go_on(ledger, [A, B, C])
    go_on(ledger, [A, B], [finding_of(ledger, A, C), finding_of(ledger, A, B)])
    go_on(ledger, [A, B], [decoy.revealed(ledger.run, C)])
    assert {key: fault.reason for key, fault in ledger.standing.guilty.items()} == {A.public_key: APPROVED_DECOY, C.public_key: DECOY}
    assert finding_of(ledger, B, A, HOLDS)  # who did not look at it goes on


def test_a_folder_is_a_decoys_in_its_run_and_with_its_key_only(tmp_path: Path) -> None:
    ledger = audited_ledger()
    manifest, key = ledger.manifest, C.public_key
    assert read_decoy(tmp_path, ledger.run, key, manifest) is None
    decoy = Decoy.made(ledger.run, OPERATOR, key, SALT)
    (tmp_path / FILE).write_bytes(pack(decoy))
    assert read_decoy(tmp_path, ledger.run, key, manifest) == decoy
    ledger.check_extra(decoy.plant)
    assert len(entry_of(decoy.plant)) < 1024
    for run, other in ((bytes(32), key), (ledger.run, Identity(bytes(32)).public_key)):
        with pytest.raises(UserError, match="no decoy of this run and key"):
            read_decoy(tmp_path, run, other, manifest)
    with pytest.raises(UserError, match="has no audits"):
        read_decoy(tmp_path, ledger.run, key, replace(manifest, trust=replace(manifest.trust, mode="open")))
    (tmp_path / FILE).write_bytes(b"junk")
    with pytest.raises(UserError, match="no decoy"):
        read_decoy(tmp_path, ledger.run, key, manifest)
