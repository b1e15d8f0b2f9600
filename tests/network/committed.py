"""Rounds that a log committed, for tests of what follows from them: a table of random bodies, its mean, its receipt; true or false."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.coding import body_groups, encode, parse
from manta_swarm.codec.mean import TableMean, table_mean
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.network.blobs import Blob
from manta_swarm.network.wrong_group import MeanShape, WrongGroup
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import ProvenRound, open_round_receipt
from manta_swarm.protocol.records import Receipt, Round, commit_digest, entry_of
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.table import Weighed, Weighing, weighed_bytes, weights_root
from tests.runs import EXCHANGE, manifest_of

OPERATOR = Identity(sha256(b"operator"))
NUM_VALUES = 2 * 262_144 + 5000  # three groups
ROUND = 7


@dataclass(frozen=True)
class Committed:
    """A round, and all that it follows from."""

    signed: SignedManifest
    receipt: Receipt
    entry: Round
    before: tuple[Round, ...]  # the newest first
    weighed: tuple[Weighed, ...]
    table_mean: TableMean
    bodies: tuple[Blob, ...]
    mean: Blob

    @property
    def proven(self) -> ProvenRound:
        return open_round_receipt(self.receipt, Operators(self.signed.run, (OPERATOR.public_key,), 1))

    @property
    def weights(self) -> bytes:
        return weighed_bytes(self.weighed)

    def proof(self, place: int) -> WrongGroup:
        """Return what would prove a group of the mean wrong."""
        return WrongGroup(
            self.signed,
            self.receipt,
            tuple(map(entry_of, self.before)),
            self.weights,
            place,
            tuple(blob.proven(place) for blob in self.bodies),
            self.mean.proven(place),
        )


def receipt_of(entry: Round, signer: Identity = OPERATOR) -> Receipt:
    """Return the receipt of a round in a log that has some entries beside it."""
    tree = Tree()
    for data in (b"one", b"two", entry_of(entry), b"three"):
        tree.append(leaf_hash(data))
    name = origin(entry.run)
    note = sign_tree_head(TreeHead(name, tree.size, tree.root()), name, signer)
    return Receipt(entry_of(entry), 2, tuple(tree.inclusion_proof(2)), note)


def coverage(_round: int, cohort: str) -> NDArray[np.bool_] | None:
    """Return what contributions cover, by the name of their cohort: all, or two of three values."""
    return None if cohort == "whole" else np.arange(NUM_VALUES) % 3 != len(cohort) % 3


def shape_of(_manifest: Manifest) -> MeanShape:
    return MeanShape(NUM_VALUES, coverage)


def commit(
    ages: Sequence[int],
    *,
    codec: str = "topk-256-4",
    cohorts: Sequence[str] = ("whole",),
    round_: int = ROUND,
    wrong: dict[int, float] | None = None,
    signer: Identity = OPERATOR,
    **changes: Any,
) -> Committed:
    """Return a round whose contributions have these ages.

    Args:
        ages: of each.
        codec: of the bodies.
        cohorts: of them, over and over.
        round_: its number.
        wrong: values of the mean that the log says are others, by their place.
        signer: of the receipt.
        changes: of the round's entry.
    """
    signed = SignedManifest.sign(manifest_of(OPERATOR, num_rounds=100, exchange=replace(EXCHANGE, codec=codec, max_rows=64)), OPERATOR)
    run, first_min_exponent = signed.run, signed.open().exchange.first_min_exponent
    history = [_round(run, 1, run, -30)]
    for number in range(2, round_):
        history.append(_round(run, number, commit_digest(entry_of(history[-1])), -30 - number % 3))
    history = history if round_ > 1 else []
    min_exponents_at = {0: first_min_exponent, **{each.round: each.min_exponent for each in history}}
    rng, bodies, weighing = np.random.default_rng(1), list[Blob](), list[Weighing]()
    for number, age in enumerate(ages):
        values = rng.standard_normal(NUM_VALUES, dtype=np.float32) / 100
        data = encode(codec, values, min_exponents_at[round_ - 1 - age])
        bodies.append(Blob.of(body_groups(codec, data, NUM_VALUES)))
        weighing.append(Weighing(age, 0, 16 + number))
    names = [cohorts[number % len(cohorts)] for number in range(len(ages))]
    masks = [coverage(0, name) for name in names]
    min_exponents = [min_exponents_at[round_ - 1 - age] for age in ages]
    parsed = [parse(codec, blob.join(), NUM_VALUES) for blob in bodies]
    found = table_mean(weighing, parsed, min_exponents, (), min_exponents_at[round_ - 1], NUM_VALUES, masks)
    weighed = tuple(
        Weighed(blob.root, round_ - age, name, weight, clipped)
        for blob, age, name, weight, clipped in zip(bodies, ages, names, found.weights, found.clipped, strict=True)
    )
    mean = found.mean.copy()
    for place, value in (wrong or {}).items():
        mean[place] = value
    blob = Blob.of(vector_groups(mean))
    base = commit_digest(entry_of(history[-1])) if history else run
    entry = replace(
        _round(run, round_, base, found.min_exponent),
        contributions=len(weighed),
        weights=weights_root(weighed),
        mean=blob.root,
        **changes,
    )
    oldest = round_ - 1 - max(ages)
    before = tuple(each for each in reversed(history) if each.round >= max(oldest, 1))
    return Committed(signed, receipt_of(entry, signer), entry, before, weighed, found, tuple(bodies), blob)


def _round(run: bytes, number: int, base: bytes, min_exponent: int) -> Round:
    any_ = sha256(b"%d" % number)
    return Round(run, number, base, 0, 1, any_, any_, any_, (), min_exponent, 1000)
