"""Contributions of an audited run whose lots were really trained, with all vectors that their claims name: for tests, in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from automl.training.auditing import lot_of
from automl.training.local import LocalSteps
from automl.training.schedule import Plan
from automl.training.update import State
from exact.coding import body_groups, encode, parse
from exact.residuals import Vector, given, left_over, near_mean, residual_digest, vector_digest
from protocol.encoding import pack
from protocol.evidence import Records
from protocol.exchange import codec_named
from protocol.ledger import Ledger
from protocol.lots import place_of_lot
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, LotRecord, SignedClaim, StepRecord
from protocol.signing import Identity
from swarm.blobs import Blob
from tests.aggregator.audits.real_lots import WORKER
from tests.aggregator.made import Made
from tests.claim_steps import steps_of
from tests.contributions import claim_of, listing

LOTS = 2  # of a step

Change = Callable[[Vector], Vector]


def noise(vector: Vector) -> Vector:
    """Return noise of the same norm."""
    values = np.random.default_rng(1).normal(size=len(vector))
    return (values * np.linalg.norm(vector) / np.linalg.norm(values)).astype(np.float32)


@dataclass
class Share:
    """What one member did, and what its claim names."""

    peer: Identity
    lots: list[LotRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    vectors: dict[bytes, Vector] = field(default_factory=dict)
    claim: SignedClaim | None = None

    def name(self, vector: Vector) -> bytes:
        """Return a vector's digest; it is kept."""
        digest = vector_digest(vector)
        self.vectors[digest] = vector
        return digest

    @property
    def records(self) -> Records:
        """What it says of its lots and steps."""
        return Records(tuple(self.lots), tuple(self.steps))


@dataclass(frozen=True)
class Together:
    """A contribution, and the work in it."""

    made: Made
    shares: tuple[Share, ...]


def worked(
    ledger: Ledger,
    peers: Sequence[Identity],
    state: State,
    *,
    of_mean: Change | None = None,
    of_body: Change | None = None,
    of_lots: Callable[[Share], None] = lambda _: None,
    residual: Vector | None = None,
) -> Together:
    """Train all of a round's local steps, as a cohort whose founder is the first; mean of the last step and body may be other ones.

    ``of_lots`` may change what the last member says of its lots. All of them add ``residual``.
    """
    manifest, plan, shares = ledger.manifest, Plan.of(ledger.manifest), tuple(map(Share, peers))
    steps, local = manifest.exchange.local_steps, LocalSteps(state, plan)
    learnt = list[Vector]()
    for step in range(steps):
        WORKER.load(local.weights)
        own = [_trained(ledger, plan, share, step) for share in shares]
        mean = near_mean(own, [LOTS * manifest.lot_samples] * len(own))
        if of_mean is not None and step == steps - 1:
            mean = of_mean(mean)
        if steps > 1:
            for share, vector in zip(shares, own, strict=True):
                named = (share.name(each) for each in (local.weights.numpy(), vector, mean))
                share.steps.append(StepRecord(step, LOTS * manifest.lot_samples, *named))
        local.step(torch.from_numpy(mean))
        learnt = own
    if steps > 1:
        learnt = [local.learnt().numpy()] * len(shares)
    of_lots(shares[-1])
    whole = [given(vector, residual, manifest.exchange.residual_percent) for vector in learnt]
    mean = near_mean(whole, [min(steps * LOTS * manifest.lot_samples, manifest.exchange.weight_cap)] * len(shares))
    return Together(_made(ledger, shares, learnt, mean if of_body is None else of_body(mean), residual), shares)


def _trained(ledger: Ledger, plan: Plan, share: Share, step: int) -> Vector:
    manifest, base, key = ledger.manifest, ledger.last_commit, share.peer.public_key
    round_ = ledger.round + 1
    asked, total = plan.architectures(round_, "here"), torch.zeros(WORKER.num_weights)
    claim = Claim(ledger.run, round_, base, key, key, key, "here", steps_of((1,), base, key), (1,), bytes(32), b"", bytes(32), b"", 10)
    for index in range(step * LOTS, (step + 1) * LOTS):
        record = LotRecord(step, index, asked[place_of_lot(len(asked), base, key, index)].text, manifest.lot_samples, "1", bytes(32))
        result = WORKER.train(lot_of(manifest, plan, claim, record))
        total.add_(result.gradient, alpha=result.samples)
        share.lots.append(replace(record, loss=f"{result.loss:.6g}", projection=result.projection))
    return (total / float(LOTS * manifest.lot_samples)).numpy()


def _made(ledger: Ledger, shares: Sequence[Share], learnt: Sequence[Vector], coded: Vector, residual: Vector | None) -> Made:
    codec, floor, founder = ledger.manifest.exchange.codec, ledger.floor_at(ledger.round), shares[0].peer
    steps = ledger.manifest.exchange.local_steps
    for share, vector in zip(shares, learnt, strict=True):
        changes = {"steps_root": root([leaf_hash(pack(record)) for record in share.steps])} if steps > 1 else {}
        lots_root, work = root([leaf_hash(pack(record)) for record in share.lots]), [0] * len(ledger.course.costs(ledger.round + 1, "here"))
        for lot in share.lots:
            work[place_of_lot(len(work), ledger.last_commit, share.peer.public_key, lot.index)] += 1
        used = b"" if residual is None else share.name(residual)
        named = {"founder": founder.public_key, "residual": used, "lots_root": lots_root, "vector": share.name(vector), **changes}
        share.claim = claim_of(ledger, share.peer, lots=tuple(work), **named)
    data = encode(codec, coded, floor)
    body = parse(codec, data, len(coded))
    left = residual_digest(left_over(coded, body, floor)) if codec_named(codec).is_sparse else b""
    claims = [share.claim for share in shares if share.claim is not None]
    header = listing(claims, founder, body=Blob.of(body_groups(codec, data, len(coded))).root, left=left)
    return Made(founder, header, data, len(coded), codec)
