"""Computes contributions of others again: ``python -m peer.auditing.process SOCKET FETCHED [DATA_ROOT]``; its setup is the run's manifest.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work. Knows no network, needs no key:
vectors that were brought lie in the folder FETCHED, where the program that asks has put them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.training.audit import Judgements, Lacks, Needs, NotJudged, Recomputation, Submission
from automl.training.microbatches import Microbatches
from automl.training.schedule import Plan
from automl.training.update import State
from exact.residuals import Vector
from peer.aside.line import Line, be
from peer.aside.messages import Kind
from peer.auditing.messages import MAX_ASK_BYTES, MAX_REASON, Ask, Found, Said
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, UserError
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from protocol.records import Claim, Contribution
from swarm.vectors import read_vector


@dataclass(frozen=True, slots=True)
class FetchedVectors:
    """The vectors of a contribution in a folder; implements ``automl.training.audit.Brought``."""

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


class Bench:
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
        self._microbatches = Microbatches(self._manifest, self._plan, dataset)
        self._weights = torch.empty(0)
        self._teacher: torch.Tensor | None = None
        self._audit: tuple[bytes, Recomputation] | None = None  # under way, by the contribution's digest

    @property
    def weights_bytes(self) -> int:
        """How many bytes a state's parameters have."""
        return 4 * self._microbatches.num_weights

    def load(self, weights: bytearray) -> None:
        """Compute on these weights from now on."""
        self._weights, self._audit = torch.frombuffer(weights, dtype=torch.float32), None

    def teach(self, weights: bytearray) -> None:
        """Let the microbatches learn from these weights too; from nothing, if they are empty."""
        self._teacher, self._audit = torch.frombuffer(weights, dtype=torch.float32) if weights else None, None

    def answer(self, ask: Ask, rest: Callable[[Found], None]) -> Found:
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
            submission = Submission(contribution, claims, ask.body, ask.floor, tuple(map(bool, ask.left)))
            base = State(contribution.round - 1, self._weights, ())  # local steps begin without moments
            self._audit = digest, Recomputation(self._manifest, self._plan, submission, self._microbatches, base, self._teacher)
        brought = FetchedVectors(self._fetched, ask.round, digest, contribution, claims, self._microbatches.num_weights)
        found = self._audit[1].run(brought, lambda: rest(Found(int(Said.WORKING), (), 0, "", took_ms())), frozenset(ask.over))
        return _found(found, took_ms())


def _found(found: Lacks | Needs | Judgements, cpu_ms: int) -> Found:
    if isinstance(found, Needs):
        return Found(int(Said.NEEDS), (), found.step, "", cpu_ms)
    judgements = found.judgements if isinstance(found, Lacks) else found
    reason = "; ".join(dict.fromkeys(one.reason for one in judgements if one.reason))[:MAX_REASON]
    outcomes = tuple(int(one.outcome) for one in judgements if not isinstance(one, NotJudged))
    if len(outcomes) < len(judgements):
        return Found(int(Said.NOTHING), (), 0, reason, cpu_ms)
    return Found(int(Said.LACKS if isinstance(found, Lacks) else Said.DONE), outcomes, 0, reason, cpu_ms)


def serve(line: Line, bench: Bench) -> None:
    """Do what is asked, until nobody asks any more."""

    def rest(found: Found) -> None:
        line.say(Kind.ANSWER, pack(found))
        kind, _ = line.heard(0)
        if kind != Kind.GO_ON:
            raise EncodingError("something else was asked before the last answer")

    line.say(Kind.READY, b"")
    most = MAX_ASK_BYTES + bench.weights_bytes  # a body is no larger than the weights
    while True:
        kind, data = line.heard(most)
        if kind == Kind.WEIGHTS:
            bench.load(data)
        elif kind == Kind.TEACHER:
            bench.teach(data)
        else:
            line.say(Kind.ANSWER, pack(bench.answer(unpack(Ask, bytes(data), max_bytes=most), rest)))


def work(line: Line, arguments: list[str]) -> None:
    """Compute what the line asks for."""
    _, setup = line.heard(MAX_SIGNED_MANIFEST_BYTES)
    fetched, *root = map(Path, arguments)
    serve(line, Bench(SignedManifest.read(bytes(setup)), fetched, root[0] if root else None))


if __name__ == "__main__":
    be(work)
