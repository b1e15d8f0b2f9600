"""The bodies of contributions at the log: on their way, group by group, and on the disk, synced before anybody gets an inclusion promise.

DIR/bodies/round-00000012.bodies   contributions that count in round 12 (``runtime.appended_file``)

What a crash tore off at the end, nobody has an inclusion promise for. The files of the newest rounds stay, so that the run can be computed
again.

While a body is on its way, all its groups come from one bringer, so that it is known whose fault a wrong one is: whoever brought the header
(``aggregator.intake.refusals.bringer_of``). The contribution's founder may take over at any time, but no operator's word that it is the
founder takes over from the founder itself; anybody else may once nothing came for a while. What came before is then forgotten.

A body that is longer under way than its round is open would never count if each round began it anew. So where a key of the last table
misses a round what came stays, one body a founder, for as long as the contribution may still count and there is room.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from manta_swarm.aggregator.intake.refusals import NotTheirs
from manta_swarm.network.log_client import BodyPart
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, StorageError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.records import MAX_HEADER_BYTES, Header
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.appended_file import AppendedFile
from manta_swarm.runtime.round_folder import RoundFolder

_PREFIX, _SUFFIX = "round-", ".bodies"
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredContribution:
    """A contribution as it is stored."""

    header: Header
    body: bytes

    def pack(self) -> bytes:
        """Return it as bytes: how long its packed header is (8 bytes, big-endian), that header, its body."""
        header = pack(self.header)
        return b"".join((len(header).to_bytes(_NUMBER_BYTES, "big"), header, self.body))

    @classmethod
    def unpack(cls, data: bytes, body_bytes: int) -> "StoredContribution":
        """Return what ``data`` is of; whether its body of ``body_bytes`` is what its header says is not checked.

        Raises:
            EncodingError: it is of nothing, or its body has another size.
        """
        end = _NUMBER_BYTES + int.from_bytes(data[:_NUMBER_BYTES], "big")
        if len(data) - end != body_bytes:
            raise EncodingError("a contribution with a body of another size than this run's")
        return cls(unpack(Header, data[_NUMBER_BYTES:end], max_bytes=MAX_HEADER_BYTES), data[end:])


class Bodies:
    """The files that hold the contributions to one log. Its methods block; one thread at a time appends."""

    def __init__(self, directory: Path, *, body_bytes: int, keep: int) -> None:
        """Use ``directory``, made when it is first needed, for bodies of ``body_bytes``; the files of the newest ``keep`` rounds stay."""
        self._folder = RoundFolder(directory, prefix=_PREFIX)
        self._body_bytes = body_bytes
        self._keep = keep

    def append(self, kept: Sequence[tuple[int, StoredContribution]]) -> None:
        """Store contributions, each with the round that it counts in; all are durable when this returns: one sync a file.

        Raises:
            StorageError: the disk refuses; nothing is to be promised of any of them.
        """
        for round_ in sorted({round_ for round_, _ in kept}):
            self._file(round_).append([one.pack() for of_round, one in kept if of_round == round_])

    def read(self, round_: int, *, mend: bool = False) -> list[StoredContribution]:
        """Return the contributions of a round, without what a crash tore off; ``mend`` cuts that off the file, before more is appended.

        Raises:
            StorageError: the file cannot be read, or something in it is not what was written and synced.
        """
        file, found = self._file(round_), list[StoredContribution]()
        stored = file.read(mend=mend)[::-1]
        try:
            while stored:  # each goes from the memory when the next one is read
                found.append(StoredContribution.unpack(stored.pop(), self._body_bytes))
        except EncodingError as error:
            raise StorageError(f"{file.path} holds what this program did not write: {error}; use the version that wrote it") from error
        return found

    def prune(self, newest: int) -> None:
        """Remove the files of rounds that are too old, ``newest`` being the last committed one.

        Raises:
            StorageError: the disk refuses.
        """
        self._folder.prune(newest - self._keep + 1)

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, in order."""
        return self._folder.rounds()

    def _file(self, round_: int) -> AppendedFile:
        return AppendedFile(self._folder.path(round_, _SUFFIX), _NUMBER_BYTES + MAX_HEADER_BYTES + self._body_bytes)


class Callers(Protocol):
    """Knows where calls come from."""

    def address_of(self, key: PublicKey) -> str:
        """Return the network address that a key's places in a round are counted by; empty: none."""


@dataclass(slots=True)
class Upload:
    """A body on its way, or all of what is known of it once it came."""

    header: Header
    listed: Listed
    is_awaited: bool  # a key of it was in the last table when its header came
    bringer: bytes
    heard_ms: int  # when something of it came last
    num_groups: int
    groups: list[bytes | None] = field(default_factory=list)  # none once they are checked
    missing: int = 0
    stayed: int = 0  # groups that were there when it missed a round last

    @property
    def there(self) -> bytes:
        """The groups that need not come again, as ``HeaderAnswer.there`` has them. The answer to the last one is the inclusion promise."""
        if not self.missing:
            return _bits(range(self.num_groups - 1))
        return _bits([place for place, group in enumerate(self.groups) if group is not None])

    @property
    def founder(self) -> bytes:
        """The founder whose contribution it is."""
        return self.listed.founder


