"""The contributions that were handed in, on the disk: one file a round, appended to, synced before anybody gets an inclusion promise.

DIR/bodies/round-00000012.bodies   contributions that count in round 12 (``runtime.appended_file``)

What a crash tore off at the end, nobody has an inclusion promise for. The files of the newest rounds stay, so that the run can be computed
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, StorageError
from manta_swarm.protocol.records import MAX_HEADER_BYTES, Header
from manta_swarm.runtime.appended_file import AppendedFile
from manta_swarm.runtime.round_folder import RoundFolder

_PREFIX, _SUFFIX = "round-", ".bodies"
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """A contribution as it is stored."""

    header: Header
    body: bytes

    def pack(self) -> bytes:
        """Return it as bytes: how long its packed header is (8 bytes, big-endian), that header, its body."""
        header = pack(self.header)
        return b"".join((len(header).to_bytes(_NUMBER_BYTES, "big"), header, self.body))

    @classmethod
    def unpack(cls, data: bytes, body_bytes: int) -> "Kept":
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

    def append(self, kept: Sequence[tuple[int, Kept]]) -> None:
        """Store contributions, each with the round that it counts in; all are durable when this returns: one sync a file.

        Raises:
            StorageError: the disk refuses; nothing is to be promised of any of them.
        """
        for round_ in sorted({round_ for round_, _ in kept}):
            self._file(round_).append([one.pack() for of_round, one in kept if of_round == round_])

    def read(self, round_: int, *, mend: bool = False) -> list[Kept]:
        """Return the contributions of a round, without what a crash tore off; ``mend`` cuts that off the file, before more is appended.

        Raises:
            StorageError: the file cannot be read, or something in it is not what was written and synced.
        """
        file, found = self._file(round_), list[Kept]()
        stored = file.read(mend=mend)[::-1]
        try:
            while stored:  # each goes from the memory when the next one is read
                found.append(Kept.unpack(stored.pop(), self._body_bytes))
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
