"""What a log says of contributions that are audited, and its verdicts as they are shown to whoever has its folder."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.features.audits.brought import Audited
from manta_swarm.aggregator.features.audits.facts import LogFacts, verdicts_in
from manta_swarm.aggregator.log.log import Log
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.signing import Identity, peer_name, sha256
from manta_swarm.protocol.verdicts import Outcome
from tests.aggregator.audited_log import AuditedRun
from tests.audited import AUDITOR, OPERATOR, RULES, verdict_of
from tests.command import typed
from tests.contributions import PEERS, cohort_header_of, header_of, in_order, round_of
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

A, B, C = PEERS[:3]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """The log of an audited run, all of whose contributions are audited, with bodies that leave residuals."""
    exchange = replace(EXCHANGE, codec="topk-64-2")
    manifest = manifest_of(OPERATOR, exchange=exchange, num_rounds=40, audits=(RULES,))
    with Log.create(tmp_path, SignedManifest.sign(manifest, OPERATOR), OPERATOR, training_spec_of=lambda _: FixedTrainingSpec()) as log:
        yield log


def commit(log: Log, *headers: Header) -> int:
    """Commit a round of these; return its number."""
    ledger, table = log.ledger, in_order(headers)
    listed = [ledger.listed(header, ledger.round + 1) for header in table]
    log.commit([*map(entry_of, table), entry_of(round_of(ledger, listed))])
    return ledger.round + 1


def works(log: Log, *peers: Identity, left: bytes = b"", residual: bytes = b"") -> list[Header]:
    """Return what these hand in alone, which leaves and names residuals."""
    return [header_of(log.ledger, peer, left=left, residual=residual) for peer in peers]


def audited(log: Log, header: Header) -> Audited:
    """Return a contribution that is audited, as ``aggregator.features.audits.brought`` opens it."""
    audit = log.ledger.reputation.audits[header.contribution.digest]
    return Audited(audit, header, header.contribution.open(), tuple(signed.open() for signed in header.claims))


def answers(facts: LogFacts, *asked: Audited) -> list[tuple[bool, ...]]:
    async def ask() -> list[tuple[bool, ...]]:
        return [await facts.left(each) for each in asked]

    return asyncio.run(ask())


def test_a_contribution_is_found_among_those_of_its_round_and_read_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    first = works(log, A, B, C)
    round_ = commit(log, *first)
    second = works(log, A, B)
    commit(log, *second)
    facts, pages = LogFacts(log), []
    entries = log.entries

    def read(start: int, limit: int, max_bytes: int | None = None) -> list[bytes]:
        pages.append((start, limit))
        return entries(start, limit, max_bytes)

    monkeypatch.setattr(log, "entries", read)
    assert facts.header(round_, first[1].contribution.digest) == first[1]
    looked = len(pages)
    for header in first:
        assert facts.header(round_, header.contribution.digest) == header
    assert len(pages) - looked == len(first)  # each is read at its place
    with pytest.raises(StorageError, match="verify the log"):
        facts.header(round_, sha256(b"no contribution"))
    with pytest.raises(StorageError, match="verify the log"):
        LogFacts(log).header(99, first[0].contribution.digest)
    ledger = log.ledger
    assert facts.beacon(round_) == ledger.commit_at(round_ + 1)
    assert facts.base(round_ + 1) == (ledger.state_at(round_), ledger.min_exponent_at(round_))


def test_what_is_not_audited_any_more_is_forgotten(log: Log) -> None:
    (header,) = works(log, A)
    round_ = commit(log, header)
    commit(log, *works(log, A))
    facts = LogFacts(log)
    facts.header(round_, header.contribution.digest)
    answers(facts, audited(log, header))
    facts.committed()
    assert facts._places
    assert facts._answers
    while header.contribution.digest in log.ledger.reputation.audits:
        commit(log, *works(log, A))
    facts.committed()
    assert not facts._places
    assert not facts._answers


def test_a_residual_was_left_by_a_contribution_of_its_key_lately_or_not(log: Log) -> None:
    ours, others = sha256(b"left to a and b"), sha256(b"left to c")
    together = cohort_header_of(log.ledger, [A, B], left=ours)
    commit(log, together, *works(log, C, left=others))
    commit(log, *works(log, A, residual=ours), *works(log, B), *works(log, C, residual=ours))
    commit(log, *works(log, A, residual=sha256(b"nothing")), *works(log, C, residual=others))
    commit(log, *works(log, B, residual=ours))
    commit(log, *works(log, B))
    found = {}
    for place in range(log.ledger.size):
        record = log.ledger.verified.entry(log.entry(place))
        if isinstance(record, Header) and record.contribution.digest in log.ledger.reputation.audits:
            found[record.contribution.open().founder, record.contribution.open().round] = audited(log, record)
    facts = LogFacts(log)
    keys = [each.public_key for each in (A, B, C)]
    asked = [(keys[0], 2), (keys[1], 2), (keys[2], 2), (keys[0], 3), (keys[2], 3), (keys[1], 4), (keys[0], 1)]
    said = [True, True, False, False, True, True, True]
    assert answers(facts, *(found[each] for each in asked)) == [
        (answer,) * len(found[each].claims) for each, answer in zip(asked, said, strict=True)
    ]
    assert set(facts._left_by) <= {1, 2, 3}


def test_what_takes_something_away_is_shown_and_all_of_it_if_that_is_asked_for(tmp_path: Path) -> None:
    run = AuditedRun(tmp_path, num_rounds=12)
    with run.log:
        run.round()
        run.round()
        good, void = verdict_of(run.ledger, A), verdict_of(run.ledger, B, Outcome.VOID)
        run.round(good, void)
        run.rounds_to_the_end()
        last = verdict_of(run.ledger, C)
        run.settle(last)
        indices = {run.log.entry(place): place for place in range(run.log.head.size)}
    found = list(verdicts_in(tmp_path))
    assert {one.verdict for one in found} == {good.open(), void.open(), last.open()}
    assert [one.index for one in found] == sorted(one.index for one in found)
    assert all(len(indices) > one.index for one in found)
    assert {one.keys for one in found if not one.is_good} == {(B.public_key,)}

    shown = typed(main, "ledger", "verdicts", "--dir", tmp_path)
    assert shown.exit_code == 0, shown.errors
    assert f"{peer_name(B.public_key)} void, says {peer_name(AUDITOR.public_key)}" in shown.output
    assert shown.output.splitlines()[-1] == "1 verdict"
    whole = typed(main, "ledger", "verdicts", "--dir", tmp_path, "--all")
    assert whole.output.splitlines()[-1] == "3 verdicts"
    assert f"{peer_name(A.public_key)} good" in whole.output
    of_one = typed(main, "ledger", "verdicts", "--dir", tmp_path, "--all", "--peer", peer_name(C.public_key))
    assert of_one.output.splitlines()[-1] == "1 verdict"
    for wrong in (("--peer", "nobody"), ("--dir", tmp_path / "nothing")):
        refused = typed(main, "ledger", "verdicts", "--dir", tmp_path, *wrong)
        assert refused.exit_code == 2
