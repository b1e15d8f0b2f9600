"""The operators of a run: whose signatures a tree head needs, and when an operator that begins with an empty folder takes part.

One operator's word is enough for what it alone answers for: an inclusion promise, an admission proof. A tree head, what the run says, needs
``quorum`` different operators in its note: Ed25519 signatures under the log's name, at least one of them, or cosignatures
(``protocol.cosignatures``). Two quorums have an operator in common, who never signs two trees of one size: so one liar forks nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from manta_swarm.protocol.ballots import NOBODY, Ballot
from manta_swarm.protocol.cosignatures import COSIGNATURE, cosignature_in, witness_name
from manta_swarm.protocol.errors import ProofError, SignatureError
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.manifest import MAX_OPERATORS, Manifest, SignedManifest
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.notes import ED25519, TreeHead, key_id, origin, parse_tree_head, signature_line, split_note
from manta_swarm.protocol.signing import PublicKey, verify_note

MAX_COUNTED_BYTES = 2048  # of a note with one line of each of the most operators, and a little more

LATER = 3  # rounds after the newest of its log for which an operator keeps contributions at most
_BEHIND = 1  # a round that the old self had in its log, and another one has accepted only


@dataclass(frozen=True, slots=True)
class Signers:
    """A tree head, and the operators who signed it; whether they are enough is not said by it."""

    head: TreeHead
    keys: frozenset[PublicKey]

    @property
    def in_order(self) -> tuple[PublicKey, ...]:
        """The keys, sorted."""
        return tuple(sorted(self.keys))


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of one run."""

    run: bytes
    keys: tuple[PublicKey, ...]
    quorum: int

    @classmethod
    def of(cls, manifest: Manifest, run: bytes) -> "Operators":
        """Return the operators that a run's manifest names."""
        return cls(run, tuple(PublicKey(key) for key in manifest.operators), manifest.quorum)

    @classmethod
    def of_signed(cls, signed: SignedManifest) -> "Operators":
        """Return the operators that a signed manifest names.

        Raises:
            EncodingError, SignatureError: as ``SignedManifest.open``.
        """
        return cls.of(signed.open(), signed.run)

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    @property
    def name(self) -> str:
        """The origin of the run's log, and the name of its operators' keys in notes."""
        return origin(self.run)

    @property
    def is_alone(self) -> bool:
        """Whether the run has one operator only."""
        return len(self.keys) == 1

    @property
    def least_liars(self) -> int:
        """How many operators at least signed both of two tree heads that count."""
        return 2 * self.quorum - len(self.keys)

    def signers(self, note: str) -> Signers:
        """Return the tree head in ``note`` and which operators signed it, each line of theirs checked; other lines are passed over.

        Raises:
            EncodingError: no note, not of a tree head, or with a malformed line of an operator.
            SignatureError: an operator's line that does not hold.
            ProofError: it is of another log.
        """
        return self._signers(*split_note(note))

    def open(self, note: str) -> TreeHead:
        """Return the tree head in ``note``, which enough operators signed.

        Raises:
            EncodingError, ProofError: as ``signers``.
            SignatureError: that, or fewer signed it, or none of them under the log's name.
        """
        text, lines = split_note(note)
        found = self._signers(text, lines)
        if not any(self._signer(name, data, ED25519) for name, data in lines):
            raise SignatureError(f"the tree head has no signature of {self.name}")
        if len(found.keys) < self.quorum:
            raise SignatureError(f"the tree head is signed by {len(found.keys)} of {len(self.keys)} operators, and {self.quorum} have to")
        return found.head

    def open_own(self, note: str, key: bytes) -> TreeHead:
        """Return the tree head in ``note``, which the operator ``key`` signed, or enough operators: what it may keep beside its log.

        Raises:
            EncodingError, SignatureError, ProofError: as ``open``.
        """
        found = self.signers(note)
        return found.head if key in found.keys else self.open(note)

    def counts(self, note: str) -> bool:
        """Return whether enough operators signed the tree head in ``note``.

        Raises:
            EncodingError, ProofError: as ``signers``.
        """
        try:
            self.open(note)
        except SignatureError:
            return False
        return True

    def signed_both(self, note: str, other: str) -> tuple[PublicKey, ...]:
        """Return who signed both of two notes, sorted: at least ``least_liars`` where both count.

        Raises:
            EncodingError, SignatureError, ProofError: as ``signers``.
        """
        return tuple(sorted(self.signers(note).keys & self.signers(other).keys))

    def quorum_note(self, note: str) -> str:
        """Return a note that counts with the fewest lines that it counts with: of ``quorum`` operators, one each.

        Raises:
            EncodingError, SignatureError, ProofError: as ``open``.
        """
        self.open(note)
        text, lines = split_note(note)
        chosen: dict[PublicKey, str] = {}
        for kind in (ED25519, COSIGNATURE):
            for name, data in lines:
                key = self._signer(name, data, kind)
                if key is not None and len(chosen) < self.quorum:
                    chosen.setdefault(key, signature_line(name, data))
        return f"{text}\n{''.join(chosen.values())}"

    def _signers(self, text: str, lines: list[tuple[str, bytes]]) -> Signers:
        found = set()
        for name, data in lines:
            if (key := self._signer(name, data, ED25519)) is not None:
                verify_note(key, text, data[4:])
                found.add(key)
            elif (key := self._signer(name, data, COSIGNATURE)) is not None:
                cosignature_in(name, data).check(text)
                found.add(key)
        head = parse_tree_head(text)
        if head.origin != self.name:
            raise ProofError(f"a tree head of another log: {head.origin!r}")
        return Signers(head, frozenset(found))

    def _signer(self, name: str, data: bytes, kind: bytes) -> PublicKey | None:
        """Return whose line of this type it is; None: no operator's."""
        for key in self.keys:
            wanted = self.name if kind == ED25519 else witness_name(key)
            if name == wanted and data[:4] == key_id(wanted, key, kind):
                return key
        return None


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where an operator stands, as it tells a newcomer."""

    promised: Ballot
    size: int  # of its log, with the batch that it accepted after it
    round: int  # the newest of its log

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_SIZE or not 0 <= self.round <= MAX_ROUND:
            raise ValueError("no position of an operator")


@dataclass(frozen=True, slots=True)
class HeardPosition:
    """The position of a log, and whose it is."""

    key: bytes
    position: LogPosition


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What a newcomer has heard, and may not forget either."""

    heard: tuple[HeardPosition, ...] = ()

    def __post_init__(self) -> None:
        if len(self.heard) > MAX_OPERATORS:
            raise ValueError("more operators than a run has")

    def hearing(self, key: bytes, position: LogPosition) -> "Newcomer":
        """Return the newcomer with what the operator ``key`` said; the first word of each counts."""
        return self if key in self.keys else replace(self, heard=(*self.heard, HeardPosition(key, position)))

    @property
    def keys(self) -> frozenset[bytes]:
        """The operators that were heard."""
        return frozenset(each.key for each in self.heard)

    @property
    def size(self) -> int:
        """The size above which a log has all that the old self may have signed or accepted, or something else in its place."""
        return max((each.position.size for each in self.heard), default=0)

    @property
    def round(self) -> int:
        """The round with which the log has all that the old self kept and that has an inclusion promise."""
        return max((each.position.round for each in self.heard), default=0) + _BEHIND + LATER

    @property
    def promised(self) -> Ballot:
        """The latest ballot that the old self may have promised to."""
        return max((each.position.promised for each in self.heard), default=NOBODY)

    def is_over(self, others: Collection[bytes], size: int, round: int) -> bool:
        """Return whether an operator takes part from now on, who listens to no ballot older than ``promised``.

        Args:
            others: the keys of all the run's other operators.
            size: of its log.
            round: the newest of its log.
        """
        return self.keys.issuperset(others) and size > self.size and round >= self.round
