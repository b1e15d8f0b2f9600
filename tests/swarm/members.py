"""Peers of a small run, for tests that need no processes: identities, their manifest, claims, and a deadline for what runs in a loop."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from protocol.records import Claim, SignedClaim, SignedManifest
from protocol.signing import Identity, sha256
from tests.runs import manifest_of

DEADLINE_S = 60.0
OPERATOR = Identity(sha256(b"operator"))
PEERS = [Identity(sha256(b"peer %d" % i)) for i in range(8)]
MANIFEST = manifest_of(OPERATOR, target_batch=32, round_deadline_ms=60_000, attempt_timeout_ms=30_000)

_Result = TypeVar("_Result")


def sign(**changes: Any) -> SignedManifest:
    """Return the manifest, with changes, signed."""
    return SignedManifest.sign(replace(MANIFEST, **changes), OPERATOR)


def claim_of(peer: Identity, run: bytes, samples: int = 16, cohort: str = "home", round_: int = 1) -> SignedClaim:
    """Return a peer's claim for a round that builds on the run's start."""
    return SignedClaim.sign(Claim(run, round_, run, peer.public_key, cohort, (("r32 k3", samples),), 1, sha256(b"lots")), peer)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what ``work`` returns, in a loop of its own, within the deadline."""

    async def bounded() -> _Result:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


async def settle() -> None:
    """Let everything that can go on in this loop go on: nothing in memory needs time."""
    for _ in range(500):
        await asyncio.sleep(0)
