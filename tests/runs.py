"""One manifest for every test that needs some run: each says only what it is about."""

from dataclasses import replace
from typing import Any

from protocol.records import Manifest, Optimizer
from protocol.signing import Identity, sha256


def manifest_of(operator: Identity, **changes: Any) -> Manifest:
    """Return the manifest of a small run of ``operator``, with changes."""
    manifest = Manifest(
        name="test",
        task="classification",
        dataset="digits",
        data_digest=sha256(b"data"),
        supernet="classifier-tiny",
        seed=0,
        algorithm="data-parallel",
        schedule="sandwich",
        num_rounds=4,
        target_batch=64,
        lot_samples=16,
        max_claim_samples=80,
        round_deadline_ms=1_000,
        attempt_timeout_ms=1_000,
        optimizer=Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0),
        initial_state=sha256(b"initial"),
        cohort_codec="fp32",
        swarm_codec="fp16",
        reward_pool=1_000,
        costs=(("r32", 10), ("k3", 5)),
        operators=(operator.public_key,),
    )
    return replace(manifest, **changes)
