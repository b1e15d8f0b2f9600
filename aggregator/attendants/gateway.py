"""A gateway for light contributors beside the log: a peer in a process of its own, started again whenever it ends before the run does.

It is the volunteer's program (``manta-peer join --gateway ADDRESS --lease-only``), known by its command line and its status.json only, with
a folder, a key and credit of its own in DIR/gateway. What it does to the log any peer may do; the log does not depend on it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from aggregator.attendants.children import Child, stop
from aggregator.attendants.gateway_key import FOLDER
from protocol.errors import StorageError, UserError
from swarm.disk import make_directory
from swarm.door import Door

LOG = "gateway.log"

_AGAIN_S = (1.0, 60.0)  # first and longest pause before it is started again
_LASTED_S = 60.0  # a life of this length begins the pauses anew
_LOOK_S = 0.25
_KEPT = ("MANTA_STATE_DIR",)  # of the operator's settings; the others are meant for peers of the operator's own
_EVERY_ADDRESS = "0.0.0.0"  # of IPv4


class _Status(BaseModel):
    """What is read of the gateway's status file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    peer: str
    pid: int
    leases_at: str = ""  # once light contributors are answered
    finished: bool = False


class Gateway:
    """One aggregator's gateway."""

    def __init__(
        self,
        door: Door,
        directory: Path,
        *,
        data_root: Path | None,
        threads: int | None,
        say: Callable[[str], None],
        shown: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            door: where it is to listen.
            directory: the aggregator's.
            data_root: folder of data sets that come with no library.
            threads: of the CPU that it uses; None: all.
            say: prints a line for the person.
            shown: is told the address that light contributors use, once it answers.

        Raises:
            UserError: nobody can listen there, or the certificate cannot be used.
        """
        listening, self._door = door.listen()  # so port 0 is the same one after each start of the gateway
        listening.close()
        self._directory = directory / FOLDER
        self._data_root = data_root
        self._threads = threads
        self._say = say
        self._shown = shown
        self._child: Child | None = None

    async def run(self, addresses: Sequence[str], run: str, invitation: Path | None = None) -> None:
        """Keep a gateway running, in the run ``run`` of the node at ``addresses``, until that is finished; none is left when this ends.

        ``invitation`` lets it into a run of invited peers. Call it on the main thread: the gateway ends when that does.

        Raises:
            UserError: its settings, or its folder, cannot be used.
            StorageError: its folder cannot be written to.
        """
        make_directory(self._directory)
        command = self._command(min(addresses, key=lambda address: "/ip4/127." not in address), run, invitation)
        pause_s, has_answered = _AGAIN_S[0], False
        try:
            while True:
                child, began_s = self._start(command), time.monotonic()
                has_answered = await self._watch(child, addresses, run) or has_answered
                if self._has_finished(child):
                    return
                if child.returncode == 2 and not has_answered:
                    raise UserError(f"the gateway: {child.last_lines(1).removeprefix('manta-peer: ')}")
                pause_s = _AGAIN_S[0] if time.monotonic() - began_s > _LASTED_S else pause_s
                self._say(f"the gateway {_how_it_ended(child)}; it is started again in {pause_s:.0f} s; what it printed: {child.log_path}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_S[1])
        finally:
            await self._end()

    async def _end(self) -> None:
        """End the gateway, which hands in what it has first; a second Ctrl-C from the person ends it at once."""
        if self._child is None or self._child.returncode is not None:
            return
        self._say("the gateway hands in what it has; press Ctrl-C again to stop it at once")
        told = _later_signals()
        await asyncio.to_thread(stop, [self._child], hurry=lambda: bool(told))

    def _has_finished(self, child: Child) -> bool:
        status = self._status(child)
        return child.returncode == 0 and status is not None and status.finished

    def _command(self, address: str, run: str, invitation: Path | None) -> list[str]:
        door = self._door
        files = () if door.certificate is None else ("--gateway-cert", str(door.certificate), "--gateway-key", str(door.key))
        data = () if self._data_root is None else ("--data-root", str(self._data_root))
        threads = () if self._threads is None else ("--threads", str(self._threads))
        invited = () if invitation is None else ("--invitation", str(invitation))
        where = ("--initial-peers", address, "--run", run, "--listen", "none", "--dir", str(self._directory), *invited)
        what = ("--gateway", door.address, *files, "--lease-only", "--gpus", "none", *data, *threads)
        # -P: a file or directory of the same name where the person happens to stand is not our program.
        return [sys.executable, "-P", "-m", "peer.cli", "join", *where, *what]

    def _start(self, command: Sequence[str]) -> Child:
        foreign = {name: "" for name in os.environ if name.startswith("MANTA_") and name not in _KEPT}
        try:
            self._child = Child.start("gateway", command, self._directory / LOG, {**foreign, "PYTHONUNBUFFERED": "1"})
        except OSError as error:
            raise StorageError(f"the gateway cannot be started ({error}); look at {self._directory}, or leave --gateway out") from error
        return self._child

    async def _watch(self, child: Child, addresses: Sequence[str], run: str) -> bool:
        """Wait for the end of the gateway, and show where it is once it answers; return whether it ever did."""
        has_answered = False
        while child.returncode is None:
            await asyncio.sleep(_LOOK_S)
            status = None if has_answered else self._status(child)
            if status is not None and status.leases_at:
                has_answered = True
                self._show(status.peer, addresses, run)
        return has_answered

    def _show(self, peer: str, addresses: Sequence[str], run: str) -> None:
        self._shown(self._door.url)
        self._say("light contributors join with:")
        for door in self._doors(addresses):
            self._say(f"  manta-peer join --light --gateway {door.url}#{peer} --run {run}")

    def _doors(self, addresses: Sequence[str]) -> Iterator[Door]:
        """Yield where the gateway is to be found: if it listens on every address, at each of the node's, this computer's own last."""
        hosts = {address.split("/")[2] for address in addresses if address.startswith("/ip4/")}
        if self._door.host != _EVERY_ADDRESS or not hosts:
            yield self._door
            return
        for host in sorted(hosts, key=lambda host: (host.startswith("127."), host)):
            yield replace(self._door, host=host)

    def _status(self, child: Child) -> _Status | None:
        """Return what the gateway says of itself in this life; None while it says nothing."""
        try:
            status = _Status.model_validate_json((self._directory / "status.json").read_bytes())
        except (OSError, ValidationError):
            return None
        return status if status.pid == child.process.pid else None


def _how_it_ended(child: Child) -> str:
    code = child.returncode
    assert code is not None
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return "left the run" if code == 0 else f"ended with exit code {code}: {child.last_lines(1)}"


def _later_signals() -> list[int]:
    """Return what collects, from now on, what else asks this program to end."""
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.append, number)
    return told
