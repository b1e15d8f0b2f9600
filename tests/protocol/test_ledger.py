"""The log's rules: how entries follow each other, what a round says, and that a refused entry leaves no trace."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manta_swarm.protocol.ledger
import manta_swarm.protocol.signed
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import EncodingError, LedgerError, RemoteFault, SignatureError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.ledger import KEPT_TABLES, Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Round, Threshold, commit_digest, entry_of, open_entry
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.verified import Verified
from tests.contributions import PEERS, claim_of, commit, header_of, in_order, listing, round_of
from tests.protocol.ledgers import OPERATOR, append, ledger_of, refused, seen
from tests.runs import FixedTrainingSpec, manifest_of

# How a run goes.


def test_a_run_starts_at_its_manifest() -> None:
    ledger = ledger_of()
    assert (ledger.size, ledger.round, ledger.newest, ledger.finished, ledger.credits()) == (0, 0, None, False, {})
    assert ledger.last_commit == ledger.run == ledger.commit_at(0)
    assert ledger.state == ledger.state_at(0) == ledger.manifest.initial_state
    assert (ledger.open_ms, ledger.thresholds, ledger.min_exponent_at(0)) == (1_000, (), -32)
    assert ledger.last_keys == frozenset()
    assert ledger.is_between_rounds
    assert (ledger.commit_at(1), ledger.commit_at(-1), ledger.index_at(0), ledger.table_at(0), ledger.table_at(1)) == (None,) * 5


def test_a_manifest_that_its_operator_did_not_sign_starts_nothing() -> None:
    with pytest.raises(SignatureError):
        Ledger(SignedManifest.sign(manifest_of(OPERATOR), PEERS[0]), FixedTrainingSpec())
    with pytest.raises(EncodingError):
        Ledger(SignedManifest(b"", b""), FixedTrainingSpec())


def test_tables_and_rounds_follow_each_other_to_the_end_of_the_run() -> None:
    ledger = ledger_of(num_rounds=3)
    size = 0
    for number in (1, 2, 3):
        headers = in_order(header_of(ledger, peer) for peer in PEERS[:number])
        min_exponent, thresholds = -32 - number, (Threshold(0, number, 64),)
        entries = commit(ledger, headers, min_exponent=min_exponent, thresholds=thresholds)
        assert entries[:-1] == [entry_of(header) for header in headers]
        size += len(entries)
        assert (ledger.size, ledger.round, ledger.index_at(number)) == (size, number, size - 1)
        assert ledger.newest == open_entry(entries[-1])
        assert ledger.last_commit == ledger.commit_at(number) == commit_digest(entries[-1])
        assert ledger.state == ledger.state_at(number) == sha256(f"state {number}".encode())
        assert (ledger.min_exponent_at(number), ledger.thresholds) == (min_exponent, thresholds)
        assert ledger.last_keys == {peer.public_key for peer in PEERS[:number]}
        table = ledger.table_at(number)
        assert table is not None
        assert [one.contribution for one in table] == [header.contribution.digest for header in headers]
        assert (ledger.newest.first, ledger.newest.contributions) == (size - number - 1, number)
    assert ledger.finished
    assert sum(ledger.credits().values()) == 3_000


def test_after_its_last_round_nothing_follows() -> None:
    ledger = ledger_of(num_rounds=1)
    late = header_of(ledger, PEERS[3])
    entries = commit(ledger, [header_of(ledger, PEERS[0])])
    for entry in (*entries, entry_of(late), entry_of(header_of(ledger, PEERS[0]))):
        refused(ledger, entry, match="finished")
    for header in (late, header_of(ledger, PEERS[0])):
        with pytest.raises(LedgerError, match="no round left"):
            ledger.listed(header, 2)


def test_the_newest_tables_are_kept() -> None:
    ledger = ledger_of()
    for _ in range(KEPT_TABLES + 2):
        commit(ledger, [header_of(ledger, PEERS[0])])
    assert [ledger.table_at(number) is None for number in range(KEPT_TABLES + 4)] == [True] * 3 + [False] * KEPT_TABLES + [True]
    last = ledger.table_at(ledger.round)
    assert last is not None
    assert last[0].round == ledger.round


# The grammar: contribution+ round.


def test_every_order_of_entries_is_taken_or_refused_as_the_grammar_says() -> None:
    """Claims of a, b and c name b as their founder; each may stand in a contribution of b's, or alone in one of its own key."""
    ledger, peers = ledger_of(), dict(zip("abc", PEERS, strict=False))
    claims = {letter: claim_of(ledger, peer, founder=PEERS[1].public_key) for letter, peer in peers.items()}
    parts = [(each, founder) for each in ("a", "b", "c", "ab", "ac", "bc", "abc") for founder in "abc"]
    headers = {(each, founder): listing([claims[letter] for letter in each], peers[founder]) for each, founder in parts}
    whole: list[tuple[tuple[str, str], ...]] = []

    def follows(listed: tuple[tuple[str, str], ...], token: str | tuple[str, str]) -> bool:
        """Independent of how the ledger does it."""
        if isinstance(token, str):
            return bool(listed)
        each, founder = token
        consented = (founder == "b" and "b" in each) or each == founder
        is_new = all(not set(before).intersection(each) for before, _ in listed)
        return consented and is_new and all(before < founder for _, before in listed)

    def explore(ledger: Ledger, listed: tuple[tuple[str, str], ...]) -> None:
        table = [ledger.listed(headers[part], 1) for part in listed] or [ledger.listed(headers["a", "a"], 1)]
        tokens: dict[str | tuple[str, str], bytes] = {part: entry_of(header) for part, header in headers.items()}
        tokens |= {".": entry_of(round_of(ledger, table))}
        for token, entry in tokens.items():
            if not follows(listed, token):
                refused(ledger, entry)
                continue
            further = ledger.copy()
            further.append(entry)
            assert further.is_between_rounds == (token == ".")
            if isinstance(token, str):
                whole.append(listed)
            else:
                explore(further, (*listed, token))

    explore(ledger, ())
    alone = [("a", "a"), ("b", "b"), ("c", "c")]
    expected = {tuple(part for part in alone if part[0] in each) for each in ("a", "b", "c", "ab", "ac", "bc", "abc")}
    expected |= {(("ab", "b"),), (("bc", "b"),), (("ab", "b"), ("c", "c")), (("a", "a"), ("bc", "b")), (("abc", "b"),)}
    assert len(whole) == len(expected)
    assert set(whole) == expected


