"""What a peer and the log say to each other: each message fits its bound, and what means nothing is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.network.log_client import (
    MAX_ANSWER_BYTES,
    MAX_CONTRIBUTIONS_BYTES,
    MAX_FEED_BYTES,
    MAX_LISTING_BYTES,
    MAX_RECEIPT_BYTES,
    BodyPart,
    FeedAnswer,
    HandIn,
    HeaderAnswer,
)
from manta_swarm.network.rpc import MAX_MESSAGE_BYTES
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import GROUP_VALUES, MAX_COHORT, MAX_ROWS
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.records import MAX_ENTRY_BYTES, MAX_HEADER_BYTES, MAX_SIGNED_BYTES, Included, InclusionPromise, Listing, Receipt
from manta_swarm.protocol.rewards import MAX_RANGE_HASHES, RoundContributions
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.table import MAX_WEIGHED_BYTES, Weighed, weighed_bytes

OPERATOR = Identity(b"\x01" * 32)
DIGEST = sha256(b"any")
INCLUSION_PROMISE = Signed.sign(InclusionPromise(DIGEST, MAX_ROUND, DIGEST), OPERATOR)
WEIGHED = Weighed(DIGEST, MAX_ROUND, 63 * "c", 2**16 - 1, 2**16 - 1)


def largest_receipt() -> Receipt:
    """Return a receipt of a round that is as long as one can be: of the last entry that a log has a place for."""
    log = origin(DIGEST)
    note = sign_tree_head(TreeHead(log, MAX_SIZE, DIGEST), log, OPERATOR)
    return Receipt(bytes(MAX_SIGNED_BYTES), MAX_SIZE - 1, (DIGEST,) * MAX_SIZE.bit_length(), note)


def largest_included() -> Included:
    return Included(bytes(MAX_ENTRY_BYTES), MAX_SIZE - 1, (DIGEST,) * MAX_SIZE.bit_length())


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**16 - 1), st.binary(max_size=100))
def test_a_part_of_a_body_comes_out_as_it_went_in(contribution: bytes, place: int, data: bytes) -> None:
    part = BodyPart.open(BodyPart(contribution, place, data).pack())
    assert (part.contribution, part.place, bytes(part.data)) == (contribution, place, data)
    assert BodyPart(contribution, place, memoryview(data)).pack() == BodyPart(contribution, place, data).pack()


@given(st.binary(max_size=33))
def test_what_is_too_short_is_no_part_of_a_body(message: bytes) -> None:
    with pytest.raises(EncodingError, match="without the head"):
        BodyPart.open(message)


def test_a_group_of_a_body_fits_a_message_with_its_head() -> None:
    assert len(BodyPart(DIGEST, 2**16 - 1, bytes(4 * GROUP_VALUES)).pack()) < MAX_MESSAGE_BYTES


def test_the_largest_messages_fit_their_bounds() -> None:
    receipt, included = largest_receipt(), largest_included()
    assert len(pack(receipt)) <= MAX_RECEIPT_BYTES
    assert len(pack(Listing(receipt, included))) <= MAX_LISTING_BYTES
    assert len(pack(FeedAnswer((receipt,), (included,), 2**40))) <= MAX_FEED_BYTES
    assert len(pack(HeaderAnswer(int(HandIn.HAVE_PROMISE), MAX_ROUND, 2**40, (INCLUSION_PROMISE,)))) <= MAX_ANSWER_BYTES
    assert len(pack(INCLUSION_PROMISE)) <= MAX_ANSWER_BYTES
    assert len(weighed_bytes([WEIGHED] * MAX_ROWS)) <= MAX_WEIGHED_BYTES
    most = RoundContributions((bytes(1000),) * 1047 + (bytes(MAX_ENTRY_BYTES - 1047),), (DIGEST,) * MAX_RANGE_HASHES)
    assert len(pack(most)) <= MAX_CONTRIBUTIONS_BYTES
    assert max(MAX_HEADER_BYTES, MAX_FEED_BYTES, MAX_WEIGHED_BYTES, MAX_CONTRIBUTIONS_BYTES) < MAX_MESSAGE_BYTES


@pytest.mark.parametrize("status", list(HandIn))
def test_an_answer_to_a_header_has_an_inclusion_promise_if_that_is_what_it_says(status: HandIn) -> None:
    blamed = (DIGEST,) if status is HandIn.WITHOUT else ()
    for inclusion_promise in ((), (INCLUSION_PROMISE,), (INCLUSION_PROMISE, INCLUSION_PROMISE)):
        if len(inclusion_promise) == (status is HandIn.HAVE_PROMISE):
            answer = HeaderAnswer(int(status), 1, 1, inclusion_promise, blamed)
            assert unpack(HeaderAnswer, pack(answer), max_bytes=MAX_ANSWER_BYTES) == answer
        else:
            with pytest.raises(ValueError, match="without its meaning"):
                HeaderAnswer(int(status), 1, 1, inclusion_promise, blamed)


@pytest.mark.parametrize("status", list(HandIn))
def test_an_answer_to_a_header_blames_somebody_if_that_is_what_it_says(status: HandIn) -> None:
    inclusion_promise = (INCLUSION_PROMISE,) if status is HandIn.HAVE_PROMISE else ()
    for count in (0, 1, MAX_COHORT, MAX_COHORT + 1):
        if bool(count) == (status is HandIn.WITHOUT) and count <= MAX_COHORT:
            assert len(pack(HeaderAnswer(int(status), MAX_ROUND, 2**40, inclusion_promise, (DIGEST,) * count))) <= MAX_ANSWER_BYTES
        else:
            with pytest.raises(ValueError, match="blames"):
                HeaderAnswer(int(status), 1, 1, inclusion_promise, (DIGEST,) * count)


def test_groups_that_are_there_are_said_of_a_body_that_is_asked_for_alone() -> None:
    answer = HeaderAnswer(int(HandIn.SEND_BODY), 1, 1, (), there=b"\x05\x01")
    assert [place for place in range(40) if answer.has(place)] == [0, 2, 8]
    with pytest.raises(ValueError, match="does not ask for"):
        HeaderAnswer(int(HandIn.LATER), 1, 1, (), there=b"\x01")
    with pytest.raises(ValueError, match="too many"):
        HeaderAnswer(int(HandIn.SEND_BODY), 1, 1, (), there=bytes(2**20))


@pytest.mark.parametrize("status", [-1, 5, 2**40])
def test_an_answer_that_nobody_knows_is_none(status: int) -> None:
    with pytest.raises(ValueError, match="without its meaning"):
        HeaderAnswer(status, 1, 1, ())


def test_news_are_of_one_commit_at_most_and_a_contribution_comes_with_its_commit() -> None:
    receipt, included = largest_receipt(), largest_included()
    for receipts, contributions, left_ms in (
        ((receipt, receipt), (), 0),
        ((), (included,), 0),
        ((receipt,), (included, included), 0),
        ((), (), -1),
        ((), (), 2**40 + 1),
    ):
        with pytest.raises(ValueError, match="feed"):
            FeedAnswer(receipts, contributions, left_ms)
    for feed in (FeedAnswer((), (), 0), FeedAnswer((receipt,), (), 5), FeedAnswer((receipt,), (included,), 5)):
        assert unpack(FeedAnswer, pack(feed), max_bytes=MAX_FEED_BYTES) == feed
