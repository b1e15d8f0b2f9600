"""The run and the ledger that tests share."""

import pytest

from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest, Optimizer, SignedManifest
from manta_swarm.protocol.signing import Identity
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import ledger_of
from tests.runs import manifest_of


@pytest.fixture(scope="session")
def operator() -> Identity:
    return Identity(b"operator".ljust(32, b"."))


@pytest.fixture(scope="session")
def manifest(operator: Identity) -> Manifest:
    return manifest_of(
        operator,
        seed=7,
        optimizer=Optimizer("adamw", "0.002", "0.9", "0.999", "0.00000001", "0.01", 10, "0.9", "0.5"),
        costs=(("r32", 10), ("u0.0:k3e2", 5), ("u0.0:k5e3", 20)),
    )


@pytest.fixture(scope="session")
def signed_manifest(manifest: Manifest, operator: Identity) -> SignedManifest:
    return SignedManifest.sign(manifest, operator)


@pytest.fixture
def ledger() -> Ledger:
    """One that has a round behind it."""
    ledger = ledger_of()
    commit(ledger, [header_of(ledger, peer) for peer in PEERS[:2]])
    return ledger
