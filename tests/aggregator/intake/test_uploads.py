"""Which groups of a body are said to be there: just those that came, and of a whole body all but one, whose answer is the promise."""

from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.aggregator.intake.bodies import Uploads
from manta_swarm.network.log_client import BodyPart, HandIn, HeaderAnswer
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.records import Claim, Contribution, Header
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.table import Weighing

KEY, DIGEST = b"\x01" * 32, b"\x02" * 32
HEADER = Header(Signed(Contribution, b"", b""), (Signed(Claim, b"", b""),))
LISTED = Listed(
    contribution=DIGEST,
    founder=KEY,
    body=DIGEST,
    weighing=Weighing(0, 0, 1),
    round=1,
    cohort="here",
    keys=(KEY,),
    payouts=(KEY,),
    claims=(DIGEST,),
    counted=1,
    microbatches_ms=(1,),
    samples=(1,),
    weights=(1,),
    proven=(True,),
)


@given(st.integers(1, 40), st.data())
def test_groups_that_came_are_there_and_no_others(count: int, data: st.DataObject) -> None:
    came = data.draw(st.sets(st.integers(0, count - 1)))
    uploads = Uploads([1] * count, 8)
    uploads.place(DIGEST, HEADER, LISTED, bringer=KEY, is_awaited=True, now=0)
    for place in came:
        uploads.part(KEY, KEY, BodyPart(DIGEST, place, b"x"), 0)
    upload = uploads.get(DIGEST)
    assert upload is not None
    answer = HeaderAnswer(int(HandIn.SEND_BODY), 1, 0, (), there=upload.there)
    is_whole = len(came) == count
    expected = came - {count - 1} if is_whole else came
    assert {place for place in range(count + 20) if answer.has(place)} == expected
    stays = 0 < len(came) < count
    assert uploads.forget(DIGEST) == (KEY if stays else None)
    uploads.place(DIGEST, HEADER, LISTED, bringer=KEY, is_awaited=False, now=0)
    again = uploads.get(DIGEST)
    assert again is not None
    assert (again.there == upload.there) == (stays or not upload.there)
    assert uploads.forget(DIGEST) is None  # no more of it came
