"""The run that the ledger's and the records' tests share. No example of hypothesis has a deadline: a busy machine is no failure."""

import pytest
from hypothesis import settings

from protocol.records import Manifest, Optimizer, SignedManifest
from protocol.signing import Identity

settings.register_profile("manta", deadline=None)
settings.load_profile("manta")


@pytest.fixture(scope="session")
def operator() -> Identity:
    return Identity(b"operator".ljust(32, b"."))


@pytest.fixture(scope="session")
def manifest(operator: Identity) -> Manifest:
    return Manifest(
        name="test",
        task="classification",
        dataset="digits",
        data_digest=b"d" * 32,
        supernet="classifier-tiny",
        seed=7,
        algorithm="data-parallel",
        num_rounds=3,
        target_batch=64,
        lot_samples=16,
        max_claim_samples=100,
        round_deadline_ms=10_000,
        attempt_timeout_ms=5_000,
        optimizer=Optimizer("adamw", "0.002", "0.9", "0.999", "0.00000001", "0.01", 10),
        initial_state=b"s" * 32,
        cohort_codec="fp32",
        swarm_codec="fp16",
        reward_pool=1000,
        costs=(("r32", 10), ("u0.0:k3e2", 5), ("u0.0:k5e3", 20)),
        operators=(operator.public_key,),
    )


@pytest.fixture(scope="session")
def signed_manifest(manifest: Manifest, operator: Identity) -> SignedManifest:
    return SignedManifest.sign(manifest, operator)
