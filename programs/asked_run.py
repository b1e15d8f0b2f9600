"""Visits a run whose members measure for a search, under a temporary key or a guest's, in a thread beside the search.

The search is a program that asks and waits; the network is an event loop. So the loop runs in a thread, and only calls go over.
"""

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.update import state_digest
from manta_swarm.network.asked_members import AskedMembers
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.visiting import Visit, visiting
from manta_swarm.protocol.errors import OwnFault, Unreachable, UserError
from manta_swarm.protocol.evaluations import Result
from manta_swarm.protocol.signing import PublicKey, peer_name

GUEST = "guest"  # in a search's folder: the key that a run's invitation let in
_END_S = 30.0  # for the node to say goodbye


@dataclass(frozen=True, slots=True)
class RunOfMembers:
    """A visited run, which a search asks in its own thread. Implements ``automl.commands.network_interface.AskedRun``."""

    loop: asyncio.AbstractEventLoop
    members: AskedMembers
    snapshot: Path
    round: int
    state: bytes  # its digest

    def ask(self, architectures: Sequence[str], part: str) -> Sequence[Result]:
        """Return what the members say."""
        asking = asyncio.run_coroutine_threadsafe(self.members.measure(self.round, self.state, architectures, part), self.loop)
        try:
            return asking.result()
        except Unreachable as error:
            raise Unreachable(
                f"{error}; what is measured is kept: repeat the command, or take another --out to begin with the newest state"
            ) from error
        except BaseException:
            asking.cancel()
            raise
        finally:
            for line in self.members.take_lines():
                click.echo(line, err=True)

    def words(self) -> Sequence[str]:
        """Return how much of the answers was checked, and who lied."""
        members = self.members
        lines = [f"measured by {len(members.answered)} of the run's members, {members.num_checked} times by more than one of them, alike"]
        lines += [f"not believed: {peer_name(PublicKey(key))} ({lie.reason})" for key, lie in members.liars.items()]
        if members.num_doubtful:
            lines.append(f"{members.num_doubtful} networks were known by the word of these alone: search anew, with another --out")
        return lines


@contextlib.contextmanager
def opened(config: PeerConfig, folder: Path) -> Iterator[RunOfMembers]:
    """Yield the run that the settings name, whose members are there to be asked; the network is left however the program is told to end.

    Raises:
        UserError: nobody answers there, it is another run, its data are private, or it does not let anybody in by the invitation.
        MantaError: the state cannot be had.
    """
    found: concurrent.futures.Future[RunOfMembers] = concurrent.futures.Future()
    loop = asyncio.new_event_loop()
    visit = loop.create_task(_visit(config, folder, found))
    thread = threading.Thread(target=_live, args=(loop, visit, found), name="network")
    thread.start()
    try:
        with ending_at_sigterm():
            yield found.result()
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(visit.cancel)
        thread.join(_END_S)
        if thread.is_alive():
            raise OwnFault("the network does not end")


@contextlib.contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Make SystemExit of SIGTERM, so that what is inside is cleaned up; also where a library's own code makes another error of it."""
    told: list[int] = []

    def end(number: int, _frame: object) -> NoReturn:
        told.append(number)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Exception as error:
        if told:
            raise SystemExit(128 + told[0]) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _live(loop: asyncio.AbstractEventLoop, visit: "asyncio.Task[None]", found: "concurrent.futures.Future[RunOfMembers]") -> None:
    """Run the visit to its end; if it ended before the run was found, that is why it was not."""
    try:
        loop.run_until_complete(visit)
    except (Exception, asyncio.CancelledError) as error:
        if not found.done():
            found.set_exception(error)
        elif not isinstance(error, asyncio.CancelledError):
            raise
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _visit(config: PeerConfig, folder: Path, found: "concurrent.futures.Future[RunOfMembers]") -> None:
    async with visiting(config, guest=folder / GUEST) as visit:
        manifest = visit.manifest
        if manifest.is_private:
            raise UserError("this run's data stay with their owners, who measure for nobody: take a snapshot of its operator's")
        path = await _snapshot(visit, folder)
        state, _ = load_snapshot(path)
        asking = AskedMembers(visit.own_node, visit.signed.run, manifest.data_digest, Neighbours(visit.own_node, visit.signed.run))
        found.set_result(RunOfMembers(asyncio.get_running_loop(), asking, path, state.round, state_digest(state)))
        await asyncio.Event().wait()


async def _snapshot(visit: Visit, folder: Path) -> Path:
    """Return a snapshot in ``folder``: the one of this run that is there, which a search was begun with, or the newest state."""
    manifest, run = visit.manifest, visit.signed.run.hex()
    there = _newest_in(folder, run)
    if there is not None:
        return there
    newest = await visit.newest()
    round_, digest = (0, manifest.initial_state) if newest is None else (newest.round, newest.state)
    click.echo(f"getting the state of round {round_} of {manifest.name} ({run[:16]})", err=True)
    state = await visit.state(newest)
    described = {"run": run, "supernet": manifest.supernet, "schedule": manifest.schedule, "state": digest.hex()}
    path = _made(folder) / f"{run[:8]}-round-{round_:08d}.safetensors"
    save_snapshot(path, state, {**described, "dataset": manifest.dataset, "data": manifest.data_digest.hex()})
    return path


def _newest_in(folder: Path, run: str) -> Path | None:
    there = sorted(folder.glob(f"{run[:8]}-round-*.safetensors"))
    if there and load_snapshot(there[-1])[1].get("run") != run:
        raise UserError(f"{there[-1]} is of another run: choose another folder with --out")
    return there[-1] if there else None


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; choose another one with --out") from error
    return folder
