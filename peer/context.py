"""What the parts of a peer share: what does not change while it is in a run, and where its work stands."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.log_client import LogClient, ProvenCommit
from manta_swarm.network.rpc import OwnNode
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.submit.promises import CountedContributions, Promises
from manta_swarm.peer.train.work import ClaimTerms, ComputeThread, Lap
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

_KEPT = MAX_AGE + 32  # commits: back to the oldest base of a table, and some that may come while a state is fetched over a slow line


@dataclass(frozen=True, slots=True)
class RunContext:
    """What does not change while a peer is in a run. Every part of the peer may have it."""

    node: OwnNode
    identity: Identity
    signed: SignedManifest
    manifest: Manifest  # what ``signed`` says
    training_spec: RunTrainingSpec  # what is trained, by the manifest
    num_weights: int  # N, of the supernet
    log: LogClient
    store: PeerStore
    live_status: LiveStatus
    blob_store: BlobStore
    compute: ComputeThread
    terms: ClaimTerms
    clock: Clock = SYSTEM_CLOCK

    @property
    def run(self) -> bytes:
        """The run's id."""
        return self.signed.run

    @property
    def key(self) -> PublicKey:
        """This peer's key."""
        return self.identity.public_key


class NewestCommits:
    """The newest commits of the log, with what proves them, and the min exponents that they set."""

    def __init__(self, manifest: Manifest) -> None:
        """Know of none but the min exponent at the run's start."""
        self._proven_commits: dict[int, ProvenCommit] = {}  # by round
        self._min_exponents: dict[int, int] = {0: manifest.exchange.first_min_exponent}  # by round

    def add(self, proven_commit: ProvenCommit) -> None:
        """Remember a commit that is newer than all others; the oldest go."""
        entry = proven_commit.proven.round
        self._proven_commits[entry.round] = proven_commit
        self._proven_commits = {round_: each for round_, each in self._proven_commits.items() if round_ > entry.round - _KEPT}
        self._min_exponents[entry.round] = entry.min_exponent
        self._min_exponents = {round_: min_exponent for round_, min_exponent in self._min_exponents.items() if round_ > entry.round - _KEPT}

    @property
    def min_exponents(self) -> Mapping[int, int]:
        """The min exponents by round."""
        return self._min_exponents

    def proven_commit(self, round_: int) -> ProvenCommit | None:
        """Return one of the newest commits with what proves it."""
        return self._proven_commits.get(round_)


@dataclass(slots=True)
class Progress:
    """Where a peer's work in a run stands. The session and the parts that do the work change it, in one event loop."""

    machine: RoundMachine  # decides what each event means
    promises: Promises  # contributions that have to be in tables
    commits: NewestCommits  # of the log
    pace: Pace = field(default_factory=Pace)  # how long things take
    lap: Lap = field(default_factory=Lap)  # where a round's time went
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a commit came, or the person wants to leave: look again
    leaving: asyncio.Event = field(default_factory=asyncio.Event)  # the person wants to leave, or the run is over

    @classmethod
    def at_start(cls, manifest: Manifest, machine: RoundMachine, log: CountedContributions) -> "Progress":
        """Return the progress of a peer that knows nothing of the run yet; ``log`` says later what rounds counted."""
        return cls(machine, Promises(log), NewestCommits(manifest))

    def open_ms(self, manifest: Manifest) -> int:
        """Return how long the round after the newest commit is open."""
        newest = self.machine.newest.entry
        return newest.open_ms if newest is not None else manifest.exchange.first_open_ms

    def is_looking_for(self, base: bytes) -> bool:
        """Return whether a contribution on a base may have come to be listed, which is not known yet."""
        return self.promises.is_looking_for(base)

    @property
    def newest_round(self) -> int:
        """The newest round that is known to be committed; 0 before the first one."""
        return self.machine.newest.round

    @property
    def held_round(self) -> int:
        """The round whose state is held; 0 before there is one."""
        return 0 if self.machine.held is None else self.machine.held.round
