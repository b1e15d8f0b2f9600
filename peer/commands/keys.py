"""The person's key on their disk: where it is, said when it is made; a copy of it, and back from the copy."""

import os
from pathlib import Path

from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import EncodingError, StorageError, UserError
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.runtime.console import Console
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory, only_process, write_durably

_MAX_BYTES = 4096


def own_identity(store: PeerStore, console: Console) -> Identity:
    """Return the identity of a peer's directory; where it is made now, say on the console where the key is.

    Raises:
        UserError: see ``runtime.disk.load_identity``.
    """
    is_new = not store.identity_path.exists()
    identity = load_identity(store.identity_path)
    if is_new:
        console.say(f"your key, to which all credit belongs, is new: {store.identity_path}; keep a copy: manta-peer identity backup FILE")
    return identity


def make(directory: Path) -> str:
    """Make the key of a directory that has none; return what to tell.

    Raises:
        UserError: it has one, good or not, or a peer runs there.
        StorageError: the disk refuses.
    """
    path = directory / IDENTITY
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} is there already: manta-peer identity shows it; for another key give another --dir")
    make_directory(directory)
    with only_process(directory):
        name = peer_name(load_identity(path).public_key)
    return f"{name} ({path}); keep a copy: manta-peer identity backup FILE"


def shown(directory: Path) -> str:
    """Return which identity a directory has, and where.

    Raises:
        UserError: it has none, or not a good one.
    """
    path = _path_of(directory)
    return f"{peer_name(load_identity(path).public_key)} ({path})"


def backup(directory: Path, copy: Path) -> str:
    """Write a copy of the key, for nobody else to read; return what to tell.

    Raises:
        UserError: there is no key, or a file in the place of the copy.
        StorageError: the disk refuses.
    """
    path = _path_of(directory)
    identity = load_identity(path)
    if copy.exists() or copy.is_symlink():
        raise UserError(f"{copy} is there already; give the name of a file that is not")
    if not copy.absolute().parent.is_dir():
        raise UserError(f"{copy.absolute().parent} is no directory; make it, or give another name")
    try:
        write_durably(copy, identity.to_libp2p(), mode=0o600)
    except StorageError as error:
        raise UserError(f"cannot write {copy}: {error.__cause__ or error}") from error
    more = directory / "privacy"
    also = f"; copy {more} too, the account of what was given away of your images" if more.exists() else ""
    return f"copied the key of {peer_name(identity.public_key)} to {copy}: whoever has it can act as you{also}"


def restore(directory: Path, copy: Path) -> str:
    """Make the key in ``copy`` that of a directory, which has none or this one; return what to tell.

    Raises:
        UserError: there is no key in the file, another one in the directory, or a peer runs there.
        StorageError: the disk refuses.
    """
    identity = _identity_in(copy)
    make_directory(directory)
    with only_process(directory):
        path = directory / IDENTITY
        if path.exists():
            here = load_identity(path)
            if here.public_key != identity.public_key:
                raise UserError(f"{path} is another key, of {peer_name(here.public_key)}: move it away first, or give another --dir")
            return f"{path} is that key already, of {peer_name(here.public_key)}"
        write_durably(path, identity.to_libp2p(), mode=0o600)
    return f"{path} is the key of {peer_name(identity.public_key)} now: manta-peer join takes part under that name"


def _path_of(directory: Path) -> Path:
    path = directory / IDENTITY
    if not path.exists():
        raise UserError(
            f"there is no key in {directory}: name its folder with --dir; manta-peer identity new makes one, as the first join does"
        )
    return path


def _identity_in(copy: Path) -> Identity:
    try:
        with copy.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        return Identity.from_libp2p(data)
    except OSError as error:
        raise UserError(f"cannot read {copy}: {os.strerror(error.errno) if error.errno else error}") from error
    except EncodingError as error:
        raise UserError(f"{copy} is no copy of a key ({error})") from error
