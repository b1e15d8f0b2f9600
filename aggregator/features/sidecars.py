"""Sidecars: peers of the operator beside the log, an auditor or a gateway, each in a process that is started again whenever it ends early.

A sidecar is ``manta-peer join``, known by its command line and its status.json only, with a folder and a key of its own in DIR/NAME. What
it does to the log any peer may do; the log does not depend on it.

The manifest names the key of the operator's auditor, which runs with ``--audit-only``. Its verdicts count as every named auditor's. It
talks to the operator beside it first, and trains nothing. Each run admits its named auditors.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.log.contents import AUDITOR
from manta_swarm.aggregator.settings.inviting import GATEWAY, invitation_for, is_named
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.admission import INVITATION
from manta_swarm.protocol.errors import RemoteFault, StorageError, UserError
from manta_swarm.runtime.child import Child, Hurry, Program, Restart, python, stop
from manta_swarm.runtime.disk import make_directory
from manta_swarm.runtime.listen_address import ListenAddress
from manta_swarm.runtime.signals import hearing

_AGAIN = Restart()
_LOOK_S = 0.25
_KEPT = ("MANTA_STATE_DIR",)  # of the operator's settings; the others are meant for peers of the operator's own

_EVERY_ADDRESS = "0.0.0.0"  # of IPv4


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
        """Return the file of the invitation that lets the sidecar into a run of invited peers; None: it needs none."""
        return None

    def is_up(self, status: PeerStatus, addresses: Sequence[str]) -> bool:
        """Look at the sidecar's status; return whether it is up, which is asked until it is so once."""
        return True

    async def run(self, addresses: Sequence[str]) -> None:
        """Keep the sidecar running until the run is finished; no process is left when this ends.

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


class AuditorSidecar(Sidecar):
    """The auditor of one operator: it audits until the run is settled. The log goes on if the auditor's settings cannot be used."""

    def __init__(self, context: RunContext, share: float, *, data_root: Path | None) -> None:
        """Prepare one that takes this share of one core's time at most; ``data_root``: folder of data sets that come with no library."""
        data = () if data_root is None else ("--data-root", str(data_root))
        limits = ("--audit", f"{max(1, round(100 * share))}%", "--evaluation", "0%", "--threads", "1", "--gpus", "none")
        super().__init__(AUDITOR, context, ["--audit-only", *limits, *data])

    async def run(self, addresses: Sequence[str]) -> None:
        """See ``Sidecar``. Where the run names another auditor, or is settled, none is started."""
        context = self._context
        if context.ledger.settled:
            return
        if not is_named(context.directory, context.manifest.audit_rules):
            context.console.say("the run names another auditor than the one in this folder: none is started here")
            return
        try:
            await super().run(addresses)
        except UserError as error:
            context.console.say(f"{error}; this operator audits nothing until it is started again")
        finally:
            await self.end()


class GatewaySidecar(Sidecar):
    """The gateway that one operator runs as a sidecar."""

    def __init__(self, context: RunContext, listen_address: ListenAddress, *, data_root: Path | None, threads: int | None) -> None:
        """Prepare.

        Args:
            context: of the run.
            listen_address: where it is to listen.
            data_root: folder of data sets that come with no library.
            threads: of the CPU that it uses; None: all.

        Raises:
            UserError: nobody can listen there, or the certificate cannot be used.
        """
        listening, self._listen_address = listen_address.listen()  # so port 0 is the same one after each start of the gateway
        listening.close()
        super().__init__(GATEWAY, context, _options(self._listen_address, data_root, threads))
        self._shown = ""

    def status(self) -> Mapping[str, object]:
        """Return the address that light contributors use, once it answers."""
        return {"gateway": self._shown}

    async def run(self, addresses: Sequence[str]) -> None:
        """See ``Sidecar``."""
        try:
            await super().run(addresses)
        finally:
            if self.runs:  # a second Ctrl-C from the person ends it at once
                self._context.console.say("the gateway hands in what it has; press Ctrl-C again to stop it at once")
                with hearing(signal.SIGINT, signal.SIGTERM) as later:
                    await self.end(later)

    def invitation(self) -> Path | None:
        """See ``Sidecar``."""
        return invitation_for(self._context.directory) if self._context.manifest.admission.how == INVITATION else None

    def is_up(self, status: PeerStatus, addresses: Sequence[str]) -> bool:
        """Say where it leases microbatches as soon as it does."""
        if status.leases_at:
            self._shown = self._listen_address.url
            self._context.console.say("light contributors join with:")
            for listen_address in self._listen_addresses(addresses):
                address, run = f"{listen_address.url}#{status.peer}", self._context.ledger.run.hex()
                self._context.console.say(f"  manta-peer join --light --gateway {address} --run {run}")
        return bool(status.leases_at)

    def _listen_addresses(self, addresses: Sequence[str]) -> Iterator[ListenAddress]:
        """Yield where the gateway is to be found: if it listens on every address, at each of the node's, this computer's own last."""
        hosts = {address.split("/")[2] for address in addresses if address.startswith("/ip4/")}
        if self._listen_address.host != _EVERY_ADDRESS or not hosts:
            yield self._listen_address
            return
        for host in sorted(hosts, key=lambda host: (host.startswith("127."), host)):
            yield replace(self._listen_address, host=host)


def _options(listen_address: ListenAddress, data_root: Path | None, threads: int | None) -> list[str]:
    files = (
        ()
        if listen_address.certificate is None
        else ("--gateway-cert", str(listen_address.certificate), "--gateway-key", str(listen_address.key))
    )
    data = () if data_root is None else ("--data-root", str(data_root))
    cores = () if threads is None else ("--threads", str(threads))
    return ["--gateway", listen_address.address, *files, "--lease-only", "--gpus", "none", *data, *cores]
