"""Peers of a small run, for tests that need no processes: identities, their manifest, claims, and a deadline for what runs in a loop."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from protocol.records import Claim, Manifest, Optimizer, SignedClaim, SignedManifest
from protocol.signing import Identity, sha256

DEADLINE_S = 60.0
OPERATOR = Identity(sha256(b"operator"))
PEERS = [Identity(sha256(b"peer %d" % i)) for i in range(8)]
MANIFEST = Manifest(
    name="test",
    task="classification",
    dataset="digits",
    data_digest=sha256(b"data"),
    supernet="classifier-tiny",
    seed=0,
    algorithm="data-parallel",
    num_rounds=4,
    target_batch=32,
    lot_samples=16,
    max_claim_samples=80,
    round_deadline_ms=60_000,
    attempt_timeout_ms=30_000,
    optimizer=Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0),
    initial_state=sha256(b"initial"),
    cohort_codec="fp32",
    swarm_codec="fp16",
    reward_pool=1_000,
    costs=(("r32", 10), ("k3", 5)),
    operators=(OPERATOR.public_key,),
)

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