def test_a_round_without_contributions_is_refused(ledger: Ledger) -> None:
    listed = [ledger.listed(header_of(ledger, PEERS[0]), 2)]
    refused(ledger, entry_of(round_of(ledger, listed)), match="without contributions")


@pytest.mark.parametrize(
    "data", [b"", b"\x00", encode(("contribution", b"\x80")), encode(("verdict", b"")), b"\xff" * 70_000], ids=lambda data: data[:8].hex()
)
def test_bytes_that_are_no_entry_are_refused(ledger: Ledger, data: bytes) -> None:
    refused(ledger, data, EncodingError)


# Rounds.

OTHER = sha256(b"another")
ROUND_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "another run": ({"run": OTHER}, "does not follow"),
    "the round before": ({"round": 1}, "does not follow"),
    "the round after": ({"round": 3}, "does not follow"),
    "another base": ({"base": OTHER}, "does not follow"),
    "shorter than any": ({"open_ms": 99}, "open for 100 to 60000 ms"),
    "longer than any": ({"open_ms": 60_001}, "open for 100 to 60000 ms"),
    "a contribution less": ({"contributions": 1}, "other contributions"),
    "a contribution more": ({"contributions": 3}, "other contributions"),
    "the last one alone": ({"first": 4, "contributions": 1}, "other contributions"),
    "those of the round before": ({"first": 0}, "other contributions"),
    "a place further": ({"first": 4}, "other contributions"),
    "two exponents higher": ({"min_exponent": -30}, "more than one exponent"),
    "two exponents lower": ({"min_exponent": -34}, "more than one exponent"),
}


@pytest.mark.parametrize("fault", ROUND_FAULTS)
def test_a_faulty_round_is_refused_and_the_run_goes_on(ledger: Ledger, fault: str) -> None:
    changes, match = ROUND_FAULTS[fault]
    headers = in_order(
        [header_of(ledger, PEERS[0], microbatches=(3, 3)), header_of(ledger, PEERS[1], microbatches=(1, 1))]
    )  # 96 and 32 samples
    append(ledger, *headers)
    good = round_of(ledger, [ledger.listed(header, 2) for header in headers])
    assert (good.first, good.contributions, good.open_ms, good.min_exponent) == (3, 2, 562, -32)  # 750 ms, and 3/4 of it
    refused(ledger, entry_of(replace(good, **changes)), match=match)
    ledger.append(entry_of(good))


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_a_min_exponent_moves_by_one_exponent_at_most(ledger: Ledger, step: int) -> None:
    for moved in (1, 2, 3):
        commit(ledger, [header_of(ledger, PEERS[0])], min_exponent=-32 + moved * step)
    assert [ledger.min_exponent_at(number) for number in range(5)] == [-32, -32, -32 + step, -32 + 2 * step, -32 + 3 * step]


@pytest.mark.parametrize("open_ms", [100, 60_000])
def test_digests_thresholds_and_the_time_between_the_manifest_s_bounds_are_the_log_s_word(ledger: Ledger, open_ms: int) -> None:
    commit(ledger, [header_of(ledger, PEERS[0])], mean=OTHER, state=OTHER, thresholds=(Threshold(3, 0, 1),), open_ms=open_ms)
    assert (ledger.state, ledger.thresholds, ledger.open_ms) == (OTHER, (Threshold(3, 0, 1),), open_ms)


