"""Accounts of several machines: a key whose credit adds up to an account's, by the word of both. Pure.

A *grant* is the account's word, for any run: what this key earns may add up to it. A *delegation* is an entry of one run's log, signed by
the machine's key: from the next round on it belongs to the account of the grant that is in it. Without a grant it ends that, and may then
be signed by the account instead. Credit stays what each key earned: nothing moves, and an account is the sum over the keys that belong to
it now. So nobody can take another's credit, or be given a liar's against their will.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, LedgerError, SignatureError
from protocol.fields import Signed, check_digest, require
from protocol.signing import Identity, check_public_key, verify
from protocol.texts import max_letters, record_in, text_of

MAX_MACHINES = 64  # of one account
MAX_CHANGES = 256  # of one key, in one run
MAX_DELEGATION_BYTES = 1024
GRANT = "manta-account-"
_MAX_GRANT_BYTES, _MAX_SIGNED_GRANT_BYTES = 256, 512
MAX_GRANT_LETTERS = max_letters(GRANT, _MAX_SIGNED_GRANT_BYTES)


@dataclass(frozen=True, slots=True)
class Grant:
    """An account's word that what a key earns may add up to it."""

    account: bytes
    key: bytes
    number: int  # milliseconds since 1970, when it was made: in a run each counts once, and none after a later one

    def __post_init__(self) -> None:
        _check_key(self.account, "account")
        _check_key(self.key, "key")
        require(self.account != self.key, "an account is not its own machine")
        require(1 <= self.number < 2**62, "a grant's number is out of range")


@dataclass(frozen=True, slots=True)
class SignedGrant(Signed):
    """A grant's bytes with its account's signature."""

    def open(self) -> Grant:
        """Return the grant, its signature checked.

        Raises:
            EncodingError: the payload is no grant.
            SignatureError: its account did not sign it.
        """
        grant = unpack(Grant, self.payload, max_bytes=_MAX_GRANT_BYTES)
        verify("grant", grant.account, self.payload, self.signature)
        return grant

    @classmethod
    def sign(cls, grant: Grant, account: Identity) -> "SignedGrant":
        """Return ``grant`` signed by its account."""
        payload = pack(grant)
        return cls(payload, account.sign("grant", payload))

    def to_text(self) -> str:
        """Return the grant as people hand it on: one word of letters, digits, dashes and underscores."""
        return text_of(self, GRANT)

    @classmethod
    def from_text(cls, text: str) -> "SignedGrant":
        """Return the grant of ``to_text``'s word; its signature is not looked at.

        Raises:
            EncodingError: it is none.
        """
        return record_in(cls, text, GRANT, _MAX_SIGNED_GRANT_BYTES)


@dataclass(frozen=True, slots=True)
class Delegation:
    """Whom a key belongs to in a run, from now on."""

    run: bytes
    signer: bytes  # the key itself; without a grant also the account that it belongs to
    key: bytes
    number: int  # 1, 2, ...: of this key's delegations in the run
    grant: tuple[SignedGrant, ...]  # at most one; none: it belongs to nobody

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        _check_key(self.signer, "signer")
        _check_key(self.key, "key")
        require(1 <= self.number <= MAX_CHANGES, f"a key changes its account at most {MAX_CHANGES} times in a run")
        require(len(self.grant) <= 1, "a key belongs to one account")
        require(not self.grant or self.signer == self.key, "who joins an account signs for itself")


@dataclass(frozen=True, slots=True)
class SignedDelegation(Signed):
    """A delegation's bytes with its signer's signature: exactly what the log keeps."""

    def open(self) -> Delegation:
        """Return the delegation, its signature and its grant's checked.

        Raises:
            EncodingError: the payload is no delegation, or its grant is for another key.
            SignatureError: its signer did not sign it, or the account not the grant.
        """
        delegation = unpack(Delegation, self.payload, max_bytes=MAX_DELEGATION_BYTES)
        verify("delegation", delegation.signer, self.payload, self.signature)
        for grant in delegation.grant:
            if grant.open().key != delegation.key:
                raise EncodingError("a grant for another key")
        return delegation

    @classmethod
    def sign(cls, delegation: Delegation, signer: Identity) -> "SignedDelegation":
        """Return ``delegation`` signed by its signer."""
        payload = pack(delegation)
        return cls(payload, signer.sign("delegation", payload))


