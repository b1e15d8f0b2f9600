"""A peer's line to the operator's log: contributions go in, inclusion promises and commits come out, believed only with their proofs.

Its requests and the log's answers stand here, beside the records that are signed or logged; those about the log's tree in
``network.log_proofs``.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from manta_swarm.network import timeouts
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import Endpoint, Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import MAX_COHORT, grace_ms
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.operators import MAX_COUNTED_BYTES, Operators
from manta_swarm.protocol.private import Measure
from manta_swarm.protocol.receipts import ProvenRound, open_listed, open_round_receipt
from manta_swarm.protocol.records import (
    MAX_ENTRY_BYTES,
    MAX_SIGNED_BYTES,
    Contribution,
    Header,
    Included,
    InclusionPromise,
    Listing,
    Receipt,
    Round,
)
from manta_swarm.protocol.reputation import FALSE, WITHHELD, Fault
from manta_swarm.protocol.rewards import MAX_CLAIMS_BYTES, MAX_RANGE_HASHES, RoundContributions
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.protocol.table import Weighed, open_weighed
from manta_swarm.runtime.tasks import together

GROUPS_IN_FLIGHT = 4
MAX_RECEIPT_BYTES = MAX_SIGNED_BYTES + 64 * 40 + MAX_COUNTED_BYTES  # of a round: its entry, a path of 64 hashes, a note
MAX_LISTING_BYTES = MAX_RECEIPT_BYTES + MAX_ENTRY_BYTES + 64 * 40  # and a contribution with its path
MAX_CONTRIBUTIONS_BYTES = MAX_CLAIMS_BYTES + MAX_ENTRY_BYTES + 40 * MAX_RANGE_HASHES
MAX_FEED_BYTES = MAX_LISTING_BYTES + 64
MAX_ANSWER_BYTES = 1024 + MAX_COHORT * 40
_DIGEST_BYTES, _PLACE_BYTES = 32, 2
MAX_FAULTS = 8
MAX_CREDIT_BYTES = 192 + MAX_FAULTS * 96
_MAX_THERE_BYTES = 512  # 4,096 groups, of 2^30 values
AT_ONCE, TRAINING, WATCHING = 0, 1, 2


class HandIn(IntEnum):
    """What the log says to a header."""

    SEND_BODY = 0
    HAVE_PROMISE = 1  # the body is there, and here is the inclusion promise
    LISTED = 2  # the contribution is in a table already
    LATER = 3  # the open round has no place for it: after the next commit again
    WITHOUT = 4  # a claim of several cannot stand: the others may be handed in without it


@dataclass(frozen=True, slots=True)
class HeaderAnswer:
    """The answer to a header that is not refused."""

    status: int  # of HandIn
    round: int  # that it counts in
    left_ms: int  # until the round's deadline
    inclusion_promise: tuple[Signed[InclusionPromise], ...]  # one with HAVE_PROMISE, else none
    blamed: tuple[bytes, ...] = ()  # with WITHOUT the keys whose claims cannot stand
    there: bytes = b""  # with SEND_BODY the groups of the body that came before: bit p % 8 of byte p // 8; empty: none

    def __post_init__(self) -> None:
        if self.status not in tuple(HandIn) or len(self.inclusion_promise) != (self.status == HandIn.HAVE_PROMISE):
            raise ValueError("an answer to a header without its meaning")
        if bool(self.blamed) != (self.status == HandIn.WITHOUT) or len(self.blamed) > MAX_COHORT:
            raise ValueError("an answer that blames nobody, or too many")
        if self.there and (self.status != HandIn.SEND_BODY or len(self.there) > _MAX_THERE_BYTES):
            raise ValueError("an answer that has groups of a body that it does not ask for, or too many")

    def has(self, place: int) -> bool:
        """Return whether a group of the body came before."""
        return place < 8 * len(self.there) and bool(self.there[place // 8] >> place % 8 & 1)


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A group of a body on its way to the log: the contribution's digest (32 bytes), the group's place (2, big-endian), its bytes."""

    contribution: bytes
    place: int
    data: bytes | memoryview

    def pack(self) -> bytes:
        """Return the message."""
        return b"".join((self.contribution, self.place.to_bytes(_PLACE_BYTES, "big"), self.data))

    @classmethod
    def open(cls, message: bytes) -> "BodyPart":
        """Return the part in ``message``.

        Raises:
            EncodingError: there is none.
        """
        start = _DIGEST_BYTES + _PLACE_BYTES
        if len(message) < start:
            raise EncodingError("a part of a body without the head that says of which")
        return cls(message[:_DIGEST_BYTES], int.from_bytes(message[_DIGEST_BYTES:start], "big"), memoryview(message)[start:])


