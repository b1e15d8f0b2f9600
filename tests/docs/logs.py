"""Small logs for the tests of the documents: of a real supernet, whose rounds are made without training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.protocol.admission import PEER, Admission, Invitation, Revocation
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import paid_once
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.reputation import Audit
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import Outcome, Settlement, Verdict
from manta_swarm.protocol.verified import Verified
from tests.contributions import PEERS, cohort_header_of, header_of, in_order, round_of, with_contribution
from tests.runs import EXCHANGE, manifest_of

OPERATOR, STRANGER, SECRET = Identity(b"\x01" * 32), Identity(b"\x03" * 32), Identity(b"\x21" * 32)
AUDITORS = tuple(sorted((Identity(bytes([seed]) * 32) for seed in (31, 32, 33)), key=lambda auditor: auditor.public_key))
ONE, TWO, THREE = PEERS[:3]
WIDE = replace(EXCHANGE, max_claim_samples=2**20, weight_cap=1000)
Entries = list[bytes]

_KNOWN = Verified(2**16)  # what several logs have in common is verified once


@dataclass
class Log:
    """A log that holds so far, as its entries."""

    signed: SignedManifest
    entries: Entries = field(default_factory=list)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        entries, self.entries = self.entries, []
        self.ledger = Ledger(self.signed, RunTrainingSpec(self.signed.open()), _KNOWN)
        self.append(entries)

    def until(self, count: int | None = None) -> "Log":
        """Return the log of the first so many entries; None: of all."""
        return Log(self.signed, self.entries[:count])

    def header(self, peer: Identity = ONE, **changes: Any) -> Header:
        """Return what a peer hands in for the next round: a microbatch of each architecture in each step."""
        return header_of(self.ledger, peer, **{"microbatches": self.microbatches(**changes), **changes})

    def cohort(self, members: Sequence[Identity] = (ONE, TWO, THREE), **changes: Any) -> Header:
        """Return what a cohort hands in for the next round; the first member founds it."""
        return cohort_header_of(self.ledger, members, **{"microbatches": self.microbatches(**changes), **changes})

    def microbatches(self, **changes: Any) -> tuple[int, ...]:
        """Return a microbatch of each architecture in each step."""
        round_ = min(changes.get("round") or self.ledger.round + 1, self.ledger.manifest.num_rounds)
        return (self.ledger.manifest.exchange.local_steps,) * len(self.ledger.training_spec.costs(round_, changes.get("cohort", "here")))

    def append(self, entries: Iterable[bytes]) -> None:
        """Append entries that hold."""
        for entry in entries:
            self.ledger.append(entry)
            self.entries.append(entry)

    def round(self, headers: Iterable[Header], verdicts: Iterable[Signed[Verdict]] = (), **lies: Any) -> Entries:
        """Return the entries of the next round of these, which hold but for ``lies``."""
        before, table = in_digest_order(verdicts), in_order(headers)
        listed = paid_once([self.ledger.listed(header, self.ledger.round + 1) for header in table])
        return [*before, *map(entry_of, table), entry_of(round_of(self.ledger, listed, before=len(before), **lies))]

    def grow(self, rounds: int = 1, peers: Sequence[Identity] = (ONE, TWO, THREE)) -> None:
        """Append rounds of these peers, each alone."""
        for _ in range(rounds):
            self.append(self.round([self.header(peer) for peer in peers]))

    def audit(self, peer: Identity, round: int | None = None) -> Audit:
        """Return the audit of what lists a peer's claim in a round; None: in the newest whose beacon is there."""
        of_round = self.ledger.round - 1 if round is None else round
        return next(
            audit for audit in self.ledger.reputation.audits.values() if audit.round == of_round and peer.public_key in audit.work.keys
        )

    def verdict(
        self, peer: Identity, *outcomes: Outcome, auditor: Identity | None = None, round: int | None = None, **changes: Any
    ) -> Signed[Verdict]:
        """Return an auditor's word on what lists a peer's claim, by default that of the one drawn that all is good."""
        audit = self.audit(peer, round)
        auditor = auditor or next(each for each in AUDITORS if each.public_key == audit.auditor)
        said = tuple(map(int, outcomes)) or (0,) * len(audit.work.keys)
        verdict = Verdict(self.ledger.run, auditor.public_key, audit.round, audit.work.contribution, said, auditor.public_key)
        return Signed.sign(replace(verdict, **changes), auditor)

    def settlement(self, **lies: Any) -> bytes:
        """Return the entry that ends an audited run."""
        return entry_of(replace(Settlement(self.ledger.run, self.ledger.last_commit), **lies))

    def admission(self, peer: Identity, *, operator: Identity = OPERATOR, secret: Identity = SECRET, **changes: Any) -> bytes:
        """Return the entry by which a peer comes in, by an invitation for eight keys with changes."""
        invitation = replace(Invitation(self.ledger.run, operator.public_key, secret.public_key, 8, 9, "member"), **changes)
        return entry_of(Signed.sign(Admission(Signed.sign(invitation, operator), peer.public_key), secret))

    def revocation(self, target: Identity, what: str = PEER, *, operator: Identity = OPERATOR, **changes: Any) -> bytes:
        """Return the entry by which a key, or an invitation, is taken back."""
        revocation = replace(Revocation(self.ledger.run, operator.public_key, what, target.public_key), **changes)
        return entry_of(Signed.sign(revocation, operator))


def log_of(rounds: int = 0, **changes: Any) -> Log:
    """Return a log of so many rounds of a small run with these changes of its manifest."""
    costs = cost_table(space_named(changes.get("supernet", "classifier-tiny")))
    manifest = manifest_of(OPERATOR, **{"costs": costs, "num_rounds": 12, "exchange": WIDE, **changes})
    log = Log(SignedManifest.sign(manifest, OPERATOR))
    log.grow(rounds)
    return log


def tree_of(entries: Iterable[bytes]) -> Tree:
    """Return the tree over entries."""
    tree = Tree()
    for entry in entries:
        tree.append(leaf_hash(entry))
    return tree


def head_of(entries: Iterable[bytes], run: bytes, signer: Identity = OPERATOR) -> str:
    """Return the signed head of a log of these entries."""
    tree, name = tree_of(entries), origin(run)
    return sign_tree_head(TreeHead(name, tree.size, tree.root()), name, signer)


def in_digest_order(verdicts: Iterable[Signed[Verdict]]) -> Entries:
    """Return the entries of verdicts as they stand before a round."""
    return [entry_of(verdict) for verdict in sorted(verdicts, key=lambda verdict: verdict.digest)]


def resigned(header: Header, signer: Identity, place: int = 0, **changes: Any) -> Header:
    """Return the header with one of its claims changed and signed by ``signer``, and so a contribution of other claims."""
    claims = list(header.claims)
    claims[place] = Signed.sign(replace(claims[place].open(), **changes), signer)
    founder = next(peer for peer in PEERS if peer.public_key == header.contribution.open().founder)
    return with_contribution(replace(header, claims=tuple(claims)), founder, claims=tuple(claim.digest for claim in claims))