class Uploads:
    """The bodies that have a place in a round, by contribution, and some that missed one."""

    def __init__(self, sizes: Sequence[int], max_held: int) -> None:
        """Hold none yet; of bodies with groups of these sizes at most ``max_held`` with those that missed a round."""
        self._sizes = sizes
        self._max_held = max_held
        self._placed: dict[bytes, Upload] = {}
        self._missed: dict[bytes, Upload] = {}  # by founder, those that missed their round last at the end

    def __iter__(self) -> Iterator[tuple[bytes, Upload]]:
        return iter(list(self._placed.items()))

    def __len__(self) -> int:
        return len(self._placed)

    def get(self, contribution: bytes) -> Upload | None:
        """Return a contribution that has a place in a round."""
        return self._placed.get(contribution)

    def bringer(self, contribution: bytes, founder: bytes, by: bytes, now: int, timeout_ms: int) -> bytes:
        """Return whose the groups are to be once ``by`` brought the header; see the module."""
        upload = self._placed.get(contribution)
        if upload is None:
            return by
        is_founder = by == founder or (by.endswith(founder) and upload.bringer != founder)
        return by if upload.missing and (is_founder or now - upload.heard_ms >= timeout_ms) else upload.bringer

    def place(self, contribution: bytes, header: Header, listed: Listed, *, bringer: bytes, is_awaited: bool, now: int) -> None:
        """Expect the groups of a contribution whose header was taken, or the rest of them; ``bringer`` as the method of that name says."""
        missed = self._missed.pop(listed.founder, None)
        upload = self._placed.get(contribution)
        if upload is None and missed is not None and missed.header == header:
            upload = missed
        if upload is not None and upload.bringer != bringer and upload.missing:
            upload = None
        if upload is None:
            groups: list[bytes | None] = [None] * len(self._sizes)
            upload = Upload(header, listed, is_awaited, bringer, now, len(groups), groups, len(groups))
        self._placed[contribution] = upload
        while self._missed and len(self._missed) + len(self._placed) > self._max_held:
            del self._missed[next(iter(self._missed))]

    def restore(self, contribution: bytes, header: Header, listed: Listed) -> None:
        """Know a contribution whose body is here."""
        self._placed[contribution] = Upload(header, listed, False, listed.founder, 0, len(self._sizes))

    def part(self, caller: bytes, by: bytes, part: BodyPart, now: int) -> Upload:
        """Put a group in its place that ``by`` brings, as which ``caller`` is counted; return its upload, whole once nothing is missing.

        Raises:
            NotTaken: no header says what this is, or another member brings it.
            NotTheirs: the caller is none of its keys.
            EncodingError: no body of this run has such a group.
        """
        upload = self._placed.get(part.contribution)
        if upload is None:
            raise NotTaken("no header of this body was taken, or its round is closed: hand it in again")
        if caller not in upload.listed.keys:
            raise NotTheirs("a body of other keys than the one that brings it")
        if upload.missing and by != upload.bringer:
            raise NotTaken("another member brings this body: send the header to bring it in its place")
        if not 0 <= part.place < len(self._sizes) or len(part.data) != self._sizes[part.place]:
            raise EncodingError("a group of a body with another place or size than bodies of this run have")
        if upload.missing and upload.groups[part.place] is None:
            upload.groups[part.place] = bytes(part.data)
            upload.missing -= 1
            upload.heard_ms = now
        return upload

    def forget(self, contribution: bytes) -> bytes | None:
        """A contribution has no place in a round any more; what came of its body may stay, see the module.

        Return the key of who brings it if more of it came since it missed a round last: then that it did is nobody's fault.
        """
        upload = self._placed.pop(contribution)
        others = any(other.founder == upload.founder for other in self._placed.values())
        came = upload.num_groups - upload.missing
        if not upload.is_awaited or not upload.missing or not came or others:
            return None
        self._missed[upload.founder] = upload
        before, upload.stayed = upload.stayed, came
        return upload.bringer if came > before else None

    def forget_old(self, round_: int) -> None:
        """A round was committed: forget what cannot count in the next one any more."""
        self._missed = {founder: one for founder, one in self._missed.items() if round_ + 1 - one.listed.round <= MAX_AGE}


def _bits(places: Iterable[int]) -> bytes:
    """Return bytes with these bits set, the lowest of the first byte being 0."""
    number = sum(1 << place for place in places)
    return number.to_bytes(-(-number.bit_length() // 8), "little")
