"""Small ledgers for the tests of the log's rules, and how they ask whether a refused entry left a trace."""

from typing import Any

import pytest

from manta_swarm.protocol.errors import LedgerError, RemoteFault
from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.signing import Identity
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

OPERATOR = Identity(b"operator".ljust(32, b"."))


def ledger_of(
    training_spec: FixedTrainingSpec | None = None, exchange: Exchange = EXCHANGE, num_rounds: int = 12, **changes: Any
) -> Ledger:
    manifest = manifest_of(OPERATOR, exchange=exchange, num_rounds=num_rounds, **changes)
    return Ledger(SignedManifest.sign(manifest, OPERATOR), training_spec or FixedTrainingSpec())


def seen(ledger: Ledger) -> tuple[object, ...]:
    """Everything that a caller can see."""
    rounds = range(-1, ledger.round + 2)
    return (
        (ledger.size, ledger.round, ledger.newest, ledger.last_commit, ledger.state, ledger.open_ms, ledger.thresholds),
        (ledger.finished, ledger.last_keys, ledger.is_between_rounds, ledger.credits()),
        [(ledger.commit_at(number), ledger.index_at(number), ledger.table_at(number)) for number in rounds],
        [(ledger.min_exponent_at(number), ledger.state_at(number)) for number in range(ledger.round + 1)],
    )


def refused(ledger: Ledger, entry: bytes, error: type[RemoteFault] = LedgerError, match: str = "") -> None:
    before, before_seen = ledger.copy(), seen(ledger)
    with pytest.raises(error) as raised:
        ledger.append(entry)
    assert match in str(raised.value)
    assert seen(ledger) == before_seen
    assert vars(ledger) == vars(before)


def not_taken(ledger: Ledger, header: Header, match: str = "", error: type[RemoteFault] = LedgerError) -> None:
    """Neither as what is handed in for the next round nor as an entry."""
    with pytest.raises(error) as raised:
        ledger.listed(header, ledger.round + 1)
    assert match in str(raised.value)
    refused(ledger, entry_of(header), error, match)


def append(ledger: Ledger, *headers: Header) -> None:
    for entry in map(entry_of, headers):
        ledger.append(entry)
