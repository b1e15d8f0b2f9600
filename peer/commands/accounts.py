"""Accounts of several machines: making one, granting a machine a place in it, joining with the grant, and ending that."""

import time
from pathlib import Path

from peer.config import PeerConfig
from peer.rounds.belonging import Wish, load_wish, save_wish
from protocol.delegations import GRANT, MAX_GRANT_LETTERS, Delegation, Grant, SignedDelegation, SignedGrant
from protocol.errors import MantaError, RemoteFault, UserError
from protocol.signing import Identity, PublicKey, key_named, peer_name
from swarm.disk import IDENTITY, load_identity
from swarm.told import text_or_file


def make_account(path: Path) -> str:
    """Make an account's key, for nobody else to read; return what to tell.

    Raises:
        UserError: something is there already, or the folder is not.
        StorageError: the disk refuses.
    """
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} is there already; give the name of a file that is not")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path.absolute().parent} is no directory; make it, or give another name")
    name = peer_name(load_identity(path).public_key)
    return (
        f"made account {name}: {path} is its key, keep it and a copy of it; no machine needs it: manta-peer account grant PEER --key {path}"
    )


def grant_text(path: Path, peer: str) -> str:
    """Return the account's grant for the machine of that name, as people hand it on.

    Raises:
        UserError: there is no such account, or no such name.
    """
    account, key = _account_in(path), _key_of(peer)
    if key == account.public_key:
        raise UserError("that is the account's own name: give the machine's, as manta-peer identity shows it there")
    return SignedGrant.sign(Grant(account.public_key, key, time.time_ns() // 1_000_000), account).to_text()


def join_account(directory: Path, told: str) -> str:
    """Have a peer's credit add up to the account that granted that; return what to tell.

    Raises:
        UserError: it is no grant, or for another machine.
        StorageError: the disk refuses.
    """
    signed = _grant_of(told)
    grant, own = signed.open(), _identity_of(directory).public_key
    if grant.key != own:
        raise UserError(f"this grant is for {peer_name(grant.key)}, and this machine is {peer_name(own)}: ask for one for that name")
    save_wish(directory, Wish((signed,)))
    return f"what this peer earns adds up to account {peer_name(grant.account)}, in each run from its next counted round on"


def leave_account(directory: Path) -> str:
    """Have a peer's credit add up to no account; return what to tell.

    Raises:
        UserError: the folder has no key.
        StorageError: the disk refuses.
    """
    _identity_of(directory)
    save_wish(directory, Wish(()))
    return "what this peer earns adds up to no account, in each run from its next counted round on; to come back ask for a new grant"


def shown(directory: Path) -> str:
    """Return which account a peer's person named.

    Raises:
        UserError: the folder has no key, or its file is damaged.
    """
    wish, name = load_wish(directory), peer_name(_identity_of(directory).public_key)
    if wish is None or not wish.account:
        return f"{name} belongs to no account"
    return f"{name} is to belong to account {peer_name(wish.account)}; manta-peer status says what the log has"


async def revoke(config: PeerConfig, path: Path, peer: str) -> str:
    """End, as the account, that a machine's credit adds up to it in one run; return what to tell.

    Raises:
        UserError: there is no such account or name, or in that run it does not belong to it.
        MantaError: the run cannot be reached, or refuses.
    """
    from peer.contact.visiting import visiting

    account, key = _account_in(path), _key_of(peer)
    async with visiting(config, guest=config.dir) as visit:
        word = await visit.log.credit(0, key)
        if word.account != account.public_key:
            raise UserError(f"in run {visit.manifest.name} {peer} does not belong to account {peer_name(account.public_key)}")
        delegation = Delegation(visit.signed.run, account.public_key, key, word.changes + 1, ())
        await visit.log.delegate(SignedDelegation.sign(delegation, account))
        return f"{peer} does not belong to the account in run {visit.manifest.name} any more, from its next round on"


def _grant_of(told: str) -> SignedGrant:
    text, where = text_or_file(told, GRANT, MAX_GRANT_LETTERS, what="grant", source="what manta-peer account grant printed")
    try:
        signed = SignedGrant.from_text(text)
        signed.open()
    except RemoteFault as error:
        raise UserError(f"{where} is no grant ({error}); copy it whole, as manta-peer account grant printed it") from error
    return signed


def _account_in(path: Path) -> Identity:
    if not path.exists():
        raise UserError(f"there is no account's key {path}: manta-peer account new {path} makes one")
    return load_identity(path)


def _identity_of(directory: Path) -> Identity:
    path = directory / IDENTITY
    if not path.exists():
        raise UserError(
            f"there is no key in {directory}: name its folder with --dir; manta-peer identity new makes one, as the first join does"
        )
    return load_identity(path)


def _key_of(peer: str) -> PublicKey:
    try:
        return key_named(peer)
    except (MantaError, ValueError) as error:
        raise UserError(f"{peer[:80]!r} is no name of a peer ({error}): manta-peer identity shows it on that machine") from error
