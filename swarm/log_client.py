"""A peer's line to the operator's log: contributions go in, tickets and commits come out, believed only with their proofs."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.cosignatures import Cosignature
from protocol.earnings import RoundContributions
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.exchange import grace_ms
from protocol.manifest import Manifest, SignedManifest
from protocol.measures import Measure
from protocol.operators import Operators
from protocol.receipts import ProvenRound, open_listed, open_round_receipt
from protocol.records import Contribution, Header, Listing, Receipt, Round, Ticket
from protocol.signed import Signed
from protocol.signing import PublicKey
from protocol.table import Weighed, open_weighed
from protocol.tiles import WIDTH, bundled
from swarm import waits
from swarm.messages import (
    AT_ONCE,
    MAX_ANSWER_BYTES,
    MAX_CONSISTENCY_BYTES,
    MAX_CONTRIBUTIONS_BYTES,
    MAX_CREDIT_BYTES,
    MAX_LISTING_BYTES,
    MAX_NEWS_BYTES,
    MAX_RECEIPT_BYTES,
    MAX_SHOWN_HEAD_BYTES,
    TRAINING,
    WATCHING,
    AfterRound,
    AskConsistency,
    AskContributions,
    AskCredit,
    AskEntries,
    AskListing,
    AskRound,
    BodyPart,
    Consistency,
    Cosigned,
    CreditWord,
    HandIn,
    HeaderAnswer,
    HeldHead,
    News,
    ShownHead,
)
from swarm.operator_line import OperatorLine
from swarm.rpc import Endpoint, Refused
from swarm.tasks import together

GROUPS_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Commitment:
    """A commit as it travels: the receipt, and what it was found to prove."""

    receipt: Receipt
    proven: ProvenRound


@dataclass(frozen=True, slots=True)
class Counted:
    """A contribution that a round counted, proven; it has a claim of this node, or of whom was asked about."""

    digest: bytes  # Signed[Contribution].digest
    contribution: Contribution
    proof: Listing | None = field(default=None, compare=False)  # as it came, for whoever keeps it


@dataclass(frozen=True, slots=True)
class Told:
    """What the log, or a neighbour, says of where the run stands."""

    commitment: Commitment | None  # None: no commit after the round asked for
    counted: Counted | None  # the one with the asker's own claim in that commit's round
    left_ms: int  # how long the round after it still is open; 0 where that is not known
    is_from_log: bool = False


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What became of a contribution that was handed in."""

    status: HandIn
    round: int
    signed: Signed[Ticket] | None  # with HAVE_TICKET
    blamed: tuple[bytes, ...] = ()  # with WITHOUT the keys whose claims cannot stand

    @property
    def ticket(self) -> Ticket | None:
        """The ticket, which was checked."""
        return None if self.signed is None else self.signed.unchecked()


async def fetch_manifest(endpoint: Endpoint, key: PublicKey) -> SignedManifest:
    """Return the manifest that node ``key`` serves; its signature is not checked yet (``SignedManifest.open``).

    Raises:
        Unreachable, Refused: the node does not answer, or serves none.
        OtherVersion, EncodingError: what it sent is a manifest of old, or none.
    """
    answer = await endpoint.call(key, "manifest", b"", timeout_s=waits.CALL_S)
    return SignedManifest.read(answer)


async def serve_manifest(endpoint: Endpoint, signed: SignedManifest) -> None:
    """Hand the run's manifest to whoever asks."""
    data = pack(signed)

    async def answer(_caller: PublicKey, _request: bytes) -> bytes:
        return data

    await endpoint.serve("manifest", answer)


def checked_ticket(signed: Signed[Ticket], operators: Operators, contribution: bytes) -> Ticket:
    """Return the ticket that an operator gave for a contribution.

    Raises:
        RemoteFault: it is no such ticket.
    """
    ticket = signed.open_by(operators.keys)
    if (ticket.run, ticket.contribution) != (operators.run, contribution):
        raise EncodingError("a ticket for something else")
    return ticket


