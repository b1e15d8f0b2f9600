"""What a round pays, from its claims alone: as much as the ledger says, and nothing from claims that are not the round's."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Claim, Header, entry_of
from manta_swarm.protocol.rewards import RoundContributions, earned
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.table import TableError
from tests.audited import audited_ledger
from tests.contributions import PEERS, cohort_header_of, commit, header_of, in_order
from tests.protocol.ledgers import ledger_of

Microbatches = tuple[int, int]
work = st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(any)


def shown(ledger: Ledger, log: list[bytes], table: list[bytes] | None = None) -> tuple[ProvenRound, RoundContributions]:
    """Return the ledger's newest round as its log's head proves it, and its contributions; with ``table`` a log that has these instead."""
    entry = ledger.newest
    assert entry is not None
    entries = log[entry.first : entry.first + entry.contributions] if table is None else table
    tree = Tree()
    for each in (*log[: entry.first], *entries, log[-1]):
        tree.append(leaf_hash(each))
    proof = tree.range_proof(entry.first, min(entry.first + len(entries), tree.size))
    return ProvenRound(entry, ledger.last_commit, TreeHead("log", tree.size, tree.root())), RoundContributions(tuple(entries), tuple(proof))


def paid(ledger: Ledger, log: list[bytes]) -> dict[bytes, int]:
    return earned(ledger.manifest, ledger.training_spec, *shown(ledger, log))


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(PEERS[2:6]), work, min_size=1), st.lists(work, min_size=2, max_size=2))
def test_a_round_of_claims_pays_what_the_ledger_pays(alone: dict[Identity, Microbatches], cohort_peers: list[Microbatches]) -> None:
    ledger = ledger_of()
    headers = [header_of(ledger, peer, microbatches=microbatches) for peer, microbatches in alone.items()]
    headers.append(cohort_header_of(ledger, PEERS[:2], microbatches=cohort_peers[0]))
    log = commit(ledger, headers)
    assert {key: share for key, share in paid(ledger, log).items() if share} == ledger.credits()


def test_what_a_round_of_an_audited_run_paid_does_not_follow_from_its_claims() -> None:
    ledger = audited_ledger(proven=PEERS[:1])
    log = commit(ledger, [header_of(ledger, peer) for peer in PEERS[:2]])
    with pytest.raises(TableError, match="audited"):
        paid(ledger, log)


def test_aged_work_is_of_the_round_that_it_counts_in() -> None:
    ledger = ledger_of()
    aged = header_of(ledger, PEERS[0])
    log = commit(ledger, [header_of(ledger, PEERS[1])])
    before = ledger.credits()
    log += commit(ledger, [aged, header_of(ledger, PEERS[1], microbatches=(1, 0))])
    assert {key: before.get(key, 0) + share for key, share in paid(ledger, log).items()} == ledger.credits()


def forged(header: Header) -> Header:
    return Header(header.contribution, tuple(Signed(Claim, claim.payload, bytes(64)) for claim in header.claims))


CHANGES: dict[str, Callable[[Ledger, list[Header]], list[Header]]] = {
    "one less": lambda ledger, found: found[:-1],
    "one more": lambda ledger, found: [*found, header_of(ledger, PEERS[5])],
    "more work": lambda ledger, found: [header_of(ledger, PEERS[0], round=1, microbatches=(9, 9)), *found[1:]],
    "another order": lambda ledger, found: found[::-1],
}
FALSE: dict[str, Callable[[Ledger, list[Header]], list[Header]]] = {
    "other claims": lambda ledger, found: [Header(found[0].contribution, found[1].claims), *found[1:]],
    "unsigned claim": lambda ledger, found: [forged(found[0]), *found[1:]],
    "unsigned contribution": lambda ledger, found: [
        Header(replace(found[0].contribution, signature=bytes(64)), found[0].claims),
        *found[1:],
    ],
    "other work": lambda ledger, found: [header_of(ledger, PEERS[0], round=1, microbatches=(1, 1, 1)), *found[1:]],
    "later": lambda ledger, found: [header_of(ledger, PEERS[0], round=3), *found[1:]],
}


@pytest.mark.parametrize("change", [*CHANGES.values(), *FALSE.values()], ids=[*CHANGES, *FALSE])
def test_contributions_that_are_not_the_round_s_are_refused(change: Callable[[Ledger, list[Header]], list[Header]]) -> None:
    ledger = ledger_of()
    headers = in_order(header_of(ledger, peer) for peer in PEERS[:2])
    log = commit(ledger, headers)
    proven, found = shown(ledger, log)
    false = tuple(map(entry_of, change(ledger, headers)))
    with pytest.raises(RemoteFault):
        earned(ledger.manifest, ledger.training_spec, proven, replace(found, entries=false))
    for proof in (found.proof[:-1], (*found.proof, bytes(32)), (bytes(32), *found.proof[1:])):
        with pytest.raises(RemoteFault):
            earned(ledger.manifest, ledger.training_spec, proven, replace(found, proof=proof))


@pytest.mark.parametrize("change", FALSE.values(), ids=FALSE)
def test_contributions_that_no_log_may_have_are_refused_though_one_has_them(change: Callable[[Ledger, list[Header]], list[Header]]) -> None:
    ledger = ledger_of()
    headers = in_order(header_of(ledger, peer) for peer in PEERS[:2])
    log = commit(ledger, headers)
    with pytest.raises(RemoteFault):
        earned(ledger.manifest, ledger.training_spec, *shown(ledger, log, list(map(entry_of, change(ledger, headers)))))


def test_what_is_no_contribution_is_refused_though_the_log_has_it_in_that_place() -> None:
    ledger = ledger_of()
    log = commit(ledger, [header_of(ledger, PEERS[0])])
    with pytest.raises(TableError, match="no contribution"):
        earned(ledger.manifest, ledger.training_spec, *shown(ledger, log, [log[-1]]))
