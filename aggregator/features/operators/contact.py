"""Keeps an operator in contact with the others: each is called again and again, and looked for where it was seen last.

An operator takes a turn only while it hears so many others that they are a quorum with it, and a leader that hears fewer gives its turn up.
So where lines between operators are cut, but not those to etcd, another operator writes that can.

DIR/operators/addresses.json   where the others were seen last: an operator that was away finds them by itself
"""

import asyncio
import contextlib
import json
import logging
from pathlib import Path

from manta_swarm.aggregator.features.operators.store import FOLDER
from manta_swarm.network.addresses import check_peer_address
from manta_swarm.network.distances import METHOD as PING
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.errors import RemoteFault, Unreachable, UserError
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import PublicKey, peer_name
from manta_swarm.runtime.atomic_file import AtomicFile, DamagedFile
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.tasks import together

SILENT_S = 6.0  # whom nothing was heard of for so long is not there
_PING_S = 4.0  # what else goes over a line may take it for so long
_LOOK_S = 1.0
_REMEMBERED = 8  # addresses of one operator
_MAX_BYTES = 65_536

logger = logging.getLogger("manta.operators")


class Contact:
    """Keeps one operator in contact with the others."""

    def __init__(self, node: OwnNode, operators: Operators, directory: Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Know where the others were at the last time, as the run's ``directory`` says.

        Raises:
            StorageError: the file cannot be read.
        """
        self._node = node
        self._quorum = operators.quorum
        self._others = [key for key in operators.keys if key != node.key]
        self._file = AtomicFile(directory / FOLDER / "addresses.json", _MAX_BYTES, is_synced=False)
        self._clock = clock
        self._seen = self._read()
        self._heard_s: dict[PublicKey, float] = {}
        self._writing = asyncio.Lock()

    @property
    def heard(self) -> list[PublicKey]:
        """The other operators that were heard lately."""
        return [key for key in self._others if self._is_there(key)]

    def is_quorum(self) -> bool:
        """Whether the operators that were heard lately are a quorum with this one."""
        return len(self.heard) + 1 >= self._quorum

    async def lost(self) -> None:
        """Return once the operators that are heard are no quorum any more."""
        while True:
            if not self.is_quorum():
                return
            await asyncio.sleep(_LOOK_S)

    async def keep(self) -> None:
        """Call the others until this is cancelled.

        Raises:
            StorageError: the disk refuses to keep where they are.
        """
        await together(*(self._keep_calling(key) for key in self._others))

    async def _keep_calling(self, key: PublicKey) -> None:
        was_there = False
        while True:
            is_there = await self._answers(key)
            if is_there and not was_there:
                await self._remember(key)
            elif not is_there:
                with contextlib.suppress(Unreachable):  # it is still away
                    await self._node.meet_again(key, self._seen.get(key, ()))
            was_there = is_there
            await asyncio.sleep(_LOOK_S)

    async def _answers(self, key: PublicKey) -> bool:
        with contextlib.suppress(Unreachable):
            try:
                await self._node.call(key, PING, b"", timeout_s=_PING_S)
            except RemoteFault as error:  # whatever it says, it is there
                logger.info("an operator refuses a ping reason=%s", error)
            self._heard_s[key] = self._clock.now_s()
            return True
        return False

    def _is_there(self, key: PublicKey) -> bool:
        return key in self._heard_s and self._clock.now_s() - self._heard_s[key] < SILENT_S

    async def _remember(self, key: PublicKey) -> None:
        """Keep where an operator can be called.

        Raises:
            StorageError: the disk refuses.
        """
        try:
            found = (await self._node.addresses_of(key))[:_REMEMBERED]
        except Unreachable:
            return
        if found and found != self._seen.get(key):
            self._seen[key] = found
            async with self._writing:
                await asyncio.to_thread(self._write, dict(self._seen))

    def _write(self, seen: dict[PublicKey, list[str]]) -> None:
        self._file.write(json.dumps({peer_name(key): found for key, found in seen.items()}).encode())

    def _read(self) -> dict[PublicKey, list[str]]:
        try:
            data = self._file.read() or b"{}"
            found = [address for addresses in json.loads(data).values() for address in addresses]
            seen: dict[PublicKey, list[str]] = {}
            for address in found:
                seen.setdefault(check_peer_address(address), []).append(address)
        except (ValueError, TypeError, AttributeError, UserError, DamagedFile) as error:  # the others look for this one, too
            logger.warning("the operators' addresses cannot be read, and are written again path=%s reason=%s", self._file.path, error)
            return {}
        return seen
