"""Computes contributions of others again: ``python -m manta_swarm.peer.features.audit.process FETCHED [DATA_ROOT]``.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work. Knows no network, needs no key:
vectors that were brought lie in the folder FETCHED, where the program that asks has put them.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.training.audit import Judgements, Lacks, Needs, NotJudged, Recomputation, Submission
from manta_swarm.automl.training.audited_step import AuditedMicrobatches
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State
from manta_swarm.codec.residuals import Vector
from manta_swarm.network.vectors import read_vector
from manta_swarm.peer.features.audit.computing import MESSAGES, AskAudit, AuditAnswer, AuditAnswerKind, AuditSetup, AuditWeights, GoOn
from manta_swarm.protocol.errors import OwnFault, UserError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Claim, Contribution
from manta_swarm.runtime.line import MAX_REASON, Heartbeat, Parent, be_child


@dataclass(frozen=True, slots=True)
class FetchedVectors:
    """The vectors of a contribution in a folder; implements ``automl.training.audit.BroughtForAudit``."""

    folder: Path
    round: int
    digest: bytes  # of the contribution
    contribution: Contribution
    claims: tuple[Claim, ...]
    num_weights: int

    def mean(self, step: int) -> Vector | None:
        """Return the mean of a step."""
        return self._vector(self.contribution.steps[step].mean)

    def residual(self, place: int) -> Vector | None:
        """Return the residual of the claim at a place."""
        return self._vector(self.claims[place].residual)

    def own(self, place: int, step: int) -> Vector | None:
        """Return the own vector of a step of the claim at a place."""
        return self._vector(self.claims[place].steps[step].vector)

    def _vector(self, digest: bytes) -> Vector | None:
        vector = read_vector(self.folder, self.round, self.digest, digest)
        return vector if vector is not None and len(vector) == self.num_weights else None


class AuditComputer:
    """What computes contributions of one run again."""

    def __init__(self, signed: SignedManifest, fetched: Path, root: Path | None) -> None:
        """Open the data; vectors of others are in the folder ``fetched``.

        Raises:
            UserError: they are not here, or not the run's.
        """
        self._manifest = signed.open()
        dataset = load_dataset(self._manifest.dataset, root)
        if dataset.digest != self._manifest.data_digest:
            raise UserError(f"the data set {self._manifest.dataset} here is not the run's")
        self._plan = Plan.of(self._manifest)
        self._fetched = fetched
        self._microbatches = AuditedMicrobatches(self._manifest, self._plan, dataset)
        self._weights = torch.empty(0)
        self._teacher: torch.Tensor | None = None
        self._audit: tuple[bytes, Recomputation] | None = None  # under way, by the contribution's digest

    def load(self, weights: AuditWeights) -> None:
        """Compute on these weights from now on."""
        self._weights = torch.frombuffer(bytearray(weights.parameters), dtype=torch.float32)
        self._teacher = torch.frombuffer(bytearray(weights.teacher), dtype=torch.float32) if weights.teacher else None
        self._audit = None

    def answer(self, ask: AskAudit, rest: Callable[[AuditAnswer], None]) -> AuditAnswer:
        """Return what comes of a contribution; after each microbatch ``rest`` is told how long it took.

        Raises:
            UserError: samples are missing here.
            RemoteFault: a record that its key did not sign.
        """
        began_s = time.process_time()

        def took_ms() -> int:
            nonlocal began_s
            before_s, began_s = began_s, time.process_time()
            return round(1000 * (began_s - before_s))

        digest, contribution = ask.header.contribution.digest, ask.header.contribution.open()
        claims = tuple(signed.open() for signed in ask.header.claims)
        if self._audit is None or self._audit[0] != digest:
            submission = Submission(contribution, claims, ask.body, ask.min_exponent, tuple(map(bool, ask.left)))
            base = State(contribution.round - 1, self._weights, ())  # local steps begin without moments
            self._audit = digest, Recomputation(self._manifest, self._plan, submission, self._microbatches, base, self._teacher)
        brought = FetchedVectors(self._fetched, ask.round, digest, contribution, claims, self._microbatches.num_weights)
        found = self._audit[1].run(
            brought, lambda: rest(AuditAnswer(int(AuditAnswerKind.WORKING), (), 0, "", took_ms())), frozenset(ask.over)
        )
        return _found(found, took_ms())


def _found(found: Lacks | Needs | Judgements, cpu_ms: int) -> AuditAnswer:
    if isinstance(found, Needs):
        return AuditAnswer(int(AuditAnswerKind.NEEDS), (), found.step, "", cpu_ms)
    judgements = found.judgements if isinstance(found, Lacks) else found
    reason = "; ".join(dict.fromkeys(one.reason for one in judgements if one.reason))[:MAX_REASON]
    outcomes = tuple(int(one.outcome) for one in judgements if not isinstance(one, NotJudged))
    if len(outcomes) < len(judgements):
        return AuditAnswer(int(AuditAnswerKind.NOTHING), (), 0, reason, cpu_ms)
    return AuditAnswer(int(AuditAnswerKind.LACKS if isinstance(found, Lacks) else AuditAnswerKind.DONE), outcomes, 0, reason, cpu_ms)


def serve(parent: Parent, bench: AuditComputer) -> None:
    """Do what is asked, until nobody asks any more.

    Raises:
        OwnFault: the peer says something else than it may.
    """

    def rest(found: AuditAnswer) -> None:
        parent.say(found)
        if not isinstance(parent.hear(), GoOn):
            raise OwnFault("something else was asked before the last answer")

    parent.say(Heartbeat())
    while True:
        said = parent.hear()
        if isinstance(said, AuditWeights):
            bench.load(said)
        elif isinstance(said, AskAudit):
            parent.say(bench.answer(said, rest))
        else:
            raise OwnFault("something else was said than weights or a contribution")


def work(parent: Parent) -> None:
    """Compute what the parent asks for."""
    torch.set_num_threads(1)
    setup = parent.hear()
    if not isinstance(setup, AuditSetup):
        raise OwnFault("something was asked before the run was told")
    fetched, *root = map(Path, sys.argv[1:])
    serve(parent, AuditComputer(SignedManifest.read(setup.manifest), fetched, root[0] if root else None))


if __name__ == "__main__":
    be_child(MESSAGES, work)
