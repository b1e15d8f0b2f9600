"""What a log answers is believed with its proof and not otherwise: a small log by the real rules, and ones that lie."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.codec.coding import group_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.log_client import (
    GROUPS_IN_FLIGHT,
    MAX_CONTRIBUTIONS_BYTES,
    BodyPart,
    FeedAnswer,
    FeedUpdate,
    HandedIn,
    HandIn,
    HeaderAnswer,
    LogClient,
    fetch_manifest,
    serve_manifest,
)
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, LedgerError, ProofError, RemoteFault, SignatureError, Unreachable
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.receipts import ProvenRound
from manta_swarm.protocol.records import Header, Included, InclusionPromise, Listing, Receipt, Round, entry_of, open_entry
from manta_swarm.protocol.rewards import RoundContributions, claims_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from manta_swarm.protocol.table import MAX_WEIGHED_BYTES, TableError, weighed_bytes
from tests.contributions import header_of
from tests.memory_log import OPERATOR, PEERS, MemoryLog

LIAR = Identity(sha256(b"liar"))
OWN = PublicKey(PEERS[0].public_key)
GROUPS = [bytes([place]) * 1000 for place in range(9)]


class Line:
    """A peer's line to a log that has one committed round of three contributions; a test may put another answer in its place."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.log = MemoryLog(self.network)
        self.node: MemoryEndpoint = self.network.endpoint(OWN)
        self.client = LogClient(self.node, self.log.manifest, self.log.ledger.run)
        for seed, peer in enumerate(PEERS[:3]):
            self.log.give(peer, seed)
        self.header = header_of(self.log.ledger, PEERS[0], microbatches=(1, 0, 0, 0))

    async def __aenter__(self) -> "Line":
        await self.log.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def answers(self, method: str, answer: bytes | Exception | Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer calls of ``method`` so from now on."""

        async def on_call(_caller: PublicKey, request: bytes) -> bytes:
            if isinstance(answer, Exception):
                raise answer
            return answer if isinstance(answer, bytes) else await answer(request)

        await self.log.endpoint.serve(method, on_call)

    def inclusion_promise(
        self, *, run_: bytes | None = None, contribution: bytes | None = None, signer: Identity = OPERATOR
    ) -> Signed[InclusionPromise]:
        digest = self.header.contribution.digest if contribution is None else contribution
        return Signed.sign(InclusionPromise(self.log.ledger.run if run_ is None else run_, 1, digest), signer)


@pytest.fixture
def line() -> Line:
    return Line()


# Handing in.


class Taking:
    """The log's side of a contribution of several groups."""

    def __init__(self, line: Line, inclusion_promise: bytes | None = None) -> None:
        self.line = line
        self.parts: dict[int, bytes] = {}
        self.most_at_once = self._now = 0
        self.first_s = 0.0  # when the first group came
        self._inclusion_promise = pack(line.inclusion_promise()) if inclusion_promise is None else inclusion_promise

    async def body(self, request: bytes) -> bytes:
        self._now += 1
        self.first_s = self.first_s or time.monotonic()
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(0)
        part = BodyPart.open(request)
        assert part.contribution == self.line.header.contribution.digest
        self.parts[part.place] = bytes(part.data)
        self._now -= 1
        return self._inclusion_promise if len(self.parts) == len(GROUPS) else b""

    async def hand_in(self) -> HandedIn:
        await self.line.answers("header", pack(HeaderAnswer(int(HandIn.SEND_BODY), 1, 700, ())))
        await self.line.answers("body", self.body)
        return await self.line.client.hand_in(self.line.header, GROUPS)


async def test_a_header_then_its_body_in_groups_then_the_inclusion_promise(line: Line) -> None:
    taking = Taking(line)
    began_s = time.monotonic()
    found = await taking.hand_in()
    assert found == HandedIn(HandIn.HAVE_PROMISE, 1, line.inclusion_promise())
    assert found.inclusion_promise == line.inclusion_promise().open_by([OPERATOR.public_key])
    assert [taking.parts[place] for place in range(len(GROUPS))] == GROUPS
    assert found.header_ms is not None
    assert found.header_ms <= 1000 * (taking.first_s - began_s)  # the header was in before the first group left
    assert 1 < taking.most_at_once <= GROUPS_IN_FLIGHT


async def test_the_log_gets_the_header_as_it_is(line: Line) -> None:
    received: list[Header] = []

    async def on_header(request: bytes) -> bytes:
        received.append(unpack(Header, request, max_bytes=2**20))
        return pack(HeaderAnswer(int(HandIn.LATER), 2, 300, ()))

    await line.answers("header", on_header)
    assert await line.client.hand_in(line.header, GROUPS) == HandedIn(HandIn.LATER, 2, None)
    assert received == [line.header]


async def test_what_is_listed_is_said_with_its_round(line: Line) -> None:
    (header, blob), *_ = line.log.handed.values()
    line.log.commit()
    assert await line.client.hand_in(header, blob.pieces) == HandedIn(HandIn.LISTED, 1, None)


async def test_who_has_an_inclusion_promise_gets_it_again_and_sends_no_body(line: Line) -> None:
    await line.answers("header", pack(HeaderAnswer(int(HandIn.HAVE_PROMISE), 1, 700, (line.inclusion_promise(),))))
    await line.answers("body", AssertionError("it is there"))
    found = await line.client.hand_in(line.header, GROUPS)
    assert found.header_ms is None
    assert found.inclusion_promise == line.inclusion_promise().open_by([OPERATOR.public_key])


async def test_a_header_that_is_refused_is_told_with_its_reason(line: Line) -> None:
    await line.answers("header", LedgerError("its base is 5 commits old"))
    with pytest.raises(Refused, match="its base is 5 commits old"):
        await line.client.hand_in(line.header, GROUPS)


async def test_a_body_that_is_not_taken_any_more_is_to_be_handed_in_later(line: Line) -> None:
    taking = Taking(line)

    async def body(request: bytes) -> bytes:
        if len(taking.parts) >= 3:
            raise LedgerError("the round is closed")
        return await Taking.body(taking, request)

    taking.body = body  # type: ignore[method-assign]
    assert await taking.hand_in() == HandedIn(HandIn.LATER, 1, None)


async def test_a_log_that_goes_away_in_the_middle_of_a_body_is_weather(line: Line) -> None:
    taking = Taking(line)
    line.network.lost = lambda _sender, _receiver, method: method == "body" and len(taking.parts) >= 5
    with pytest.raises(Unreachable):
        await taking.hand_in()


async def test_all_of_a_body_without_an_inclusion_promise_is_no_answer(line: Line) -> None:
    with pytest.raises(EncodingError, match="gave no inclusion promise"):
        await Taking(line, inclusion_promise=b"").hand_in()


FALSE_PROMISES: list[tuple[Callable[[Line], Signed[InclusionPromise]], type[RemoteFault]]] = [
    (lambda line: line.inclusion_promise(run_=sha256(b"another run")), EncodingError),
    (lambda line: line.inclusion_promise(contribution=sha256(b"another")), EncodingError),
    (lambda line: line.inclusion_promise(signer=LIAR), SignatureError),
    (lambda line: replace(line.inclusion_promise(), payload=b"garbage"), EncodingError),
]


@pytest.mark.parametrize(("forge", "error"), FALSE_PROMISES)
@pytest.mark.parametrize("when", ["to the header", "to the body"])
async def test_a_false_inclusion_promise_is_refused(
    forge: Callable[[Line], Signed[InclusionPromise]], error: type[RemoteFault], when: str, line: Line
) -> None:
    if when == "to the body":
        handing_in = Taking(line, inclusion_promise=pack(forge(line))).hand_in()
    else:
        await line.answers("header", pack(HeaderAnswer(int(HandIn.HAVE_PROMISE), 1, 1, (forge(line),))))
        handing_in = line.client.hand_in(line.header, GROUPS)
    with pytest.raises(error):
        await handing_in


async def test_answers_that_mean_nothing_are_refused(line: Line) -> None:
    for garbage in (b"", b"garbage", b"\x80" * 2000):
        await line.answers("header", garbage)
        with pytest.raises(EncodingError):
            await line.client.hand_in(line.header, GROUPS)
        with pytest.raises(RemoteFault):
            await Taking(line, inclusion_promise=garbage).hand_in()


# News.


async def test_the_newest_commit_is_believed_with_the_own_contribution_of_its_round(line: Line) -> None:
    entry = line.log.commit()
    told = await line.client.next_update(line.log.endpoint.key, 0, left_ms=None)
    assert told.proven_commit is not None
    assert told.proven_commit.receipt == line.log.receipt()
    assert told.proven_commit.proven.round == entry
    assert told.proven_commit.proven.commit == line.log.ledger.last_commit
    assert told.counted is not None
    assert told.counted.digest == next(one.contribution for one in line.log.ledger.table_at(1) or () if one.founder == OWN)
    assert told.counted.contribution.founder == OWN
    assert (told.left_ms, told.is_from_log) == (60_000, True)


async def test_without_a_new_commit_it_says_how_long_the_round_still_is_open(line: Line) -> None:
    assert await line.client.next_update(line.log.endpoint.key, 0, left_ms=None) == FeedUpdate(None, None, 60_000, True)
    line.log.commit()
    assert await line.client.next_update(line.log.endpoint.key, 1, left_ms=None) == FeedUpdate(None, None, 60_000, True)


async def test_who_is_not_in_the_table_gets_no_contribution(line: Line) -> None:
    line.log.loses = {digest for digest, (header, _) in line.log.handed.items() if header.contribution.open().founder == OWN}
    line.log.commit()
    told = await line.client.next_update(line.log.endpoint.key, 0, left_ms=None)
    assert told.proven_commit is not None
    assert told.counted is None
    assert await line.client.counted(1) is None


async def test_a_patient_caller_waits_for_the_commit_so_long_as_the_log_may_hold_it(line: Line) -> None:
    waited: list[float] = []
    true_call = line.node.call

    async def call(key: PublicKey, method: str, request: bytes, *, timeout_s: float) -> bytes:
        waited.append(timeout_s)
        return await true_call(key, method, request, timeout_s=timeout_s)

    line.node.call = call  # type: ignore[method-assign]
    asking = asyncio.create_task(line.client.next_update(line.log.endpoint.key, 0, left_ms=2_000))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    entry = line.log.commit()
    told = await asking
    assert told.proven_commit is not None
    assert told.proven_commit.proven.round == entry
    assert waited == [timeouts.feed_s(2_000, 6_000)]  # its rounds are open for a minute at most, so its grace is six seconds at most


async def test_what_a_neighbour_tells_is_proven_alike_and_not_taken_for_the_logs_word(line: Line) -> None:
    line.log.commit()
    neighbour = line.network.endpoint(PublicKey(PEERS[1].public_key))

    async def answer(_caller: PublicKey, _request: bytes) -> bytes:
        return pack(FeedAnswer((line.log.receipt(),), (), 0))

    await neighbour.serve("commit-after", answer)
    told = await line.client.next_update(neighbour.key, 0, left_ms=None)
    assert told.proven_commit is not None
    assert (told.proven_commit.proven.round.round, told.is_from_log) == (1, False)


def forged_entry(line: Line) -> Receipt:
    proven: Round = unpack_round(line.log.receipt())
    return replace(line.log.receipt(), entry=entry_of(replace(proven, state=sha256(b"forged"))))


def unpack_round(receipt: Receipt) -> Round:
    found = open_entry(receipt.entry)
    assert isinstance(found, Round)
    return found


def signed_by(line: Line, signer: Identity, *, run_: bytes | None = None) -> Receipt:
    """Return the receipt under another head: of another signer, or of the operator's log of another run."""
    run_ = line.log.ledger.run if run_ is None else run_
    log = origin(run_)
    head = TreeHead(log, line.log._tree.size, line.log._tree.root())
    return replace(line.log.receipt(), tree_head=sign_tree_head(head, log, signer))


FORGERIES: list[Any] = [
    pytest.param(forged_entry, ProofError, id="another round under the same head"),
    pytest.param(lambda line: replace(line.log.receipt(), index=0), ProofError, id="another index"),
    pytest.param(lambda line: replace(line.log.receipt(), index=-1), ProofError, id="a negative index"),
    pytest.param(lambda line: replace(line.log.receipt(), proof=()), ProofError, id="no proof"),
    pytest.param(lambda line: replace(line.log.receipt(), proof=(b"short",)), ProofError, id="a malformed proof"),
    pytest.param(lambda line: replace(line.log.receipt(), proof=(*line.log.receipt().proof, bytes(32))), ProofError, id="a longer proof"),
    pytest.param(lambda line: replace(line.log.receipt(), tree_head=""), EncodingError, id="no tree head"),
    pytest.param(
        lambda line: replace(line.log.receipt(), tree_head=line.log.receipt().tree_head.replace("\n4\n", "\n5\n")),
        SignatureError,
        id="a changed size",
    ),
    pytest.param(lambda line: signed_by(line, LIAR), SignatureError, id="a head that another signed in the operator's name"),
    pytest.param(lambda line: signed_by(line, OPERATOR, run_=sha256(b"other")), ProofError, id="the operator's log of another run"),
]


@pytest.mark.parametrize(("forge", "error"), FORGERIES)
async def test_a_forged_receipt_is_refused_wherever_it_comes(
    forge: Callable[[Line], Receipt], error: type[RemoteFault], line: Line
) -> None:
    line.log.commit()
    assert "\n4\n" in line.log.receipt().tree_head
    forged = forge(line)
    await line.answers("commit-after", pack(FeedAnswer((forged,), (), 0)))
    with pytest.raises(error):
        await line.client.next_update(line.log.endpoint.key, 0, left_ms=None)
    with pytest.raises(error):
        line.client.open(pack(forged))
    included = line.log._included(1, OWN)
    assert included is not None
    await line.answers("listing", pack(Listing(forged, included)))
    with pytest.raises(error):
        await line.client.counted(1)


async def test_an_entry_that_is_no_round_is_no_commit(line: Line) -> None:
    line.log.commit()
    header = entry_of(next(iter(line.log.handed.values()))[0])
    tree = line.log._tree
    receipts = [replace(line.log.receipt(), entry=header, index=index, proof=tuple(tree.inclusion_proof(index))) for index in range(3)]
    for receipt in receipts:
        with pytest.raises((EncodingError, ProofError)):
            line.client.open(pack(receipt))
    assert any(is_no_round(line, receipt) for receipt in receipts)


def is_no_round(line: Line, receipt: Receipt) -> bool:
    """Whether a receipt is refused because of what its entry is: all else about it holds."""
    try:
        line.client.open(pack(receipt))
    except EncodingError as error:
        return "not a round of this run" in str(error)
    except ProofError:
        return False
    raise AssertionError("it was believed")


async def test_a_contribution_has_to_be_in_that_very_place_of_the_log(line: Line) -> None:
    entry = line.log.commit()
    own, other = line.log._included(1, OWN), line.log._included(1, PEERS[1].public_key)
    assert own is not None
    assert other is not None
    round_ = Included(line.log.receipt().entry, line.log.receipt().index, line.log.receipt().proof)
    assert own.index in range(entry.first, entry.first + 3)
    for false in (replace(own, index=other.index), replace(own, proof=other.proof), replace(own, entry=other.entry), round_):
        await line.answers("commit-after", pack(FeedAnswer((line.log.receipt(),), (false,), 0)))
        with pytest.raises(ProofError):
            await line.client.next_update(line.log.endpoint.key, 0, left_ms=None)
        await line.answers("listing", pack(Listing(line.log.receipt(), false)))
        with pytest.raises(ProofError):
            await line.client.counted(1)


async def test_groups_of_a_body_that_came_before_are_not_sent_again(line: Line) -> None:
    await line.answers("header", pack(HeaderAnswer(int(HandIn.SEND_BODY), 1, 700, (), there=b"\x05")))
    sent: list[int] = []

    async def body(request: bytes) -> bytes:
        sent.append(BodyPart.open(request).place)
        return pack(line.inclusion_promise())

    await line.answers("body", body)
    found = await line.client.hand_in(line.header, GROUPS)
    assert found.signed == line.inclusion_promise()
    assert sorted(sent) == [place for place in range(len(GROUPS)) if place not in (0, 2)]


async def test_members_who_cannot_stand_are_named(line: Line) -> None:
    blamed = (PEERS[0].public_key, PEERS[1].public_key)
    await line.answers("header", pack(HeaderAnswer(int(HandIn.WITHOUT), 1, 700, (), blamed)))
    assert await line.client.hand_in(line.header, GROUPS) == HandedIn(HandIn.WITHOUT, 1, None, blamed)


@pytest.mark.parametrize("answer", [b"garbage", b"\x00", b"\x84\x40\x00\x80\x60", b"\x80" * 200_000])
async def test_bytes_that_are_no_news_are_refused(answer: bytes, line: Line) -> None:
    for method, asking in (
        ("commit-after", lambda: line.client.next_update(line.log.endpoint.key, 0, left_ms=None)),
        ("listing", line_counted(line)),
    ):
        await line.answers(method, answer)
        with pytest.raises(RemoteFault):
            await asking()
    with pytest.raises(RemoteFault):
        line.client.open(answer)


def line_counted(line: Line) -> Callable[[], Awaitable[Any]]:
    return lambda: line.client.counted(1)


# Contributions and their weights.


async def test_the_own_contribution_of_a_round_is_had_later_too(line: Line) -> None:
    line.log.commit()
    for seed, peer in enumerate(PEERS[:2]):
        line.log.give(peer, 10 + seed)
    line.log.commit()
    for round_ in (1, 2):
        found = await line.client.counted(round_)
        assert found is not None
        assert found.contribution.founder == OWN
    with pytest.raises(Refused, match="not made yet"):
        await line.client.counted(3)


async def test_the_contribution_of_another_round_is_no_answer(line: Line) -> None:
    line.log.commit()
    included = line.log._included(1, OWN)
    assert included is not None
    await line.answers("listing", pack(Listing(line.log.receipt(), included)))
    with pytest.raises(EncodingError, match="another round"):
        await line.client.counted(2)


async def test_weights_are_believed_if_they_are_the_rounds(line: Line) -> None:
    entry = line.log.commit()
    weighed = await line.client.weighed(entry, line.log.endpoint.key)
    assert [one.body for one in weighed] == [one.body for one in line.log.ledger.table_at(1) or ()]
    one = weighed[0]
    for false in (
        weighed[::-1],
        weighed[:2],
        (*weighed, one),
        (replace(one, clipped=1), *weighed[1:]),
        (replace(one, cohort="x"), *weighed[1:]),
    ):
        await line.answers("weights", weighed_bytes(false))
        with pytest.raises(TableError):
            await line.client.weighed(entry, line.log.endpoint.key)
    for garbage in (b"", b"garbage", bytes(MAX_WEIGHED_BYTES + 1)):
        await line.answers("weights", garbage)
        with pytest.raises(EncodingError):
            await line.client.weighed(entry, line.log.endpoint.key)


async def test_contributions_come_in_pages_none_of_them_empty_and_no_more_than_the_round_has(line: Line) -> None:
    line.log.commit()
    proven = line.client.proven(line.log.receipt())
    whole = await line.client.contributions(proven)
    assert claims_of(line.log.training_spec, proven, whole)
    first = await line.client.contributions_page(proven)
    assert 0 < len(first.entries) < proven.round.contributions
    assert await line.client.contributions(proven, first) == whole
    for entries in ((), (*whole.entries, whole.entries[0])):
        await line.answers("contributions", pack(RoundContributions(entries, whole.proof)))
        with pytest.raises(EncodingError, match=r"without contributions|more contributions"):
            await line.client.contributions(proven)
    await line.answers("contributions", bytes(MAX_CONTRIBUTIONS_BYTES + 1))
    with pytest.raises(EncodingError):
        await line.client.contributions(proven)


# The log itself, and the manifest.


async def test_a_log_that_is_away_is_weather(line: Line) -> None:
    entry = line.log.commit()
    line.log.go_away()
    for asking in (
        line.client.hand_in(line.header, GROUPS),
        line.client.next_update(line.log.endpoint.key, 0, left_ms=None),
        line.client.next_update(line.log.endpoint.key, 0, left_ms=5),
        line.client.counted(1),
        line.client.weighed(entry, line.log.endpoint.key),
    ):
        with pytest.raises(Unreachable):
            await asking


async def test_the_manifest_that_is_served_is_the_signed_one_and_what_is_none_is_refused(line: Line) -> None:
    await serve_manifest(line.log.endpoint, line.log.signed)
    assert await fetch_manifest(line.node, line.log.endpoint.key) == line.log.signed
    await line.answers("manifest", b"garbage")
    with pytest.raises(RemoteFault):
        await fetch_manifest(line.node, line.log.endpoint.key)


async def test_the_groups_of_a_body_are_those_that_the_log_expects(line: Line) -> None:
    (header, blob), *_ = line.log.handed.values()
    line.log.handed.clear()
    line.log.rounds.clear()
    assert [len(piece) for piece in blob.pieces] == list(group_sizes("int16", line.log.num_weights))
    found = await line.client.hand_in(header, blob.pieces)
    assert found.status is HandIn.HAVE_PROMISE
    assert list(line.log.handed) == [header.contribution.digest]


async def test_a_proven_round_says_what_was_proven(line: Line) -> None:
    line.log.commit()
    proven = line.client.open(pack(line.log.receipt())).proven
    assert isinstance(proven, ProvenRound)
    assert (proven.round.contributions, proven.tree_head.size) == (3, 4)
