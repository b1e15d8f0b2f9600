"""A wrong group of a mean is proven, and nothing else is: neither by a true one, nor by a proof with anything changed."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.codec.coding import body_groups, encode
from manta_swarm.network.blobs import ProvenPiece
from manta_swarm.network.wrong_group import RightGroup, WrongGroup, WrongMean
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, ProofError, RemoteFault, SignatureError
from manta_swarm.protocol.records import commit_digest, entry_of
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.table import weighed_bytes
from tests.network.committed import NUM_VALUES, OPERATOR, ROUND, Committed, commit, receipt_of, shape_of

CASES: dict[str, dict[str, Any]] = {
    "sparse": {"ages": [0, 1, 4, 2]},
    "dense": {"ages": [0, 0], "codec": "int8"},
    "parts": {"ages": [0, 3, 1], "cohorts": ["whole", "one", "four"]},
    "the first round": {"ages": [0, 0], "round_": 1},
    "the second round": {"ages": [1, 0], "round_": 2},
}
WRONG = {262_144 + 77: 0.5}  # in group 1


@cache
def case(name: str, *, is_wrong: bool) -> Committed:
    return commit(**CASES[name], wrong=WRONG if is_wrong else None)


def true_proof() -> WrongGroup:
    return case("sparse", is_wrong=True).proof(1)


def found_in(data: bytes) -> WrongMean:
    return unpack(WrongGroup, data, max_bytes=2**28).check(shape_of)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_group_is_proven_to_anybody_who_has_the_file(name: str) -> None:
    committed = case(name, is_wrong=True)
    found = found_in(pack(committed.proof(1)))
    commit_of = commit_digest(entry_of(committed.entry))
    assert found == WrongMean(committed.signed.run, (OPERATOR.public_key,), committed.entry.round, commit_of, 1, 1)


@pytest.mark.parametrize("name", CASES)
def test_a_true_group_never_is(name: str) -> None:
    right = case(name, is_wrong=False)
    for place in range(3):
        with pytest.raises(RightGroup, match="is what its table comes to"):
            right.proof(place).check(shape_of)
    wrong = case(name, is_wrong=True)
    for place in (0, 2):
        with pytest.raises(RightGroup):
            wrong.proof(place).check(shape_of)


def test_the_least_bit_is_enough() -> None:
    right = case("sparse", is_wrong=False)
    value = right.table_mean.mean.copy().view("<u4")
    value[5] ^= 1
    lied = commit(**CASES["sparse"], wrong={5: float(value.view("<f4")[5])})
    assert lied.proof(0).check(shape_of).differs == 1


@given(data=st.data())
@settings(max_examples=60)
def test_a_proof_with_any_byte_changed_is_refused(data: st.DataObject) -> None:
    packed = bytearray(pack(true_proof()))
    # Most of a proof is groups of bodies; its other parts are looked at as often.
    place = data.draw(st.one_of(st.integers(0, len(packed) - 1), st.integers(0, 4000)))
    packed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RemoteFault):
        found_in(bytes(packed))


def test_a_cut_or_longer_proof_is_refused() -> None:
    packed = pack(true_proof())
    for wrong in (b"", packed[:-1], packed + b"\0", packed[: len(packed) // 2]):
        with pytest.raises(EncodingError):
            found_in(wrong)


def test_parts_that_do_not_belong_together_prove_nothing() -> None:
    right, wrong = case("sparse", is_wrong=False), case("sparse", is_wrong=True)
    proof, other = right.proof(0), wrong.proof(1)
    lies = {
        "the mean's group of another round": replace(proof, mean=wrong.proof(0).mean),
        "another group of the mean": replace(proof, mean=right.proof(1).mean),
        "another group of a body": replace(proof, bodies=(right.proof(1).bodies[0], *proof.bodies[1:])),
        "bodies in another order": replace(proof, bodies=proof.bodies[::-1]),
        "a body less": replace(proof, bodies=proof.bodies[:-1]),
        "all of another place": replace(proof, place=1),
        "no such place": replace(proof, place=3),
        "contributions less": replace(proof, weights=weighed_bytes(right.weighed[:-1])),
        "other weights": replace(proof, weights=weighed_bytes([replace(right.weighed[0], clipped=1), *right.weighed[1:]])),
        "no rounds before": replace(proof, before=()),
        "a round before missing": replace(proof, before=proof.before[1:]),
        "another round before": replace(proof, before=(entry_of(replace(right.before[0], min_exponent=3)), *proof.before[1:])),
        "what is no round": replace(proof, before=(b"\x80", *proof.before[1:])),
        "another receipt": replace(proof, receipt=other.receipt),
    }
    for what, lie in lies.items():
        with pytest.raises(RemoteFault) as raised:
            lie.check(shape_of)
        assert not isinstance(raised.value, RightGroup), what


def test_a_body_that_another_made_of_the_same_values_is_no_body_of_the_table() -> None:
    right = case("sparse", is_wrong=False)
    values = right.table_mean.mean
    groups = body_groups("topk-256-4", encode("topk-256-4", values, -30), NUM_VALUES)
    proof = right.proof(0)
    forged = ProvenPiece(bytes(groups[0]), proof.bodies[0].proof)
    with pytest.raises(ProofError, match="another root"):
        replace(proof, bodies=(forged, *proof.bodies[1:])).check(shape_of)


def test_only_the_operator_of_the_manifest_can_be_found_out() -> None:
    stranger = Identity(sha256(b"stranger"))
    with pytest.raises(SignatureError):
        commit(**CASES["sparse"], wrong=WRONG, signer=stranger).proof(1).check(shape_of)
    lied = case("sparse", is_wrong=True)
    with pytest.raises(RemoteFault):
        replace(lied.proof(1), receipt=receipt_of(replace(lied.entry, run=sha256(b"another")))).check(shape_of)


def test_a_round_before_the_first_there_is_none() -> None:
    first = case("the first round", is_wrong=True)
    with pytest.raises(ProofError, match="follows"):
        replace(first.proof(1), before=(entry_of(first.entry),)).check(shape_of)
    with pytest.raises(ValueError, match="too many"):
        replace(first.proof(1), before=(b"",) * 6)
    assert case("sparse", is_wrong=True).entry.round == ROUND