@dataclass(frozen=True, slots=True)
class AfterRound:
    """Asks for the commit after ``round``; ``waits_as``: as soon as there is one, else (0) at once."""

    round: int
    waits_as: int  # one of AT_ONCE, TRAINING and WATCHING: who waits says whether it takes part in the run


@dataclass(frozen=True, slots=True)
class FeedAnswer:
    """Where the run stands: the newest commit, if it is after the round asked for, and how long the round after it still is open."""

    receipt: tuple[Receipt, ...]  # at most one
    contribution: tuple[Included, ...]  # the one of that round that has a claim of the caller's, if there is one, under the same head
    left_ms: int

    def __post_init__(self) -> None:
        if len(self.receipt) > 1 or len(self.contribution) > len(self.receipt) or not 0 <= self.left_ms <= 2**40:
            raise ValueError("a feed of more than one commit, or of no time")


@dataclass(frozen=True, slots=True)
class AskListing:
    """Asks for the Listing of the contribution that has a key's claim in a round; where there is none, the answer is empty."""

    round: int
    key: bytes


@dataclass(frozen=True, slots=True)
class AskCredit:
    """Asks what a key has earned: in all, and in a round; round 0: in all."""

    round: int
    key: bytes


@dataclass(frozen=True, slots=True)
class CreditWord:
    """What the log says that a key has earned, whichever accounts it adds up to; see ``protocol.reputation``."""

    round: int  # the newest that is counted
    paid: int
    pending: int  # what it would get of rounds that are not paid yet, if nothing more were found
    until: int  # the round with whose entry the last of that is paid; 0: nothing is pending, or the last of it is paid with the settlement
    faults: tuple[Fault, ...]  # the newest, the oldest of them first, at most ``MAX_FAULTS``
    good: int  # contributions that were found good since the last fault
    proven: int  # 1: the key is; in an unaudited run all are
    earned: tuple[int, ...]  # by its work in the round that was asked for, at most one; none where its table is not kept any more

    def __post_init__(self) -> None:
        amounts, rounds = (
            (self.paid, self.pending, *self.earned),
            (self.round, self.until, self.good, *(each.round for each in self.faults)),
        )
        if len(self.earned) > 1 or not all(0 <= each < 2**80 for each in amounts) or not all(0 <= each < 2**62 for each in rounds):
            raise ValueError("credit of more than one round, or out of range")
        if len(self.faults) > MAX_FAULTS or self.proven not in (0, 1):
            raise ValueError("more faults than are told, or a key that is neither proven nor not")
        if any(each.reason not in (WITHHELD, FALSE) or len(each.contribution) != 32 for each in self.faults):
            raise ValueError("a fault without a reason that there is, or of something that is no contribution")

    @property
    def credit(self) -> int:
        """What the key has, for good or for now."""
        return self.paid + self.pending


@dataclass(frozen=True, slots=True)
class AskRound:
    """Asks for something of a round: what its contributions weigh, or its receipt."""

    round: int


@dataclass(frozen=True, slots=True)
class AskContributions:
    """Asks for a round's contributions from a place on, and for the proof that all of them are under a head of the log."""

    round: int
    place: int
    size: int  # of the log under that head


