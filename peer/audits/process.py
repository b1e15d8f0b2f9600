"""Computes lots of others again: ``python -m peer.audits.process SOCKET [DATA_ROOT]``; the run's manifest is its setup.

A process of its own, so that it can have low priority, one thread, and be ended in the middle of its work. Knows no network, needs no key.
"""

import time
from pathlib import Path

import torch

from automl.data.catalog import load_dataset
from automl.training.recomputing import Recomputers
from peer.aside.line import Line, be
from peer.aside.messages import Kind
from peer.audits.messages import MAX_ASK_BYTES, MAX_REASON, Ask, Found
from protocol.encoding import pack, unpack
from protocol.errors import UserError
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest


class Bench:
    """What computes lots of one run again."""

    def __init__(self, signed: SignedManifest, root: Path | None) -> None:
        """Open the data.

        Raises:
            UserError: they are not here, or not the run's.
        """
        self._manifest = signed.open()
        dataset = load_dataset(self._manifest.dataset, root)
        if dataset.digest != self._manifest.data_digest:
            raise UserError(f"the data set {self._manifest.dataset} here is not the run's")
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

    def answer(self, ask: Ask) -> Found:
        """Return what comes of a lot.

        Raises:
            UserError: samples are missing here.
            RemoteFault: a claim that its key did not sign.
        """
        began_s, claim = time.process_time(), ask.claim.open()
        recomputer = self._recomputers.of(claim, self._given, lambda: (self._weights, self._teacher))
        found = recomputer.lot(claim, ask.lots, ask.place)
        return Found(int(found.holds), found.projection, found.reason[:MAX_REASON], round(1000 * (time.process_time() - began_s)))


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
