"""One manifest for every test that needs some run: each says only what it is about."""

from dataclasses import dataclass, replace
from typing import Any

from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.manifest import Manifest, Optimizer
from manta_swarm.protocol.signing import Identity, sha256

EXCHANGE = Exchange(
    codec="int16",
    residual_percent=100,
    local_steps=1,
    max_rows=8,
    target_batch=64,
    max_claim_samples=640,
    weight_cap=80,
    first_min_exponent=-32,
    first_open_ms=1_000,
    min_open_ms=100,
    max_open_ms=60_000,
)


@dataclass(frozen=True)
class FixedTrainingSpec:
    """A ``protocol.rewards.TrainingSpec`` that asks the same of everybody in every round."""

    prices: tuple[int, ...] = (10, 15)
    sorts: frozenset[int] = frozenset()  # rounds whose update reorders the weights
    roles: int = 1  # of a cohort: the last character of its name, modulo this

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        """Return the same prices always."""
        return self.prices

    def role(self, round: int, cohort: str) -> int:
        """Return what the cohort's name says."""
        return ord(cohort[-1]) % self.roles

    def sorts_after(self, round: int) -> bool:
        """Return what was asked for."""
        return round in self.sorts


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
        microbatch_samples=16,
        optimizer=Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0, outer_rate="0.9", outer_momentum="0.5"),
        initial_state=sha256(b"initial"),
        exchange=EXCHANGE,
        reward_pool=1_000,
        costs=(("r32", 10), ("k3", 5)),
        operators=(operator.public_key,),
        cohorts="token",
    )
    return replace(manifest, **changes)
