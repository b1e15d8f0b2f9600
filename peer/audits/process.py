"""Computes lots of others again: ``python -m peer.audits.process SOCKET [DATA_ROOT]``; the run's manifest is its setup.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work. Knows no network, needs no key.
"""

import time
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.training.auditing import Mismatch, check_records
from automl.training.course import RunCourse
from automl.training.recomputing import Recomputer, dataset_of
from peer.aside.line import Line, be
from peer.aside.messages import Kind
from peer.audits.messages import MAX_ASK_BYTES, MAX_REASON, Ask, Found
from protocol.encoding import pack, unpack
from protocol.errors import UserError
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from protocol.records import Claim

_ALL = (b"", 0)


class Bench:
    """What computes lots of one run again."""

    def __init__(self, signed: SignedManifest, root: Path | None) -> None:
        """Open the data.

        Raises:
            UserError: they are not here, or not the run's.
        """
        self._manifest = signed.open()
        self._dataset = load_dataset(self._manifest.dataset, root)
        if self._dataset.digest != self._manifest.data_digest:
            raise UserError(f"the data set {self._manifest.dataset} here is not the run's")
        self._course = RunCourse(self._manifest)
        self._weights = torch.empty(0)
        self._teacher: torch.Tensor | None = None
        self._recomputers = {_ALL: Recomputer(self._manifest, self._dataset)}  # by whose part of the data it is, and how much
        self._loaded: set[tuple[bytes, int]] = set()  # those with the weights that were sent last

    @property
    def weights_bytes(self) -> int:
        """How many bytes a state's parameters have."""
        return 4 * self._recomputers[_ALL].num_weights

    def load(self, weights: bytearray) -> None:
        """Compute on these weights from now on."""
        self._weights = torch.frombuffer(weights, dtype=torch.float32)
        self._loaded.clear()

    def teach(self, weights: bytearray) -> None:
        """Let the lots learn from these weights too; from nothing, if they are empty."""
        self._teacher = torch.frombuffer(weights, dtype=torch.float32) if weights else None
        self._loaded.clear()

    def answer(self, ask: Ask) -> Found:
        """Return what comes of a lot.

        Raises:
            UserError: samples are missing here.
            RemoteFault: a claim that its key did not sign.
        """
        began_s, claim, reason = time.process_time(), ask.claim.open(), ""
        try:
            check_records(self._manifest, self._course.plan, claim, ask.lots)
        except Mismatch as error:
            reason = str(error)
        found = self._recomputer(claim).lot(claim, ask.lots, ask.place)
        reason = reason or ("" if found.holds else f"{found.deviation:.3g} of the norm apart")
        return Found(int(not reason), found.projection, reason[:MAX_REASON], round(1000 * (time.process_time() - began_s)))

    def _recomputer(self, claim: Claim) -> Recomputer:
        whose = (claim.key if claim.shards else b"", claim.shards)
        if whose not in self._recomputers:
            dataset = dataset_of(self._manifest, self._dataset, claim)
            self._recomputers = {_ALL: self._recomputers[_ALL], whose: Recomputer(self._manifest, dataset)}
            self._loaded.discard(whose)
        if whose not in self._loaded:
            self._recomputers[whose].load(self._weights, self._teacher)
            self._loaded.add(whose)
        return self._recomputers[whose]


def serve(line: Line, bench: Bench) -> None:
    """Do what is asked, until nobody asks any more."""
    line.say(Kind.READY, b"")
    while True:
        kind, data = line.heard(max(MAX_ASK_BYTES, bench.weights_bytes))
        if kind == Kind.WEIGHTS:
            bench.load(data)
        elif kind == Kind.TEACHER:
            bench.teach(data)
        else:
            line.say(Kind.ANSWER, pack(bench.answer(unpack(Ask, bytes(data), max_bytes=MAX_ASK_BYTES))))


def work(line: Line, arguments: list[str]) -> None:
    """Compute what the line asks for."""
    _, setup = line.heard(MAX_SIGNED_MANIFEST_BYTES)
    serve(line, Bench(SignedManifest.read(bytes(setup)), Path(arguments[0]) if arguments else None))


if __name__ == "__main__":
    be(work)
