"""What was verified once is remembered, and only that."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import manta_swarm.protocol.signed
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.records import Claim, Contribution, StepMean
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verified import Verified
from tests.claim_steps import steps_of

ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
RUN = sha256(b"run")


def claim_of(number: int) -> Signed[Claim]:
    key = ALICE.public_key
    return Signed.sign(Claim(RUN, number, RUN, key, key, key, "here", steps_of((1,), RUN, key), (1,), RUN, b"", 1), ALICE)


def contribution_of(number: int) -> Signed[Contribution]:
    return Signed.sign(Contribution(RUN, number, RUN, ALICE.public_key, (RUN,), 1, (StepMean(RUN, 1),), RUN, b""), ALICE)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the signatures that were checked, one after the other."""
    kinds: list[str] = []
    verify = manta_swarm.protocol.signed.verify

    def counted(kind: str, public_key: bytes, payload: bytes, signature: bytes) -> None:
        kinds.append(kind)
        verify(kind, public_key, payload, signature)

    monkeypatch.setattr(manta_swarm.protocol.signed, "verify", counted)
    return kinds


def test_a_record_is_verified_once(checks: list[str]) -> None:
    verified = Verified()
    claim, contribution = claim_of(1), contribution_of(1)
    opened = [(verified.claim(claim), verified.contribution(contribution)) for _ in range(3)]
    assert checks == ["claim", "contribution"]
    assert opened == [(claim.open(), contribution.open())] * 3


def test_another_signature_of_the_same_payload_is_verified_for_itself(checks: list[str]) -> None:
    verified = Verified()
    signed = claim_of(1)
    verified.claim(signed)
    for forged in (replace(signed, signature=bytes(64)), Signed(Claim, signed.payload, BOB.sign("claim", signed.payload))):
        for _ in range(2):
            with pytest.raises(SignatureError):
                verified.claim(forged)
    verified.claim(signed)
    assert checks == ["claim"] * 5


def test_a_remembered_claim_is_no_contribution_and_the_other_way_round() -> None:
    verified = Verified()
    claim, contribution = claim_of(1), contribution_of(1)
    verified.claim(claim)
    verified.contribution(contribution)
    as_contribution = Signed(Contribution, claim.payload, claim.signature)
    assert pack(as_contribution) == pack(claim)  # the same bytes, and so the same digest
    with pytest.raises(EncodingError):
        verified.contribution(as_contribution)
    with pytest.raises(EncodingError):
        verified.claim(Signed(Claim, contribution.payload, contribution.signature))
    assert verified.claim(claim) == claim.open()


def test_as_many_of_the_newest_are_remembered_as_so_many_bytes_have(checks: list[str]) -> None:
    verified = Verified(3 * len(claim_of(1).payload))
    signed = [claim_of(number) for number in range(1, 6)]
    for one in signed:
        verified.claim(one)
    checks.clear()
    for one in signed[2:]:
        verified.claim(one)
    assert checks == []
    verified.claim(signed[0])
    assert checks == ["claim"]
    verified.claim(signed[4])
    assert checks == ["claim"]
    verified.claim(signed[2])  # the oldest made room
    assert checks == ["claim"] * 2


def test_several_threads_may_ask_at_once() -> None:
    verified = Verified(3 * len(claim_of(1).payload))  # so that all of them put and drop all the time
    signed = [claim_of(number) for number in range(1, 8)] * 20
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(verified.claim, signed))
    assert [claim.round for claim in opened] == [number for _ in range(20) for number in range(1, 8)]
