"""The keys that may take part in a run, as far as its log goes: a fold over the log's admissions, under the manifest's rule."""

from collections import Counter

from protocol.admission import INVITATION, Invitation, SignedAdmission
from protocol.errors import LedgerError
from protocol.manifest import Manifest
from protocol.revocation import PEER, TAKEN_BACK, Revocation, SignedRevocation

NOT_ADMITTED = "its key was not admitted to the run"


class Admitted:
    """Who may take part."""

    def __init__(self, manifest: Manifest, run: bytes) -> None:
        """Begin with those whom the manifest names."""
        self._rule = rule = manifest.admission
        self._run = run
        self._most: dict[bytes, int | None] = dict.fromkeys(manifest.operators)  # issuer -> keys that it may let in; None: any number
        self._most |= {inviter.key: inviter.keys for inviter in rule.inviters if inviter.key not in self._most}
        self._always = frozenset((*self._most, *rule.keys, *manifest.trust.proven, *manifest.trust.auditors))
        self._keys: dict[bytes, bytes] = {}  # that an invitation let in -> its digest
        self._used: Counter[bytes] = Counter()  # invitation, by its digest -> keys that it let in
        self._let_in: Counter[bytes] = Counter()  # the same by issuer
        self._operators = frozenset(manifest.operators)
        self._out: dict[bytes, int] = {}  # keys that were taken back -> the round that was open then
        self._void: set[bytes] = set()  # invitations that were taken back, by their digests
        self.revocations: tuple[SignedRevocation, ...] = ()  # in the log's order

    def copy(self) -> "Admitted":
        """Return the same, which can go another way."""
        other = Admitted.__new__(Admitted)
        other.__dict__.update(self.__dict__)
        other._keys, other._used, other._let_in = self._keys.copy(), self._used.copy(), self._let_in.copy()
        other._out, other._void = self._out.copy(), self._void.copy()
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Admitted) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: object) -> bool:
        return self._rule.is_open or (key not in self._out and (key in self._always or key in self._keys))

    def is_out(self, key: bytes) -> bool:
        """Return whether a key was taken back."""
        return key in self._out

    def may_invite(self, key: bytes) -> bool:
        """Return whether the manifest lets a key sign invitations."""
        return self._rule.how == INVITATION and key in self._most

    def may_stand(self, key: bytes, round: int) -> bool:
        """Return whether the table of ``round`` may have a claim of ``key``.

        Of one that was taken back that of the round which was open then and that of the next one may: what it has tickets for is kept.
        """
        return key in self or (key in self._out and round <= self._out[key] + 1)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Those that invitations let in, the first one first."""
        return tuple(self._keys)

    def take(self, signed: SignedAdmission, round: int) -> bytes:
        """Take an admission while ``round`` is open; return the key that is in from now on. On any error nothing has changed.

        Raises:
            EncodingError, SignatureError: as ``SignedAdmission.open``.
            LedgerError: it lets nobody in; the message says why.
        """
        admission, invitation = signed.open()
        digest = admission.invitation.digest
        self._check(invitation, digest, admission.key, round)
        self._keys[admission.key] = digest
        self._used[digest] += 1
        self._let_in[invitation.issuer] += 1
        return admission.key

    def take_back(self, signed: SignedRevocation, round: int) -> None:
        """Take a revocation while ``round`` is open. On any error nothing has changed.

        Raises:
            EncodingError, SignatureError: as ``SignedRevocation.open``.
            LedgerError: it takes nothing back; the message says why.
        """
        revocation = self.check_revocation(signed)
        if revocation.what == PEER:
            self._out[revocation.target] = round
        else:
            self._void.add(revocation.target)
        self.revocations = (*self.revocations, signed)

    def check_revocation(self, signed: SignedRevocation) -> Revocation:
        """Return the revocation, which could be taken now.

        Raises:
            EncodingError, SignatureError, LedgerError: as ``take_back``.
        """
        revocation = signed.open()
        if revocation.run != self._run or revocation.operator not in self._operators:
            raise LedgerError("a revocation of another run, or of somebody who is no operator of it")
        if self._rule.is_open:
            raise LedgerError("the run is open to everybody: nobody was let in, so nothing can be taken back")
        if revocation.what == PEER:
            if revocation.target in self._operators:
                raise LedgerError("an operator of the run stays in")
            if revocation.target not in self:
                raise LedgerError("this key is not in, or was taken back before")
        elif self._rule.how != INVITATION:
            raise LedgerError("nobody is invited to this run")
        elif revocation.target in self._void:
            raise LedgerError("this invitation was taken back before")
        return revocation

    def check(self, signed: SignedAdmission, round: int) -> None:
        """Check that an admission could be taken now.

        Raises:
            EncodingError, SignatureError, LedgerError: as ``take``.
        """
        admission, invitation = signed.open()
        self._check(invitation, admission.invitation.digest, admission.key, round)

    def _check(self, invitation: Invitation, digest: bytes, key: bytes, round: int) -> None:
        if self._rule.how != INVITATION:
            raise LedgerError("nobody is invited to this run")
        if invitation.run != self._run:
            raise LedgerError("the invitation is to another run")
        if invitation.issuer not in self._most:
            raise LedgerError("the invitation is signed by a key that may not invite")
        if key in self:
            raise LedgerError("the key is in already")
        if key in self._out:
            raise LedgerError(TAKEN_BACK)
        if digest in self._void or invitation.issuer in self._out:
            raise LedgerError("an operator of the run took the invitation back")
        if round > invitation.until_round:
            raise LedgerError(f"the invitation ended with round {invitation.until_round}")
        if self._used[digest] >= invitation.keys:
            raise LedgerError(f"the invitation is used up: it was for {invitation.keys} keys")
        most = self._most[invitation.issuer]
        if most is not None and self._let_in[invitation.issuer] >= most:
            raise LedgerError(f"who signed the invitation may let in {most} keys, and did")
