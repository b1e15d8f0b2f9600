"""A log in memory whose contributions are audited: peers that bring, operators' services, auditors whose result is what a test wants."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from manta_swarm.aggregator.features.audits.assignments import AssignmentsService
from manta_swarm.aggregator.features.audits.brought import Audited, BroughtVectors
from manta_swarm.codec.residuals import Vector, vector_digest
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.vectors import VectorsFolder, serve_vectors
from manta_swarm.peer.features.audit.auditor import AGAIN_PERCENT, AuditContext, Auditor, Volunteers
from manta_swarm.peer.features.audit.bringing import Bringing
from manta_swarm.peer.features.audit.computing import AskAudit, AuditAnswer, AuditAnswerKind
from manta_swarm.peer.features.audit.fetching import Fetching
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.auditing import MAX_SIGNED_VERDICT_BYTES, PAGE_BYTES, VERDICT
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.records import ClaimStep, Contribution, Header, StepMean
from manta_swarm.protocol.reputation import PayableWork, Pools, Reputation
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest, Identity, PublicKey, sha256
from manta_swarm.protocol.verdicts import AuditRules, Outcome, Verdict
from manta_swarm.runtime.console import PrintingConsole
from tests.claim_steps import all_of
from tests.clocks import ManualClock
from tests.network.virtual_time import LoopClock
from tests.protocol.record_samples import BASE, CLAIM, RUN

OPERATORS = [Identity(sha256(b"operator %d" % number)) for number in range(4)]
AUDITORS = [Identity(sha256(b"auditor %d" % number)) for number in range(4)]
A, B, C, V = (Identity(sha256(name.encode())) for name in ("peer a", "peer b", "peer c", "volunteer"))
NUM_WEIGHTS = PAGE_BYTES // 4 + 1000  # two pages
KEPT_ROUNDS, PENDING_ROUNDS = 6, 20


def vector(name: str) -> Vector:
    """Return the vector of a name."""
    return np.random.default_rng(list(name.encode())).standard_normal(NUM_WEIGHTS).astype(np.float32)


def header_of(members: list[Identity], *, steps: int = 1, residual: bool = False, name: str = "") -> Header:
    """Return what a cohort hands in; the first member founds it. ``name`` begins the names of its vectors (``vector``)."""
    claims = []
    for member in sorted(members, key=lambda each: each.public_key):
        short = member.public_key.hex()[:8]
        own = tuple(ClaimStep(10 * step, 10 * step + 2, (), vector_digest(vector(f"{name} own {short} {step}"))) for step in range(steps))
        claim = replace(
            CLAIM,
            run=RUN,
            key=member.public_key,
            payout=member.public_key,
            founder=members[0].public_key,
            work=(3 * steps, 0, 0),
            residual=vector_digest(vector(f"{name} residual {short}")) if residual else b"",
            steps=own,
        )
        claims.append(Signed.sign(claim, member))
    means = tuple(StepMean(vector_digest(vector(f"{name} mean {step}")), 2 ** len(claims) - 1) for step in range(steps))
    digests = tuple(signed.digest for signed in claims)
    contribution = Contribution(RUN, 3, BASE, members[0].public_key, digests, all_of(claims), means, sha256(name.encode()), b"")
    return Header(Signed.sign(contribution, members[0]), tuple(claims))


@dataclass(slots=True)
class Scripted:
    """Says what it is told to say; implements ``peer.features.audit.computing.Computing``."""

    scene: "Scene"
    answers: list[AuditAnswer] = field(default_factory=list)  # in turn; then all is good
    asked: list[AskAudit] = field(default_factory=list)
    loaded: int = 0  # times that it was given weights
    is_closed: bool = False

    async def load(self, weights: torch.Tensor, teacher: torch.Tensor | None) -> None:
        """Take note that there were some."""
        self.loaded += 1

    async def answer(self, ask: AskAudit) -> AuditAnswer:
        """Say that a microbatch is done."""
        self.asked.append(ask)
        return AuditAnswer(AuditAnswerKind.WORKING, (), 0, "", 10)

    async def go_on(self) -> AuditAnswer:
        """Return the next answer."""
        if self.answers:
            return self.answers.pop(0)
        return AuditAnswer(AuditAnswerKind.DONE, (0,) * len(self.asked[-1].header.claims), 0, "", 10)

    async def close(self) -> None:
        """Be closed."""
        self.is_closed = True


class Scene:
    """One run with one operator or several, each of which has the whole log."""

    def __init__(self, directory: Path, *, operators: int = 1, auditors: int = 1, proven: tuple[Identity, ...] = (A, B, C, V)) -> None:
        self.directory = directory
        self.network = MemoryNetwork()
        named = tuple(sorted(each.public_key for each in AUDITORS[:auditors]))
        self.rules = AuditRules(
            named, tuple(sorted(each.public_key for each in proven)), 2, 100, 100, kept_rounds=KEPT_ROUNDS, pending_rounds=PENDING_ROUNDS
        )
        self._reputation = Reputation(self.rules, Pools(1000, 100))
        self.headers: dict[bytes, Header] = {}
        self.residuals: dict[bytes, bytes] = {}  # by key: what its last listed contribution left it
        self.waiting: list[Verdict] = []  # before the next round
        self.max_bytes = 1 << 30
        self.is_finished = False
        self.operators = OPERATORS[:operators]
        self.brought: dict[bytes, BroughtVectors] = {}
        self.services: dict[bytes, AssignmentsService] = {}
        self.faults = CallerFaults(ManualClock())
        for operator in self.operators:
            self.network.endpoint(PublicKey(operator.public_key))

    async def open(self) -> None:
        """Let the operators answer."""
        for operator in self.operators:
            endpoint = self.network.endpoints[PublicKey(operator.public_key)]
            directory = self.directory / operator.public_key.hex()[:8]
            brought = BroughtVectors(
                directory, self, num_weights=NUM_WEIGHTS, max_bytes=self.max_bytes, faults=self.faults, clock=LoopClock()
            )
            service = AssignmentsService(brought, self, self.faults)
            self.brought[operator.public_key], self.services[operator.public_key] = brought, service
            await brought.serve(endpoint)
            await service.serve(endpoint)
            await serve_vectors(endpoint, brought.folder)
            await endpoint.serve(VERDICT, self.take)

    # What services are told (``aggregator.features.audits.brought.Facts``).

    @property
    def run(self) -> bytes:
        return RUN

    @property
    def reputation(self) -> Reputation:
        return self._reputation

    def header(self, round: int, contribution: bytes) -> Header:
        del round
        return self.headers[contribution]

    def beacon(self, round: int) -> bytes:
        return sha256(b"commit %d" % (round + 1))

    def base(self, round: int) -> tuple[bytes, int]:
        return sha256(b"state %d" % (round - 1)), -20

    async def left(self, audited: Audited) -> tuple[bool, ...]:
        return tuple(claim.residual == self.residuals.get(claim.key, claim.residual) for claim in audited.claims)

    async def take(self, _caller: PublicKey, request: bytes) -> bytes:
        """Take a verdict, as ``aggregator.intake.verdicts`` does."""
        verdict = unpack(Signed[Verdict], request, max_bytes=MAX_SIGNED_VERDICT_BYTES).open()
        self._reputation.check(verdict)
        if any((one.auditor, one.contribution) == (verdict.auditor, verdict.contribution) for one in self.waiting):
            raise LedgerError("said already")
        self.waiting.append(verdict)
        return b""

    # Rounds.

    def turn(self, *headers: Header) -> int:
        """Commit a round with these contributions; return its number."""
        round_ = self._reputation.round + 1
        works = []
        for header in headers:
            contribution = header.contribution.open()
            claims = [signed.open() for signed in header.claims]
            keys = tuple(claim.key for claim in claims)
            self.headers[header.contribution.digest] = header
            proven = tuple(self._reputation.is_proven(key) for key in keys)
            works.append(PayableWork(header.contribution.digest, keys, keys, (1,) * len(keys), 3 * len(keys), proven))
            del contribution
        verdicts, self.waiting = self.waiting, []
        self._reputation.turn(round_, sha256(b"commit %d" % round_), verdicts, works)
        for service in self.services.values():
            service.committed()
        return round_

    # Who takes part.

    def endpoint(self, identity: Identity) -> MemoryEndpoint:
        """Return a node's endpoint, the same one each time."""
        key = PublicKey(identity.public_key)
        return self.network.endpoints.get(key) or self.network.endpoint(key)

    def line(self, identity: Identity) -> OperatorLine:
        """Return a node's line to the operators."""
        keys = tuple(each.public_key for each in self.operators)
        return OperatorLine(self.endpoint(identity), Operators(Digest(RUN), keys, len(keys) // 2 + 1))

    def peer(self, identity: Identity, header: Header, *, names: list[str]) -> "Peer":
        """Return a peer that has the vectors of these names, of one contribution."""
        return Peer(self, identity, header, names)

    def auditor(
        self, identity: Identity, *answers: AuditAnswer, again_percent: int = AGAIN_PERCENT, max_bytes: int = 1 << 30
    ) -> tuple[Auditor, Scripted]:
        """Return an auditor whose computing answers so, with room for so many bytes of what was brought."""
        scripted = Scripted(self, list(answers))
        folder = self.directory / f"auditor-{identity.public_key.hex()[:8]}"

        line, fetched = self.line(identity), VectorsFolder(folder / "fetched", kept_rounds=1000, max_bytes=max_bytes)
        live_status = LiveStatus(PeerStore(folder), PeerStatus("12D", "k", "r", "n", "c", "cpu", 9), PrintingConsole())
        auditor = Auditor(
            AuditContext(identity, RUN, self.rules, line, live_status),
            _Host(self, scripted),
            Fetching(self.endpoint(identity), line, fetched, 4 * NUM_WEIGHTS),
            Volunteers(folder / "distrusted", again_percent),
        )
        auditor.limit(100, 100)
        return auditor, scripted


class _Host:
    """The peer of an auditor; implements ``peer.features.audit.auditor.AuditHost``."""

    def __init__(self, scene: Scene, scripted: Scripted) -> None:
        self.scene = scene
        self.scripted = scripted

    @property
    def newest_round(self) -> int:
        return self.scene.reputation.round

    @property
    def is_finished(self) -> bool:
        return self.scene.is_finished

    async def parameters(self, state: bytes) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.zeros(4), None

    async def body(self, root: bytes) -> bytes:
        return b"body"

    async def start(self) -> Scripted:
        return self.scripted


class Rounds:
    """Where a peer stands in the scene's run; implements ``peer.features.audit.bringing.Rounds``."""

    def __init__(self, scene: Scene, looked_for: Sequence[bytes] = ()) -> None:
        self.scene = scene
        self.looked_for = looked_for

    @property
    def newest_round(self) -> int:
        return self.scene.reputation.round

    def is_looking_for(self, base: bytes) -> bool:
        return base in self.looked_for


class Peer:
    """One that handed in a contribution."""

    def __init__(self, scene: Scene, identity: Identity, header: Header, names: list[str]) -> None:
        folder = scene.directory / f"peer-{identity.public_key.hex()[:8]}"
        self.identity = identity
        self.scene = scene
        self.base = header.contribution.open().base
        self.vectors = VectorsFolder(folder / "vectors", kept_rounds=1000, max_bytes=1 << 30)
        for name in names:
            self.vectors.keep(3, self.base, vector_digest(vector(name)), vector(name))
        self.bringing = self.again()

    def again(self) -> Bringing:
        """Return its bringing, begun anew."""
        folder = self.scene.directory / f"peer-{self.identity.public_key.hex()[:8]}"
        endpoint, line = self.scene.endpoint(self.identity), self.scene.line(self.identity)
        self.bringing = Bringing(endpoint, line, self.vectors, folder, Rounds(self.scene), kept_rounds=KEPT_ROUNDS)
        return self.bringing


def run(work: Awaitable[None]) -> None:
    """Run a scene within a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def good(count: int = 1) -> AuditAnswer:
    """Return what computing says where all fits."""
    return AuditAnswer(AuditAnswerKind.DONE, (0,) * count, 0, "", 10)


def found(*outcomes: Outcome, said: AuditAnswerKind = AuditAnswerKind.DONE, reason: str = "why") -> AuditAnswer:
    """Return what computing says of each claim."""
    return AuditAnswer(said, tuple(map(int, outcomes)), 0, reason, 10)


def needs(step: int) -> AuditAnswer:
    """Return what computing says where a step does not fit."""
    return AuditAnswer(AuditAnswerKind.NEEDS, (), step, "", 10)
