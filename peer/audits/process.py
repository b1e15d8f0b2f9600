"""Computes lots of others again: ``python -m peer.audits.process SOCKET FETCHED [DATA_ROOT]``; the run's manifest is its setup.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work. Knows no network, needs no key:
vectors of others lie in the folder FETCHED, where the peer has put them.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.training.course import RunCourse
from automl.training.given import Coded, Finding, OneClaim
from automl.training.recomputing import Recomputers
from automl.training.update import State
from exact.coding import parse
from exact.residuals import Vector
from peer.aside.line import Line, be
from peer.aside.messages import Kind
from peer.audits.messages import MAX_ASK_BYTES, MAX_REASON, MISSED, WORKING, Ask, Found
from protocol.audits import DIFFERS, HOLDS, LOT
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, UserError
from protocol.evidence import Records
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from protocol.records import Claim
from swarm.vectors import read_vector


class Gone(Exception):
    """What a question needs is not here; the message is what."""


class Bench:
    """What computes lots of one run again."""

    def __init__(self, signed: SignedManifest, fetched: Path, root: Path | None) -> None:
        """Open the data; vectors of others are in the folder ``fetched``.

        Raises:
            UserError: they are not here, or not the run's.
        """
        self._manifest = signed.open()
        dataset = load_dataset(self._manifest.dataset, root)
        if dataset.digest != self._manifest.data_digest:
            raise UserError(f"the data set {self._manifest.dataset} here is not the run's")
        self._course = RunCourse(self._manifest)
        self._fetched = fetched
        self._weights = torch.empty(0)
        self._teacher: torch.Tensor | None = None
        self._recomputers = Recomputers(self._manifest, dataset)
        self._given = 0  # how often weights were sent

    @property
    def weights_bytes(self) -> int:
        """How many bytes a state's parameters have."""
        return 4 * self._recomputers.num_weights

    def load(self, weights: bytearray) -> None:
        """Compute on these weights from now on."""
        self._weights = torch.frombuffer(weights, dtype=torch.float32)
        self._given += 1

    def teach(self, weights: bytearray) -> None:
        """Let the lots learn from these weights too; from nothing, if they are empty."""
        self._teacher = torch.frombuffer(weights, dtype=torch.float32) if weights else None
        self._given += 1

    def answer(self, ask: Ask, rest: Callable[[Found], None]) -> Found:
        """Return what comes of a question; after each of several lots ``rest`` is told how long it took.

        Raises:
            UserError: samples are missing here.
            RemoteFault: a claim that its key did not sign.
        """
        began_s, claim = time.process_time(), ask.claim.open()

        def took_ms() -> int:
            nonlocal began_s
            before_s, began_s = began_s, time.process_time()
            return round(1000 * (began_s - before_s))

        try:
            found = self._found(ask, claim, lambda: rest(Found(WORKING, b"", "", took_ms())))
        except Gone as error:
            return Found(MISSED, b"", str(error), took_ms())
        return Found(HOLDS if found.holds else DIFFERS, found.projection, found.reason[:MAX_REASON], took_ms())

    def _found(self, ask: Ask, claim: Claim, rest: Callable[[], None]) -> Finding:
        recomputer = self._recomputers.of(claim, self._given, lambda: (self._weights, self._teacher))
        if ask.check == LOT:
            return recomputer.lot(claim, ask.lots, ask.place)
        records = Records(ask.lots, ask.steps)
        one = OneClaim(claim, ask.claim.digest, records, bool(ask.is_alone), self._coded(ask, claim))
        base = State(claim.round - 1, self._weights, ())  # local steps begin without moments
        try:
            return recomputer.whole(one, base, lambda named, digest: self._vector(claim, named, digest), rest)
        finally:
            self._recomputers.forget()  # what is loaded now are the weights of some step

    def _coded(self, ask: Ask, claim: Claim) -> Coded | None:
        if not ask.body:
            return None
        try:
            body = parse(self._manifest.exchange.codec, ask.body, self._recomputers.num_weights)
        except EncodingError as error:
            raise Gone(f"its body is none: {error}") from error
        return Coded(body, ask.floor, self._course.coverage(claim.round, claim.cohort))

    def _vector(self, claim: Claim, named: bytes, digest: bytes) -> Vector:
        vector = read_vector(self._fetched, claim.round, named, digest)
        if vector is None or len(vector) != self._recomputers.num_weights:
            raise Gone("a vector that it names is not on this disk any more")
        return vector


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