def test_a_writer_opens_the_next_round_for_as_long_as_the_table_gives() -> None:
    ledger = ledger_of()  # a target of 64 samples, from 1 s, between 0.1 and 60 s
    commit(ledger, [header_of(ledger, PEERS[0], microbatches=(1, 1)), header_of(ledger, PEERS[1], microbatches=(1, 2))])
    assert ledger.open_ms == 800  # 80 samples
    commit(ledger, [header_of(ledger, PEERS[0], microbatches=(1, 0))])
    assert ledger.open_ms == 1_066  # a third more
    commit(
        ledger,
        [
            header_of(ledger, PEERS[0], microbatch_ms=3_000),
            header_of(ledger, PEERS[1], microbatch_ms=500),
            header_of(ledger, PEERS[2], microbatch_ms=600),
        ],
    )
    assert ledger.open_ms == 2_400  # four microbatches of the median


# What does not happen on the way.


def test_a_copy_goes_its_own_way(ledger: Ledger) -> None:
    before = seen(ledger)
    forks = [ledger.copy() for _ in range(2)]
    commit(forks[0], [header_of(ledger, PEERS[0], microbatches=(4, 4))])
    append(forks[1], header_of(ledger, PEERS[1]))
    assert seen(ledger) == before
    assert forks[0].round == 2
    assert (forks[1].round, forks[1].is_between_rounds) == (1, False)
    commit(ledger, [header_of(ledger, PEERS[0])])
    assert ledger.last_commit != forks[0].last_commit
    assert ledger.credits() == forks[0].credits()
    shared = {"manifest", "run", "training_spec", "verified"}
    for name, value in vars(ledger).items():
        if name not in shared and not isinstance(value, (int, bytes, Round, type(None))):
            assert all(vars(fork)[name] is not value for fork in forks), name


def test_what_is_listed_for_the_round_after_the_next_is_what_it_will_be(ledger: Ledger) -> None:
    for header in (header_of(ledger, PEERS[3]), header_of(ledger, PEERS[3], round=1)):
        before = seen(ledger)
        early = ledger.listed(header, 3)
        assert seen(ledger) == before
        assert early == replace(ledger.listed(header, 2), weighing=early.weighing)
        assert early.weighing.age == ledger.listed(header, 2).weighing.age + 1
        fork = ledger.copy()
        commit(fork, [header_of(fork, PEERS[0])])
        assert fork.listed(header, 3) == early


def test_what_is_too_old_or_sorted_away_in_the_round_after_the_next_is_not_listed_for_it() -> None:
    ledger = ledger_of(FixedTrainingSpec(sorts=frozenset({6})))
    aged = header_of(ledger, PEERS[1])
    for _ in range(MAX_AGE):
        commit(ledger, [header_of(ledger, PEERS[0])])
    assert ledger.listed(aged, 5).weighing.age == MAX_AGE
    with pytest.raises(LedgerError, match="commits old"):
        ledger.listed(aged, 6)
    commit(ledger, [header_of(ledger, PEERS[0])])
    new = header_of(ledger, PEERS[1])
    assert ledger.listed(new, 6).weighing.age == 0
    with pytest.raises(LedgerError, match="another order"):
        ledger.listed(new, 7)


def test_what_was_listed_is_not_verified_again_as_an_entry_nor_in_another_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    verified, signed = Verified(), SignedManifest.sign(manifest_of(OPERATOR), OPERATOR)
    ledger, other = (Ledger(signed, FixedTrainingSpec(), verified) for _ in range(2))
    header = header_of(ledger, PEERS[0])
    listed = other.listed(header, 1)

    def never(kind: str, *_: bytes) -> None:
        raise AssertionError(kind)

    monkeypatch.setattr(manta_swarm.protocol.signed, "verify", never)
    append(ledger, header)
    ledger.append(entry_of(round_of(ledger, [listed])))


@settings(max_examples=150)
@given(st.data())
def test_a_changed_bit_of_an_entry_is_refused_but_for_what_a_round_alone_knows(data: st.DataObject) -> None:
    ledger = ledger_of()
    headers = in_order(header_of(ledger, peer) for peer in PEERS[:2])
    round_ = round_of(ledger, [ledger.listed(header, 1) for header in headers], thresholds=(Threshold(0, 77, 64),))
    entries = [*map(entry_of, headers), entry_of(round_)]
    place = data.draw(st.integers(0, len(entries) - 1))
    for entry in entries[:place]:
        ledger.append(entry)
    bit = data.draw(st.integers(0, 8 * len(entries[place]) - 1))
    changed = bytearray(entries[place])
    changed[bit // 8] ^= 1 << bit % 8
    fork = ledger.copy()
    try:
        fork.append(bytes(changed))
    except RemoteFault:
        assert vars(fork) == vars(ledger)
    else:
        taken = open_entry(bytes(changed))
        assert isinstance(taken, Round)
        assert (
            replace(
                taken,
                weights=round_.weights,
                mean=round_.mean,
                state=round_.state,
                thresholds=round_.thresholds,
                min_exponent=round_.min_exponent,
                open_ms=round_.open_ms,
            )
            == round_
        )
        assert abs(taken.min_exponent - round_.min_exponent) <= 1
    ledger.append(entries[place])
