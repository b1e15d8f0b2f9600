"""A gateway for light contributors beside the log: a sidecar (``manta-peer join --gateway``) with credit of its own."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.sidecars.keys import GATEWAY, invitation_for
from manta_swarm.aggregator.features.sidecars.sidecar import Sidecar
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.admission import INVITATION
from manta_swarm.runtime.listen_address import ListenAddress
from manta_swarm.runtime.signals import hearing

_EVERY_ADDRESS = "0.0.0.0"  # of IPv4


class Gateway(Sidecar):
    """One aggregator's gateway."""

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
            for listen_address in self._doors(addresses):
                address, run = f"{listen_address.url}#{status.peer}", self._context.ledger.run.hex()
                self._context.console.say(f"  manta-peer join --light --gateway {address} --run {run}")
        return bool(status.leases_at)

    def _doors(self, addresses: Sequence[str]) -> Iterator[ListenAddress]:
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
