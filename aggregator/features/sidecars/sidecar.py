"""A sidecar: a volunteer's program beside the log, in a process of its own, started again whenever it ends before the run does.

It is ``manta-peer join``, known by its command line and its status.json only, with a folder and a key of its own in DIR/NAME. What it does
to the log any peer may do; the log does not depend on it.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.errors import RemoteFault, StorageError, UserError
from manta_swarm.runtime.child import Child, Hurry, Program, Restart, python, stop
from manta_swarm.runtime.disk import make_directory

_AGAIN = Restart()
_LOOK_S = 0.25
_KEPT = ("MANTA_STATE_DIR",)  # of the operator's settings; the others are meant for peers of the operator's own


class Sidecar(Feature):
    """A sidecar that is started again whenever it ends before the run does."""

    is_sidecar = True

    def __init__(self, name: str, context: RunContext, options: Sequence[str]) -> None:
        """Prepare.

        Args:
            name: in words, and of its folder in the aggregator's.
            context: of the run.
            options: of ``manta-peer join``, beside those of where the run is and of its folder.
        """
        self._name = name
        self._context = context
        self._options = options
        self._child: Child | None = None
        self.directory = context.directory / name

    def invitation(self) -> Path | None:
        """Return the file of what lets it into a run of invited peers; None: it needs nothing."""
        return None

    def is_up(self, status: PeerStatus, addresses: Sequence[str]) -> bool:
        """Look at what it says of itself; return whether it is up, which is asked until it is so once."""
        return True

    async def run(self, addresses: Sequence[str]) -> None:
        """Keep it running until the run is finished; none is left when this ends.

        Call it on the main thread: the sidecar ends when that does.

        Raises:
            UserError: its settings, or its folder, cannot be used.
            StorageError: its folder cannot be written to.
        """
        make_directory(self.directory)
        program, ends, was_up = self._program(self._command(addresses)), 0, False
        while True:
            child, began_s = self._start(program), time.monotonic()
            was_up = await self._watch(child, addresses) or was_up
            if self._has_finished(child):
                return
            if child.returncode == 2 and not was_up:
                raise UserError(f"the {self._name}: {child.last_lines(1).removeprefix('manta-peer: ')}")
            ends = 1 if time.monotonic() - began_s > _AGAIN.lasted_s else ends + 1
            pause_s = _AGAIN.pause_s(ends)
            again = f"it is started again in {pause_s:.0f} s"
            self._context.console.say(f"the {self._name} {_how_it_ended(child)}; {again}; what it printed: {program.log_path}")
            await asyncio.sleep(pause_s)

    @property
    def runs(self) -> bool:
        """Whether there is a process now."""
        return self._child is not None and self._child.returncode is None

    async def end(self, hurry: Hurry | None = None) -> None:
        """End the process, if there is one: asked first, killed after a deadline, or as soon as ``hurry`` is set."""
        if self._child is not None and self._child.returncode is None:
            await asyncio.to_thread(stop, [self._child], hurry=hurry)

    def _command(self, addresses: Sequence[str]) -> list[str]:
        address, invitation = min(addresses, key=lambda address: "/ip4/127." not in address), self.invitation()
        invited = () if invitation is None else ("--invitation", str(invitation))
        run = self._context.ledger.run.hex()
        where = ("--initial-peers", address, "--run", run, "--listen", "none", "--dir", str(self.directory), *invited)
        return python("-m", "manta_swarm.peer.cli", "join", *where, *self._options)

    def _program(self, command: Sequence[str]) -> Program:
        foreign = {name: "" for name in os.environ if name.startswith("MANTA_") and name not in _KEPT}
        log_path = self.directory / f"{self._name}.log"
        return Program(self._name, command, log_path, {**foreign, "PYTHONUNBUFFERED": "1"})

    def _start(self, program: Program) -> Child:
        try:
            self._child = Child.start(program)
        except OSError as error:
            raise StorageError(f"the {self._name} cannot be started ({error}); look at {self.directory}") from error
        return self._child

    async def _watch(self, child: Child, addresses: Sequence[str]) -> bool:
        """Wait for its end; return whether it was ever up."""
        was_up = False
        while child.returncode is None:
            await asyncio.sleep(_LOOK_S)
            status = None if was_up else self._status(child)
            was_up = was_up or (status is not None and self.is_up(status, addresses))
        return was_up

    def _has_finished(self, child: Child) -> bool:
        status = self._status(child)
        return child.returncode == 0 and status is not None and status.finished

    def _status(self, child: Child) -> PeerStatus | None:
        """Return what it says of itself in this life; None while it says nothing."""
        try:
            status = PeerStatus.read(self.directory)
        except (RemoteFault, StorageError):
            return None
        return status if status is not None and status.pid == child.pid else None


def _how_it_ended(child: Child) -> str:
    if child.returncode == 0:
        return "left the run"
    return child.ending if (child.returncode or 0) < 0 else f"{child.ending}: {child.last_lines(1)}"
