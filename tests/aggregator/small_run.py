"""A small run with real keys, valid entries for it, and a child process that writes its log. For the tests of this folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

from aggregator.log import Log
from protocol.ledger import Ledger
from protocol.notes import TreeHead, open_tree_head, origin
from protocol.records import (
    Claim,
    Round,
    SignedClaim,
    SignedManifest,
    Statement,
    claim_entry,
    round_entry,
    sign_vote,
    table_digest,
)
from protocol.signing import Identity, sha256
from tests.runs import manifest_of

OPERATOR = Identity(b"\x01" * 32)
OTHER_OPERATOR = Identity(b"\x02" * 32)
STRANGER = Identity(b"\x03" * 32)
PEERS = sorted((Identity(bytes([seed]) * 32) for seed in (11, 12, 13)), key=lambda peer: peer.public_key)
POOL = 1_000


def signed_manifest(name: str = "small", num_rounds: int = 100_000) -> SignedManifest:
    """Return a run's manifest; another name makes it another run."""
    costs = (("r32", 100), ("u1.0:k3e2", 7))
    operators = (OPERATOR.public_key, OTHER_OPERATOR.public_key)
    manifest = manifest_of(
        OPERATOR, name=name, num_rounds=num_rounds, max_claim_samples=1_000, reward_pool=POOL, costs=costs, operators=operators
    )
    return SignedManifest.sign(manifest, OPERATOR)


def claim(ledger: Ledger, peer: Identity, *, lots: bytes = b"lots") -> SignedClaim:
    """Return a peer's claim for the next round; other ``lots`` make it another claim for the same round."""
    work = (("r32", 16 * (1 + PEERS.index(peer))), ("r32 u1.0:k3e2", 16))
    record = Claim(ledger.run, ledger.round + 1, ledger.last_commit, peer.public_key, "here", work, 2, sha256(lots))
    return SignedClaim.sign(record, peer)


def next_round(ledger: Ledger, *, mean: bytes = b"mean") -> list[bytes]:
    """Return the entries of the next round: the claims that are not logged yet, in the table's order, and the round."""
    claims = [claim(ledger, peer) for peer in PEERS]
    digests = tuple(signed.digest for signed in claims)
    round_ = ledger.round + 1
    state = sha256(b"state %d" % round_)
    statement = Statement(ledger.run, round_, ledger.last_commit, table_digest(digests), sha256(mean), state)
    votes = tuple(sign_vote(statement, peer) for peer in PEERS[:2])  # two thirds
    entries = [claim_entry(signed) for signed in claims]
    return [entry for entry in entries if ledger.entry_index(entry) is None] + [round_entry(Round(statement, digests, votes))]


def grow(log: Log, rounds: int) -> None:
    """Commit that many rounds, each as one batch."""
    for _ in range(rounds):
        log.commit(next_round(log.ledger))


def opened_head(log: Log) -> TreeHead:
    """Return the published tree head, its signature checked."""
    name = origin(log.ledger.run, OPERATOR.public_key)
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
    """Append one entry or one batch at a time; print each acknowledged index with its leaf's digest, then the tree head's size and root."""
    with Log.open(directory, OPERATOR) as log:
        while True:
            entries = next_round(log.ledger)
            batch = entries if log.ledger.round % 2 else entries[:1]
            first = log.ledger.size
            log.commit(batch)
            head = opened_head(log)
            acknowledged = [f"{index}:{sha256(entry).hex()}" for index, entry in enumerate(batch, first)]
            print(head.size, head.root.hex(), *acknowledged, flush=True)


def hold(directory: Path, *, forks: bool) -> None:
    """Hold the log open until standard input ends, with ``forks`` beside a forked process that does nothing but live as long."""
    with Log.open(directory, OPERATOR):
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
