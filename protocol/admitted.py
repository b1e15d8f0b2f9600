"""The keys that may take part in a run, as far as its log goes: a fold over the log's admissions, under the manifest's rule."""

from collections import Counter
from dataclasses import dataclass, field, replace

from manta_swarm.protocol.admission import GUEST, INVITATION, MEMBER, PEER, TAKEN_BACK, Admission, Invitation, Revocation
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signed import Signed

NOT_ADMITTED = "its key was not admitted to the run"
LOOKS_ON = "its key was admitted as a guest, who trains nothing"


@dataclass(slots=True)
class Admitted:
    """The keys that may take part, as far as a log goes. To be read only; ``take`` and ``revoke`` alone change it."""

    manifest: Manifest
    run: bytes
    accesses: dict[bytes, str] = field(default_factory=dict)  # of the keys that invitations let in, the first one first
    used: Counter[bytes] = field(default_factory=Counter)  # an invitation's key -> how many keys it let in
    out: dict[bytes, int] = field(default_factory=dict)  # keys that were revoked -> the round that was open then
    revoked: frozenset[bytes] = frozenset()  # the keys of invitations that were revoked
    revocations: tuple[Signed[Revocation], ...] = ()  # in the log's order
    named: frozenset[bytes] = field(init=False)  # keys that the manifest lets in

    def __post_init__(self) -> None:
        manifest = self.manifest
        of_audits = [key for rules in manifest.audits for key in (*rules.named, *rules.proven)]
        self.named = frozenset((*manifest.operators, *manifest.admission.keys, *of_audits))

    def copy(self) -> "Admitted":
        """Return a copy, which can go another way."""
        return replace(self, accesses=self.accesses.copy(), used=self.used.copy(), out=self.out.copy())

    def __contains__(self, key: object) -> bool:
        return self.manifest.admission.is_open or (key not in self.out and (key in self.named or key in self.accesses))

    def access_of(self, key: bytes) -> str:
        """Return what a key that is in may do."""
        return self.accesses.get(key, MEMBER)

    def trains(self, key: bytes) -> bool:
        """Return whether a key is in, and no guest."""
        return key in self and self.access_of(key) != GUEST

    def fault_of(self, key: bytes, round: int) -> str | None:
        """Return why a claim of ``key`` may not count in ``round``; None: it may.

        A key that was revoked has inclusion promises for the round that was open then and for the next one: these are kept.
        """
        if key not in self and not (key in self.out and round <= self.out[key] + 1):
            return NOT_ADMITTED
        return LOOKS_ON if self.access_of(key) == GUEST else None

    def check(self, signed: Signed[Admission], round: int) -> tuple[Admission, Invitation]:
        """Return an admission that can be taken while ``round`` is open, and its invitation.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
            LedgerError: it lets nobody in; the message says why.
        """
        admission = signed.open()
        invitation = admission.invitation.unchecked()
        self._check_invited()
        if invitation.run != self.run:
            raise LedgerError("the invitation is to another run")
        if invitation.operator not in self.manifest.operators:
            raise LedgerError("the invitation is signed by somebody who is no operator of the run")
        if admission.key in self:
            raise LedgerError("the key is in already")
        if admission.key in self.out:
            raise LedgerError(TAKEN_BACK)
        if invitation.key in self.revoked:
            raise LedgerError("an operator of the run took the invitation back")
        if round > invitation.until_round:
            raise LedgerError(f"the invitation ended with round {invitation.until_round}")
        if self.used[invitation.key] >= invitation.keys:
            raise LedgerError(f"the invitation is used up: it was for {invitation.keys} keys")
        return admission, invitation

    def take(self, signed: Signed[Admission], round: int) -> tuple[Admission, Invitation]:
        """Take an admission while ``round`` is open, and return it with its invitation: its key is in from now on.

        Raises:
            EncodingError, SignatureError, LedgerError: as ``check``; nothing has changed.
        """
        admission, invitation = self.check(signed, round)
        self.accesses[admission.key] = invitation.access
        self.used[invitation.key] += 1
        return admission, invitation

    def check_revocation(self, signed: Signed[Revocation]) -> Revocation:
        """Return a revocation that can be taken now.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
            LedgerError: it revokes nothing; the message says why.
        """
        revocation = signed.open()
        if revocation.run != self.run or revocation.operator not in self.manifest.operators:
            raise LedgerError("a revocation of another run, or of somebody who is no operator of it")
        if self.manifest.admission.is_open:
            raise LedgerError("the run is open to everybody: nobody was let in, so nothing can be taken back")
        if revocation.what == PEER:
            if revocation.target in self.manifest.operators:
                raise LedgerError("an operator of the run stays in")
            if revocation.target not in self:
                raise LedgerError("this key is not in, or was taken back before")
            return revocation
        self._check_invited()
        if revocation.target in self.revoked:
            raise LedgerError("this invitation was taken back before")
        return revocation

    def revoke(self, signed: Signed[Revocation], round: int) -> None:
        """Take a revocation while ``round`` is open.

        Raises:
            EncodingError, SignatureError, LedgerError: as ``check_revocation``; nothing has changed.
        """
        revocation = self.check_revocation(signed)
        if revocation.what == PEER:
            self.out[revocation.target] = round
        else:
            self.revoked |= {revocation.target}
        self.revocations = (*self.revocations, signed)

    def _check_invited(self) -> None:
        if self.manifest.admission.how != INVITATION:
            raise LedgerError("nobody is invited to this run")
