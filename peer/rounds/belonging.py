"""The account that this peer's credit adds up to: what its person said, handed in to the log wherever that says something else.

DIR/account   the person's word: a grant that is to hold, or that none is; without the file the log's word is left as it is
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from peer.status import StatusBoard
from protocol.delegations import MAX_CHANGES, Delegation, SignedDelegation, SignedGrant
from protocol.encoding import pack, unpack
from protocol.errors import MantaError, RemoteFault, UserError
from protocol.signing import Identity, peer_name
from swarm.disk import write_durably
from swarm.log_client import LogClient
from swarm.messages import CreditWord
from swarm.rpc import Refused

ACCOUNT = "account"
_MAX_BYTES = 1024

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the person said."""

    grant: tuple[SignedGrant, ...]  # at most one; none: the credit is to add up to no account

    def __post_init__(self) -> None:
        if len(self.grant) > 1:
            raise ValueError("a peer belongs to one account")

    @property
    def account(self) -> bytes:
        """The account; empty: none."""
        return self.grant[0].open().account if self.grant else b""


def save_wish(directory: Path, wish: Wish) -> None:
    """Keep what the person said; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    write_durably(directory / ACCOUNT, pack(wish))


def load_wish(directory: Path) -> Wish | None:
    """Return what the person said; None: nothing.

    Raises:
        UserError: the file cannot be read, or is damaged.
    """
    path = directory / ACCOUNT
    try:
        with path.open("rb") as file:
            wish = unpack(Wish, file.read(_MAX_BYTES), max_bytes=_MAX_BYTES)
        _ = wish.account  # whose signature is checked by it
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except RemoteFault as error:
        raise UserError(f"{path} is damaged ({error}): give the grant again with manta-peer account join, or delete the file") from error
    return wish


class Belongings:
    """One peer's, in one run."""

    def __init__(self, identity: Identity, run: bytes, log: LogClient, directory: Path, board: StatusBoard) -> None:
        """Hold the log to what is kept in ``directory``."""
        self._identity = identity
        self._run = run
        self._log = log
        self._directory = directory
        self._board = board
        self._told: tuple[Wish, int] | None = None  # was handed in last, as which delegation
        self._problem = ""

    async def see(self, word: CreditWord) -> None:
        """Take note of what the log says, and hand in what the person said, if that is something else."""
        self._board.update(account=peer_name(word.account) if word.account else "")
        try:
            wish = load_wish(self._directory)
        except UserError as error:
            self._say(str(error))
            return
        if wish is None or wish.account == word.account or word.credit + word.void == 0:
            return
        if self._told == (wish, word.changes) or word.changes >= MAX_CHANGES:
            return  # it waits for the next round, or was refused
        key = self._identity.public_key
        delegation = Delegation(self._run, key, key, word.changes + 1, wish.grant)
        try:
            await self._log.delegate(SignedDelegation.sign(delegation, self._identity))
        except Refused as error:
            self._say(f"the log does not take this peer's account: {error}")
        except MantaError as error:  # with the next word it is tried again
            logger.info("account not told reason=%s", error)
            return
        self._told = wish, word.changes

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._board.say(problem)
