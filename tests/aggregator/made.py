"""Contributions with bodies, as a peer makes them, and a clock that the test moves. For the tests of this folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.aggregator.intake.bodies import StoredContribution
from manta_swarm.codec.coding import Body, body_groups, encode, parse
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import Digest, Identity
from tests.contributions import cohort_header_of, header_of

CODEC = "int16"


@dataclass(frozen=True, slots=True)
class Made:
    """What a peer hands in."""

    peer: Identity
    header: Header
    body: bytes
    count: int  # values
    codec: str = CODEC

    @property
    def digest(self) -> Digest:
        """What inclusion promises name it by."""
        return self.header.contribution.digest

    @property
    def groups(self) -> list[memoryview]:
        """The body as it is sent."""
        return body_groups(self.codec, self.body, self.count)

    @property
    def kept(self) -> StoredContribution:
        """The same as it is stored."""
        return StoredContribution(self.header, self.body)

    @property
    def parsed(self) -> Body:
        """The body as it is summed up."""
        return parse(self.codec, self.body, self.count)


@lru_cache(maxsize=24)  # rounds of one test after the other begin alike
def values_of(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Return a vector of small numbers, for all who ask for it; another seed makes it another one."""
    values = (np.random.default_rng(seed).standard_normal(count) / 100).astype(np.float32)
    values.flags.writeable = False
    return values


def made_of(ledger: Ledger, peer: Identity, values: NDArray[np.float32], *, round: int | None = None, **changes: Any) -> Made:
    """Return what ``peer`` alone hands in; the other arguments are those of ``header_of``."""
    round = ledger.round + 1 if round is None else round
    body, root = _coded(ledger, values, round)
    return Made(peer, header_of(ledger, peer, round=round, **{"body": root, **changes}), body, values.size, codec_of(ledger))


def made_of_cohort(
    ledger: Ledger, members: Sequence[Identity], values: NDArray[np.float32], *, round: int | None = None, **changes: Any
) -> Made:
    """Return what the first of ``members``, whom the others' claims name, hands in for all; the other arguments as ``cohort_header_of``."""
    round = ledger.round + 1 if round is None else round
    body, root = _coded(ledger, values, round)
    header = cohort_header_of(ledger, members, round=round, **{"body": root, **changes})
    return Made(members[0], header, body, values.size, codec_of(ledger))


def codec_of(ledger: Ledger) -> str:
    """Return the codec of a run."""
    return ledger.manifest.exchange.codec


def _coded(ledger: Ledger, values: NDArray[np.float32], round: int) -> tuple[bytes, bytes]:
    """Return the body of values that were learnt for a round, and its root."""
    codec = codec_of(ledger)
    body = encode(codec, values, ledger.min_exponent_at(round - 1))
    return body, Blob.of(body_groups(codec, body, values.size)).root


class Clock:
    """The time that the log's parts see, in milliseconds; it stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now

    def now_ms(self) -> float:
        return self.now

    def now_s(self) -> float:
        return self.now / 1000

    def unix_ms(self) -> int:
        return self.now
