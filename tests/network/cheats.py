"""A volunteer's program that cheats: ``python -m tests.network.cheats KIND join ...``. All that it sends is well-formed.

- noise: random gradients of the honest norm
- images: another seed's images
- copied: another key's microbatches
- four: it claims four times the samples that it trained: of four microbatches it computes one, which stands for the next three, too
- half, tenth: of so many microbatches nothing is computed; the one before stands for them
- again: the gradients of its first microbatches in every round
- reversed: honest gradients, turned round
- saturated: honest gradients, but for one coordinate, which is 1e30
- poison: honest microbatches, and a mean and a body of noise of the honest norm
- step: honest microbatches, and noise in the place of what the second of several local steps came to
- ghost: honest microbatches, and beside its own the claim of a new key with a vector that nobody brings, against what it learnt itself
- silent: it trains nothing new, and brings nothing when it is asked
- dearest: every microbatch is of the largest architecture
- picks: it does the microbatches of the largest architecture alone, and leaves all others out
- yes: honest microbatches; of others' contributions it computes nothing, and says that they are good (with --audit)
- accuse: the same, and says that they are false
"""

import itertools
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker
from manta_swarm.codec.residuals import near_mean, vector_digest
from manta_swarm.network.vectors import VectorsFolder
from manta_swarm.peer.cohort.cohort_session import CohortSession
from manta_swarm.peer.cohort.founder import FounderSession
from manta_swarm.peer.features.audit import plugin
from manta_swarm.peer.features.audit.bringing import Bringing
from manta_swarm.peer.features.audit.computing import AskAudit, AuditAnswer, AuditAnswerKind
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.submit import making, submitter
from manta_swarm.peer.train.trainer import StepMicrobatches
from manta_swarm.protocol.microbatches import work_of
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.rounds import RoundMachine, SignedWork
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Outcome

TRAINERS = ("noise", "images", "copied", "four", "half", "tenth", "again", "reversed", "saturated")
KINDS = (*TRAINERS, "poison", "step", "ghost", "silent", "dearest", "picks", "yes", "accuse")
LIARS = ("yes", "accuse")  # those that need --audit
UNPAID = ("silent",)  # those that are demoted, and not guilty
_honest = Worker.train


def _noise_like(values: torch.Tensor) -> torch.Tensor:
    noise = torch.from_numpy(np.random.default_rng().normal(size=values.numel()).astype(np.float32))
    return noise * (values.norm() / noise.norm())