class LogClient:
    """Talks to the log of one run, at whichever of its operators answers (``swarm.operator_line``)."""

    def __init__(self, endpoint: Endpoint, manifest: Manifest, run: bytes) -> None:
        self._endpoint = endpoint
        self._manifest = manifest
        self.operators = Operators.of(manifest, run)
        self.line = OperatorLine(endpoint, self.operators)

    @property
    def operator(self) -> PublicKey:
        """The operator that is talked to now."""
        return self.line.operator

    async def hand_in(self, header: Header, groups: Sequence[bytes | memoryview], header_in: Callable[[], None] = lambda: None) -> HandedIn:
        """Hand a contribution in, its body in ``groups``; ``header_in`` is called once the log has the header and asks for the body.

        Raises:
            Unreachable: the log cannot be reached, or not in time.
            Refused: it does not take the header.
            RemoteFault: what it answers is nothing that it may.
        """
        return await self.line.ask(lambda key: self._hand_in(key, header, groups, header_in))

    async def _hand_in(
        self, key: PublicKey, header: Header, groups: Sequence[bytes | memoryview], header_in: Callable[[], None]
    ) -> HandedIn:
        said = await self._endpoint.call(key, "header", pack(header), timeout_s=waits.HEADER_S)
        answer = unpack(HeaderAnswer, said, max_bytes=MAX_ANSWER_BYTES)
        digest = header.contribution.digest
        if answer.status == HandIn.HAVE_TICKET:
            return self._with_ticket(answer.ticket[0], digest)
        if answer.status != HandIn.SEND_BODY:
            return HandedIn(HandIn(answer.status), answer.round, None, answer.blamed)
        header_in()
        limit = asyncio.Semaphore(GROUPS_IN_FLIGHT)

        async def send(place: int, group: bytes | memoryview) -> bytes:
            async with limit:
                part = BodyPart(digest, place, group).pack()
                return await self._endpoint.call(key, "body", part, timeout_s=waits.BODY_S)

        try:
            with self.line.uploading():
                answers = await together(*(send(place, group) for place, group in enumerate(groups) if not answer.has(place)))
        except Refused:  # most likely it came too late; what the log says to the header next is what counts
            return HandedIn(HandIn.LATER, answer.round, None)
        packed = next((each for each in answers if each), None)
        if packed is None:
            raise EncodingError("the log took all of a body and gave no ticket")
        return self._with_ticket(unpack(Signed[Ticket], packed, max_bytes=MAX_ANSWER_BYTES), digest)

    async def news(self, key: PublicKey, round: int, *, left_ms: int | None, takes_part: bool = True) -> Told:
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
        timeout_s = waits.CALL_S if left_ms is None else waits.news_s(left_ms, longest_ms)
        patient = AT_ONCE if left_ms is None else TRAINING if takes_part else WATCHING
        request = pack(AfterRound(round, patient))

        async def ask(source: PublicKey) -> Told:
            answer = await self._endpoint.call(source, "commit-after", request, timeout_s=timeout_s)
            return self._told(unpack(News, answer, max_bytes=MAX_NEWS_BYTES), is_from_log=source in self.operators)

        return await (self.line.ask(ask) if key in self.operators else ask(key))

    def _told(self, news: News, *, is_from_log: bool) -> Told:
        if not news.receipt:
            return Told(None, None, news.left_ms, is_from_log)
        commitment = self._proven(news.receipt[0])
        counted = self._checked(Listing(news.receipt[0], news.contribution[0]), commitment.proven) if news.contribution else None
        return Told(commitment, counted, news.left_ms, is_from_log)

    async def head(self, held: Commitment | None) -> ShownHead:
        """Show the log the newest commit that is known here; return the tree head that it shows, whose signature is not checked yet.

        Raises:
            Unreachable: no answer.
            RemoteFault: it shows none.
        """
        ask = HeldHead(() if held is None else (held.receipt,))
        answer = await self.line.call("tree-head", pack(ask), timeout_s=waits.CALL_S)
        return unpack(ShownHead, answer, max_bytes=MAX_SHOWN_HEAD_BYTES)

    async def consistency(self, old: int, new: int) -> tuple[bytes, ...]:
        """Return what the log says proves that its tree of ``old`` entries is a prefix of that of ``new``; it is not checked yet.

        Raises:
            Unreachable: no answer.
            Refused: the log has not so many entries.
            RemoteFault: it shows no proof.
        """
        answer = await self.line.call("consistency", pack(AskConsistency(old, new)), timeout_s=waits.CALL_S)
        return unpack(Consistency, answer, max_bytes=MAX_CONSISTENCY_BYTES).proof

    async def entries(self, index: int, width: int) -> list[bytes]:
        """Return what the log says are the first ``width`` entries from 256 times ``index`` on; nothing proves it.

        Raises:
            Unreachable: no answer.
            Refused: the log has not so many entries.
            RemoteFault: it shows others than so many.
        """
        found, first = list[bytes](), WIDTH * index
        while len(found) < width:
            ask = AskEntries(first + len(found), width - len(found))
            answer = await self.line.call("entries", pack(ask), timeout_s=waits.PIECE_S, large_answer=True)
            found += (part := bundled(answer))
            if not part or len(found) > width:
                raise EncodingError("no entries, or more than were asked for")
        return found

    async def cosigned(self, size: int, cosignature: Cosignature) -> None:
        """Bring the log this node's cosignature of its head of ``size`` entries.

        Raises:
            Unreachable: no answer.
            Refused: the log does not take it; the reason is its.
        """
        await self.line.call("cosigned", pack(Cosigned(size, cosignature)), timeout_s=waits.CALL_S)

    async def counted(self, round: int, key: bytes = b"") -> Counted | None:
        """Return the contribution of a committed round that has the claim of ``key`` (empty: this node); None: the log says it has none.

        Raises:
            Unreachable: no answer.
            Refused: the log does not know that table any more, or not yet.
            RemoteFault: what it answers proves nothing.
        """
        ask = AskListing(round, key or self._endpoint.key)
        answer = await self.line.call("listing", pack(ask), timeout_s=waits.CALL_S)
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
        answer = await self._endpoint.call(source, "weights", pack(AskRound(entry.round)), timeout_s=waits.CALL_S)
        return open_weighed(answer, entry)

    async def credit(self, round: int, key: bytes = b"") -> CreditWord:
        """Return what the log says that ``key`` (empty: this node) has earned, in all and in a round; nothing proves it.

        Raises:
            Unreachable: no answer.
            RemoteFault: the log does not say it.
        """
        answer = await self.line.call("credit", pack(AskCredit(round, key or self._endpoint.key)), timeout_s=waits.CALL_S)
        return unpack(CreditWord, answer, max_bytes=MAX_CREDIT_BYTES)

    async def contributions(self, proven: ProvenRound, page: RoundContributions | None = None) -> RoundContributions:
        """Return what the log says are a round's contributions, and that they are under the head that proves it (``protocol.earnings``).

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
        """Return those of one answer: the contributions from a place on, at least one.

        Raises:
            Unreachable: no answer.
            RemoteFault: the log does not show them.
        """
        ask = AskContributions(proven.round.round, place, proven.tree_head.size)
        answer = await self.line.call("contributions", pack(ask), timeout_s=waits.CALL_S, large_answer=True)
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
        await self.line.call("measure", pack(signed), timeout_s=waits.CALL_S)

    def open(self, data: bytes) -> Commitment:
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

    def _proven(self, receipt: Receipt) -> Commitment:
        return Commitment(receipt, self.proven(receipt))

    def _checked(self, listing: Listing, proven: ProvenRound) -> Counted:
        """Return a contribution of a round; whether it has a claim of that key is seen by whoever knows its claims."""
        signed = open_listed(listing.contribution, proven).contribution
        return Counted(signed.digest, signed.open(), listing)

    def _with_ticket(self, signed: Signed[Ticket], contribution: bytes) -> HandedIn:
        return HandedIn(HandIn.HAVE_TICKET, checked_ticket(signed, self.operators, contribution).round, signed)