@dataclass(frozen=True, slots=True)
class Belonging:
    """One key's."""

    account: bytes  # empty: to nobody
    changes: int  # delegations so far
    granted: Mapping[bytes, int]  # by account: the number of the last grant that was taken


NOBODYS = Belonging(b"", 0, {})


@dataclass(slots=True)
class Owners:
    """Which keys belong to which accounts. Values inside the mappings are never changed, only replaced, so a copy may share them."""

    belongs: dict[bytes, Belonging] = field(default_factory=dict)  # by key
    machines: Counter[bytes] = field(default_factory=Counter)  # by account: how many

    def copy(self) -> "Owners":
        """Return owners that can go another way."""
        return Owners(self.belongs.copy(), self.machines.copy())

    def of(self, key: bytes) -> Belonging:
        """Return what is known of a key."""
        return self.belongs.get(key, NOBODYS)

    def accounts(self) -> dict[bytes, bytes]:
        """Return key -> account of those that belong to one, in the order of the keys."""
        return {key: self.belongs[key].account for key in sorted(self.belongs) if self.belongs[key].account}

    def machines_of(self) -> dict[bytes, list[bytes]]:
        """Return account -> the keys that belong to it, both in order."""
        found = dict[bytes, list[bytes]]()
        for key, account in self.accounts().items():
            found.setdefault(account, []).append(key)
        return {account: found[account] for account in sorted(found)}

    def check(self, delegation: Delegation, *, has_earned: bool) -> None:
        """Check that a delegation, whose signatures hold, may follow.

        Args:
            delegation: it.
            has_earned: whether a table has a claim of its key: others may not fill the log.

        Raises:
            LedgerError: it may not.
        """
        now = self.of(delegation.key)
        if not has_earned:
            raise LedgerError("a delegation of a key that has earned nothing in this run yet")
        if delegation.number != now.changes + 1:
            raise LedgerError(f"delegation {delegation.number} of a key that has {now.changes}")
        if not delegation.grant:
            if not now.account or delegation.signer not in (delegation.key, now.account):
                raise LedgerError("a key that belongs to nobody, or to another account than the signer's")
            return
        grant = delegation.grant[0].open()
        if grant.number <= now.granted.get(grant.account, 0):
            raise LedgerError("a grant that was taken before, or one older than that")
        if self.machines[grant.account] >= MAX_MACHINES and now.account != grant.account:
            raise LedgerError(f"an account has at most {MAX_MACHINES} machines")
        if self.of(grant.account).account or self.machines[delegation.key]:
            raise LedgerError("an account that belongs to another one")

    def take(self, delegations: Sequence[Delegation]) -> None:
        """Take delegations that were checked before a round, in the log's order; what does not follow those before it changes nothing."""
        for delegation in delegations:
            try:
                self.check(delegation, has_earned=True)
            except LedgerError:
                continue  # the account was full by then, or became another one's machine
            now = self.of(delegation.key)
            granted = {grant.account: grant.number for grant in (signed.open() for signed in delegation.grant)}
            account = next(iter(granted), b"")
            self.machines.update([account] if account else [])
            self.machines.subtract([now.account] if now.account else [])
            self.belongs[delegation.key] = Belonging(account, delegation.number, {**now.granted, **granted})


def _check_key(key: bytes, what: str) -> None:
    try:
        check_public_key(key)
    except SignatureError as error:
        raise ValueError(f"{what}: {error}") from error
