"""A peer's directory: the identity, the run it joined last, its frozen work, and a status file for other programs to read.

identity.key          the Ed25519 key, mode 0600
peer.toml             the person's settings (see ``peer.config``); only read
lock                  locked while a peer (or an aggregator) runs on the directory
last.json             the run joined last, and where it was found
runs/<run>/frozen     the newest claim and its lots' gradient, stored before the claim is first sent
status.json           where the peer stands
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from protocol.encoding import pack, unpack
from protocol.errors import RemoteFault, StorageError
from protocol.records import MAX_ENTRY_BYTES, SignedClaim
from swarm.disk import make_directory, replace_file, write_durably


@dataclass(frozen=True, slots=True)
class Frozen:
    """A claim and the mean gradient of its lots (float32, one dimension)."""

    claim: SignedClaim
    gradient: Tensor


class PeerStore:
    """The files of one peer."""

    def __init__(self, directory: Path) -> None:
        """Use ``directory``, which is made if it is not there."""
        make_directory(directory)
        self.directory = directory
        self.identity_path = directory / "identity.key"

    def last_run(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the id of the run joined last and the addresses that led to it."""
        try:
            entry = json.loads((self.directory / "last.json").read_text())
            run, addresses = entry["run"], entry["initial_peers"]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # never joined, or somebody edited the file: the person is asked for an address
        if type(run) is not str or type(addresses) is not list or not addresses or any(type(each) is not str for each in addresses):
            return None
        return run, tuple(addresses)

    def remember_run(self, run: bytes, initial_peers: tuple[str, ...]) -> None:
        """Keep what ``last_run`` returns."""
        write_durably(self.directory / "last.json", json.dumps({"run": run.hex(), "initial_peers": initial_peers}).encode())

    def save_frozen(self, run: bytes, claim: SignedClaim, gradient: Tensor) -> None:
        """Keep the claim and its gradient, durable when this returns."""
        path = self._frozen_path(run)
        make_directory(path.parent)
        write_durably(path, safetensors.torch.save({"gradient": gradient}, {"claim": pack(claim).hex()}))

    def load_frozen(self, run: bytes) -> Frozen | None:
        """Return the newest claim that this peer froze in ``run``.

        Raises:
            StorageError: the file is damaged. It is left as it is: without it this peer may claim twice for a round, which is an offence.
        """
        path = self._frozen_path(run)
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                packed = bytes.fromhex(file.metadata()["claim"])
                return Frozen(unpack(SignedClaim, packed, max_bytes=MAX_ENTRY_BYTES + 256), file.get_tensor("gradient"))
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError, RemoteFault) as error:
            raise StorageError(
                f"{path} is damaged ({error}); check the disk, then delete the file: the lots of one round are lost with it"
            ) from error

    def write_status(self, status: dict[str, Any]) -> None:
        """Replace the status file."""
        replace_file(self.directory / "status.json", json.dumps(status, indent=1).encode())

    def _frozen_path(self, run: bytes) -> Path:
        return self.directory / "runs" / run.hex()[:16] / "frozen"