@dataclass(frozen=True, slots=True)
class ProvenCommit:
    """A commit as it travels: its receipt, and what that was found to prove."""

    receipt: Receipt
    proven: ProvenRound


@dataclass(frozen=True, slots=True)
class ProvenContribution:
    """A contribution that a round counted, proven; it has a claim of this node, or of whom was asked about."""

    digest: bytes  # Signed[Contribution].digest
    contribution: Contribution
    proof: Listing | None = field(default=None, compare=False)  # as it came, for whoever keeps it


@dataclass(frozen=True, slots=True)
class FeedUpdate:
    """What the log, or a neighbour, says of where the run stands."""

    proven_commit: ProvenCommit | None  # None: no commit after the round asked for
    counted: ProvenContribution | None  # the one with the asker's own claim in that commit's round
    left_ms: int  # how long the round after it still is open; 0 where that is not known
    is_from_log: bool = False


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What became of a contribution that was handed in."""

    status: HandIn
    round: int
    signed: Signed[InclusionPromise] | None  # with HAVE_PROMISE
    blamed: tuple[bytes, ...] = ()  # with WITHOUT the keys whose claims cannot stand
    header_ms: float | None = field(default=None, compare=False)  # from the call until the log had the header; None: it wants no body

    @property
    def inclusion_promise(self) -> InclusionPromise | None:
        """The inclusion promise, which was checked."""
        return None if self.signed is None else self.signed.unchecked()


async def fetch_manifest(endpoint: Endpoint, key: PublicKey) -> SignedManifest:
    """Return the manifest that node ``key`` serves; its signature is not checked yet (``SignedManifest.open``).

    Raises:
        Unreachable, Refused: the node does not answer, or serves none.
        OtherVersion, EncodingError: what it sent is a manifest of old, or none.
    """
    answer = await endpoint.call(key, "manifest", b"", timeout_s=timeouts.CALL_S)
    return SignedManifest.read(answer)


async def serve_manifest(endpoint: Endpoint, signed: SignedManifest) -> None:
    """Hand the run's manifest to whoever asks."""
    data = pack(signed)

    async def answer(_caller: PublicKey, _request: bytes) -> bytes:
        return data

    await endpoint.serve("manifest", answer)


def checked_inclusion_promise(signed: Signed[InclusionPromise], operators: Operators, contribution: bytes) -> InclusionPromise:
    """Return the inclusion promise that an operator gave for a contribution.

    Raises:
        RemoteFault: it is no such inclusion promise.
    """
    inclusion_promise = signed.open_by(operators.keys)
    if (inclusion_promise.run, inclusion_promise.contribution) != (operators.run, contribution):
        raise EncodingError("an inclusion promise for something else")
    return inclusion_promise


