"""A small run with real keys, valid entries for it, and a child process that writes its log. For the tests of this folder."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.verify import Verification, verify_directory
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.notes import TreeHead, open_tree_head, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.contributions import PEERS as MANY_PEERS
from tests.contributions import header_of, round_of
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

OPERATOR = Identity(b"\x01" * 32)
OTHER_OPERATOR = Identity(b"\x02" * 32)
STRANGER = Identity(b"\x03" * 32)
PEERS = MANY_PEERS[:3]
POOL = 1_000
ENTRIES = len(PEERS) + 1  # of a round
# Rounds that were made, by what they follow: most logs here begin alike, and making a round takes as long as committing it.
_made: dict[tuple[bytes, int, bytes], list[bytes]] = {}


class Deaf:
    """Wants to hear nothing of what others hold."""

    def heard(self, key: PublicKey, held: ProvenRound | None) -> None:
        del key, held


def training_spec_of(_manifest: Manifest) -> TrainingSpec:
    """Return the training of every run here: two architectures, of 10 and 15 MACs."""
    return FixedTrainingSpec()


def signed_manifest(
    name: str = "small", num_rounds: int = 100_000, operators: Sequence[Identity] = (OPERATOR,), max_rows: int = EXCHANGE.max_rows
) -> SignedManifest:
    """Return a run's manifest; another name makes it another run."""
    keys = tuple(each.public_key for each in operators)
    quorum = len(keys) // 2 + 1
    exchange = replace(EXCHANGE, max_rows=max_rows)
    made = manifest_of(OPERATOR, name=name, num_rounds=num_rounds, reward_pool=POOL, operators=keys, quorum=quorum, exchange=exchange)
    return SignedManifest.sign(made, OPERATOR)


def create(directory: Path, signed: SignedManifest, operator: Identity = OPERATOR) -> Log:
    """Start a run's log."""
    return Log.create(directory, signed, operator, training_spec_of=training_spec_of)


def reopen(directory: Path, operator: Identity = OPERATOR, *, run: bytes | None = None) -> Log:
    """Open the log in ``directory`` again."""
    return Log.open(directory, operator, run=run, training_spec_of=training_spec_of)


def verified(directory: Path) -> Verification:
    """Return what the log in ``directory`` adds up to."""
    return verify_directory(directory, training_spec_of=training_spec_of)


def header(ledger: Ledger, peer: Identity, *, vector: bytes = b"vector") -> Header:
    """Return what a peer hands in for the next round; another ``vector`` makes it another claim."""
    return header_of(ledger, peer, microbatches=(1 + PEERS.index(peer), 1), given=sha256(vector))


def next_round(ledger: Ledger, *, mean: bytes = b"mean") -> list[bytes]:
    """Return the entries of the next round: the contributions in the table's order, and the round. They follow from what is before them."""
    follows = ledger.last_commit, ledger.size, mean
    if not ledger.is_between_rounds:
        return _next_round(ledger, mean)
    if follows not in _made:
        _made[follows] = _next_round(ledger, mean)
    return list(_made[follows])


def _next_round(ledger: Ledger, mean: bytes) -> list[bytes]:
    headers = [header(ledger, peer) for peer in PEERS]
    listed = [ledger.listed(one, ledger.round + 1) for one in headers]
    return [*map(entry_of, headers), entry_of(round_of(ledger, listed, mean=sha256(mean)))]


def grow(log: Log, rounds: int) -> None:
    """Commit that many rounds, each as one batch."""
    for _ in range(rounds):
        log.commit(next_round(log.ledger))


def quorum_note(log: Log, entries: list[bytes], *operators: Identity) -> str:
    """Return the head of a log with these entries, as these operators sign it."""
    name = Operators.of(log.ledger.manifest, log.ledger.run).name
    head = TreeHead(name, log.head.size + len(entries), log.root_with(entries))
    notes = [sign_tree_head(head, name, operator) for operator in operators]
    return notes[0] + "".join(note.partition("\n\n")[2] for note in notes[1:])


def opened_head(log: Log) -> TreeHead:
    """Return the published tree head, its signature checked."""
    name = origin(log.ledger.run)
    return open_tree_head(log.tree_head, name, OPERATOR.public_key)


def rfc_root(leaves: list[bytes]) -> bytes:
    """Return the root of ``leaves`` as RFC 9162 section 2.1.1 defines it, from the entries up."""
    if not leaves:
        return sha256(b"")
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0])
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return sha256(b"\x01" + rfc_root(leaves[:half]) + rfc_root(leaves[half:]))


@contextmanager
def child(role: str, directory: Path) -> Iterator[Popen[str]]:
    """Run this file as a process with ``role``; it is killed and waited for at the end."""
    root = Path(__file__).parents[2]
    with Popen(
        [sys.executable, __file__, role, directory], stdin=PIPE, stdout=PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def append_until_killed(directory: Path) -> None:
    """Append one round after the other; print each acknowledged index with its entry's digest, after the tree head's size and root."""
    with reopen(directory) as log:
        while True:
            batch = next_round(log.ledger)
            first = log.ledger.size
            log.commit(batch)
            head = opened_head(log)
            acknowledged = [f"{index}:{sha256(entry).hex()}" for index, entry in enumerate(batch, first)]
            print(head.size, head.root.hex(), *acknowledged, flush=True)


def hold(directory: Path, *, forks: bool) -> None:
    """Hold the log open until standard input ends, with ``forks`` beside a forked process that does nothing but live as long."""
    with reopen(directory):
        if forks and os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        print("open", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    role, target = sys.argv[1], Path(sys.argv[2])
    if role == "append":
        append_until_killed(target)
    else:
        hold(target, forks=role == "hold-and-fork")
