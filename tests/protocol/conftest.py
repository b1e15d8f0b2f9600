"""The run that the ledger's and the records' tests share. No example of hypothesis has a deadline: a busy machine is no failure."""

import pytest
from hypothesis import settings

from protocol.records import Manifest, Optimizer, SignedManifest
from protocol.signing import Identity
from tests.runs import manifest_of

settings.register_profile("manta", deadline=None)
settings.load_profile("manta")


@pytest.fixture(scope="session")
def operator() -> Identity:
    return Identity(b"operator".ljust(32, b"."))


@pytest.fixture(scope="session")
def manifest(operator: Identity) -> Manifest:
    return manifest_of(
        operator,
        seed=7,
        num_rounds=3,
        max_claim_samples=100,
        optimizer=Optimizer("adamw", "0.002", "0.9", "0.999", "0.00000001", "0.01", 10),
        costs=(("r32", 10), ("u0.0:k3e2", 5), ("u0.0:k5e3", 20)),
    )


@pytest.fixture(scope="session")
def signed_manifest(manifest: Manifest, operator: Identity) -> SignedManifest:
    return SignedManifest.sign(manifest, operator)