class LogClient:
    """Talks to the log of one run, at whichever of its operators answers (``network.operator_line``)."""

    def __init__(self, endpoint: Endpoint, manifest: Manifest, run: bytes) -> None:
        self._endpoint = endpoint
        self._manifest = manifest
        self.operators = Operators.of(manifest, run)
        self.line = OperatorLine(endpoint, self.operators)

    @property
    def operator(self) -> PublicKey:
        """The operator that is talked to now."""
        return self.line.operator

    async def hand_in(self, header: Header, groups: Sequence[bytes | memoryview]) -> HandedIn:
        """Hand a contribution in, its body in ``groups``.

        Raises:
            Unreachable: the log cannot be reached, or not in time.
            Refused: it does not take the header.
            RemoteFault: what it answers is nothing that it may.
        """
        begun_s = time.monotonic()
        return await self.line.ask(lambda key: self._hand_in(key, header, groups, begun_s))

    async def _hand_in(self, key: PublicKey, header: Header, groups: Sequence[bytes | memoryview], begun_s: float) -> HandedIn:
        said = await self._endpoint.call(key, "header", pack(header), timeout_s=timeouts.HEADER_S)
        answer = unpack(HeaderAnswer, said, max_bytes=MAX_ANSWER_BYTES)
        digest = header.contribution.digest
        if answer.status == HandIn.HAVE_PROMISE:
            return self._with_inclusion_promise(answer.inclusion_promise[0], digest)
        if answer.status != HandIn.SEND_BODY:
            return HandedIn(HandIn(answer.status), answer.round, None, answer.blamed)
        header_ms = 1000 * (time.monotonic() - begun_s)

        async def send(place: int, group: bytes | memoryview) -> bytes:
            part = BodyPart(digest, place, group).pack()
            return await self._endpoint.call(key, "body", part, timeout_s=timeouts.BODY_S)

        try:
            with self.line.uploading():
                missing = (send(place, group) for place, group in enumerate(groups) if not answer.has(place))
                answers = await together(*missing, at_once=GROUPS_IN_FLIGHT)
        except Refused:  # most likely it came too late; what the log says to the header next is what counts
            return HandedIn(HandIn.LATER, answer.round, None, header_ms=header_ms)
        packed = next((each for each in answers if each), None)
        if packed is None:
            raise EncodingError("the log took all of a body and gave no inclusion promise")
        return replace(
            self._with_inclusion_promise(unpack(Signed[InclusionPromise], packed, max_bytes=MAX_ANSWER_BYTES), digest), header_ms=header_ms
        )

    async def next_update(self, key: PublicKey, round: int, *, left_ms: int | None, takes_part: bool = True) -> FeedUpdate:
        """Return where the run stands, as ``key`` says, who may be the log or a peer.

        Args:
            key: of whom to ask; an operator: of whichever of them answers.
            round: the newest round known here.
            left_ms: wait for the next commit, so long and the grace after it at most; None: don't wait.
            takes_part: whoever waits is a peer that takes part in the run, and is counted as one.

        Raises:
            Unreachable: no answer.
            RemoteFault: what it answers proves nothing.
        """
        longest_ms = grace_ms(self._manifest.exchange.max_open_ms)
        timeout_s = timeouts.CALL_S if left_ms is None else timeouts.feed_s(left_ms, longest_ms)
        waits_as = AT_ONCE if left_ms is None else TRAINING if takes_part else WATCHING
        request = pack(AfterRound(round, waits_as))

        async def ask(source: PublicKey) -> FeedUpdate:
            answer = await self._endpoint.call(source, "commit-after", request, timeout_s=timeout_s)
            return self._told(unpack(FeedAnswer, answer, max_bytes=MAX_FEED_BYTES), is_from_log=source in self.operators)

        return await (self.line.ask(ask) if key in self.operators else ask(key))

    def _told(self, feed: FeedAnswer, *, is_from_log: bool) -> FeedUpdate:
        if not feed.receipt:
            return FeedUpdate(None, None, feed.left_ms, is_from_log)
        proven_commit = self._proven(feed.receipt[0])
        counted = self._checked(Listing(feed.receipt[0], feed.contribution[0]), proven_commit.proven) if feed.contribution else None
        return FeedUpdate(proven_commit, counted, feed.left_ms, is_from_log)

    async def counted(self, round: int, key: bytes = b"") -> ProvenContribution | None:
        """Return the contribution of a committed round that has the claim of ``key`` (empty: this node); None: the log says it has none.

        Raises:
            Unreachable: no answer.
            Refused: the log does not know that table any more, or not yet.
            RemoteFault: what it answers proves nothing.
        """
        ask = AskListing(round, key or self._endpoint.key)
        answer = await self.line.call("listing", pack(ask), timeout_s=timeouts.CALL_S)
        if not answer:
            return None
        listing = unpack(Listing, answer, max_bytes=MAX_LISTING_BYTES)
        proven = self._proven(listing.receipt).proven
        if proven.round.round != round:
            raise EncodingError("a contribution of another round than was asked for")
        return self._checked(listing, proven)

    async def weighed(self, entry: Round, source: PublicKey) -> tuple[Weighed, ...]:
        """Return what the contributions of a committed round weigh in its mean.

        Raises:
            Unreachable: no answer.
            RemoteFault: the source refuses, or these are not its weights.
        """
        answer = await self._endpoint.call(source, "weights", pack(AskRound(entry.round)), timeout_s=timeouts.CALL_S)
        return open_weighed(answer, entry)

    async def credit(self, round: int, key: bytes = b"") -> CreditWord:
        """Return what the log says that ``key`` (empty: this node) has earned, in all and in a round; nothing proves it.

        Raises:
            Unreachable: no answer.
            RemoteFault: the log does not say it.
        """
        answer = await self.line.call("credit", pack(AskCredit(round, key or self._endpoint.key)), timeout_s=timeouts.CALL_S)
        return unpack(CreditWord, answer, max_bytes=MAX_CREDIT_BYTES)

    async def contributions(self, proven: ProvenRound, page: RoundContributions | None = None) -> RoundContributions:
        """Return what the log says are a round's contributions, and that they are under the head that proves it (``protocol.rewards``).

        ``page`` is the first one, for whoever has it.

        Raises:
            Unreachable: no answer.
            RemoteFault: the log does not show them, or shows more than the round has.
        """
        entries = list[bytes]()
        while True:
            page = page or await self.contributions_page(proven, len(entries))
            entries += page.entries
            if len(entries) > proven.round.contributions:
                raise EncodingError("more contributions than the round has")
            if len(entries) == proven.round.contributions:
                return RoundContributions(tuple(entries), page.proof)
            page = None

    async def contributions_page(self, proven: ProvenRound, place: int = 0) -> RoundContributions:
        """Return the contributions of one answer: those from a place on, at least one.

        Raises:
            Unreachable: no answer.
            RemoteFault: the log does not show them.
        """
        ask = AskContributions(proven.round.round, place, proven.tree_head.size)
        answer = await self.line.call("contributions", pack(ask), timeout_s=timeouts.CALL_S, large_answer=True)
        page = unpack(RoundContributions, answer, max_bytes=MAX_CONTRIBUTIONS_BYTES)
        if not page.entries:
            raise EncodingError("a part of a round without contributions")
        return page

    async def tell_measure(self, signed: Signed[Measure]) -> None:
        """Tell the operator how good this peer finds the model.

        Raises:
            Unreachable: no answer.
            Refused: the log does not take it.
        """
        await self.line.call("measure", pack(signed), timeout_s=timeouts.CALL_S)

    def open(self, data: bytes) -> ProvenCommit:
        """Return the commit whose packed receipt is ``data``, from wherever it came.

        Raises:
            RemoteFault: it proves nothing.
        """
        return self._proven(unpack(Receipt, data, max_bytes=MAX_RECEIPT_BYTES))

    def proven(self, receipt: Receipt) -> ProvenRound:
        """Return the round that a receipt proves.

        Raises:
            RemoteFault: it proves none.
        """
        return open_round_receipt(receipt, self.operators)

    def _proven(self, receipt: Receipt) -> ProvenCommit:
        return ProvenCommit(receipt, self.proven(receipt))

    def _checked(self, listing: Listing, proven: ProvenRound) -> ProvenContribution:
        """Return a contribution of a round; whether it has a claim of that key is seen by whoever knows its claims."""
        signed = open_listed(listing.contribution, proven).contribution
        return ProvenContribution(signed.digest, signed.open(), listing)

    def _with_inclusion_promise(self, signed: Signed[InclusionPromise], contribution: bytes) -> HandedIn:
        return HandedIn(HandIn.HAVE_PROMISE, checked_inclusion_promise(signed, self.operators, contribution).round, signed)