def _noise(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
    honest = _honest(worker, microbatch)
    return replace(honest, gradient=_noise_like(honest.gradient))


def _images(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
    return _honest(worker, replace(microbatch, run_seed=microbatch.run_seed + 1))


def _reversed(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
    honest = _honest(worker, microbatch)
    return replace(honest, gradient=-honest.gradient)


def _saturated(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
    honest = _honest(worker, microbatch)
    gradient = honest.gradient.clone()
    gradient[7] = 1e30
    return replace(honest, gradient=gradient)


def _copied(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
    return _honest(worker, replace(microbatch, key=bytes([microbatch.key[0], *microbatch.key[:0:-1]])))


def _sparing(every: int, left_out: int) -> Callable[[Worker, Microbatch], MicrobatchResult]:
    """Return what computes all microbatches but ``left_out`` in each ``every``."""
    last, microbatches = list[MicrobatchResult](), itertools.count()  # over all rounds, each of which begins at microbatch 0

    def train(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
        if next(microbatches) % every >= left_out or not last:
            last[:] = [_honest(worker, microbatch)]
        return last[0]

    return train


def _again() -> Callable[[Worker, Microbatch], MicrobatchResult]:
    first: dict[int, MicrobatchResult] = {}

    def train(worker: Worker, microbatch: Microbatch) -> MicrobatchResult:
        if microbatch.index % 4 not in first:
            first[microbatch.index % 4] = _honest(worker, microbatch)
        return first[microbatch.index % 4]

    return train


_true_at = StepMicrobatches.at


def _picked(microbatches: StepMicrobatches, index: int) -> tuple[Microbatch, int]:
    """Return one of the microbatches of the schedule that are of the first architecture, the largest; there are no others."""
    first = next(each for each in itertools.count() if _true_at(microbatches, each)[1] == 0)
    width = next(each for each in itertools.count(1) if _true_at(microbatches, first + each)[1] == 0)
    return _true_at(microbatches, first + width * index)


def _dearest(microbatches: StepMicrobatches, index: int) -> tuple[Microbatch, int]:
    """Return a microbatch of the first architecture, the largest, under the index of another."""
    microbatch, place = _true_at(microbatches, index)
    return replace(microbatch, architecture=microbatches.work.accumulator.architectures[0]), place


class _Liar:
    """Audits without a look; implements ``peer.features.audit.computing.Computing``."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    async def load(self, weights: torch.Tensor, teacher: torch.Tensor | None) -> None:
        pass

    async def answer(self, ask: AskAudit) -> AuditAnswer:
        return AuditAnswer(
            int(AuditAnswerKind.DONE), (int(self._outcome),) * len(ask.header.claims), 0, "it says so" if self._outcome else "", 1
        )

    async def go_on(self) -> AuditAnswer:
        raise AssertionError("it has answered")

    async def close(self) -> None:
        pass


class _Lying:
    """In the place of the process that computes audits."""

    outcome = Outcome.GOOD

    @classmethod
    async def start(cls, *_: object) -> _Liar:
        return _Liar(cls.outcome)


_false_means: dict[bytes, Any] = {}  # by digest: what this peer named as a mean, and brings


def _bring_false_means() -> None:
    """Keep a false mean in the place of the true one, so that it is brought."""
    keep = Evidence.keep

    async def kept(evidence: Evidence, round_: int, base: bytes, vectors: Mapping[bytes, Any]) -> None:
        await keep(evidence, round_, base, {digest: _false_means.get(digest, vector) for digest, vector in vectors.items()})

    Evidence.keep = kept  # type: ignore[method-assign]


def _poisoned(made_of: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a contribution whose mean, and body, is noise."""

    def poisoned(terms: Any, codec: Any, learnt: Any, claims: Any, given: Any, *dropped: Any) -> Any:
        noise = _noise_like(torch.from_numpy(given)).numpy()
        _false_means[vector_digest(noise)] = noise
        return made_of(terms, codec, learnt, claims, noise, *dropped)

    return poisoned


def _with_others(machine: RoundMachine, header: Header) -> SignedWork:
    """Sign a contribution that lists claims of other keys, too."""
    claims = [signed.open() for signed in header.claims]
    place = [claim.key for claim in claims].index(machine._key)
    samples = claims[place].microbatches * machine._manifest.microbatch_samples
    return SignedWork(header, header.contribution.open(), header.claims[place].digest, samples)


def _haunted(made_of: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a contribution that lists a claim of a new key beside the founder's own, and has a vector of its in the mean."""

    def haunted(terms: Any, codec: Any, learnt: Any, claims: Any, given: Any, *dropped: Any) -> Any:
        own, ghost, vector = claims[0].unchecked(), Identity(secrets.token_bytes(32)), np.float32(-1) * given
        steps = tuple(replace(step, vector=sha256(ghost.public_key)) for step in own.steps)
        work = work_of(len(own.work), own.base, ghost.public_key, steps)
        changes = {"key": ghost.public_key, "payout": ghost.public_key, "founder": own.key, "residual": b""}
        signed = Signed.sign(replace(own, steps=steps, work=work, given=vector_digest(vector), **changes), ghost)
        both = sorted([(own.key, claims[0], given), (ghost.public_key, signed, vector)], key=lambda each: each[0])
        mean = near_mean([each for _, _, each in both], [1, 1])
        _false_means[vector_digest(mean)] = mean
        return made_of(terms, codec, learnt, [each for _, each, _ in both], mean, *dropped)

    return haunted


def cheat(kind: str) -> None:
    """Make this process's peer cheat."""
    trains = {"noise": _noise, "images": _images, "copied": _copied, "again": _again(), "reversed": _reversed, "saturated": _saturated}
    trains |= {"four": _sparing(4, 3), "half": _sparing(2, 1), "tenth": _sparing(10, 1)}
    if kind in trains:
        Worker.train = trains[kind]  # type: ignore[method-assign]
    elif kind == "poison":
        making.made_of = submitter.made_of = _poisoned(making.made_of)
        _bring_false_means()
    elif kind == "ghost":
        making.made_of = submitter.made_of = _haunted(making.made_of)
        RoundMachine._of = _with_others  # type: ignore[method-assign]
        _bring_false_means()
    elif kind == "silent":

        async def bring_nothing(_bringing: Bringing) -> bool:
            return True

        Worker.train = _again()  # type: ignore[method-assign]
        Bringing.bring_all = bring_nothing  # type: ignore[method-assign]
        VectorsFolder.page = lambda *_: None  # type: ignore[method-assign]
    elif kind == "step":

        async def averaged(_cohort_session: CohortSession, step: int, vector: Any, _claim: Any, _digests: Any = None) -> Any:
            return _noise_like(torch.from_numpy(vector)).numpy() if step == 1 else vector

        async def is_shared(_cohort_session: CohortSession) -> bool:
            return True

        for kind_of_session in (CohortSession, FounderSession):  # it is alone in either
            kind_of_session.is_shared = is_shared  # type: ignore[method-assign]
            kind_of_session.average = averaged  # type: ignore[method-assign]
        submitter.Submitter.may_go_alone = True  # type: ignore[method-assign, assignment]
    elif kind == "dearest":
        StepMicrobatches.at = _dearest  # type: ignore[method-assign]
    elif kind == "picks":
        StepMicrobatches.at = _picked  # type: ignore[method-assign]
    elif kind in LIARS:
        _Lying.outcome = Outcome.GOOD if kind == "yes" else Outcome.VOID
        plugin.Process = _Lying  # type: ignore[misc, assignment]
    else:
        raise SystemExit(f"no such cheat: {kind}")


def main() -> None:
    """Be a peer that cheats: the kind, then what ``manta-peer`` is told."""
    cheat(sys.argv.pop(1))
    from manta_swarm.peer.cli import main as be_peer

    be_peer()


if __name__ == "__main__":
    main()
