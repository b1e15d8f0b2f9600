"""What a founder looks at where audits hold it to what its members' claims say: who gives something else than it claims is left out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.protocol.records import ClaimStep
from manta_swarm.protocol.signed import Signed
from tests.peer.cohort.test_cohort import convened
from tests.peer.cohorts import CohortPeer, all_of, band_with, vector_of

pytestmark = pytest.mark.virtual_time

COMMON, OTHER = vector_of(0, 100), vector_of(1, 100)
LEARNT = vector_digest(COMMON)


def members(gathered: object) -> list[bytes]:
    return [claim.open().key for claim in gathered.claims]  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_audited", [True, False], ids=["audited", "unaudited"])
async def test_what_a_member_gives_is_what_its_claim_names(is_audited: bool) -> None:
    async with band_with(is_audited=is_audited) as band:
        first, honest, liar = await convened(band, 3)
        gathered, accepted, refused = await all_of(first.found(), honest.hand_over(), liar.hand_over(names=LEARNT))
        assert members(gathered) == [first.key, honest.key]
        assert accepted is not None
        assert refused is None


@pytest.mark.parametrize(
    ("given", "changes", "is_in"),
    [
        (COMMON, {}, True),
        (COMMON, {"names": vector_digest(OTHER)}, False),  # it gives something else than it claims
        (OTHER, {}, False),  # it adds the same residual, and gives something else
        (OTHER, {"residual": b"s" * 32}, True),  # what it had left nobody else has
    ],
)
async def test_of_several_steps_whoever_adds_the_same_residual_gives_the_same(
    given: object, changes: dict[str, bytes], is_in: bool
) -> None:
    async with band_with(local_steps=2, codec="topk-256-4", is_audited=True) as band:
        first, honest, other = await convened(band, 3)
        claimed = {"residual": b"r" * 32}
        gathered, accepted, found = await all_of(
            first.found(COMMON, with_mean=True, **claimed),
            honest.hand_over(COMMON, **claimed),
            other.hand_over(given, **{**claimed, **changes}),
        )
        assert accepted is not None
        assert (found is not None) is is_in
        assert members(gathered) == [peer.key for peer in (first, honest, other) if is_in or peer is not other]


# What a member gives in a step carries its signed claim up to there.

STEPS = 4


async def stepped(peers: list[CohortPeer], *steps: int) -> None:
    """Give in these steps."""
    for step in steps:
        await all_of(*(peer.average(step) for peer in peers))


@pytest.mark.parametrize("is_audited", [True, False], ids=["audited", "unaudited"])
async def test_who_dies_after_two_of_four_steps_is_listed_with_two_steps_where_these_are_computed_again(is_audited: bool) -> None:
    async with band_with(local_steps=STEPS, is_audited=is_audited) as band:
        peers = first, second, lost = await convened(band, 3)
        await stepped(peers, 0, 1)
        lost.die()
        await stepped([first, second], 2, 3)
        gathered, accepted = await all_of(first.found(COMMON), second.hand_over(COMMON))
        assert members(gathered) == [first.key, second.key]
        dropped = [claim.open() for claim in gathered.dropped]
        assert [(claim.key, list(claim.steps)) for claim in dropped] == ([(lost.key, lost.steps[:2])] if is_audited else [])
        assert len(lost.steps) == 2
        contribution = accepted.contribution.open()
        if is_audited:
            assert (contribution.included, [step.included for step in contribution.steps]) == (0b011, [0b111, 0b111, 0b011, 0b011])
        else:
            assert (contribution.included, [step.included for step in contribution.steps]) == (0b11, [0b11] * 4)


async def test_a_founder_whose_members_have_all_died_hands_in_what_they_gave() -> None:
    async with band_with(local_steps=STEPS, is_audited=True) as band:
        peers = first, *others = await convened(band, 3)
        await stepped(peers, 0)
        for peer in others:
            peer.die()
        await stepped([first], 1, 2, 3)
        assert first.is_alone
        assert not first.cohort_session.hands_in_alone
        gathered = await first.found(COMMON)
        assert members(gathered) == [first.key]
        assert [claim.open().key for claim in gathered.dropped] == [peer.key for peer in others]
        with pytest.raises(ValueError, match=r"in the mean of a step"):
            await gathered.without(frozenset({others[0].key}))


async def test_whom_the_log_does_not_take_at_the_end_stays_listed_up_to_its_last_step() -> None:
    async with band_with(local_steps=STEPS, is_audited=True) as band:
        peers = first, *_, last = await convened(band, 3)
        await stepped(peers, 0, 1, 2, 3)
        gathered, *_ = await all_of(first.found(COMMON, leave_out=[last]), *(peer.hand_over(COMMON) for peer in peers[1:]))
        assert members(gathered) == [peer.key for peer in peers[:2]]
        assert [claim.open().key for claim in gathered.dropped] == [last.key]
        assert list(gathered.dropped[0].open().steps) == last.steps


def steps_with(peer: CohortPeer, **changes: Any) -> dict[str, Any]:
    """Return the changes of a claim whose last step is another one than was given."""
    steps = (*peer.steps[:-1], replace(peer.steps[-1], **changes))
    return {"steps": steps, "work": (sum(step.count for step in steps),)}


# What a log refuses of a claim, whoever lists it.
FAULTS: dict[str, Callable[[CohortPeer], dict[str, Any]]] = {
    "shards that do not travel": lambda _: {"shards": 3},
    "a residual in a run without": lambda _: {"given": bytes(32), "residual": b"r" * 32},
    "another architecture": lambda peer: {"work": (sum(step.count for step in peer.steps), 0)},
    "another view": lambda _: {"partner": b"p" * 32},
}
LIES: dict[str, Callable[[CohortPeer], dict[str, Any]]] = {
    **FAULTS,
    "another vector": lambda peer: steps_with(peer, vector=LEARNT),
    "too many samples": lambda peer: steps_with(peer, last=1000),
    "another base": lambda peer: {"base": b"b" * 32},
    "another's": lambda peer: {"key": peer.band.cohort_peers[0].key},
    "another founder": lambda peer: {"founder": peer.key},
    "another cohort": lambda peer: {"cohort": "there"},
    "a step less": lambda peer: {"steps": tuple(peer.steps[:1]), "work": (1,)},
    "another step before": lambda peer: {"steps": (replace(peer.steps[0], vector=LEARNT), peer.steps[1])},
    "a step before without its microbatches": lambda peer: {
        "steps": (ClaimStep(0, 3, (1, 2), peer.steps[0].vector), ClaimStep(4, 4, (), peer.steps[1].vector)),
        "work": (3,),
    },
}


@pytest.mark.parametrize("is_audited", [True, False], ids=["audited", "unaudited"])
@pytest.mark.parametrize("lie", LIES)
async def test_a_member_whose_claim_does_not_fit_what_it_gives_is_left_out_and_nobody_else(lie: str, is_audited: bool) -> None:
    async with band_with(local_steps=STEPS, is_audited=is_audited) as band:
        peers = first, honest, liar = await convened(band, 3)
        await stepped(peers, 0)
        given = vector_of(liar.number, 1)
        liar.so_far(1, given)
        false = Signed.sign(replace(liar.so_far(1, given).unchecked(), **LIES[lie](liar)), liar.identity)
        means = await all_of(first.average(1), honest.average(1), liar.cohort_session.average(1, given, false))
        assert means[2] is given
        assert liar.is_alone
        assert means[0].tobytes() == means[1].tobytes() != given.tobytes()
        await stepped([first, honest], 2, 3)
        gathered, accepted = await all_of(first.found(COMMON), honest.hand_over(COMMON))
        assert accepted is not None
        assert members(gathered) == [first.key, honest.key]
        assert [list(claim.open().steps) for claim in gathered.dropped] == ([liar.steps[:1]] if is_audited else [])


LIES_AT_THE_END: dict[str, Callable[[CohortPeer], dict[str, Any]]] = {
    **{name: fault for name, fault in FAULTS.items() if "residual" not in name},
    "a residual in a run without": lambda _: {"residual": b"r" * 32},
    "another vector of a step": lambda peer: {"steps": (*peer.steps[:-1], replace(peer.steps[-1], vector=LEARNT))},
    "nothing that it gives": lambda _: {"names": b""},
}


@pytest.mark.parametrize("lie", LIES_AT_THE_END)
async def test_a_claim_at_the_end_that_a_log_refuses_or_that_says_else_of_a_step_costs_its_member_what_it_gave_at_the_end_alone(
    lie: str,
) -> None:
    async with band_with(local_steps=STEPS, is_audited=True) as band:
        peers = first, honest, liar = await convened(band, 3)
        await stepped(peers, 0, 1, 2, 3)
        gathered, accepted, refused = await all_of(
            first.found(COMMON), honest.hand_over(COMMON), liar.hand_over(COMMON, **LIES_AT_THE_END[lie](liar))
        )
        assert accepted is not None
        assert refused is None
        assert members(gathered) == [first.key, honest.key]
        assert [list(claim.open().steps) for claim in gathered.dropped] == [liar.steps]


@pytest.mark.parametrize("when", ["left out", "no answer"])
async def test_whoever_gave_in_a_step_without_an_answer_may_be_listed_and_whoever_was_left_out_of_it_not(when: str) -> None:
    async with band_with(local_steps=STEPS, is_audited=True) as band:
        first, honest, other = await convened(band, 3)
        if when == "no answer":
            first.die()
            await other.average(0)
        else:
            await all_of(first.average(0), honest.average(0), other.average(0, cohort="there"))
        assert other.is_alone
        assert other.cohort_session.may_be_listed is (when == "no answer")
        assert honest.cohort_session.may_be_listed is (when == "left out")


@pytest.mark.parametrize("is_audited", [True, False], ids=["audited", "unaudited"])
async def test_of_one_dense_step_members_get_the_mean_where_they_may_have_to_bring_it(is_audited: bool) -> None:
    async with band_with(is_audited=is_audited) as band:
        founder, *others = await convened(band, 3)
        gathered, *accepted = await all_of(founder.found(with_mean=True), *(peer.hand_over() for peer in others))
        assert [each.mean is not None for each in accepted] == [is_audited] * 2
        assert all(each.mean.tobytes() == gathered.mean.tobytes() for each in accepted if each.mean is not None)
