"""What a decoy does beside an honest peer: its lots' records are false, and it says so in the end.

It trains as others do, and what it hands in is what it learnt: nobody is harmed by it. Only the projections in its records are others than
came out, by noise that leaves their mean in each step as it is: so what is made of them fits, and only who computes a lot again can see it.
A step of one lot shows it sooner: that does no harm, for who looked has found it out then.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peer.status import StatusBoard
from protocol.audits import PROJECTION_BYTES
from protocol.decoys import FILE, MAX_BYTES, Decoy
from protocol.encoding import unpack
from protocol.errors import MantaError, RemoteFault, UserError
from protocol.manifest import Manifest, SignedManifest
from protocol.records import LotRecord, entry_of
from protocol.signing import Identity
from swarm import waits
from swarm.operator_line import OperatorLine

_LEAST = 0.7  # of the largest projection: how far each is moved at least; honest lots computed elsewhere are less than a tenth off


class Loop(Protocol):
    """What a decoy needs of its peer (``peer.loop.PeerLoop``)."""

    on_commit: Callable[[], None]

    def be_decoy(self) -> None:
        """Say of lots what they did not give."""

    def leave(self) -> None:
        """End."""


class DecoyRole:
    """One peer's part as a decoy."""

    def __init__(self, decoy: Decoy, line: OperatorLine, identity: Identity, run: bytes) -> None:
        """Be the decoy of a run; ``line`` leads to its log."""
        self._decoy = decoy
        self._line = line
        self._identity = identity
        self._run = run

    async def plant(self) -> None:
        """Let the log know that there is a decoy, before its first claim.

        Raises:
            UserError: the log does not take it.
            Unreachable: it does not answer.
        """
        try:
            await self._hand_in(entry_of(self._decoy.plant))
        except RemoteFault as error:
            raise UserError(f"the log does not take this decoy ({error}): make a new one with manta-aggregator decoy") from error

    async def ends(self) -> str:
        """Tell the log which key it was; return what came of that, in words."""
        try:
            await self._hand_in(entry_of(self._decoy.revealed(self._run, self._identity)))
        except MantaError as error:
            return f"the log was not told that this was a decoy ({error}): start it again within a few rounds"
        return "the log knows now that this was a decoy: who found its lots good is found out with the next round"

    async def _hand_in(self, entry: bytes) -> None:
        await self._line.call("extra", entry, timeout_s=waits.CALL_S)


def read_decoy(directory: Path, run: bytes, key: bytes, manifest: Manifest) -> Decoy | None:
    """Return what makes the peer of a folder a decoy; None: it is none.

    Raises:
        UserError: it is one, but not in this run or not of this key, or its file is damaged.
    """
    try:
        with (directory / FILE).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {directory / FILE}: {error.strerror}") from error
    try:
        decoy = unpack(Decoy, data, max_bytes=MAX_BYTES)
        decoy.check(run, key)
    except RemoteFault as error:
        raise UserError(f"{directory / FILE}: no decoy of this run and key ({error}); make one with manta-aggregator decoy") from error
    if not manifest.trust.is_audited:
        raise UserError(f"the run {manifest.name} has no audits, and so no use for a decoy")
    return decoy


async def decoy_begins(
    directory: Path, line: OperatorLine, identity: Identity, signed: SignedManifest, loop: Loop, board: StatusBoard
) -> DecoyRole | None:
    """Make the peer of a folder the decoy that its file says it is, planted in the log; None: it is none.

    It leaves by itself after as many rounds as are still known then.

    Raises:
        UserError: it is no decoy of this run and key, or the log does not take it.
        Unreachable: the log does not answer.
    """
    manifest = signed.open()
    decoy = read_decoy(directory, signed.run, identity.public_key, manifest)
    if decoy is None:
        return None
    role, rounds = DecoyRole(decoy, line, identity, signed.run), max(1, manifest.trust.kept_rounds // 2)
    await role.plant()
    loop.be_decoy()
    board.say(f"this peer is a decoy: it says of its lots what they did not give, for {rounds} rounds, and then that it did")
    before = loop.on_commit

    def leave_in_time() -> None:
        before()
        if board.status.rounds_counted >= rounds:
            loop.leave()

    loop.on_commit = leave_in_time
    return role


def falsified(records: Sequence[LotRecord], rng: np.random.Generator) -> tuple[LotRecord, ...]:
    """Return records none of whose projections is what came out, but whose mean is in each step, where that has two lots at least."""
    values = np.array([np.frombuffer(record.projection, "<f4") for record in records], np.float64)
    scale, moved = float(np.sqrt(np.square(values).mean(1)).max()), np.empty_like(values)
    for step in {record.step for record in records}:
        places = [place for place, record in enumerate(records) if record.step == step]
        moved[places] = values[places] + _noise(len(places), scale, rng)
    return tuple(replace(record, projection=row.astype("<f4").tobytes()) for record, row in zip(records, moved, strict=True))


def _noise(count: int, scale: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return (count, 8) by how much the lots of a step are moved, each by much; of several it adds up to nothing."""
    while True:
        noise = rng.normal(scale=scale, size=(count, PROJECTION_BYTES // 4))
        if count > 1:
            noise -= noise.mean(0)
        if float(np.sqrt(np.square(noise).mean(1)).min()) >= _LEAST * scale:
            return noise
