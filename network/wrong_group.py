"""A wrong group of a mean, as a proof that anybody can check by itself: the log committed a mean that its own table does not come to.

The proof has the round's receipt, what its contributions weigh, and of each body and of the mean the one group, under their roots. Whoever
repeats the arithmetic of ``codec`` finds another group than the log's. What a contribution weighs is the log's word here
(``Round.weights``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.coding import parse
from manta_swarm.codec.mean import group_mean, total_weights
from manta_swarm.codec.vectors import vector_group_sizes, vector_groups
from manta_swarm.network.blobs import ProvenPiece
from manta_swarm.protocol.errors import EncodingError, NothingProven, ProofError
from manta_swarm.protocol.exchange import GROUP_VALUES, MAX_AGE
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.records import Receipt, Round, commit_digest, entry_of, open_entry
from manta_swarm.protocol.signing import Digest, PublicKey
from manta_swarm.protocol.table import Weighed, open_weighed

# Which values a contribution covers, by the round after its base and its cohort; None: all.
Coverage = Callable[[int, str], NDArray[np.bool_] | None]


class RightGroup(NothingProven):
    """What would be a proof shows that all is right."""


@dataclass(frozen=True, slots=True)
class MeanShape:
    """What of a run's training its means depend on."""

    num_values: int  # N
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class WrongMean:
    """What a proof shows: whose log committed what."""

    run: Digest
    operators: tuple[PublicKey, ...]  # who signed its tree head
    round: int
    commit: Digest
    place: int  # of the group that is wrong
    differs: int  # values of the group that are others


@dataclass(frozen=True, slots=True)
class WrongGroup:
    """The proof that the log committed a wrong group of a mean."""

    manifest: SignedManifest
    receipt: Receipt  # of the round
    before: tuple[bytes, ...]  # entries of the rounds before it, the newest first: back to the oldest that a body of the table is on
    weights: bytes  # as they travel
    place: int  # of the group
    bodies: tuple[ProvenPiece, ...]  # the group of each contribution's body
    mean: ProvenPiece

    def __post_init__(self) -> None:
        if len(self.before) > MAX_AGE + 1 or self.place < 0:
            raise ValueError("too many rounds, or no place")

    def check(self, shape_of: Callable[[Manifest], MeanShape]) -> WrongMean:
        """Return what this proves.

        Args:
            shape_of: says what a manifest's means depend on.

        Raises:
            RightGroup: the group is what the table comes to.
            RemoteFault: it proves nothing: a part is not what it should be.
            OwnFault: this machine's arithmetic cannot be relied on.
        """
        manifest = self.manifest.open()
        run, operators = self.manifest.run, Operators.of(manifest, self.manifest.run)
        proven = open_round_receipt(self.receipt, operators)
        entry, shape = proven.round, shape_of(manifest)
        weighed = open_weighed(self.weights, entry)
        self._check_pieces(entry, weighed, shape.num_values)
        min_exponents = min_exponents_before(entry, [_opened(data, run) for data in self.before], manifest)
        try:
            right = mean_of_group(manifest, weighed, min_exponents, [each.data for each in self.bodies], self.place, shape)
        except (ValueError, KeyError) as error:
            raise ProofError(f"no group of a mean follows from this: {error}") from error
        if right == self.mean.data:
            raise RightGroup(f"group {self.place} of the mean of round {entry.round} is what its table comes to")
        own, theirs = np.frombuffer(right, "<u4"), np.frombuffer(self.mean.data, "<u4")
        return WrongMean(
            run, operators.signers(self.receipt.tree_head).in_order, entry.round, proven.commit, self.place, int((own != theirs).sum())
        )

    def _check_pieces(self, entry: Round, weighed: Sequence[Weighed], num_values: int) -> None:
        sizes = vector_group_sizes(num_values)
        if self.place >= len(sizes) or len(self.bodies) != len(weighed) or len(self.mean.data) != sizes[self.place]:
            raise ProofError("another number of bodies than of contributions, or no group of this run's means")
        self.mean.check(entry.mean, self.place, len(sizes))
        for one, piece in zip(weighed, self.bodies, strict=True):
            piece.check(one.body, self.place, len(sizes))


def min_exponents_before(entry: Round, before: Sequence[Round], manifest: Manifest) -> dict[int, int]:
    """Return the min exponents for bodies on the commits before ``entry``, by round, as far back as ``before`` goes, the newest first.

    Raises:
        ProofError: they are not the rounds before it.
    """
    min_exponents, later = {}, entry
    for earlier in before:
        if commit_digest(entry_of(earlier)) != later.base or earlier.round != later.round - 1:
            raise ProofError(f"no round that round {later.round} follows")
        min_exponents[earlier.round] = earlier.min_exponent
        later = earlier
    if later.round == 1:
        min_exponents[0] = manifest.exchange.first_min_exponent
    return min_exponents


def mean_of_group(
    manifest: Manifest,
    weighed: Sequence[Weighed],
    min_exponents: dict[int, int],
    groups: Sequence[bytes],
    place: int,
    shape: MeanShape,
) -> bytes:
    """Return a group of the mean that contributions come to, little-endian.

    Args:
        manifest: of the run.
        weighed: what each weighs in the mean.
        min_exponents: for bodies on the commits before, by round.
        groups: of their bodies.
        place: of the group.
        shape: what else the mean depends on.

    Raises:
        EncodingError: a group is none of a body.
        ValueError, KeyError: no table has these, or a min exponent is not known.
    """
    count = vector_group_sizes(shape.num_values)[place] // 4
    whole = [shape.coverage(one.round, one.cohort) for one in weighed]
    masks = [None if mask is None else mask[place * GROUP_VALUES :][:count] for mask in whole]
    bodies = [parse(manifest.exchange.codec, group, count) for group in groups]
    total = total_weights([one.weight for one in weighed], masks, count)
    mean = group_mean(bodies, [one.clipped for one in weighed], [min_exponents[one.round - 1] for one in weighed], masks, total)
    return bytes(vector_groups(mean)[0])


def _opened(data: bytes, run: bytes) -> Round:
    entry = open_entry(data)
    if not isinstance(entry, Round) or entry.run != run:
        raise EncodingError("not a round of this run")
    return entry
