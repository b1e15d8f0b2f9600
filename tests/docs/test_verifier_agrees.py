"""Whatever a log goes on with, docs/verifier.py takes an entry if and only if the program does, and pays the same."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from automl.training.course import RunCourse
from protocol.encoding import pack
from protocol.errors import RemoteFault
from protocol.ledger import Ledger
from protocol.manifest import SignedManifest
from protocol.records import Header, entry_of
from protocol.signing import sha256
from tests.aggregator import real_run
from tests.aggregator.real_run import OPERATOR
from tests.contributions import PEERS, claim_of, listing, round_of
from tests.docs.verifiers import verifier

SMALL = real_run.signed_manifest().open()
MANIFESTS = [
    replace(SMALL, exchange=replace(SMALL.exchange, max_rows=3, weight_cap=100, max_claim_samples=200)),
    replace(SMALL, algorithm="model-parallel", exchange=replace(SMALL.exchange, codec="topk-256-4", local_steps=2)),
    replace(SMALL, schedule="shrinking", num_rounds=8),
]
members = st.lists(st.sampled_from(PEERS[:5]), min_size=1, max_size=3)
LIES: list[dict[str, Any]] = [
    {"cohort": "there"},
    {"founder": PEERS[0].public_key},
    {"shards": 3},
    {"residual": sha256(b"left")},
    {"lots": (1,) * 9},
    {"base": sha256(b"")},
]


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """``usual`` nine times in ten, else one of the others."""
    return st.integers(0, 9).flatmap(lambda die: st.sampled_from(others) if die == 9 else st.just(usual))


@st.composite
def headers(draw: st.DrawFn, ledger: Ledger) -> Header:
    """A contribution for the next round that most often may count."""
    who, next_ = draw(members), ledger.round + 1
    founder = draw(mostly(who[0], PEERS[5]))
    said: dict[str, Any] = {
        "round": draw(mostly(next_, next_, max(1, next_ - 1), max(1, next_ - 5), next_ + 1)),
        "cohort": draw(st.sampled_from(["here", "here.size-1"])),
        "founder": founder.public_key,
        "lot_ms": draw(st.integers(1, 3)),
    }
    count, least = 1 if ledger.manifest.algorithm == "model-parallel" else 4, ledger.manifest.exchange.local_steps
    claims = []
    for member in who if draw(mostly(False, True)) else dict.fromkeys(who):
        lots = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        claims.append(
            claim_of(ledger, member, **said | {"lots": tuple(lots) if sum(lots) >= least else (2,) * count} | draw(mostly({}, *LIES)))
        )
    header = listing(claims, founder, left=draw(mostly(b"", sha256(b"left"))))
    return replace(header, claims=header.claims[::-1]) if draw(mostly(False, True)) else header


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_an_entry_is_taken_by_both_or_by_none(data: st.DataObject) -> None:
    signed = SignedManifest.sign(data.draw(st.sampled_from(MANIFESTS)), OPERATOR)
    ledger = Ledger(signed, RunCourse(signed.open()))
    run, manifest = verifier.open_manifest(pack(signed))
    ours = verifier.Ledger(run, manifest)

    def is_taken(entry: bytes) -> bool:
        """Append an entry to both ledgers."""
        faults: list[Exception | None] = [None, None]
        for place, (each, fault) in enumerate(((ledger, RemoteFault), (ours, verifier.Refused))):
            try:
                each.append(entry)
            except fault as error:
                faults[place] = error
        assert (faults[0] is None) == (faults[1] is None), faults
        return faults[0] is None

    for _ in range(data.draw(st.integers(1, 6))):
        table = data.draw(st.lists(headers(ledger), min_size=1, max_size=4))
        if data.draw(mostly(True, False)):
            table.sort(key=lambda header: header.contribution.open().founder)
        taken = [header for header in table if is_taken(entry_of(header))]
        if taken:
            listed = [ledger.listed(header, ledger.round + 1) for header in taken]
            before = ledger.size - len(taken)
            told = round_of(ledger, listed, first=before)
            for lie in (data.draw(mostly({}, {"floor": told.floor + 2}, {"open_ms": 1}, {"round": 3}, {"first": before + 1})), {}):
                if is_taken(entry_of(replace(told, **lie))):
                    break
    assert dict(ours.credits) == ledger.credits()
