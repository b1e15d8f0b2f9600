"""A run with a real supernet, whose rounds are made without training: random means, honest claims, votes. For the tests of this folder."""

from collections import Counter
from dataclasses import dataclass, replace

import torch

from aggregator.config import CodecSection, RoundSection, RunConfig, RunSection
from automl.data.digits import digits
from automl.schedule import Plan
from automl.update import State, initial_state, next_state, state_digest
from protocol.ledger import Ledger
from protocol.records import Claim, Manifest, Proposal, SignedClaim, SignedManifest, Statement, sign_vote, table_digest
from protocol.signing import Identity, sha256
from swarm import codec
from swarm.mean import Mean

OPERATOR = Identity(b"\x01" * 32)
STRANGER = Identity(b"\x03" * 32)
PEERS = sorted((Identity(bytes([seed]) * 32) for seed in (11, 12, 13)), key=lambda peer: peer.public_key)
CONFIG = RunConfig(
    run=RunSection(name="real", rounds=9),
    round=RoundSection(target_batch=3 * 4 * 32, lot_samples=32, deadline_s=3600),  # what the three peers claim together
    codec=CodecSection(cohort="fp32", swarm="fp32"),
)
SHRINKING = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"schedule": "shrinking"})})
DATASET = digits()
STATE = initial_state(CONFIG.plan(DATASET))
NUM_WEIGHTS = STATE.parameters.numel()


def signed_manifest(config: RunConfig = CONFIG) -> SignedManifest:
    """Return the manifest of a run that begins at ``STATE``."""
    return SignedManifest.sign(config.manifest(OPERATOR, state_digest(STATE), DATASET), OPERATOR)


def mean_of(values: torch.Tensor, codec_name: str = "fp32") -> Mean:
    """Return the mean with these values, in one piece."""
    data = codec.encode(codec_name, values)
    return Mean.join(codec_name, [data], [codec.decode(codec_name, data, values.numel())])


def some_mean(seed: int, codec_name: str = "fp32") -> Mean:
    """Return a mean of small numbers; another seed makes it another one."""
    return mean_of(torch.randn(NUM_WEIGHTS, generator=torch.Generator().manual_seed(seed)) / 100, codec_name)


def claim(ledger: Ledger, peer: Identity, round_: int | None = None, *, lots: bytes = b"lots") -> SignedClaim:
    """Return an honest claim of one lot of each of the round's architectures."""
    manifest = ledger.manifest
    round_ = round_ or ledger.round + 1
    last_commit = ledger.commit_at(round_ - 1) if round_ > 1 else ledger.run
    assert last_commit is not None
    lots_of = Counter(one.text for one in Plan.of(manifest).architectures(round_, "here"))  # in a full phase roles may coincide
    work = tuple((name, count * manifest.lot_samples) for name, count in sorted(lots_of.items()))
    return SignedClaim.sign(Claim(ledger.run, round_, last_commit, peer.public_key, "here", work, lots_of.total(), sha256(lots)), peer)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a group would hand in for the next round, before it votes."""

    statement: Statement
    claims: tuple[SignedClaim, ...]
    mean: Mean
    state: State

    def proposal(self, voters: int = len(PEERS), **lies: bytes) -> Proposal:
        """Return the proposal with that many votes; ``lies`` take the place of parts of the statement."""
        statement = replace(self.statement, **lies)  # type: ignore[arg-type]
        return Proposal(statement, self.claims, tuple(sign_vote(statement, peer) for peer in PEERS[:voters]))


def attempt(ledger: Ledger, state: State, *, seed: int = 0, claims: tuple[SignedClaim, ...] | None = None) -> Attempt:
    """Return an honest attempt at the next round, on top of ``state``."""
    manifest: Manifest = ledger.manifest
    mean = some_mean(seed, manifest.swarm_codec)
    after = next_state(state, mean.values, Plan.of(manifest))
    claims = claims or tuple(claim(ledger, peer) for peer in PEERS)
    table = table_digest(tuple(one.digest for one in claims))
    statement = Statement(ledger.run, ledger.round + 1, ledger.last_commit, table, mean.digest, state_digest(after))
    return Attempt(statement, claims, mean, after)
